"""Leaps: their law's density, exactness of the moves, and the fit that uses them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_t, norm

from steingp import corrected, leaps, moves, run_state
from steingp.densities import OfOne, OnThreads
from steingp.leaps import Law

D = 4


def lopsided(z: jax.Array, _: None) -> jax.Array:
    """Of log Gamma(3) in every coordinate, the first two mixed."""
    x = z.at[1].add(-0.8 * z[0])
    return jnp.sum(3.0 * x - jnp.exp(x))


def exact_draws(num: int, seed: int = 0) -> np.ndarray:
    z = np.log(np.random.default_rng(seed).gamma(3.0, size=(num, D)))
    z[:, 1] += 0.8 * z[:, 0]
    return z


def on_threads(J: int) -> OnThreads:
    return OnThreads(lopsided, None, J, num_threads=1)


def frozen(z: np.ndarray, step: float = 0.6) -> moves.MoveState:
    state = moves.init(on_threads(len(z)), z, step=step, compiled=False)
    return moves.freeze(state)


def test_the_density_of_the_law_integrates_to_one() -> None:
    law = Law(
        centre=np.array([0.3]), scale=np.array([0.5]), skew=np.array([0.7]),
        mean=np.array([-0.2]), factor=np.array([[1.4]]),
    )  # fmt: skip
    # substituted, since a t's tail under sinh is long: z = sinh(s)
    s = np.linspace(-25.0, 25.0, 200_001)
    density = np.exp(law.log_density(np.sinh(s)[:, None])) * np.cosh(s)
    assert abs(np.trapezoid(density, s) - 1.0) < 1e-6


def test_the_density_is_a_t_and_its_marginals_times_priors() -> None:
    law = leaps.fitted(exact_draws(300))
    z = law.sample(np.random.default_rng(1), 500)
    u = leaps.straightened(z, law.centre, law.scale, law.skew)
    nearby = z + 1e-6
    slopes = leaps.straightened(nearby, law.centre, law.scale, law.skew) - u
    slopes /= 1e-6
    shape = law.factor @ law.factor.T
    whole = multivariate_t(law.mean, shape, leaps.FREEDOM).pdf(u)
    expected = (1.0 - leaps.REFRESHED) * whole * slopes.prod(axis=1)
    for i in range(D):
        rest = np.delete(np.arange(D), i)
        marginal = multivariate_t(law.mean[rest], shape[np.ix_(rest, rest)], 7.0)
        density = marginal.pdf(u[:, rest]) * slopes[:, rest].prod(axis=1)
        expected += leaps.REFRESHED / D * density * norm.pdf(z[:, i])
    # each of up to 4 slopes is a difference of h = 1e-6: of the order of u, rounding
    # leaves 1e-16 |u| / h, 1e-9 for |u| < 10, and truncation h / 2 times the second
    # derivative over the first, at most 5e-7 / scale, with scales above 0.5
    assert_allclose(np.exp(law.log_density(z)), expected, rtol=1e-5)


def test_draws_have_the_density_of_the_law() -> None:
    """The mean of 1 / q over draws in a box is the box's volume, whatever q is."""
    law = leaps.fitted(exact_draws(400)[:, :2])
    z = law.sample(np.random.default_rng(3), 100_000)
    log_density = law.log_density(z)
    for low in (-1.0, 0.5):  # where the t has its mass, and where priors matter
        inside = np.all((z > low) & (z < low + 1.0), axis=1)
        each = np.where(inside, np.exp(-log_density), 0.0)
        assert abs(each.mean() - 1.0) < 4.5 * each.std() / np.sqrt(len(z))


def test_the_law_follows_skewness_width_and_correlation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaps, "REFRESHED", 1e-9)  # of the t alone
    draws = exact_draws(4000)
    law = leaps.fitted(draws)
    assert np.all(law.skew < -0.05)  # log of a gamma leans to the left
    z = law.sample(np.random.default_rng(0), 20_000)
    inner = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
    assert_allclose(inner, np.quantile(draws, [0.25, 0.5, 0.75], axis=0), atol=0.1)
    found = np.corrcoef(np.clip(z, -4.0, 4.0).T)[0, 1]
    assert abs(found - np.corrcoef(draws.T)[0, 1]) < 0.1


def test_the_order_of_draws_does_not_matter() -> None:
    draws = exact_draws(100)
    for one, other in zip(
        leaps.fitted(draws), leaps.fitted(draws[::-1].reshape(10, 10, D)), strict=True
    ):
        assert_array_equal(one, other)


@pytest.mark.parametrize("trajectories", [True, False])
def test_sweeps_keep_the_moments_of_exact_starts(trajectories: bool) -> None:
    J, num = 1000, 30
    law = leaps.fitted(1.2 * exact_draws(200, seed=1) - 0.2)  # beside the density
    state = frozen(exact_draws(J))
    state, swept, taken = leaps.sweeps(
        on_threads(J), law, state, 0, num, trajectories=trajectories
    )
    assert 0.1 < taken.mean() < 0.9
    z = np.asarray(swept.positions)
    x = z.copy()
    x[..., 1] -= 0.8 * x[..., 0]
    gamma = np.exp(x)  # mean 3, variance 3
    # particles are independent of each other: errors from the means of each
    for moment, truth in ((gamma, 3.0), ((gamma - 3.0) ** 2, 3.0)):
        each = moment.mean(axis=0)
        error = each.std(axis=0) / np.sqrt(J)
        assert np.all(np.abs(each.mean(axis=0) - truth) < 4.5 * error)


def test_values_and_scores_are_those_of_positions() -> None:
    J, density = 12, on_threads(12)
    law = leaps.fitted(exact_draws(200))
    state, swept, _ = leaps.sweeps(density, law, frozen(exact_draws(J)), 0, 4)
    values, scores = density(state.positions)
    assert_allclose(state.values, values, rtol=1e-12)
    assert_array_equal(state.values, swept.values[-1])
    known = ~np.isnan(state.scores)
    assert not known.all()  # those who took a leap do not know theirs
    assert_allclose(state.scores[known], scores[known], rtol=1e-9)
    again, num = leaps.with_scores(density, state)
    assert num == 1
    assert_allclose(again.scores, scores, rtol=1e-9)


def test_it_does_not_matter_how_many_sweeps_are_made_at_once() -> None:
    J, density = 6, on_threads(6)
    law = leaps.fitted(exact_draws(100))
    whole, swept, _ = leaps.sweeps(density, law, frozen(exact_draws(J)), 7, 10)
    state, parts = frozen(exact_draws(J)), []
    for num in (1, 1, 3, 5):
        state, some, _ = leaps.sweeps(density, law, state, 7, num)
        parts.append(some)
    for name in ("positions", "values"):
        each = [getattr(part, name) for part in parts]
        assert_array_equal(np.concatenate(each), getattr(swept, name))
    for name in swept.info._fields:
        each = [getattr(part.info, name) for part in parts]
        assert_array_equal(np.concatenate(each), getattr(swept.info, name))
    assert_array_equal(state.positions, whole.positions)
    assert int(state.sweep) == 10


def test_compiled_densities_and_those_on_threads_agree() -> None:
    J = 6
    law = leaps.fitted(exact_draws(100))
    found = [
        leaps.sweeps(density, law, frozen(exact_draws(J)), 0, 6)[1]
        for density in (on_threads(J), OfOne(lopsided, None))
    ]
    assert_allclose(found[0].positions, found[1].positions, rtol=1e-9)


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_taken(beyond: float) -> None:
    def half(z: jax.Array, _: None) -> jax.Array:
        return jnp.where(z[0] < 1.0, lopsided(z, None), beyond)

    J = 40
    z = exact_draws(400)
    z = z[z[:, 0] < 1.0][:J]
    density = OnThreads(half, None, J, num_threads=1)
    state = moves.freeze(moves.init(density, z, compiled=False))
    law = leaps.fitted(exact_draws(300))
    state, swept, taken = leaps.sweeps(density, law, state, 0, 10)
    assert np.all(swept.positions[..., 0] < 1.0)
    assert np.all(np.isfinite(swept.values)) and taken.mean() > 0.1


def test_a_long_flat_tail_that_earlier_draws_have_not_seen_is_found() -> None:
    """As of a lengthscale that is known, or else so short that it does not matter."""

    def density(z: jax.Array, _: None) -> jax.Array:
        known = jnp.logaddexp(-0.5 * ((z[0] - 0.5) / 0.1) ** 2, -6.0)
        return known - 0.5 * (z @ z)

    grid = np.linspace(-8.0, 8.0, 16_001)
    p = np.exp(np.logaddexp(-0.5 * ((grid - 0.5) / 0.1) ** 2, -6.0) - 0.5 * grid**2)
    p /= p.sum()
    truth = p @ (grid < 0.0)
    assert 0.01 < truth < 0.1
    J, sweeps = 200, 200
    start = np.random.default_rng(0).normal([0.5, 0.0], [0.1, 1.0], size=(J, 2))
    on = OnThreads(density, None, J, num_threads=1)
    state = moves.freeze(moves.init(on, start, step=0.1, compiled=False))
    _, swept, _ = leaps.sweeps(
        on, leaps.fitted(start), state, 0, sweeps, trajectories=False
    )
    below = (swept.positions[sweeps // 2 :, :, 0] < 0.0).mean(axis=0)
    assert abs(below.mean() - truth) < 4.5 * below.std() / np.sqrt(J)


# --- in a run ---------------------------------------------------------------------------


def collected(wanted: float = 300.0) -> run_state.State:
    density, state = on_threads(20), run_state.init(exact_draws(20))
    while state.stage != "done":
        state = corrected.advance(density, state, 0, wanted, 5)
    return state


def test_a_run_leaps_where_leaps_are_taken() -> None:
    state = collected()
    assert state.law is not None
    assert state.num_values >= 3 * 20 * (state.sweeps + corrected.SWEEPS_OF_TRIAL)
    own = state.trace["leaps"][-state.sweeps :]
    assert np.all(own > 0.1) and np.all(state.trace["leaps"][: -state.sweeps - 5] == 0)
    # one sweep in five has a trajectory
    lengths = state.trace["num_leapfrog"][-state.sweeps :]
    assert np.sum(lengths > 0) == state.sweeps // 5
    x = state.draws.reshape(-1, D).copy()
    x[:, 1] -= 0.8 * x[:, 0]
    assert np.all(np.abs(np.exp(x).mean(axis=0) - 3.0) < 5.0 * np.sqrt(3.0 / 300.0))


def test_a_run_gives_leaps_up_where_they_are_not_taken() -> None:
    state = collected(wanted=50.0)
    trial = dataclasses.replace(
        state, stage="trying leaps", draws=state.draws[:5], values=state.values[:5],
        trace=dict.fromkeys(state.trace, np.full(5, 0.05)),
    )  # fmt: skip
    judged = corrected._judge_leaps(trial)
    assert judged.stage == "collecting" and judged.law is None and judged.sweeps == 0
    # leaps left scores unknown: the next trajectory takes them anew
    assert judged.moves is not None and np.any(np.isnan(judged.moves.scores))
    after = corrected.advance(on_threads(20), judged, 0, 50.0, 1)
    assert after.moves is not None and np.all(np.isfinite(after.moves.scores))
    assert after.num_values == trial.num_values and after.sweeps == 1
    length = int(after.trace["num_leapfrog"][-1])
    assert after.num_gradients == judged.num_gradients + 20 * (length + 1)


def test_draws_of_the_trial_are_not_collected() -> None:
    density, state = on_threads(20), run_state.init(exact_draws(20))
    while state.stage != "trying leaps" or state.sweeps < 4:
        state = corrected.advance(density, state, 0, 100.0, 1)
    assert state.effective_size() == 0.0
    after = corrected.advance(density, state, 0, 100.0, 1)
    assert after.stage == "collecting" and after.sweeps == 0


def test_a_run_that_leaps_goes_on_from_its_arrays() -> None:
    density, state = on_threads(20), run_state.init(exact_draws(20))
    template = state
    while state.stage != "collecting" or state.sweeps < 5:
        state = corrected.advance(density, state, 0, 1e3, 1)
    again = run_state.from_arrays(template, run_state.to_arrays(state))
    for _ in range(7):
        state = corrected.advance(density, state, 0, 1e3, 1)
        again = corrected.advance(density, again, 0, 1e3, 1)
    assert_array_equal(state.draws, again.draws)
    assert again.law is not None and again.num_values == state.num_values


def test_arrays_of_an_earlier_version_are_refused() -> None:
    state = run_state.init(exact_draws(20))
    arrays = run_state.to_arrays(state)
    del arrays["num_values"]
    with pytest.raises(ValueError, match="another version of steingp"):
        run_state.from_arrays(state, arrays)
