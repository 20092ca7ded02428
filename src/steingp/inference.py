"""`fit`: from a model to its posterior."""

from collections.abc import Callable

import numpy as np
import optax

from steingp.models import SteinGP
from steingp.paper import SVGD
from steingp.posterior import Posterior
from steingp.stein import SteinKernel
from steingp.svgd import SVGDInfo, SVGDState


def fit(
    model: SteinGP,
    *,
    num_particles: int = 20,
    num_steps: int = 1000,
    seed: int = 0,
    kappa: SteinKernel | None = None,
    optimiser: optax.GradientTransformation | None = None,
    progress: bool = True,
    callback: Callable[[SVGDState, SVGDInfo], bool | None] | None = None,
) -> Posterior:
    """The posterior of a model, by SVGD with the paper's settings.

    Args:
        model: a `SteinGP`.
        num_particles: J.
        num_steps: steps of all particles.
        seed: same seed, same result; it draws the start (batches are drawn by the
            model's own seed).
        kappa: the Stein kernel; RBF with the median bandwidth by default.
        optimiser: any optax optimiser; Adam 0.05 by default.
        progress: show a progress bar (on a terminal only).
        callback: called now and then with the state and the latest step's info; returns
            True to stop.

    Returns:
        A `Posterior` of the particles. Ctrl-C returns what was reached by then.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> sg.fit(model, num_steps=50, progress=False).predict_f([[0.0]]).mean.shape
        (1,)
    """
    if isinstance(model, SteinGP) and not model.has_unknowns:
        known = model.target.specification.hyperparameters.known
        draw = {name: np.asarray(value)[None] for name, value in known.items()}
        return model.posterior(draw, method="exact: every hyperparameter is fixed")
    run = SVGD(model, kappa, num_particles, optimiser=optimiser, seed=seed)
    run.run(num_steps, progress=progress, callback=callback)
    return run.posterior()
