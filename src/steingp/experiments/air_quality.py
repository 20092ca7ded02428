"""The air-quality study, section 5.3: nitrogen dioxide over space and time.

The paper's table is not public. `uk` is its network, area and period in daily means;
`netherlands` is a national network by the hour, at the paper's scale. A job is one set, one
way to hold rows out (a random split, or all stations of the midlands) and one method.

The kernel is the paper's: Matern32 over space times (Matern12 times a polynomial of third
degree) over time, plus white noise. (Its listing multiplies by White, which would leave a
diagonal covariance.)
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from steingp import baselines, inducing, metrics, svgd
from steingp.compilation import Stopwatch
from steingp.data import split_rows
from steingp.experiments.datasets import data_folder
from steingp.experiments.uci import about, judgement
from steingp.inference import fit
from steingp.kernels import Kernel, Matern12, Matern32, Polynomial, White
from steingp.models import SteinGP
from steingp.paper import SVGD
from steingp.posterior import Posterior

FILES = {"uk": "aurn_uk_daily_2020", "netherlands": "netherlands_hourly_2020"}
DAYS = 90
"""Of the UK's file, 1 February to 30 April, as in the paper."""
MIDLANDS = ((-2.2, 52.0), (-1.0, 54.0))
"""Corners of the box whose stations are held out."""
LOCKDOWN = 51
"""Days from 1 February to 23 March 2020."""
METHODS = ("default", "SteinGP", "SVI", "SVI equal time")
SPLITS = 5
KEYS = ("set", "split", "method")

INDUCING, BATCH, PARTICLES, RATE = 600, 256, 30, 0.001
STEPS, SVI_STEPS = 1000, 10_000
"""The paper's."""
_WARM_UP = 20
"""Steps of SVGD before those whose time is taken."""
_MOST_TEST = 50_000
"""Rows that are scored, at random, where more are held out."""
MAP_STEP = {"uk": 0.2, "netherlands": 0.08}
"""Degrees between points of a map."""
BOX = {"uk": ((-8.2, 49.8), (2.0, 59.4)), "netherlands": ((3.2, 50.6), (7.4, 53.6))}


class Rows(NamedTuple):
    """Rows to fit and to test; inputs are longitude, latitude and time."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    scale: np.ndarray
    """Mean and sd of every column, y last, of the rows to fit."""


def jobs(
    sets: tuple[str, ...] = ("uk", "netherlands"),
    methods: tuple[str, ...] = METHODS,
    splits: int = SPLITS,
    quick: bool = False,
) -> Iterator[dict[str, Any]]:
    """What there is to fit.

    Example:
        >>> from steingp.experiments import air_quality
        >>> some = list(air_quality.jobs(("uk",), ("SVI",), splits=1))
        >>> [job["split"] for job in some]
        [0, 'midlands']
    """
    for name in sets:
        ways: list[Any] = list(range(splits)) + (["midlands"] if name == "uk" else [])
        for split in ways:
            for method in methods:
                job = {"set": name, "split": split, "method": method}
                yield job | ({"quick": True} if quick else {})


def table(name: str) -> np.ndarray:
    """station, longitude, latitude, time, no2 of a set.

    Raises:
        FileNotFoundError: with what is missing, and where it would be.
    """
    path = data_folder() / "air_quality" / f"{FILES[name]}.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: measurements of {name}, gzipped, one header line, "
            "columns station, longitude, latitude, day or hour, no2."
        )
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    return values[values[:, 3] < DAYS] if name == "uk" else values


def load(name: str, split: int | str, max_rows: int | None = None) -> Rows:
    """One set with some rows held out, scaled by those that are not."""
    values = table(name)
    if split == "midlands":
        (west, south), (east, north) = MIDLANDS
        lon, lat = values[:, 1], values[:, 2]
        out = (lon > west) & (lon < east) & (lat > south) & (lat < north)
        train, test = np.flatnonzero(~out), np.flatnonzero(out)
        train = np.random.default_rng(0).permutation(train)
    else:
        train, test = split_rows(len(values), seed=int(split))
    train, test = train[:max_rows], test[:_MOST_TEST][:max_rows]
    columns = values[:, 1:]
    scale = np.stack([columns[train].mean(axis=0), columns[train].std(axis=0)])
    scaled = (columns - scale[0]) / scale[1]
    return Rows(
        scaled[train, :3], scaled[train, 3], scaled[test, :3], scaled[test, 3], scale
    )


def kernel() -> Kernel:
    """The paper's, of longitude, latitude and time.

    Example:
        >>> from steingp.experiments import air_quality
        >>> air_quality.kernel()([[0.0, 0.0, 0.0]]).shape
        (1, 1)
    """
    space = Matern32(active_dims=[0, 1])
    over_time = Matern12(active_dims=[2]) * Polynomial(degree=3, active_dims=[2])
    return space * over_time + White(0.1)


def fit_one(job: dict[str, Any]) -> dict[str, Any]:
    """Fit by one method and score what was held out."""
    quick, method = job.get("quick", False), job["method"]
    rows = load(job["set"], job["split"], 400 if quick else None)
    num = 20 if quick else INDUCING
    seed = job["split"] if isinstance(job["split"], int) else 0
    Z = inducing.kdpp(rows.X, num, kernel(), seed=seed, max_rows=200 if quick else 2000)
    watch = Stopwatch()
    posterior, allowed = _fit(rows, Z, method, seed, quick)
    spent = {k: all_ - allowed.spent[k] for k, all_ in watch.read().items()}
    prediction = posterior.predict_y(rows.X_test)
    line: dict[str, Any] = {
        "rows": len(rows.y),
        "test_rows": len(rows.y_test),
        **spent,
        "rmse": metrics.rmse(rows.y_test, prediction.mean),
        "log_density": float(prediction.log_prob(rows.y_test).mean()),
        "unit": float(rows.scale[1, 3]),
        "method_in_words": posterior.method,
    }
    place = np.abs(prediction.cdf(rows.y_test) - 0.5)
    line |= {f"coverage{q}": float(np.mean(place <= 0.005 * q)) for q in (50, 90, 95)}
    if allowed.seconds is not None:
        line["seconds_allowed"] = allowed.seconds
    if posterior.report is not None:
        line["effective_size"] = posterior.report.effective_size
        line["num_gradients"] = posterior.report.num_gradients
    if posterior.verdict is not None:  # an ensemble of variational fits has none
        line |= judgement(posterior)
    if job["split"] in (0, "midlands"):
        line["lengthscales"] = _lengthscales(posterior)
        line["map"] = _map(posterior, rows, job["set"])
    return line | about()


class Allowed(NamedTuple):
    """How long a fit may take."""

    seconds: float | None = None
    """None: until it is done."""
    spent: Mapping[str, float] = {"seconds": 0.0, "compile_seconds": 0.0}
    """On finding that out."""


def _fit(
    rows: Rows, Z: np.ndarray, method: str, seed: int, quick: bool
) -> tuple[Posterior, Allowed]:
    data, batch = (rows.X, rows.y), 64 if quick else BATCH
    steps, J = (20, 3) if quick else (STEPS, PARTICLES)
    if method == "default":
        # all rows at every step where that is quick, as a user would have it
        all_rows = len(rows.y) <= 10_000
        size = None if all_rows else batch
        model = SteinGP(data, kernel(), inducing=Z, batch_size=size, seed=seed)
        options: dict[str, Any] = {"effective_size": 50.0 if quick else None}
        if not all_rows:
            options = {"num_steps": steps, "num_particles": J}
        return fit(model, seed=seed, progress=False, **options), Allowed()
    if method == "SteinGP":
        run = _paper_run(data, Z, batch, J, seed)
        run.run(steps, progress=False)
        return run.posterior(), Allowed()
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}.")
    model = SteinGP(data, kernel(), inducing=Z, batch_size=batch, seed=seed)
    num, allowed = 100 if quick else SVI_STEPS, Allowed()
    if method == "SVI equal time":
        allowed = _seconds_of_stein(_paper_run(data, Z, batch, J, seed), steps)
        num = 100 if quick else 100 * SVI_STEPS
    found = baselines.svi(
        model,
        num_steps=num,
        learning_rate=RATE,
        max_seconds=allowed.seconds,
        progress=False,
    )
    return found.posterior, allowed


def _paper_run(data: Any, Z: np.ndarray, batch: int, J: int, seed: int) -> SVGD:
    model = SteinGP(
        data, kernel(), inducing=Z, batch_size=batch, latents="joint", seed=seed
    )
    return SVGD(model, n_particles=J, optimiser=svgd.adam(RATE), seed=seed)


def _seconds_of_stein(run: SVGD, steps: int) -> Allowed:
    """What so many steps take, by taking them, once compiled."""
    everything = Stopwatch()
    run.run(_WARM_UP, progress=False)
    compiled = Stopwatch()
    run.run(steps, progress=False)
    return Allowed(compiled.read()["seconds"], everything.read())


def _lengthscales(posterior: Posterior, most: int = 200) -> dict[str, list[float]]:
    """Draws of every lengthscale, in standardised units."""
    rng, num = np.random.default_rng(0), posterior.num_draws
    some = np.arange(num)
    if num > most:
        some = rng.choice(num, most, p=posterior.weights)
    return {
        label: np.round(column[some], 4).tolist()
        for name in posterior.particles
        if name.endswith("lengthscales")
        for label, column in posterior.named_columns(name)
    }


def map_points(name: str, step: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes of a map, by default those of `MAP_STEP` apart.

    Example:
        >>> from steingp.experiments import air_quality
        >>> [len(axis) for axis in air_quality.map_points("uk")]
        [52, 49]
    """
    (west, south), (east, north) = BOX[name]
    apart = step or MAP_STEP[name]
    return (
        np.arange(west, east + 1e-9, apart),
        np.arange(south, north + 1e-9, apart),
    )


def _map(posterior: Posterior, rows: Rows, name: str) -> dict[str, Any]:
    """Mean and variance of f on the day of the lockdown, in standardised units."""
    lon, lat = map_points(name)
    # the Dutch file counts hours from 1 January; 9 in the morning of 23 March there
    when = LOCKDOWN if name == "uk" else (31 + LOCKDOWN) * 24 + 9
    lons, lats = (axis.ravel() for axis in np.meshgrid(lon, lat))
    grid = np.stack([lons, lats, np.full(len(lons), when)], axis=1)
    X = (grid - rows.scale[0, :3]) / rows.scale[1, :3]
    f = posterior.predict_f(X)
    return {
        "mean": np.round(f.mean, 3).tolist(),
        "variance": np.round(f.variance, 4).tolist(),
        "scale": rows.scale[:, 3].tolist(),
        "step": MAP_STEP[name],
    }
