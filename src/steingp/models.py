"""Models: data + kernel + likelihood -> a target.

`SteinGP` chooses the target: f integrated out for a Gaussian likelihood on all the data,
whitened latents at the rows for any other, at inducing points where `inducing` is given.
The paper's names (`steingp.paper`) construct it with those choices made.
"""

import copy
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike

from steingp import inducing as inducing_points
from steingp import interop, svgd
from steingp.batches import BlockStream, FullBatch, Minibatches, StreamBatches
from steingp.checks import check_count
from steingp.data import Batch, check_inputs, in_order, warn_about_scale
from steingp.kernels import Kernel
from steingp.likelihoods import Gaussian, Likelihood
from steingp.linalg import DEFAULT_JITTER, mvn_sample
from steingp.means import Mean, Zero
from steingp.observations import in_memory, streamed
from steingp.posterior import Posterior
from steingp.precision import float64, to_numpy
from steingp.prediction import predict, row_of
from steingp.priors import Particle
from steingp.targets import (
    Collapsed,
    Marginal,
    Sparse,
    Specification,
    Target,
    Titsias,
    Variational,
    Whitened,
)
from steingp.targets.sites import RULES

_WORKING_FLOATS = 2**28
"""About how many numbers the particles scored at once may need on a CPU (2 GiB)."""


class SteinGP:
    """A Gaussian process whose full posterior is to be found.

    Args:
        data: `(X, y)` with X (N, D) and y (N,) or (N, 1): NumPy, JAX, lists or pandas.
            Anything but a pair is a stream, and needs `inducing`: a `RowsOnDisk`; or,
            with `num_data`, an iterable, or a callable that returns an iterator, of
            `(X, y)` blocks.
        kernel: a `steingp.kernels` kernel or a GPflow one.
        likelihood: p(y | f); Gaussian by default.
        mean: the mean function; zero by default.
        inducing: inducing points Z (M, D), or how many to choose from X (of a stream,
            from 10,000 rows at random) by greedy conditional variance. None: no sparse
            approximation.
        batch_size: rows per step, drawn without replacement within an epoch; needs
            `inducing`. None: all rows at every step.
        num_data: rows of the whole stream; a `RowsOnDisk` knows it.
        latents: "auto" integrates f out: exactly for Gaussian data, by `approximation`
            otherwise. "joint" makes latents part of every particle, as the paper does for
            other likelihoods and with inducing points.
        approximation: how f is integrated out where that is not exact: "ep" (the default
            for Bernoulli, counts and positive data), "vi" (for StudentT, and with
            inducing points) or "laplace".
        standardise: work on inputs (and real-valued outputs) of zero mean and unit sd,
            and answer in the user's units. Hyperparameters are then in scaled units.
        jitter: added to the diagonal of covariance matrices.
        seed: for the choice of inducing points and the order of batches.

    Raises:
        ValueError: for data or arguments that cannot work, with the fix.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> model
        SteinGP(30 rows, 1 column, f integrated out, 3 hyperparameters)
    """

    def __init__(
        self,
        data: Any,
        kernel: Any,
        likelihood: Any = None,
        *,
        mean: Mean | None = None,
        inducing: int | ArrayLike | None = None,
        batch_size: int | None = None,
        num_data: int | None = None,
        latents: str = "auto",
        approximation: str | None = None,
        standardise: bool = False,
        jitter: float = DEFAULT_JITTER,
        seed: int = 0,
    ) -> None:
        kernel, likelihood, mean = _check_parts(kernel, likelihood, mean)
        _check_options(inducing, batch_size, latents, jitter, seed)
        approximation = _check_approximation(approximation, likelihood, inducing)
        self._likelihood, self._batch_size, self._seed = likelihood, batch_size, seed
        if isinstance(data, tuple) and len(data) == 2:
            seen = in_memory(data, num_data, likelihood, standardise)
        else:
            seen = streamed(
                data, num_data, likelihood, inducing, batch_size, standardise, seed
            )
        self.num_data, self.scaling = seen.num_data, seen.scaling
        self.labels, self.data = seen.labels, seen.batch
        self.stream: BlockStream | None = seen.stream
        X, y = np.asarray(self.data.X), np.asarray(self.data.y)
        specification = Specification.bind(kernel, mean, likelihood, X.shape[1])
        self._warn(specification, X, y, standardise)
        Z = self._choose_inducing(inducing, seen.candidates, kernel)
        self.target = self._choose_target(
            specification, Z, latents, approximation, jitter
        )

    # --- construction -------------------------------------------------------------------

    @classmethod
    def of(
        cls, posterior: Posterior, *, batch_size: int | None = None, seed: int = 0
    ) -> "SteinGP":
        """The model that a posterior is of, with its data, inducing points and scaling.

        Nothing is checked or chosen again. It is how a fit goes on after
        `steingp.load(path)`.

        Args:
            posterior: of a model whose data were in memory.
            batch_size: as given to the model; a posterior does not know it.
            seed: for the order of batches.

        Raises:
            ValueError: the data were a stream, of which the posterior has the first block
                alone; or a `batch_size` for a model that has no batches.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(-3, 3, 30)[:, None]
            >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
            >>> posterior = model.posterior(model.sample_prior(5))
            >>> sg.SteinGP.of(posterior)
            SteinGP(30 rows, 1 column, f integrated out, 3 hyperparameters)
        """
        target, data = posterior._target, posterior._data
        in_batches = isinstance(target, Sparse | Variational)
        _check_options(None, None, "auto", 0.0, seed)
        if batch_size is not None and not in_batches:
            raise ValueError(
                f"batch_size={batch_size}: this posterior is of a model without batches."
            )
        if batch_size is not None:
            check_count("batch_size", batch_size)
        model = cls.__new__(cls)
        model.num_data = int(target.num_data) if in_batches else len(data.y)
        if model.num_data != len(data.y):
            raise ValueError(
                f"the posterior's data were a stream of {model.num_data} rows, which are "
                "not kept in it: make the model anew, SteinGP(blocks, ...)."
            )
        model._likelihood = target.specification.likelihood
        model._batch_size, model._seed = batch_size, seed
        model.scaling, model.labels = posterior._scaling, posterior.labels
        model.stream, model.data, model.target = None, data, target
        return model

    def _warn(
        self, specification: Specification, X: np.ndarray, y: np.ndarray, scaled: bool
    ) -> None:
        real = specification.likelihood.real_valued
        has_defaults = specification.hyperparameters.has_default_priors
        warn_about_scale(
            X, y if real else None, has_defaults and not scaled, self.labels
        )

    def _choose_inducing(self, inducing: Any, X: np.ndarray, kernel: Kernel) -> Any:
        if inducing is None:
            return None
        if np.ndim(inducing) == 0:
            try:
                return inducing_points.greedy_variance(
                    X, int(inducing), kernel, self._seed
                )
            except ValueError as error:
                raise ValueError(f"inducing={inducing}: {error}") from None
        Z, _ = check_inputs(inducing, "inducing", X.shape[1])
        return self.scaling.inputs(Z)

    def _choose_target(
        self,
        specification: Specification,
        Z: Any,
        latents: str,
        approximation: str,
        jitter: float,
    ) -> Target:
        gaussian = isinstance(specification.likelihood, Gaussian)
        batched = self.stream is not None or self._batch_size is not None
        if Z is not None and latents == "joint":
            return Sparse(
                specification,
                Z=Z,
                num_data=float(self.num_data),
                jitter=jitter,
                num_latents=len(Z),
            )
        if batched:
            return Variational(
                specification, Z=Z, num_data=float(self.num_data), jitter=jitter
            )
        if latents == "joint":
            return Whitened(specification, num_latents=self.num_data, jitter=jitter)
        if Z is None and gaussian:
            return Marginal(specification, jitter=jitter)
        if gaussian:
            assert Z is not None
            return Titsias(
                specification, Z=Z, jitter=jitter, block_rows=_block_rows(len(Z))
            )
        start = Collapsed.at_rest(self.num_data)
        return Collapsed(
            specification, start=start, Z=Z, jitter=jitter, rule=approximation
        )

    def __repr__(self) -> str:
        N, D = self.num_data, self.data.X.shape[1]
        latents = f"{self.target.num_latents} latents per particle"
        if not self.target.num_latents:
            latents = "f integrated out"
        shapes = [p.shape for p in self.target.specification.hyperparameters.free]
        count = sum(int(np.prod(shape)) for shape in shapes)
        return (
            f"SteinGP({N} rows, {D} column{'s' * (D != 1)}, {latents}, "
            f"{count} hyperparameter{'s' * (count != 1)})"
        )

    # --- what inference needs -----------------------------------------------------------

    def batches(self) -> svgd.Batches:
        """The data of each step, for a run that starts now."""
        if self.stream is not None:
            return StreamBatches(self.stream)
        data = Batch(*(jnp.asarray(column) for column in self.data))
        if self._batch_size is None or self._batch_size >= self.num_data:
            return FullBatch(data)
        return Minibatches(data, jax.random.key(self._seed), self._batch_size)

    @property
    def batches_per_pass(self) -> int:
        """Batches that see every row once."""
        size = self.stream.batch_size if self.stream is not None else self._batch_size
        return -(-self.num_data // (size or self.num_data))

    def full_pass(self) -> "SteinGP":
        """This model without batches: every gradient is a pass over all rows.

        Raises:
            ValueError: unless the likelihood is Gaussian and there are inducing points.
        """
        if not isinstance(self.target, Variational | Titsias):
            raise ValueError(
                "full_pass is for models with inducing points and batches."
            )
        if not isinstance(self._likelihood, Gaussian):
            raise ValueError(
                "full_pass needs a Gaussian likelihood, whose bound is a sum over rows; "
                f"this model has {type(self._likelihood).__name__}."
            )
        whole = copy.copy(self)
        Z = np.asarray(self.target.Z)
        whole.target = Titsias(
            self.target.specification,
            Z=Z,
            jitter=self.target.jitter,
            block_rows=_block_rows(len(Z)),
        )
        whole._batch_size = None
        return whole

    @property
    def has_unknowns(self) -> bool:
        """Whether a particle has anything to hold: a free hyperparameter or latents."""
        free = self.target.specification.hyperparameters.free
        return bool(free) or self.target.num_latents > 0

    @property
    def particles_at_once(self) -> int:
        """How many particles can be scored at the same time within memory."""
        rows = self._batch_size or len(self.data.y)
        if isinstance(self.target, Titsias):
            rows = min(rows, self.target.block_rows or rows)
        size = self.matrix_size
        return max(1, working_floats() // (8 * size * max(size, rows)))

    @property
    def matrix_size(self) -> int:
        """Rows of the matrix that is factorised for every particle at every step."""
        return self.target.matrix_size(len(self.data.y))

    # --- what users call ----------------------------------------------------------------

    @float64
    def sample_prior(self, num: int, seed: int = 0) -> dict[str, np.ndarray]:
        """`num` particles from the prior: name -> constrained array (num, ...).

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 10)[:, None]
            >>> model = sg.SteinGP((X, X), sg.kernels.Matern52())
            >>> model.sample_prior(4)["kernel.variance"].shape
            (4,)
        """
        check_count("num", num)
        keys = jax.random.split(jax.random.key(seed), num)
        return to_numpy(_sample_prior(self.target, keys))

    @float64
    def sample_prior_predictive(
        self,
        X: ArrayLike,
        num: int,
        seed: int = 0,
        *,
        per_row: ArrayLike | None = None,
    ) -> np.ndarray:
        """`num` data sets y (num, S) that the prior expects at the rows of X.

        `per_row` is as in `Posterior.predict_y`.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 10)[:, None]
            >>> model = sg.SteinGP((X, X), sg.kernels.Matern52())
            >>> model.sample_prior_predictive(X, 3).shape
            (3, 10)
        """
        check_count("num", num)
        values, _ = check_inputs(in_order(X, self.labels), "X", self.data.X.shape[1])
        keys = jax.random.split(jax.random.key(seed), num)
        row = row_of(self._likelihood, self.scaling, len(values), per_row)
        draws = _sample_prior_predictive(
            self.target.specification,
            keys,
            jnp.asarray(self.scaling.inputs(values)),
            jnp.asarray(row),
        )
        return self.scaling.outputs_back(np.asarray(draws))

    @float64
    def log_density(self, particles: Mapping[str, ArrayLike]) -> np.ndarray:
        """log p(y | lambda) + log p(lambda), one per particle, up to a constant.

        Of all the data, in memory, and as a density of the unconstrained values that
        SVGD moves; `particles` themselves are constrained.
        """
        if self.stream is not None:
            raise ValueError("log_density needs the data in memory, not a stream.")
        arrays = {name: jnp.asarray(v, float) for name, v in particles.items()}
        self.target.check_particles(arrays)
        data = Batch(*(jnp.asarray(column) for column in self.data))
        return np.array(_log_density(self.target, arrays, data))

    def predict(
        self, X: ArrayLike, particles: Mapping[str, ArrayLike], n_samples: int = 1,
        seed: int = 0, *, per_row: ArrayLike | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Algorithm 2: `n_samples` draws of y at the rows of X from every particle.

        Args:
            X: (S, D).
            particles: name -> constrained array, from `SVGD.get_particles()`.
            n_samples: K, draws per particle.
            seed: same seed, same draws.
            per_row: as in `Posterior.predict_y`.

        Returns:
            (J * K, S); its mean and variance over the first axis are the paper's.
        """
        arrays = {name: np.asarray(v, float) for name, v in particles.items()}
        num = self.target.check_particles(arrays)
        prediction = predict(
            self.target, self.data, arrays, np.full(num, 1.0 / num), self.scaling,
            in_order(X, self.labels), per_row, of_y=True,
        )  # fmt: skip
        return prediction.sample_each(n_samples, seed)

    def posterior(self, particles: Mapping[str, np.ndarray], **about: Any) -> Posterior:
        """These particles, equally weighted unless told, as a posterior of this model."""
        return Posterior(
            self.target, self.data, particles, scaling=self.scaling, labels=self.labels,
            **about,
        )  # fmt: skip


@eqx.filter_jit
def _sample_prior(target: Target, keys: Array) -> Particle:
    return jax.vmap(target.sample_prior)(keys)


@eqx.filter_jit
def _sample_prior_predictive(
    spec: Specification, keys: Array, X: Array, row: Array
) -> Array:
    def one(key: Array) -> Array:
        theta_key, f_key, y_key = jax.random.split(key, 3)
        model = spec.at(spec.hyperparameters.sample(theta_key))
        f = mvn_sample(f_key, model.mean.of(X), model.kernel.gram(X), 1)[0]
        return model.likelihood.sample(y_key, f, row)

    return jax.lax.map(one, keys)


@eqx.filter_jit
def _log_density(target: Target, particles: Particle, data: Batch) -> Array:
    return jax.lax.map(lambda theta: target(target.unconstrain(theta), data), particles)


def _check_parts(
    kernel: Any, likelihood: Any, mean: Any
) -> tuple[Kernel, Likelihood, Mean]:
    if interop.is_gpflow(kernel):
        kernel = interop.from_gpflow(kernel)
    if interop.is_gpflow(likelihood):
        likelihood = interop.likelihood_from_gpflow(likelihood)
    likelihood = Gaussian() if likelihood is None else likelihood
    mean = Zero() if mean is None else mean
    for name, value, kind in (
        ("kernel", kernel, Kernel),
        ("likelihood", likelihood, Likelihood),
        ("mean", mean, Mean),
    ):
        if not isinstance(value, kind):
            given = f"the class {value.__name__}" if isinstance(value, type) else value
            raise ValueError(
                f"{name} must be one of steingp.{name}s, for instance "
                f"steingp.{_EXAMPLES[name]}; got {given!r}."
            )
    return kernel, likelihood, mean


_EXAMPLES = {
    "kernel": "kernels.Matern52()",
    "likelihood": "likelihoods.Bernoulli()",
    "mean": "means.Constant()",
}


def working_floats() -> int:
    """How many numbers the particles scored at once may need: on a GPU half its memory."""
    stats = None if jax.default_backend() == "cpu" else jax.devices()[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return _WORKING_FLOATS
    return int(stats["bytes_limit"]) // 16


def _block_rows(num_inducing: int) -> int:
    """Rows at a time whose covariances with the inducing points fit into memory."""
    return max(1024, 2**24 // num_inducing)


def _check_approximation(
    approximation: str | None, likelihood: Likelihood, inducing: Any
) -> str:
    if approximation is None:
        return "ep" if likelihood.log_concave and inducing is None else "vi"
    if approximation not in RULES:
        raise ValueError(
            f'approximation must be "ep", "vi" or "laplace"; got {approximation!r}.'
        )
    if approximation != "vi" and not likelihood.log_concave:
        raise ValueError(
            f'approximation="{approximation}" needs a log p(y | f) that is concave in f, '
            f'which {type(likelihood).__name__} has not; use "vi".'
        )
    return approximation


def _check_options(
    inducing: Any, batch_size: Any, latents: str, jitter: float, seed: Any
) -> None:
    if inducing is not None and np.ndim(inducing) == 0:
        check_count("inducing, if not an array of points,", inducing)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    check_count("seed", seed, lowest=0)
    if batch_size is not None and inducing is None:
        raise ValueError(
            f"batch_size={batch_size} needs a sparse model: give inducing points, for "
            "instance inducing=200."
        )
    if latents not in ("auto", "joint"):
        raise ValueError(f'latents must be "auto" or "joint"; got {latents!r}.')
    if not jitter >= 0:
        raise ValueError(f"jitter must not be negative; got {jitter}.")
