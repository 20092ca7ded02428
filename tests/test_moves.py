"""Hamiltonian moves: the dynamics, the law they leave invariant, adaptation, failure."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from steingp import moves
from steingp.flights import Flight, arrive, depart
from steingp.moves import hamiltonian

# Densities ----------------------------------------------------------------------------


class Gaussian(eqx.Module):
    """N(0, precision^-1)."""

    precision: Array

    def __call__(self, z: Array) -> tuple[Array, Array]:
        scores = -z @ self.precision
        return 0.5 * jnp.sum(z * scores, axis=1), scores


class Bent(eqx.Module):
    """Correlated, skewed and light-tailed, in any dimension."""

    bend: Array

    def __call__(self, z: Array) -> tuple[Array, Array]:
        def log_density(z: Array) -> Array:
            bent = z[1:] - self.bend * (z[:-1] ** 2 - 1.0)
            return -0.5 * z[0] ** 2 - jnp.sum(bent**2) - 0.05 * jnp.sum(z**4)

        return jax.vmap(jax.value_and_grad(log_density))(z)


def bent(bend: float = 0.7) -> Bent:
    return Bent(jnp.asarray(bend))


def correlated(d: int) -> tuple[Gaussian, np.ndarray]:
    """A Gaussian with correlations 0.9^|i - j| and unequal scales, and its factor."""
    index = np.arange(d)
    correlation = 0.9 ** np.abs(index[:, None] - index[None, :])
    L = np.exp(np.linspace(-1.0, 1.0, d))[:, None] * np.linalg.cholesky(correlation)
    return Gaussian(jnp.asarray(np.linalg.inv(L @ L.T))), L


def starts(J: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(J, d))


def split(seed: int, J: int) -> Array:
    return jax.random.split(jax.random.key(seed), J)


def with_step(state: moves.MoveState, step: float) -> moves.MoveState:
    return state._replace(log_step=np.array(np.log(step)))


@eqx.filter_jit
def many_sweeps(
    density: moves.ValueAndScore, state: moves.MoveState, key: Array, num: int
) -> tuple[moves.MoveState, tuple[Array, Array]]:
    """Frozen sweeps in one compiled loop: the positions and acceptances of each."""

    def body(state: moves.MoveState, key: Array) -> tuple:
        keys = jax.random.split(key, len(state.positions))
        state, info = moves.sweep(density, state, keys, adapting=False)
        return state, (state.positions, info.acceptance)

    state = jax.tree.map(jnp.asarray, state)
    return jax.lax.scan(body, state, jax.random.split(key, num))


def z_scores(chains: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Of averages over independent chains (chains, ...), each correlated in itself."""
    means = chains.reshape(len(chains), -1)
    errors = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    return (means.mean(axis=0) - truth.ravel()) / errors


# The dynamics -------------------------------------------------------------------------


def fly(
    density: moves.ValueAndScore, z: Array, p: Array, step: Array, F: Array, num: int
) -> Flight:
    density = eqx.filter_jit(density)
    start = flight = Flight(z, p, *density(z), jnp.ones(len(z), bool))
    for _ in range(num):
        halfway = jax.vmap(depart, (0, 0, 0, None))(flight, start, step, F)
        scored = density(halfway.position)
        flight = jax.vmap(arrive, (0, 0, 0, 0, None))(halfway, scored, start, step, F)
    return flight


def metric(d: int) -> Array:
    lower = np.tril(np.random.default_rng(3).normal(0.0, 0.2, (d, d)), -1)
    return jnp.asarray(lower + np.diag(np.linspace(0.5, 1.5, d)))


def test_leapfrog_is_reversible() -> None:
    z, p = jnp.asarray(starts(6, 4)), jnp.asarray(starts(6, 4, seed=1))
    step = jnp.linspace(0.1, 0.25, 6)
    there = fly(bent(), z, p, step, metric(4), 12)
    back = fly(bent(), there.position, -there.momentum, step, metric(4), 12)
    assert float(jnp.max(jnp.abs(there.position - z))) > 0.5
    np.testing.assert_allclose(back.position, z, rtol=0, atol=1e-9)
    np.testing.assert_allclose(-back.momentum, p, rtol=0, atol=1e-9)
    np.testing.assert_allclose(back.value, bent()(z)[0], rtol=0, atol=1e-9)


def test_leapfrog_keeps_volume() -> None:
    def flow(both: Array) -> Array:
        there = fly(
            bent(), both[None, :3], both[None, 3:], jnp.array([0.2]), metric(3), 5
        )
        return jnp.concatenate([there.position[0], there.momentum[0]])

    jacobian = jax.jacfwd(flow)(jnp.asarray(starts(1, 6)[0]))
    np.testing.assert_allclose(jnp.abs(jnp.linalg.det(jacobian)), 1.0, rtol=1e-10)
    assert float(jnp.abs(jacobian - jnp.eye(6)).max()) > 0.3


def test_energy_error_is_of_second_order_in_the_step() -> None:
    z, p = jnp.asarray(starts(200, 4)), jnp.asarray(starts(200, 4, seed=1))
    errors = []
    for num in (20, 40, 80):  # a path of length 1
        there = fly(bent(), z, p, jnp.full(200, 1.0 / num), metric(4), num)
        start = fly(bent(), z, p, jnp.full(200, 1.0), metric(4), 0)
        errors.append(float(jnp.median(jnp.abs(there.energy() - start.energy()))))
    # half the step, a quarter of the error; a first-order scheme would halve it
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 4.0, rtol=0.1)
    assert errors[0] < 0.1


@pytest.mark.parametrize(("step", "num"), [(0.4, 4), (0.001, 12), (0.12, 12), (3.0, 2)])
def test_a_sweep_is_the_formula_written_plainly(step: float, num: int) -> None:
    J, d, F = 20, 3, np.asarray(metric(3))
    state = with_step(moves.init(bent(), starts(J, d)), step)._replace(factor=F)
    keys = split(5, J)
    new, info = moves.jitted_sweep(bent(), state, keys, adapting=False)
    assert int(info.num_leapfrog) == int(info.num_gradients) == num  # 1.75 / step
    step = min(step, 0.875)  # two leapfrog steps at least
    np.testing.assert_allclose(info.step, step)

    p, jitter, log_u = map(np.asarray, hamiltonian.draw_randomness(keys, d))
    density = eqx.filter_jit(bent())
    value = np.zeros(J)
    e, z, score = step * jitter[:, None], state.positions, state.scores
    before = state.values - 0.5 * np.sum(p**2, axis=1)
    for _ in range(num):
        p = p + 0.5 * e * np.stack([F.T @ one for one in score])
        z = z + e * np.stack([F @ one for one in p])
        value, score = map(np.asarray, density(z))
        p = p + 0.5 * e * np.stack([F.T @ one for one in score])
    gain = value - 0.5 * np.sum(p**2, axis=1) - before
    where = np.where((log_u < gain)[:, None], z, state.positions)
    np.testing.assert_allclose(new.positions, where, rtol=1e-10)
    acceptance = np.mean(np.exp(np.minimum(gain, 0.0)))
    np.testing.assert_allclose(info.acceptance, acceptance, rtol=1e-10)
    np.testing.assert_allclose(info.energy_error, np.abs(gain).max(), rtol=1e-8)
    values, scores = density(new.positions)
    np.testing.assert_allclose(new.values, values, rtol=1e-12)
    np.testing.assert_allclose(new.scores, scores, rtol=1e-12)
    np.testing.assert_allclose(info.log_density, np.mean(values), rtol=1e-12)
    assert int(new.sweep) == 1


def test_randomness_has_the_laws_it_should() -> None:
    p, jitter, log_u = hamiltonian.draw_randomness(split(0, 20_000), 3)
    np.testing.assert_allclose(np.cov(p.T), np.eye(3), atol=4 * np.sqrt(2 / 20_000))
    np.testing.assert_allclose(np.mean(p, axis=0), 0.0, atol=4 / np.sqrt(20_000))
    quartiles = [0.25, 0.5, 0.75]
    short = np.asarray(jitter) < 0.5
    assert abs(np.mean(short) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)
    for steps, width, error in (
        (jitter[~short], 1.0, 0.005),
        (jitter[short], 0.25, 0.01),
    ):
        np.testing.assert_allclose(
            np.quantile(steps, quartiles), width * np.array([0.9, 1, 1.1]), atol=error
        )
    np.testing.assert_allclose(
        np.quantile(np.exp(log_u), quartiles), quartiles, atol=0.015
    )
    seen = np.corrcoef(np.column_stack([p, jitter, log_u]).T)
    assert np.abs(seen - np.eye(5)).max() < 4 / np.sqrt(20_000)


# The law that is left invariant -------------------------------------------------------


class Observed(eqx.Module):
    """theta ~ N(0, I_2), y | theta ~ N(g(theta), s^2); one y per particle."""

    y: Array
    s: float = 0.6

    @staticmethod
    def g(theta: Array) -> Array:
        a, b = theta[..., 0], theta[..., 1]
        return jnp.stack([a + 0.5 * b**2, b * jnp.exp(0.4 * a), a * b], axis=-1)

    def __call__(self, theta: Array) -> tuple[Array, Array]:
        def log_density(theta: Array, y: Array) -> Array:
            misfit = (y - self.g(theta)) / self.s
            return -0.5 * jnp.sum(theta**2) - 0.5 * jnp.sum(misfit**2)

        return jax.vmap(jax.value_and_grad(log_density))(theta, self.y)


def test_geweke_joint_distribution() -> None:
    # Alternating theta | y (a sweep) and y | theta (fresh) leaves p(theta, y) as it is
    # if and only if the sweep leaves p(theta | y) as it is. 500 chains of 60 sweeps.
    J, num, s = 500, 60, Observed.s

    def moments(theta: Array, y: Array) -> Array:
        both = jnp.concatenate([theta, y], axis=-1)
        i, j = np.triu_indices(5)
        return jnp.concatenate([both, both[..., i] * both[..., j]], axis=-1)

    def draw_y(key: Array, theta: Array) -> Array:
        return Observed.g(theta) + s * jax.random.normal(key, (*theta.shape[:-1], 3))

    @jax.jit
    def alternate(state: moves.MoveState, key: Array) -> tuple[Array, Array]:
        def body(state: moves.MoveState, key: Array) -> tuple:
            of_y, of_sweep = jax.random.split(key)
            y = draw_y(of_y, state.positions)
            state = moves.refresh(Observed(y), state)
            keys = jax.random.split(of_sweep, J)
            state, info = moves.sweep(Observed(y), state, keys, adapting=False)
            return state, (moments(state.positions, y), info.acceptance)

        return jax.lax.scan(body, state, jax.random.split(key, num))[1]

    of_start, of_run, of_prior, of_data = jax.random.split(jax.random.key(1), 4)
    theta = jax.random.normal(of_start, (J, 2))
    state = moves.init(Observed(jnp.zeros((J, 3))), theta)
    state = with_step(state, 0.55)._replace(factor=np.array([[0.8, 0.0], [0.2, 0.6]]))
    state = jax.tree.map(jnp.asarray, state)
    seen, acceptance = alternate(state, of_run)
    assert 0.6 < np.mean(acceptance) < 0.9  # so that rejection matters

    prior = jax.random.normal(of_prior, (300_000, 2))
    independent = np.asarray(moments(prior, draw_y(of_data, prior)))
    by_chain = np.mean(seen, axis=0)  # its spread has the chain's autocorrelation in it
    variance = by_chain.var(axis=0, ddof=1) / J + independent.var(axis=0) / 3e5
    z = (by_chain.mean(axis=0) - independent.mean(axis=0)) / np.sqrt(variance)
    assert np.abs(z).max() < 4.0


def whitened_moments(draws: np.ndarray, L: np.ndarray) -> np.ndarray:
    """First and second moments of L^-1 draws (sweeps, J, d) per particle: (J, ...)."""
    x = draws @ np.linalg.inv(L).T
    i, j = np.triu_indices(L.shape[0])
    second = np.einsum("sjd,sje->jde", x, x) / len(x)
    return np.concatenate([x.mean(axis=0), second[:, i, j]], axis=1)


def truth_of_moments(d: int) -> np.ndarray:
    i, j = np.triu_indices(d)
    return np.concatenate([np.zeros(d), (i == j).astype(float)])


def test_exact_starts_keep_their_moments() -> None:
    # 1000 particles, 100 frozen sweeps; a metric that is far from right
    density, L = correlated(10)
    exact = starts(1000, 10) @ L.T
    state = with_step(moves.init(density, exact), 0.3)
    state = state._replace(factor=np.diag(np.linalg.norm(L, axis=1)))
    _, (draws, acceptance) = many_sweeps(density, state, jax.random.key(0), 100)
    assert 0.6 < np.mean(acceptance) < 0.9
    z = z_scores(whitened_moments(np.asarray(draws), L), truth_of_moments(10))
    assert np.abs(z).max() < 4.0


class RoughlyScored(eqx.Module):
    """Wrong scores and wrong values; the right ones by `values`."""

    density: Gaussian
    rough: bool = eqx.field(default=True, static=True)

    def __call__(self, z: Array) -> tuple[Array, Array]:
        values, scores = self.density(z)
        return 0.7 * values, 1.1 * scores + 0.1 * jnp.sin(5.0 * z)

    def values(self, z: Array) -> Array:
        return self.density(z)[0]


@pytest.mark.parametrize("with_values", [True, False])
def test_moves_along_rough_scores_are_exact_by_exact_values(with_values: bool) -> None:
    exact, L = correlated(4)
    density = RoughlyScored(exact)
    begun = starts(1000, 4) @ L.T
    state = with_step(moves.init(density, begun), 0.4)
    state = state._replace(factor=L, values=np.asarray(exact(jnp.asarray(begun))[0]))
    plain = density if with_values else density.__call__
    _, (draws, _) = many_sweeps(plain, state, jax.random.key(0), 60)
    z = z_scores(whitened_moments(np.asarray(draws), L), truth_of_moments(4))
    assert bool(np.abs(z).max() < 4.0) is with_values


def test_adapted_then_frozen_moves_keep_the_moments() -> None:
    # 60 runs of 20 particles: adapt, new metric, adapt, freeze, and 84 sweeps kept
    density, L = correlated(10)
    seen = []
    for seed in range(60):
        state = moves.init(density, starts(20, 10, seed) @ L.T)
        state, _, draws = moves.run(density, state, 5, seed, adapting=True)
        state = moves.with_metric(state, draws[1:])
        state, _, _ = moves.run(density, state, 6, seed, adapting=True)
        key = jax.random.key(1000 + seed)
        _, (draws, _) = many_sweeps(density, moves.freeze(state), key, 84)
        seen.append(whitened_moments(np.asarray(draws), L).mean(axis=0))
    z = z_scores(np.stack(seen), truth_of_moments(10))
    assert np.abs(z).max() < 4.0


def test_in_a_frozen_sweep_nothing_depends_on_the_other_particles() -> None:
    state = moves.init(bent(), starts(20, 3))
    state, _, _ = moves.run(bent(), state, 6, 0, adapting=True)
    frozen = moves.freeze(state)
    assert frozen.log_step == state.averaged_log_step != state.log_step
    fresh = moves.init(bent(), starts(20, 3, seed=9))
    others = frozen._replace(
        positions=np.concatenate([frozen.positions[:2], fresh.positions[2:]]),
        values=np.concatenate([frozen.values[:2], fresh.values[2:]]),
        scores=np.concatenate([frozen.scores[:2], fresh.scores[2:]]),
    )
    for _ in range(5):
        keys = moves.sweep_keys(3, frozen, 1)[0]
        frozen, info = moves.jitted_sweep(bent(), frozen, keys, adapting=False)
        others, other = moves.jitted_sweep(bent(), others, keys, adapting=False)
        np.testing.assert_array_equal(frozen.positions[:2], others.positions[:2])
        assert info.step == other.step
        assert float(info.acceptance) != float(other.acceptance)
    changing = {"positions", "values", "scores", "sweep"}
    for name in set(moves.MoveState._fields) - changing:
        kept = moves.freeze(state)._asdict()[name]
        np.testing.assert_array_equal(frozen._asdict()[name], kept)


# Order, interruption, resumption ------------------------------------------------------


def test_permuted_particles_with_their_keys_give_permuted_results() -> None:
    # a slight bend: rounding, which depends on a particle's place, grows with each sweep
    density, order = bent(0.3), np.random.default_rng(0).permutation(20)
    state = moves.init(density, starts(20, 3))
    permuted = moves.init(density, starts(20, 3)[order])
    stages = [("adapt", 5), ("metric", 4), ("freeze", 4)]
    for stage, num in stages:
        if stage == "metric":
            state, permuted = (
                moves.with_metric(s, s.positions) for s in (state, permuted)
            )
        if stage == "freeze":
            state, permuted = moves.freeze(state), moves.freeze(permuted)
        for i in range(num):
            keys, adapting = split(i, 20), stage != "freeze"
            state, _ = moves.jitted_sweep(density, state, keys, adapting=adapting)
            permuted, _ = moves.jitted_sweep(
                density, permuted, keys[order], adapting=adapting
            )
        for name in ("positions", "values", "scores"):
            np.testing.assert_allclose(
                getattr(permuted, name), getattr(state, name)[order], rtol=0, atol=1e-12
            )
        np.testing.assert_allclose(
            permuted.log_step, state.log_step, rtol=0, atol=1e-12
        )
    assert np.abs(state.positions - starts(20, 3)).max(axis=1).min() > 0.1  # all moved


def test_pooled_means_do_not_depend_on_the_order_to_the_last_digit() -> None:
    x = np.random.default_rng(0).uniform(size=20)
    means = {
        float(hamiltonian._mean(jnp.asarray(np.random.default_rng(i).permutation(x))))
        for i in range(50)
    }
    assert len(means) == 1 and abs(means.pop() - x.mean()) < 1e-15


def test_a_run_resumed_from_a_file_gives_the_same_result(tmp_path: Path) -> None:
    state = moves.init(bent(), starts(20, 3))
    whole, infos, draws = moves.run(bent(), state, 12, 7, adapting=True)
    half, first, early = moves.run(bent(), state, 5, 7, adapting=True)
    np.savez(tmp_path / "state.npz", **half._asdict())
    with np.load(tmp_path / "state.npz") as stored:
        half = moves.MoveState(**stored)
    rest, second, late = moves.run(bent(), half, 7, 7, adapting=True)
    for one, other in zip(whole, rest, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(draws, np.concatenate([early, late]))
    for all_, one, other in zip(infos, first, second, strict=True):
        np.testing.assert_array_equal(all_, np.concatenate([one, other]))
    assert draws.shape == (12, 20, 3) and int(rest.sweep) == 12
    np.testing.assert_array_equal(draws[-1], whole.positions)
    other, _, _ = moves.run(bent(), state, 12, 8, adapting=True)
    assert np.all(other.positions != whole.positions)


@pytest.mark.parametrize("compiled", [True, False])
def test_ctrl_c_keeps_the_last_complete_sweep(compiled: bool) -> None:
    calls = []

    def callback(state: moves.MoveState, info: moves.MoveInfo) -> None:
        calls.append(int(state.sweep))
        if len(calls) == 3:
            raise KeyboardInterrupt

    def density(z: Array) -> tuple[Array, Array]:
        if not compiled and len(calls) == 2:  # in the midst of the third sweep
            raise KeyboardInterrupt
        return bent()(z)

    state = moves.init(bent(), starts(20, 3))
    with pytest.warns(UserWarning, match="interrupted after"):
        reached, infos, draws = moves.run(
            density, state, 50, 0, adapting=True, compiled=compiled, callback=callback
        )
    num = 3 if compiled else 2
    assert int(reached.sweep) == len(draws) == len(infos.acceptance) == num
    calls = [0, 0, 0]
    again, _, _ = moves.run(density, reached, 2, 0, adapting=True, compiled=compiled)
    whole, _, _ = moves.run(
        density, state, num + 2, 0, adapting=True, compiled=compiled
    )
    np.testing.assert_array_equal(again.positions, whole.positions)


def test_callback_stops_and_no_sweeps_are_fine() -> None:
    state = moves.init(bent(), starts(20, 3))
    stopped, infos, draws = moves.run(
        bent(), state, 50, 0, adapting=True, callback=lambda s, i: int(s.sweep) == 4
    )
    assert int(stopped.sweep) == len(draws) == len(infos.step) == 4
    same, infos, draws = moves.run(bent(), state, 0, 0, adapting=True)
    assert draws.shape == (0, 20, 3) and infos.step.shape == (0,)
    np.testing.assert_array_equal(same.positions, state.positions)


def test_a_density_on_the_host_gives_what_a_compiled_one_gives() -> None:
    calls = []

    def on_the_host(positions: Array) -> tuple[np.ndarray, np.ndarray]:
        z = np.asarray(positions)  # fails under jit
        calls.append(len(z))
        scores = -z * np.array([1.0, 4.0, 9.0])
        return 0.5 * np.sum(z * scores, axis=1), scores

    density = Gaussian(jnp.diag(jnp.array([1.0, 4.0, 9.0])))
    state = moves.init(density, starts(20, 3))
    other = moves.init(on_the_host, starts(20, 3), compiled=False)
    for adapting in (True, False):
        state, info, draws = moves.run(density, state, 5, 0, adapting=adapting)
        del calls[:]
        other, counts, same = moves.run(
            on_the_host, other, 5, 0, adapting=adapting, compiled=False
        )
        np.testing.assert_allclose(same, draws, rtol=0, atol=1e-10)
        assert len(calls) == counts.num_gradients.sum() == info.num_gradients.sum()


def test_starting_with_known_values_is_starting() -> None:
    state = moves.init(bent(), starts(20, 3), step=0.3)
    same = moves.start(state.positions, state.values, state.scores, step=0.3)
    for one, other in zip(state, same, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_compilation_serves_all_sweeps_and_equal_densities() -> None:
    traces = []

    class Counted(eqx.Module):
        precision: Array

        def __call__(self, z: Array) -> tuple[Array, Array]:
            traces.append(1)
            return Gaussian(self.precision)(z)

    state = moves.init(Counted(jnp.eye(3)), starts(20, 3))
    state, _, draws = moves.run(Counted(jnp.eye(3)), state, 2, 0, adapting=True)
    once = len(traces)
    for density in (Counted(jnp.eye(3)), Counted(2.0 * jnp.eye(3))):
        state = moves.with_metric(state, draws)
        state, _, _ = moves.run(density, state, 2, 0, adapting=True)
        state, _, _ = moves.run(density, moves.freeze(state), 2, 0, adapting=False)
        moves.init(density, starts(20, 3))
    assert len(traces) == once


# Failure ------------------------------------------------------------------------------


class HalfSpace(eqx.Module):
    """N(0, I) where the first coordinate is positive; values and scores break beyond."""

    value: Array
    score: Array

    def __call__(self, z: Array) -> tuple[Array, Array]:
        good = z[:, 0] > 0.0
        values = -0.5 * jnp.sum(z**2, axis=1)
        return (
            jnp.where(good, values, self.value),
            jnp.where(good[:, None], -z, self.score),
        )


@pytest.mark.parametrize(
    ("value", "score"),
    [(jnp.nan, jnp.nan), (-jnp.inf, jnp.nan), (jnp.inf, 0.0), (5.0, jnp.nan)],
)
def test_particles_stay_finite_and_in_the_good_half(value: float, score: float) -> None:
    density = HalfSpace(jnp.asarray(value), jnp.asarray(score))
    state = moves.init(density, np.abs(starts(300, 2)))
    state, _, _ = moves.run(density, state, 5, 0, adapting=True)
    state, infos, draws = moves.run(density, moves.freeze(state), 20, 0, adapting=False)
    assert np.all(np.isfinite(draws)) and np.all(draws[..., 0] > 0.0)
    for part in state:
        assert np.all(np.isfinite(part))
    assert np.all(np.isfinite(infos.acceptance)) and np.all(infos.num_failed > 20)
    # the law there is a half normal: E x = sqrt(2 / pi), E x^2 = 1 and E y^2 = 1
    x, y = draws[..., 0].T, draws[..., 1].T
    chains = np.stack([x.mean(1), (x**2).mean(1), (y**2).mean(1)], axis=1)
    assert np.abs(z_scores(chains, np.array([np.sqrt(2 / np.pi), 1.0, 1.0]))).max() < 4


@pytest.mark.parametrize(("value", "score"), [(5.0, jnp.nan), (jnp.inf, 0.0)])
def test_failures_are_counted_wherever_on_the_way_they_happen(
    value: float, score: float
) -> None:
    density = HalfSpace(jnp.asarray(value), jnp.asarray(score))
    start = np.abs(starts(300, 2))
    state = with_step(moves.init(density, start), 0.4)._replace(factor=np.eye(2))
    keys = split(0, 300)
    new, info = moves.jitted_sweep(density, state, keys, adapting=False)
    p, jitter, _ = map(np.asarray, hamiltonian.draw_randomness(keys, 2))
    z, e, failed, count = start, 0.4 * jitter[:, None], np.zeros(300, bool), []
    for _ in range(4):  # the normal's own trajectory: who leaves the half has failed
        p = p - 0.5 * e * z
        z = z + e * p
        p = p - 0.5 * e * z
        failed |= z[:, 0] <= 0.0
        count.append(failed.sum())
    assert 0 < count[0] < count[1] < count[2] < count[3] == int(info.num_failed)
    np.testing.assert_array_equal(np.asarray(new.positions)[failed], start[failed])


def test_the_density_is_never_asked_where_a_particle_cannot_be() -> None:
    # the score overflows: positions after a leapfrog step would not be finite
    def steep(positions: Array) -> tuple[np.ndarray, np.ndarray]:
        z = np.asarray(positions)
        assert np.all(np.isfinite(z))
        beyond = np.abs(z) > 1.0
        scores = np.where(beyond, -1e300 * np.sign(z), -z)
        inside = np.clip(z, -1.0, 1.0)
        return -0.5 * np.sum(inside**2, axis=1) - 1e300 * beyond.any(axis=1), scores

    state = moves.init(steep, 0.1 * starts(20, 3), step=1e10, compiled=False)
    state, _, draws = moves.run(steep, state, 10, 0, adapting=True, compiled=False)
    assert np.all(np.isfinite(draws)) and np.all(np.abs(draws) <= 1.0)
    assert np.all(draws[-1] != draws[0])


def test_bad_starts_are_refused() -> None:
    density = HalfSpace(jnp.asarray(jnp.nan), jnp.asarray(jnp.nan))
    with pytest.raises(FloatingPointError, match=r"1 of 3 particles.*particle 2"):
        moves.init(density, [[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    for bad in (np.zeros(3), np.zeros((0, 2)), [["a"]]):
        with pytest.raises(ValueError, match="positions must be a matrix"):
            moves.init(density, bad)
    with pytest.raises(ValueError, match="step must be positive; got -1"):
        moves.init(density, np.ones((3, 2)), step=-1.0)
    state = moves.init(density, np.ones((3, 2)))
    with pytest.raises(ValueError, match="draws have 3 coordinates, particles 2"):
        moves.with_metric(state, np.zeros((5, 3)))
    with pytest.raises(ValueError, match="num_sweeps"):
        moves.run(density, state, -1, 0, adapting=True)


# Adaptation ---------------------------------------------------------------------------


@pytest.mark.parametrize("times", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("num", [6, 12])
def test_the_step_finds_its_acceptance(times: float, num: int) -> None:
    gaussian, L = correlated(10)
    cases = [(gaussian, starts(20, 10) @ L.T), (bent(), starts(20, 3))]
    for density, start in cases:
        state = moves.init(density, start, step=0.6 * times)
        state, infos, _ = moves.run(density, state, num, 0, adapting=True)
        assert infos.num_gradients[0] <= infos.num_leapfrog[0] + 9  # log2(100) + 2
        assert np.all(infos.num_gradients[1:] == infos.num_leapfrog[1:])
        frozen, infos, _ = moves.run(
            density, moves.freeze(state), 25, 1, adapting=False
        )
        assert 0.65 < infos.acceptance.mean() < 0.95
        assert 0.1 < infos.step[0] < 1.6
        # and again after a change of metric by a factor of 100
        state = moves.with_metric(frozen, 100.0 * start)
        state, _, _ = moves.run(density, state, num, 2, adapting=True)
        _, infos, _ = moves.run(density, moves.freeze(state), 25, 3, adapting=False)
        assert 0.65 < infos.acceptance.mean() < 0.95


@pytest.mark.parametrize("step", [0.01, 0.4, 50.0])
def test_the_search_ends_with_the_largest_good_step_tried(step: float) -> None:
    state = moves.init(bent(), starts(20, 3), step=step)
    keys = split(2, 20)
    new, info = moves.jitted_sweep(bent(), state, keys, adapting=True)
    randomness = hamiltonian.draw_randomness(keys, 3)
    z, F = jnp.asarray(state.positions), jnp.asarray(state.factor)
    before = fly(bent(), z, randomness.momenta, randomness.jitter, F, 0)

    def is_good(step: float) -> bool:
        end = fly(bent(), z, randomness.momenta, step * randomness.jitter, F, 1)
        gain = before.energy() - end.energy()
        return float(jnp.mean(jnp.exp(jnp.minimum(gain, 0.0)))) > 0.8

    found = float(np.exp(new.first_log_step))
    assert is_good(found) and not is_good(2.0 * found)
    doublings = int(np.round(np.log2(found / step)))
    np.testing.assert_allclose(found, step * 2.0**doublings)
    # up: one gradient per step tried and one that fails; down: as many as halvings, + 1
    tried = int(info.num_gradients) - int(info.num_leapfrog)
    assert tried == (doublings + 2 if doublings >= 0 else 1 - doublings)


def test_adaptation_is_dual_averaging() -> None:
    state = moves.init(bent(), starts(20, 3))
    _, infos, _ = moves.run(bent(), state, 8, 0, adapting=True)
    # by hand: x = first - 4 sqrt(t) mean error, errors weighted by 1 / (t + 3)
    first, error, averaged = np.log(infos.step[0]), 0.0, np.nan
    for t in range(1, 8):
        error += (0.8 - infos.acceptance[t - 1] - error) / (t + 3)
        log_step = first - 4.0 * np.sqrt(t) * error
        np.testing.assert_allclose(np.log(infos.step[t]), log_step, rtol=1e-10)
        averaged = log_step if t == 1 else averaged + t**-0.75 * (log_step - averaged)
    reached, _, _ = moves.run(bent(), state, 7, 0, adapting=True)
    np.testing.assert_allclose(reached.averaged_log_step, averaged, rtol=1e-10)
    assert int(reached.num_adapted) == 7


def test_a_new_metric_restarts_the_step() -> None:
    state = moves.init(bent(), starts(20, 3))
    state, _, draws = moves.run(bent(), state, 8, 0, adapting=True)
    new = moves.with_metric(state, draws)
    np.testing.assert_array_equal(new.factor, moves.shrunk_factor(draws))
    fresh = moves.init(bent(), state.positions)
    for name in ("log_step", "averaged_log_step", "shortfall", "num_adapted"):
        assert getattr(new, name) == getattr(fresh, name)
    assert int(new.sweep) == 8
    np.testing.assert_array_equal(new.positions, state.positions)


@pytest.mark.user_precision
def test_double_precision_without_a_flag() -> None:
    state = moves.init(bent(), starts(20, 3))
    state, infos, draws = moves.run(bent(), state, 3, 0, adapting=True)
    parts = (state.positions, state.log_step, infos.acceptance, draws)
    assert all(isinstance(p, np.ndarray) and p.dtype == np.float64 for p in parts)
    state, _ = moves.jitted_sweep(bent(), state, split(0, 20), adapting=False)
    assert state.positions.dtype == np.float64


# The metric ---------------------------------------------------------------------------


def effort(F: np.ndarray, L: np.ndarray) -> float:
    """Longest over shortest scale of N(0, L L') in the metric F F'; 1 at best."""
    values = np.linalg.svd(np.linalg.solve(F, L), compute_uv=False)
    return float(values.max() / values.min())


def is_factor(F: np.ndarray) -> bool:
    return bool(
        np.isfinite(F).all() and (np.tril(F) == F).all() and (np.diag(F) > 0).all()
    )


@pytest.mark.parametrize("d", [1, 2, 10])
def test_many_draws_give_their_covariance(d: int) -> None:
    _, L = correlated(d)
    draws = starts(40_000, d) @ L.T + 100.0
    F = moves.shrunk_factor(draws.reshape(200, 200, d))
    assert is_factor(F) and effort(F, L) < 1.05
    np.testing.assert_allclose(np.diag(F @ F.T), draws.var(axis=0, ddof=1), rtol=1e-10)


def test_few_draws_are_shrunk_to_good_effect() -> None:
    # medians over 50 sets of 20 draws in 10 dimensions
    independent, chain = np.eye(10), correlated(10)[1]
    pair = np.eye(10)
    pair[1, :2] = 0.99, np.sqrt(1 - 0.99**2)
    for L, bound in ((independent, 2.3), (chain, 3.6), (pair, 5.5)):
        sets = [starts(20, 10, seed) @ L.T for seed in range(50)]
        shrunk = np.median([effort(moves.shrunk_factor(x), L) for x in sets])
        plain = [effort(np.linalg.cholesky(np.cov(x.T)), L) for x in sets]
        assert shrunk < bound
        assert shrunk < np.median(plain) or L is pair


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 11, 13, 14])
def test_fewer_draws_than_coordinates(n: int) -> None:
    _, L = correlated(10)
    F = moves.shrunk_factor(starts(n, 10) @ L.T)
    assert is_factor(F)
    if n > 1:
        assert effort(F, np.diag(np.linalg.norm(F, axis=1))) < 100.0
    else:
        np.testing.assert_array_equal(F, np.eye(10))


def test_a_coordinate_without_spread() -> None:
    draws = starts(30, 3) * np.array([2.0, 0.0, 0.1]) + np.array([0.0, 0.3, 5.0])
    F = moves.shrunk_factor(draws)
    spread = draws.std(axis=0, ddof=1)
    assert is_factor(F)
    np.testing.assert_allclose(np.linalg.norm(F, axis=1), spread[[0, 2, 2]])
    np.testing.assert_array_equal(F[1], [0.0, F[1, 1], 0.0])
    np.testing.assert_array_equal(moves.shrunk_factor(np.full((9, 2), 0.1)), np.eye(2))
    twins = np.repeat(starts(30, 1), 2, axis=1)  # two coordinates that are one
    assert is_factor(moves.shrunk_factor(twins))


def test_the_factor_does_not_depend_on_units_or_order() -> None:
    _, L = correlated(4)
    draws = starts(12, 4) @ L.T
    units = np.array([1e-6, 1.0, 1e3, 50.0])
    F, scaled = moves.shrunk_factor(draws), moves.shrunk_factor(draws * units)
    np.testing.assert_allclose(scaled, units[:, None] * F, rtol=1e-9)
    order = [2, 0, 3, 1]
    permuted = moves.shrunk_factor(draws[:, order])
    covariance = (F @ F.T)[np.ix_(order, order)]
    np.testing.assert_allclose(permuted @ permuted.T, covariance, rtol=1e-9)


@pytest.mark.parametrize("width", [0.1, 3.0])
def test_scores_tell_the_metric_however_wide_the_draws_are(width: float) -> None:
    """What shrinking leaves of the exact metric: n draws, so about 1 / sqrt(n)."""
    index, n = np.arange(4), 2500
    correlation = 0.5 ** np.abs(index[:, None] - index[None, :])
    L = np.array([0.1, 1.0, 5.0, 2.0])[:, None] * np.linalg.cholesky(correlation)
    draws = width * starts(n, 4) * np.array([0.1, 3.0, 5.0, 1.0])
    F = moves.curved_factor(draws, -draws @ np.linalg.inv(L @ L.T))
    white = np.linalg.solve(L, F)
    eigenvalues = np.linalg.eigvalsh(white @ white.T)
    assert np.all(np.abs(eigenvalues - 1.0) < 4.0 / np.sqrt(n)), eigenvalues


@pytest.mark.parametrize("bad", [np.zeros(3), [["a"]], [[np.nan]], np.zeros((0, 2))])
def test_bad_draws_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="draws must be finite numbers"):
        moves.shrunk_factor(bad)
