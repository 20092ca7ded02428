"""The reference posteriors that are kept with the repository, and their problems."""

import numpy as np
import pytest

from steingp.experiments import references
from steingp.experiments.references import (
    BIMODAL,
    FOLDER,
    JOINT,
    LENGTHSCALE,
    REGRESSION,
    SPARSE,
    UNIMODAL,
    Reference,
    grid_posterior,
    load_reference,
    problem,
    save_reference,
)


@pytest.mark.parametrize("name", REGRESSION + JOINT + SPARSE)
def test_references_by_nuts_have_converged(name: str) -> None:
    reference = load_reference(name)
    assert reference.about["chains"] >= 4
    assert np.max(reference.r_hat) < 1.01
    assert np.min(reference.effective_size) >= 2000
    assert reference.draws.shape == (1500, len(reference.labels))
    assert len(reference.f_mean) == len(reference.f_sd) == reference.about["rows"]
    # the draws kept are 1500 of those that mean and sd are of
    error = np.abs(reference.draws.mean(axis=0) - reference.mean)
    assert np.all(error < 5.0 * reference.sd / np.sqrt(1000))


@pytest.mark.parametrize("name", UNIMODAL + BIMODAL)
def test_grids_are_what_they_were(name: str) -> None:
    # coarser than the file's, but fine enough for three digits
    reference, grid = load_reference(name), grid_posterior(problem(name), num=100)
    assert abs(grid.log_evidence - reference.about["log_evidence"]) < 1e-3
    moments = np.array([grid.mean_and_sd(axis) for axis in grid.axes])
    np.testing.assert_allclose(moments[:, 0], reference.mean, atol=1e-3)
    np.testing.assert_allclose(moments[:, 1], reference.sd, atol=1e-3)
    assert grid.mass_at_ends < 1e-6


@pytest.mark.parametrize("name", BIMODAL)
def test_two_modes_with_a_deep_valley(name: str) -> None:
    about = load_reference(name).about
    grid = grid_posterior(problem(name), num=100)
    assert about["depth"] > np.log(100.0)
    assert min(about["masses"]) > 0.15 and sum(about["masses"]) == pytest.approx(1.0)
    lengthscales = grid.axes[LENGTHSCALE]
    below = grid.marginal(LENGTHSCALE)[lengthscales < about["cut"]].sum()
    assert below == pytest.approx(about["masses"][0], abs=1e-3)
    for mode, side in zip(about["modes"], (-1.0, 1.0), strict=True):
        assert side * (mode["peak"][LENGTHSCALE] - about["cut"]) > 0.0


def test_evidence_of_the_grid_is_that_of_the_model() -> None:
    # at one theta: log p(y | theta) + log p(theta) = log p(y) + log p(theta | y)
    case = problem("sine")
    grid = grid_posterior(case, num=40)
    i, j, k = 20, 19, 22
    values = [axis[n] for axis, n in zip(grid.axes.values(), (i, j, k), strict=True)]
    particle = dict(zip(grid.axes, np.array(values)[:, None], strict=True))
    of_z = case.model().log_density(particle)[0]
    # theta = softplus(z) + 1e-6, and the grid's density is of log theta
    slopes = [np.log(-np.expm1(-(v - 1e-6))) - np.log(v) for v in values]
    both = grid.log_density[i, j, k] + grid.log_evidence
    assert of_z - np.sum(slopes) == pytest.approx(both, abs=1e-6)


def test_files_keep_what_they_are_given(tmp_path) -> None:
    nothing = dict.fromkeys(references.OPTIONAL)
    draws = np.random.default_rng(0).normal(size=(5, 2))
    given = Reference(
        ["a", "b"], np.zeros(2), np.ones(2), **(nothing | {"draws": draws}),
        about={"seed": 3},
    )  # fmt: skip
    save_reference(given, "some", tmp_path)
    back = load_reference("some", tmp_path)
    assert back.labels == ["a", "b"] and back.about == {"seed": 3} and back.Z is None
    np.testing.assert_allclose(back.draws, draws, rtol=1e-6)
    with pytest.raises(FileNotFoundError, match="benchmarks/references"):
        load_reference("other", tmp_path)


def test_problems() -> None:
    with pytest.raises(ValueError, match="no problem 'x'; there are boston"):
        problem("x")
    counts = problem("poisson")
    assert counts.model().target.num_latents == 100
    assert counts.model(latents="auto").target.num_latents == 0
    assert len(problem("poisson", max_rows=7).data.y) == 7
    with pytest.raises(ValueError, match="too many hyperparameters"):
        grid_posterior(counts)


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
