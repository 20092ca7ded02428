"""Modes: particles that lie apart, and the parts of the space that belong to them.

Moves seldom cross between modes that are well apart, so particles show them: over some
sweeps most of them stay on their side of a gap. `gap` looks for the direction in which
particles differ most, compared with how far they move, and for a gap there. Cuts part the
whole space, one after the other: every position belongs to one mode.

    >>> import numpy as np
    >>> from steingp import modes
    >>> rng = np.random.default_rng(0)
    >>> centres = np.where(np.arange(20) < 5, -4.0, 4.0)
    >>> sweeps = rng.normal(size=(10, 20, 2)) + np.stack([centres, 0 * centres], axis=1)
    >>> found = modes.ONE.cut(0, modes.gap(sweeps))
    >>> found.num_modes, found.of(np.array([[-3.0, 0.0], [5.0, 1.0], [2.0, 0.0]])).tolist()
    (2, [0, 1, 1])
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import eigh, solve_triangular

from steingp.flights import MOST_WALLS
from steingp.moves import shrunk_factor

GAP = 3.5
"""Between neighbours, in sds of how far a particle moves, at which they are parted."""
MOST_MODES = MOST_WALLS + 1


class Gap(NamedTuple):
    """A plane between particles: direction'x = edge."""

    direction: Float[np.ndarray, " d"]
    edge: float


class _Cut(NamedTuple):
    """Positions with direction'x > edge belong to `above`, others to `below`."""

    direction: Float[np.ndarray, " d"]
    edge: float
    below: "_Cut | int"
    above: "_Cut | int"


class Modes(NamedTuple):
    """A partition of the space into modes 0, 1, ..."""

    tree: "_Cut | int"
    num_modes: int

    def of(self, positions: Float[np.ndarray, "*S d"]) -> Int[np.ndarray, "*S"]:
        """The mode of each position.

        Example:
            >>> import numpy as np
            >>> from steingp import modes
            >>> modes.Modes(0, 1).of(np.zeros((2, 3))).tolist()
            [0, 0]
        """
        return _mode_of(self.tree, np.asarray(positions))

    def walls(self, mode: int) -> Float[np.ndarray, "W d+1"] | None:
        """What encloses a mode: wall[:d]'x <= wall[d] for every row.

        None where a mode is made of several parts, or the whole space.
        """
        paths = list(_paths(self.tree, mode))
        if len(paths) != 1 or not paths[0]:
            return None
        return np.stack(paths[0])

    def cut(self, mode: int, gap: Gap) -> "Modes":
        """The partition in which a mode is cut in two: below the gap, and a new one above.

        Example:
            >>> import numpy as np
            >>> from steingp import modes
            >>> modes.ONE.cut(0, modes.Gap(np.array([1.0]), 0.0)).num_modes
            2
        """
        new = _Cut(gap.direction, gap.edge, mode, self.num_modes)
        return Modes(_replaced(self.tree, mode, new), self.num_modes + 1)

    def merged(self, mode: int, into: int) -> "Modes":
        """The partition in which one mode is part of another; later ones move up.

        Example:
            >>> import numpy as np
            >>> from steingp import modes
            >>> two = modes.ONE.cut(0, modes.Gap(np.array([1.0]), 0.0))
            >>> two.merged(1, 0).of(np.array([[-1.0], [1.0]])).tolist()
            [0, 0]
        """
        names = np.arange(self.num_modes)
        names[mode] = into
        names = names - (names > mode)
        return Modes(_renamed(self.tree, names), self.num_modes - 1)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The tree, cut by cut, as arrays; `from_arrays` reads them."""
        rows: list[list[float]] = []

        def write(tree: "_Cut | int") -> int:
            if isinstance(tree, _Cut):
                row = [0.0, 0.0, tree.edge, *tree.direction]
                rows.append(row)
                number = len(rows)
                row[0], row[1] = write(tree.below), write(tree.above)
                return number
            return -int(tree)  # a mode; cuts are numbered from 1

        top = write(self.tree)
        table = np.array(rows) if rows else np.zeros((0, 3))
        return {
            "top": np.asarray(top),
            "cuts": table,
            "num": np.asarray(self.num_modes),
        }

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray]) -> "Modes":
        """What `to_arrays` wrote.

        Example:
            >>> from steingp.modes import Modes
            >>> Modes.from_arrays(Modes(0, 1).to_arrays())
            Modes(tree=0, num_modes=1)
        """
        table = np.asarray(arrays["cuts"])

        def read(number: int) -> "_Cut | int":
            if number <= 0:
                return -number
            below, above, edge, *direction = table[number - 1]
            return _Cut(
                np.array(direction), float(edge), read(int(below)), read(int(above))
            )

        return Modes(read(int(arrays["top"])), int(arrays["num"]))


ONE = Modes(0, 1)
"""The whole space."""


def gap(sweeps: Float[np.ndarray, "sweeps J d"]) -> Gap | None:
    """A gap between particles, or None where none is wide enough.

    It is between the mean positions of the calmer three quarters of the particles: one
    that crosses has the width of the gap, and stands nowhere. If there is none it may be
    that the few of a wide mode were among the others, so all are looked at.

    Example:
        >>> import numpy as np
        >>> from steingp import modes
        >>> modes.gap(np.random.default_rng(0).normal(size=(10, 20, 3))) is None
        True
    """
    num, J, d = sweeps.shape
    if J < 4 or num < 2:
        return None
    scale = np.maximum(sweeps.reshape(-1, d).std(axis=0), np.finfo(float).tiny)
    steps = sweeps - sweeps.mean(axis=0)
    restless = np.sum(np.mean((steps / scale) ** 2, axis=0), axis=1)
    calm = restless <= np.quantile(restless, 0.75)
    for some in (calm, np.ones(J, bool)):
        direction, low, high = _widest(sweeps[:, some], scale)
        if high - low >= GAP:
            break
    else:
        return None
    # cut where it is emptiest, of all draws: the restless ones have a place as well
    every = np.sort((sweeps @ direction).ravel())
    between = every[(every > low) & (every < high)]
    ends = np.concatenate([[low], between, [high]])
    emptiest = int(np.argmax(np.diff(ends)))
    return Gap(direction, float(0.5 * (ends[emptiest] + ends[emptiest + 1])))


def _widest(
    sweeps: Float[np.ndarray, "sweeps J d"], scale: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], float, float]:
    """The direction in which particles differ most, in sds of how far they move, and
    where two neighbours there are widest apart."""
    num, J, d = sweeps.shape
    places = sweeps.mean(axis=0)
    steps = (sweeps - places).reshape(-1, d)
    freedom = (num - 1) * J
    within = steps.T @ steps / freedom
    # few steps do not tell all directions: their correlations count for less
    share = min(1.0, freedom / (10.0 * d))
    within = share * within + (1.0 - share) * np.diag(np.diagonal(within))
    within = within + np.diag(1e-10 * scale**2)
    apart = np.atleast_2d(np.cov(places.T))
    _, vectors = eigh(apart, within, subset_by_index=(d - 1, d - 1))
    direction = vectors[:, 0]  # in which `within` is 1
    along = np.sort(places @ direction)
    widest = int(np.argmax(np.diff(along)))
    return direction, float(along[widest]), float(along[widest + 1])


def outside(
    positions: Float[np.ndarray, "S d"], parts: list[Float[np.ndarray, "_ d"]]
) -> Bool[np.ndarray, " S"]:
    """Which positions lie far from every part's draws.

    Far is half as far again from a part's mean as any of its draws, in its own metric.

    Example:
        >>> import numpy as np
        >>> from steingp import modes
        >>> draws = np.random.default_rng(0).normal(size=(200, 2))
        >>> modes.outside(np.array([[0.0, 1.0], [9.0, 0.0]]), [draws]).tolist()
        [False, True]
    """
    far = np.ones(len(positions), bool)
    for draws in parts:
        factor = shrunk_factor(draws)

        def distance(z: np.ndarray, draws=draws, factor=factor) -> np.ndarray:
            white = solve_triangular(factor, (z - draws.mean(axis=0)).T, lower=True)
            return np.sqrt(np.sum(white**2, axis=0))

        far &= distance(positions) > 1.5 * distance(draws).max()
    return far


def _paths(tree: "_Cut | int", mode: int) -> Iterator[list[np.ndarray]]:
    """The walls on the way to every part of a mode."""
    if not isinstance(tree, _Cut):
        if tree == mode:
            yield []
        return
    wall = np.append(tree.direction, tree.edge)
    for path in _paths(tree.below, mode):
        yield [wall, *path]
    for path in _paths(tree.above, mode):
        yield [-wall, *path]


def _mode_of(tree: "_Cut | int", positions: np.ndarray) -> np.ndarray:
    if not isinstance(tree, _Cut):
        return np.full(positions.shape[:-1], tree)
    return np.where(
        positions @ tree.direction > tree.edge,
        _mode_of(tree.above, positions),
        _mode_of(tree.below, positions),
    )


def _replaced(tree: "_Cut | int", mode: int, new: _Cut) -> "_Cut | int":
    if not isinstance(tree, _Cut):
        return new if tree == mode else tree
    return tree._replace(
        below=_replaced(tree.below, mode, new), above=_replaced(tree.above, mode, new)
    )


def _renamed(tree: "_Cut | int", names: np.ndarray) -> "_Cut | int":
    if not isinstance(tree, _Cut):
        return int(names[tree])
    return tree._replace(
        below=_renamed(tree.below, names), above=_renamed(tree.above, names)
    )
