"""The paper's own interface: `SVGD(model, ...)`, and its names for the models.

Each is a thin layer over the same parts: Algorithm 1 on a `SteinGP`, and constructors with
the choices of `SteinGP` made.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import ArrayLike

from steingp import svgd
from steingp.checks import check_count
from steingp.likelihoods import Gaussian
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.stein import SteinKernel
from steingp.svgd import SVGDInfo, SVGDState
from steingp.targets import LATENTS, Target, Variational
from steingp.threads import threads_for_each

MOMENTS = 100
"""At about how many moments of a run the particles are recorded, for `plots`."""


@float64
@eqx.filter_jit
def _unconstrain(target: Target, particles: Mapping[str, Any]) -> Particle:
    return jax.vmap(target.unconstrain)(particles)


@float64
@eqx.filter_jit
def _constrain(target: Target, particles: Mapping[str, Any]) -> Particle:
    return jax.vmap(target.constrain)(particles)


@float64
@eqx.filter_jit
def _constrain_paths(target: Target, paths: Mapping[str, Any]) -> Particle:
    constrain = target.specification.hyperparameters.constrain
    return jax.vmap(jax.vmap(constrain))(paths)


def _thinned(moments: list[Particle]) -> list[Particle]:
    """Every second, until there are no more than twice `MOMENTS`."""
    while len(moments) > 2 * MOMENTS:
        moments = moments[::2]
    return moments


class SVGD:
    """Algorithm 1 of the paper on a model: plain SVGD, as its first listing has it.

    Args:
        model: a `SteinGP`.
        kappa: the Stein kernel, RBF with the median bandwidth by default.
        n_particles: J.
        optimiser: any optax optimiser; Adam 0.05 by default.
        seed: for the start, draws from the prior.

    Example:
        >>> import numpy as np
        >>> from steingp import SVGD, SteinGPR, RBF, Median, kernels
        >>> X = np.random.default_rng(0).uniform(-5, 5, (40, 1))
        >>> model = SteinGPR((X, np.sin(X)), kernels.SquaredExponential())
        >>> opt = SVGD(model, RBF(bandwidth=Median()), n_particles=5)
        >>> opt.run(iterations=100, progress=False)
        >>> model.predict(np.zeros((2, 1)), opt.get_particles(), n_samples=3).shape
        (15, 2)
    """

    def __init__(
        self,
        model: SteinGP,
        kappa: SteinKernel | None = None,
        n_particles: int = 20,
        *,
        optimiser: optax.GradientTransformation | None = None,
        seed: int = 0,
    ) -> None:
        check_count("n_particles", n_particles)
        if not isinstance(model, SteinGP):
            raise ValueError(
                f"model must be a steingp model; got {type(model).__name__}."
            )
        if kappa is not None and not isinstance(kappa, SteinKernel):
            raise ValueError(
                f"kappa must be a Stein kernel such as steingp.RBF(); got {kappa!r}."
            )
        if isinstance(model.target, Variational):
            raise ValueError(
                "plain SVGD in batches needs latents as part of the particles: make the "
                'model with latents="joint", or use steingp.fit(model).'
            )
        if not model.has_unknowns:
            raise ValueError(
                "every hyperparameter is fixed and f is integrated out: there is nothing "
                "to infer. steingp.fit(model) gives the exact posterior."
            )
        self.model, self._kappa, self._optimiser = model, kappa, optimiser
        start = model.sample_prior(n_particles, seed)
        z = _unconstrain(model.target, start)
        self.state: SVGDState = svgd.init(z, optimiser)
        self.history: SVGDInfo = svgd.join([])
        self._moments = [self._hyperparameters(self.state)]
        self._batches = float64(model.batches)()

    def run(
        self,
        iterations: int = 1000,
        *,
        progress: bool = True,
        callback: Callable[[SVGDState, SVGDInfo], bool | None] | None = None,
    ) -> None:
        """Take `iterations` steps from where the particles are now.

        See `steingp.svgd.run` for `progress` and `callback`; Ctrl-C keeps what was
        reached.
        """
        check_count("iterations", iterations, lowest=0)
        first, moments = int(self.state.step), list(self._moments)
        every = max(1, -(-iterations // MOMENTS))

        def record(state: SVGDState, latest: SVGDInfo) -> bool | None:
            if (int(state.step) - first) % every == 0:
                moments.append(self._hyperparameters(state))
            return callback(state, latest) if callback is not None else None

        with blas_suited_to(self.model.matrix_size, threads=threads_for_each()):
            self.state, history = svgd.run(
                self.model.target,
                self.state,
                iterations,
                self._kappa,
                self._optimiser,
                batches=self._batches,
                at_once=self.model.particles_at_once,
                progress=progress,
                callback=record,
                callback_every=every,
            )
        self.history = svgd.join([self.history, history])
        if (int(self.state.step) - first) % every:
            moments.append(self._hyperparameters(self.state))
        self._moments = _thinned(moments)

    @staticmethod
    def _hyperparameters(state: SVGDState) -> Particle:
        """Unconstrained, without latents, of which there may be too many to keep."""
        return {n: z for n, z in state.particles.items() if n != LATENTS}

    def get_particles(self) -> dict[str, np.ndarray]:
        """Name -> constrained array, particles along the leading axis."""
        return to_numpy(_constrain(self.model.target, self.state.particles))

    def posterior(self) -> Posterior:
        """The particles as a posterior that predicts."""
        steps = int(self.state.step)
        paths = {
            name: np.stack([moment[name] for moment in self._moments])
            for name in self._moments[0]
        }
        return self.model.posterior(
            self.get_particles(), history=self.history,
            paths=to_numpy(_constrain_paths(self.model.target, paths)) if paths else {},
            method=f"plain SVGD, {steps} steps; too narrow in many dimensions",
        )  # fmt: skip

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything needed to go on later, as named arrays."""
        return svgd.to_arrays(self.state)

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state_dict` of the same model, as if never stopped."""
        self.state = svgd.from_arrays(self.state, arrays)
        self._moments = [self._hyperparameters(self.state)]


# --- the paper's names -----------------------------------------------------------------


def SteinGPR(data: Any, kernel: Any, **options: Any) -> SteinGP:
    """Gaussian likelihood on all the data, f integrated out.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 9)[:, None]
        >>> sg.SteinGPR((X, X), sg.kernels.SquaredExponential())
        SteinGP(9 rows, 1 column, f integrated out, 3 hyperparameters)
    """
    if "likelihood" in options and not isinstance(options["likelihood"], Gaussian):
        raise ValueError(
            "SteinGPR is for a Gaussian likelihood; use SteinMC or SteinGP for "
            f"{options['likelihood']!r}."
        )
    return SteinGP(data, kernel, options.pop("likelihood", None), **options)


def SteinMC(data: Any, kernel: Any, likelihood: Any, **options: Any) -> SteinGP:
    """Any likelihood on all the data, whitened latents at every row.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-1, 1, 9)[:, None]
        >>> y = (X[:, 0] > 0).astype(int)
        >>> sg.SteinMC((X, y), sg.kernels.Matern52(), sg.likelihoods.Bernoulli())
        SteinGP(9 rows, 1 column, 9 latents per particle, 2 hyperparameters)
    """
    return SteinGP(data, kernel, likelihood, latents="joint", **options)


def SteinSGPR(
    data: Any, kernel: Any, inducing: int | ArrayLike, likelihood: Any = None,
    **options: Any,
) -> SteinGP:  # fmt: skip
    """Any likelihood, whitened latents at inducing points, all rows at every step.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> sg.SteinSGPR((X, X), sg.kernels.SquaredExponential(), inducing=X[::10])
        SteinGP(50 rows, 1 column, 5 latents per particle, 3 hyperparameters)
    """
    return SteinGP(
        data, kernel, likelihood, inducing=inducing, latents="joint", **options
    )


def StochSteinGPR(
    data: Any, kernel: Any, inducing: int | ArrayLike, likelihood: Any = None,
    batch_size: int | None = 256, **options: Any,
) -> SteinGP:  # fmt: skip
    """As `SteinSGPR`, with a batch of rows at every step; data in memory or a stream.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 500)[:, None]
        >>> sg.StochSteinGPR((X, X), sg.kernels.SquaredExponential(), inducing=X[::50])
        SteinGP(500 rows, 1 column, 10 latents per particle, 3 hyperparameters)
    """
    return SteinGP(
        data, kernel, likelihood, inducing=inducing, batch_size=batch_size,
        latents="joint", **options,
    )  # fmt: skip
