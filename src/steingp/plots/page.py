"""One figure that suits a posterior, made of the others."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from steingp.plots.columns import columns_of
from steingp.plots.hyperparameters import marginals, pairs, relevance
from steingp.plots.predictions import maps, predictive_band
from steingp.plots.runs import panel_names, traces
from steingp.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 9.5


class _Section(NamedTuple):
    """A strip of the page: its panels, and what draws into them."""

    number: int
    across: int
    row_height: float
    draw: Callable[[Any], Any]

    @property
    def rows(self) -> int:
        return -(-self.number // self.across)


def overview(posterior: Posterior) -> "Figure":
    """Predictions, hyperparameters one by one and in pairs, and the run, on one page.

    Predictions are a band for one input column, maps for two; for more, the relevance of
    each column. Pairs are of the first four hyperparameters. `posterior.plot()` is the
    same.

    Args:
        posterior: any.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> len(plots.overview(posterior).axes)  # a band, 3 marginals, 3 pairs, 3 paths
        10
    """
    import matplotlib.pyplot as plt

    sections = _sections(posterior)
    heights = [section.rows * section.row_height for section in sections]
    figure = plt.figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    strips = figure.subfigures(len(sections), 1, height_ratios=heights, squeeze=False)
    for strip, section in zip(strips[:, 0], sections, strict=True):
        grid = strip.subplots(section.rows, section.across, squeeze=False)
        for empty in list(grid.flat)[section.number :]:
            empty.remove()
        section.draw(list(grid.flat)[: section.number])
    return figure


def _sections(posterior: Posterior) -> list[_Section]:
    names = list(columns_of(posterior))
    sections = _predictions(posterior)
    if names:
        shown = names[:8]
        sections.append(
            _Section(
                len(shown), min(4, max(3, len(shown))), 2.2,
                lambda axes: marginals(posterior, shown, axes),
            )
        )  # fmt: skip
    if len(names) > 1:
        number = len(list(itertools.combinations(names[:4], 2)))
        sections.append(
            _Section(number, 3, 2.9, lambda axes: pairs(posterior, names[:4], axes))
        )
    if number := len(panel_names(posterior)):
        sections.append(
            _Section(number, 3, 2.0, lambda axes: traces(posterior, None, axes))
        )
    return sections


def _predictions(posterior: Posterior) -> list[_Section]:
    def band(axes: Any) -> Any:
        return predictive_band(posterior, axes=axes[0])

    def ranks(axes: Any) -> Any:
        return relevance(posterior, axes=axes[0])

    num_inputs = len(posterior.labels)
    if num_inputs == 1:
        return [_Section(1, 1, 4.0, band)]
    if num_inputs == 2:
        return [_Section(2, 2, 3.8, lambda axes: maps(posterior, axes=axes))]
    free = posterior._target.specification.hyperparameters.free
    if any(p.name.endswith("lengthscales") and p.shape for p in free):
        return [_Section(1, 1, min(6.0, 1.2 + 0.32 * num_inputs), ranks)]
    return [_Section(2, 2, 3.8, lambda axes: maps(posterior, axes=axes))]
