"""Figures: what they show is what the posterior says, where they were told to."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

import steingp as sg
from steingp import kernels, likelihoods, plots
from steingp.plots.columns import columns_of, prior_density, weighted_density
from steingp.plots.style import BLUE, GREY, ORANGE
from steingp.posterior import Mode, Posterior

rng = np.random.default_rng(3)
X = np.sort(rng.uniform(-2, 2, (25, 1)), axis=0)
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=25)
X3 = rng.normal(size=(15, 3)) * np.array([1.0, 10.0, 1.0])
LENGTHSCALE, VARIANCE, NOISE = (
    "kernel.lengthscales[0]",
    "kernel.variance",
    "likelihood.variance",
)


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def posterior_of(
    inputs: Any = X,
    values: Any = y,
    likelihood: Any = None,
    num: int = 6,
    kernel: Any = None,
    about: Any = None,
    **options: Any,
) -> Posterior:
    """Prior draws: any will do for a figure."""
    kernel = kernel or kernels.Matern52()
    model = sg.SteinGP((inputs, values), kernel, likelihood, **options)
    return model.posterior(model.sample_prior(num, seed=1), **(about or {}))


def with_modes(num: int = 9) -> Posterior:
    modes = [Mode(0.6, np.arange(num - 3)), Mode(0.4, np.arange(num - 3, num - 1))]
    return posterior_of(num=num, about={"modes": modes})


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line(axes: Any, label: str) -> np.ndarray:
    """The points of the line of this name, (2, n)."""
    (found,) = [one for one in axes.lines if one.get_label() == label]
    return np.array(found.get_data(), float)


# --- predictions ------------------------------------------------------------------------


def test_band_is_the_prediction_on_the_axes_it_was_given() -> None:
    posterior = posterior_of(100 * X, 7 + y, standardise=True)
    axes = plt.subplots()[1]
    out = plots.predictive_band(
        posterior, axes=axes, level=0.8, num_functions=2, num_points=30
    )
    assert out is axes
    np.testing.assert_allclose(line(axes, "data"), [100 * X[:, 0], 7 + y])
    grid, mean = line(axes, "predictive mean")
    prediction = posterior.predict_y(grid)
    np.testing.assert_allclose(mean, prediction.mean)
    low, high = prediction.interval(0.8)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx(high.max())
    assert corners[:, 1].min() == pytest.approx(low.min())
    assert "80 % of new observations" in legend_of(axes)
    assert len(axes.lines) == 2 + 2  # two functions, the mean, the data


def test_band_draws_the_data_it_is_given_and_held_out_ones() -> None:
    axes = plots.predictive_band(
        posterior_of(), X[:5], y[:5], X_test=[9.0], y_test=[1.0], num_functions=0
    )
    assert line(axes, "data").shape == (2, 5)
    assert line(axes, "held out").tolist() == [[9.0], [1.0]]
    assert line(axes, "predictive mean")[0].max() > 9.0
    assert len(axes.lines) == 3


def test_band_of_labels_is_that_of_their_probability() -> None:
    labels = (y > 0).astype(float)
    posterior = posterior_of(X, labels, likelihoods.Bernoulli())
    axes = plots.predictive_band(posterior, num_functions=1, num_points=12)
    grid, mean = line(axes, "predictive mean")
    np.testing.assert_allclose(mean, posterior.predict_y(grid).mean)
    _, high = posterior.predict_f(grid).interval(0.9)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx((1 / (1 + np.exp(-high))).max())
    function = line(axes, "draws of the function")[1]
    assert np.all((function > 0) & (function < 1))
    assert axes.get_ylabel() == "probability of y = 1"


def test_functions_of_counts_and_positive_numbers_are_on_the_scale_of_y() -> None:
    counts = rng.poisson(40, size=25)
    kernel = kernels.Matern52(variance=sg.fixed(0.01), lengthscales=sg.fixed(1.0))
    mean = sg.means.Constant(sg.fixed(np.log(40.0)))
    posterior = posterior_of(
        X, counts, likelihoods.Poisson(), kernel=kernel, mean=mean, latents="joint"
    )
    axes = plots.predictive_band(posterior, num_functions=3, num_points=8)
    function = line(axes, "draws of the function")[1]
    assert np.all((function > 20) & (function < 80))


def test_counts_of_different_exposure_are_drawn_as_rates() -> None:
    exposure = np.linspace(1.0, 50.0, 25)
    counts = rng.poisson(2.0 * exposure)
    posterior = posterior_of(X, counts, likelihoods.Poisson(exposure=exposure))
    axes = plots.predictive_band(posterior, num_functions=0, num_points=8)
    np.testing.assert_allclose(line(axes, "data")[1], counts / exposure)
    assert "90 % band of the rate" in legend_of(axes)
    assert axes.get_ylabel() == "y per unit of exposure"


def test_maps_are_the_predictions_with_other_columns_at_their_median() -> None:
    posterior = posterior_of(X3, X3[:, 0], standardise=True)
    given = plt.subplots(1, 2)[1]
    figure = plots.maps(posterior, (2, 0), given, of="f", num_points=4)
    assert figure is given[0].figure
    assert given[0].get_title() == "mean of f"
    assert (given[0].get_xlabel(), given[0].get_ylabel()) == ("x[2]", "x[0]")
    mesh = given[0].collections[0]
    points = mesh.get_coordinates().reshape(-1, 2)
    rows = np.column_stack(
        [points[:, 1], np.full(16, np.median(X3[:, 1])), points[:, 0]]
    )
    prediction = posterior.predict_f(rows)
    np.testing.assert_allclose(np.ravel(mesh.get_array()), prediction.mean)
    sd = np.ravel(given[1].collections[0].get_array())
    np.testing.assert_allclose(sd, np.sqrt(prediction.variance))
    dots = given[1].collections[1].get_offsets()
    np.testing.assert_allclose(dots, X3[:, [2, 0]])


def test_maps_of_labels_have_the_sd_of_their_probability() -> None:
    labels = (X3[:, 0] > 0).astype(float)
    posterior = posterior_of(X3, labels, likelihoods.Bernoulli(), num=3)
    figure = plots.maps(posterior, num_points=2)
    assert figure.axes[1].get_title() == "sd of the probability"
    mesh = figure.axes[1].collections[0]
    points = mesh.get_coordinates().reshape(-1, 2)
    rows = np.column_stack([points, np.full(4, np.median(X3[:, 2]))])
    f = posterior.predict_f(rows).sample_marginals(20_000)
    np.testing.assert_allclose(
        np.ravel(mesh.get_array()), np.std(1 / (1 + np.exp(-f)), axis=0), atol=0.01
    )


# --- hyperparameters --------------------------------------------------------------------


def test_weighted_density_is_that_of_the_weights() -> None:
    values, grid = np.array([0.0, 0.1, 5.0, 5.1]), np.linspace(-5, 10, 3001)
    density = weighted_density(values, np.array([0.1, 0.1, 0.15, 0.15]), grid)
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(0.5, rel=1e-2)
    draws = rng.normal(size=4000)
    kept = (draws > 0).astype(float)  # weight 0 is as good as not there
    halves = weighted_density(draws, kept / kept.sum(), grid)
    alone = weighted_density(
        draws[draws > 0], np.full(int(kept.sum()), 1 / kept.sum()), grid
    )
    np.testing.assert_allclose(halves, alone, atol=2e-3)


def test_prior_density_is_of_the_logarithm_where_the_axis_is() -> None:
    columns = columns_of(posterior_of())
    grid = np.array([0.5, 2.0])
    density = prior_density(columns[VARIANCE], grid)
    # Exponential(0.5) times d theta / d log theta
    np.testing.assert_allclose(density, grid * 0.5 * np.exp(-0.5 * grid), rtol=1e-6)


def test_marginals_show_every_hyperparameter_and_its_prior() -> None:
    posterior = posterior_of(mean=sg.means.Constant())
    figure = plots.marginals(posterior)
    labels = [panel.get_xlabel() for panel in figure.axes]
    assert labels == list(posterior.summary())
    scales = {panel.get_xlabel(): panel.get_xscale() for panel in figure.axes}
    assert scales[VARIANCE] == "log"
    assert scales["mean.value"] == "linear"
    assert legend_of(figure.axes[0]) == ["prior"]


def test_marginals_use_weights_and_colours_of_modes() -> None:
    posterior = with_modes()
    posterior.weights = np.array([0.7, *[0.02] * 5, 0.1, 0.1, 0.0])
    given = plt.subplots()[1]
    plots.marginals(posterior, [VARIANCE], given)
    legend = ["mode 1, mass 0.60", "mode 2, mass 0.40", "other draws", "prior"]
    assert legend_of(given) == legend
    colours = [to_hex(one.get_color()).upper() for one in given.lines[:3]]
    assert colours == [BLUE, ORANGE, GREY]
    x, density = np.array(given.lines[0].get_data())
    area = np.trapezoid(density, np.log(x))
    assert area == pytest.approx(0.8, abs=0.1)
    heaviest = posterior.particles[VARIANCE][0]
    assert abs(np.log(x[np.argmax(density)] / heaviest)) < 0.3


def test_pairs_show_draws_by_mode_and_weight() -> None:
    posterior = with_modes()
    posterior.weights = np.array([0.4, *[0.075] * 8])
    figure = plots.pairs(posterior, [VARIANCE, NOISE])
    (axes,) = figure.axes
    first, second, rest = axes.collections
    expected = np.column_stack([posterior.particles[n] for n in (VARIANCE, NOISE)])
    np.testing.assert_allclose(first.get_offsets(), expected[:6])
    np.testing.assert_allclose(rest.get_offsets(), expected[8:])
    assert to_hex(second.get_facecolor()[0]).upper() == ORANGE
    sizes = first.get_sizes()
    assert sizes[0] / sizes[1] == pytest.approx(0.4 / 0.075)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (VARIANCE, NOISE)
    assert axes.get_xscale() == "log"


def test_pairs_have_a_panel_for_each_and_densities_underneath() -> None:
    posterior = posterior_of()
    names = [VARIANCE, LENGTHSCALE, NOISE]
    side = np.geomspace(0.1, 10, 7)
    height = np.exp(-np.add.outer(np.log(side) ** 2, np.log(side) ** 2))
    figure = plots.pairs(
        posterior, names, density={(names[0], names[2]): (side, side, height)}
    )
    assert [len(panel.collections) for panel in figure.axes] == [1, 2, 1]
    assert figure.axes[0].get_ylabel() == LENGTHSCALE
    assert figure.axes[1].get_xlabel() == VARIANCE
    # inner labels of the triangle are left out
    assert figure.axes[2].get_ylabel() == ""


def test_relevance_sorts_columns_by_scaled_lengthscales() -> None:
    import pandas as pd

    table = pd.DataFrame(X3, columns=["a", "b", "c"])
    posterior = posterior_of(table, X3[:, 0])
    scales = np.array([2.0, 5.0, 0.5]) * np.linspace(0.9, 1.1, 6)[:, None]
    posterior.particles["kernel.lengthscales"] = scales
    axes = plots.relevance(posterior)
    # b varies ten times as much as the others: 5 is half of one of its sds
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    spread = dict(zip("abc", X3.std(axis=0), strict=True))
    medians = {"a": 2.0 / spread["a"], "b": 5.0 / spread["b"], "c": 0.5 / spread["c"]}
    assert ticks == sorted(medians, key=lambda label: medians[label])
    np.testing.assert_allclose(axes.lines[0].get_xdata(), sorted(medians.values()))
    low, high = axes.collections[0].get_segments()[0][:, 0]
    assert low == pytest.approx(min(medians.values()) * 0.91)
    assert high == pytest.approx(min(medians.values()) * 1.09)


# --- runs -------------------------------------------------------------------------------


def with_run() -> Posterior:
    posterior = posterior_of()
    posterior.paths = {
        name: np.exp(rng.normal(size=(30, *values.shape)))
        for name, values in posterior.particles.items()
    }
    names = ("acceptance", "step", "log_density", "num_failed")
    posterior.trace = {name: rng.uniform(size=30) for name in names}
    return posterior


def test_trajectories_follow_particles_from_start_to_end() -> None:
    posterior = with_run()
    axes = plt.subplots()[1]
    out = plots.trajectories(posterior, [NOISE, LENGTHSCALE], axes, num_particles=2)
    assert out is axes
    x = posterior.paths[NOISE]
    z = posterior.paths["kernel.lengthscales"][:, :, 0]
    np.testing.assert_allclose(axes.lines[0].get_data(), [x[:, 0], z[:, 0]])
    np.testing.assert_allclose(line(axes, "start"), [x[0, [0, 5]], z[0, [0, 5]]])
    np.testing.assert_allclose(line(axes, "end"), [x[-1, [0, 5]], z[-1, [0, 5]]])
    assert axes.get_xlabel() == NOISE


def test_traces_of_a_fit() -> None:
    posterior = with_run()
    figure = plots.traces(posterior, [VARIANCE])
    labels = ["acceptance", "step", "mean log density", VARIANCE]
    assert [panel.get_ylabel() for panel in figure.axes] == labels
    density = figure.axes[2].lines[0].get_ydata()
    np.testing.assert_allclose(density, posterior.trace["log_density"])
    assert len(figure.axes[3].lines) == 3


def test_plain_svgd_records_its_paths_and_runs_as_before() -> None:
    model = sg.SteinGP((X, y), kernels.Matern52())
    opt = sg.SVGD(model, n_particles=3)
    seen: list[int] = []
    opt.run(250, progress=False, callback=lambda s, _: seen.append(int(s.step)))
    posterior = opt.posterior()
    path = posterior.paths["kernel.lengthscales"]
    # the start, every third step, and the last
    assert path.shape == (1 + 83 + 1, 3, 1)
    assert {3, 6, 249, 250} <= set(seen)
    np.testing.assert_array_equal(path[-1], posterior.particles["kernel.lengthscales"])
    start = model.sample_prior(3)["kernel.lengthscales"]
    np.testing.assert_allclose(path[0], start, rtol=1e-6)
    pieces = sg.SVGD(model, n_particles=3)
    for steps in (3, 246, 1):  # other chunks, the same steps
        pieces.run(steps, progress=False)
    for name, values in pieces.get_particles().items():
        np.testing.assert_array_equal(values, posterior.particles[name])
    figure = plots.traces(posterior, [])
    np.testing.assert_array_equal(
        figure.axes[0].lines[0].get_ydata(), opt.history.log_density
    )


def test_paths_of_many_short_runs_stay_few_and_have_no_latents() -> None:
    labels = (y > 0).astype(float)
    model = sg.SteinMC((X[:5], labels[:5]), kernels.Matern52(), likelihoods.Bernoulli())
    opt = sg.SVGD(model, n_particles=2)
    for _ in range(5):
        opt.run(60, progress=False)
    paths = opt.posterior().paths
    assert set(paths) == {"kernel.lengthscales", "kernel.variance"}
    assert 100 <= len(paths["kernel.variance"]) <= 202
    again = sg.SVGD(model, n_particles=2)
    again.load_state_dict(opt.state_dict())
    assert len(again.posterior().paths["kernel.variance"]) == 1


# --- checking ---------------------------------------------------------------------------


def exact(likelihood: Any, values: np.ndarray, num_rows: int) -> sg.Prediction:
    """Predictions of a model in which f is 0 and nothing is unknown."""
    kernel = kernels.Matern52(variance=sg.fixed(1e-12), lengthscales=sg.fixed(1.0))
    model = sg.SteinGP((X, values), kernel, likelihood, latents="joint")
    posterior = model.posterior(model.sample_prior(1))
    return posterior.predict_y(np.linspace(-2, 2, num_rows))


@pytest.mark.parametrize(
    ("likelihood", "draw"),
    [
        (likelihoods.Gaussian(sg.fixed(1.0)), lambda n: rng.normal(size=n)),
        (likelihoods.Poisson(), lambda n: rng.poisson(1.0, size=n).astype(float)),
    ],
)
def test_right_predictions_lie_on_the_diagonal(
    likelihood: Any, draw: Callable[[int], np.ndarray]
) -> None:
    axes = plots.calibration(exact(likelihood, draw(25), 1500), draw(1500))
    level, share = np.array(axes.lines[1].get_data(), float)
    # five standard errors of a share of 1500
    assert np.max(np.abs(share - level)) < 5 * 0.5 / np.sqrt(1500)
    assert legend_of(axes) == ["90 % of right predictions", "1500 observations"]


def test_coverage_of_too_narrow_predictions_is_below_the_diagonal() -> None:
    values = 3.0 * rng.normal(size=25)
    prediction = exact(likelihoods.Gaussian(sg.fixed(1.0)), values, 25)
    axes = plots.calibration(prediction, values)
    level, share = np.array(axes.lines[1].get_data(), float)
    inside = np.abs(values) < 1.6449  # 90 % of a standard normal
    assert share[90] == pytest.approx(inside.mean(), abs=1e-12)
    assert level[90] == pytest.approx(0.9)
    assert share[90] < 0.7


def test_reliability_of_labels_counts_ones_in_bins() -> None:
    labels = (y > 0).astype(float)
    posterior = posterior_of(X, labels, likelihoods.Bernoulli())
    prediction = posterior.predict_y(X)
    axes = plots.calibration(prediction, labels, num_bins=5)
    promised, share = np.array(axes.lines[1].get_data(), float)
    order = np.argsort(prediction.mean)
    np.testing.assert_allclose(promised, prediction.mean[order].reshape(5, 5).mean(1))
    np.testing.assert_allclose(share, labels[order].reshape(5, 5).mean(1))
    low, high = axes.collections[0].get_segments()[0][:, 1]
    assert low < share[0] + 1e-9 or share[0] == 0.0
    assert high > share[0]


def split_of(num: int) -> SimpleNamespace:
    parts = {
        "noise": np.full(num, 1.0),
        "function": np.arange(num, dtype=float),
        "hyperparameters": np.full(num, 0.5),
        "modes": np.zeros(num),
    }
    return SimpleNamespace(**parts, total=sum(parts.values()))


def test_uncertainty_stacks_its_sources_along_x() -> None:
    x = np.array([3.0, 1.0, 2.0])
    axes = plots.uncertainty(split_of(3), x)
    assert legend_of(axes) == ["noise", "function", "hyperparameters"]
    top = axes.collections[-1].get_paths()[0].vertices
    # totals 1.5, 2.5, 3.5 belong to x = 3, 1, 2
    for at, total in ((3.0, 1.5), (1.0, 2.5), (2.0, 3.5)):
        assert top[top[:, 0] == at, 1].max() == pytest.approx(total)


@pytest.mark.parametrize("x", [None, np.zeros((4, 2))])
def test_uncertainty_of_many_columns_is_sorted_bars(x: Any) -> None:
    axes = plots.uncertainty(split_of(4), x)
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    np.testing.assert_allclose(tops, [4.5, 3.5, 2.5, 1.5])


# --- the page, and what all share -------------------------------------------------------


def labels_of(figure: Any) -> list[str]:
    return [panel.get_xlabel() for panel in figure.axes]


def test_the_page_suits_the_posterior() -> None:
    one = posterior_of().plot()
    assert labels_of(one)[0] == "x"
    assert len(one.axes) == 1 + 3 + 3
    two = posterior_of(X3[:, :2], X3[:, 0], standardise=True).plot()
    assert (two.axes[0].get_xlabel(), two.axes[0].get_ylabel()) == ("x[0]", "x[1]")
    many = posterior_of(X3, X3[:, 0], standardise=True).plot()
    assert labels_of(many)[0].startswith("lengthscale")
    run = with_run().plot()
    assert len(run.axes) == 1 + 3 + 3 + 6


def test_the_page_of_a_model_without_free_hyperparameters_is_its_prediction() -> None:
    kernel = kernels.Matern52(variance=sg.fixed(1.0), lengthscales=sg.fixed(1.0))
    labels = (y > 0).astype(float)
    posterior = posterior_of(
        X, labels, likelihoods.Bernoulli(), kernel=kernel, latents="joint"
    )
    assert len(posterior.plot().axes) == 1
    with pytest.raises(ValueError, match="all of them are fixed"):
        plots.marginals(posterior)


def test_training_data_come_back_in_the_units_they_came_in() -> None:
    inputs, values = posterior_of(
        1e3 * X3, 5 + X3[:, 0], standardise=True
    ).training_data
    np.testing.assert_allclose(inputs, 1e3 * X3)
    np.testing.assert_allclose(values, 5 + X3[:, 0])


def test_matplotlib_is_imported_when_something_is_drawn() -> None:
    code = "import sys, steingp.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: plots.predictive_band(posterior_of(X3, X3[:, 0], standardise=True)),
     "3 input columns.*plots.maps"),
    (lambda: plots.predictive_band(posterior_of(), X), "y is missing"),
    (lambda: plots.predictive_band(posterior_of(), X_test=X), "y_test is missing"),
    (lambda: plots.predictive_band(posterior_of(), X, y[:3]), "y has 3"),
    (lambda: plots.predictive_band(posterior_of(), axes=[1]), "axes must be one"),
    (lambda: plots.maps(posterior_of()), "one input column.*predictive_band"),
    (lambda: plots.maps(posterior_of(X3, X3[:, 0], standardise=True), (0, 0)),
     "columns must be two different"),
    (lambda: plots.maps(posterior_of(X3, X3[:, 0], standardise=True), (0, "d")),
     "columns must be two different"),
    (lambda: plots.maps(posterior_of(X3, X3[:, 0], standardise=True), of="g"),
     'of must be "y" or "f"'),
    (lambda: plots.marginals(posterior_of(), ["lengthscale"]), "names must be some of"),
    (lambda: plots.marginals(posterior_of(), [NOISE], plt.subplots(2)[1]),
     "axes must hold 1 .*got 2"),
    (lambda: plots.pairs(posterior_of(), [NOISE]), "two hyperparameters or more"),
    (lambda: plots.pairs(posterior_of(), [NOISE, NOISE]), "each once"),
    (lambda: plots.trajectories(posterior_of()), "paths is empty"),
    (lambda: plots.trajectories(with_run(), [NOISE]), "two different"),
    (lambda: plots.traces(posterior_of()), "nothing of its run"),
    (lambda: plots.traces(with_run(), num_particles=0), "num_particles must be"),
    (lambda: plots.relevance(posterior_of(kernel=kernels.Matern52(lengthscales=1.0))),
     "no lengthscale per input column"),
    (lambda: plots.relevance(posterior_of(), "kernel.variance"), "name must be one of"),
    (lambda: plots.calibration(posterior_of(), y), "prediction must be"),  # type: ignore
    (lambda: plots.calibration(posterior_of().predict_y(X), y[:4]), "y has 4"),
    (lambda: plots.uncertainty(SimpleNamespace(noise=y)), "without function"),
    (lambda: plots.uncertainty(split_of(3), np.zeros(4)), "x has 4 rows"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m for _, m in BAD])
def test_errors_name_the_argument_and_the_fix(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
