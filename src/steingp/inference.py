"""`fit`: from a model to its posterior."""

from collections.abc import Callable, Mapping

import numpy as np
from jax.sharding import Mesh

from steingp.checks import check_count
from steingp.ensemble import Ensemble
from steingp.fitting import Fit, check_precision
from steingp.models import SteinGP
from steingp.outcome import of_known
from steingp.paper import SVGD
from steingp.posterior import Posterior
from steingp.targets import Variational


def fit(
    model: SteinGP,
    *,
    num_particles: int | None = None,
    effective_size: float | None = None,
    num_steps: int | None = None,
    full_pass: bool = False,
    explore: bool | None = None,
    mesh: Mesh | None = None,
    precision: str | None = None,
    seed: int = 0,
    progress: bool = True,
    callback: Callable[..., bool | None] | None = None,
    resume: Mapping[str, np.ndarray] | None = None,
) -> Posterior:
    """The posterior of a model.

    Particles hold hyperparameters alone, f being integrated out for each of them. A short
    SVGD run brings them to the posterior, Metropolis-adjusted moves make their spread
    right, and their draws are kept until they are worth `effective_size` independent
    ones: see `steingp.corrected`. Where f was integrated out by an approximation, draws
    are weighted by what it got wrong, if that can be estimated. Where particles come to
    stay in several modes, each gets a run of its own and a mass by its evidence
    (`posterior.modes`).

    Models with batches get an ensemble of variational fits (`steingp.ensemble`), whose
    hyperparameters' spread is not calibrated; with `full_pass=True` and a Gaussian
    likelihood, the fit described above, each gradient being a pass over all rows. Models
    with `latents="joint"` get the paper's plain SVGD.

    Args:
        model: a `SteinGP`.
        num_particles: J, particles that move at the same time. By default 20, and 64 on
            a GPU where f is integrated out and up to 1145 rows (fewer inducing points
            than that: more rows), where it moves them in about the same time.
        effective_size: how many independent draws the result must be worth, for the mean
            and the spread of every hyperparameter: n tell a mean to 1 / sqrt(n) sds and,
            as for a Gaussian, half as many an sd. By default 1000 for up to three
            hyperparameters, 400 for more.
        num_steps: for models with batches or with `latents="joint"`; 1000 by default.
        full_pass: see above.
        explore: whether 128 or 256 wide-spread particles are led to the posterior by
            tempering, instead of J by SVGD, which finds modes that J starts may miss,
            for 10,000 to 20,000 gradients; by default with up to five hyperparameters, a
            Gaussian likelihood and up to 144 rows (200 with few inducing points).
        mesh: devices to spread particles over, and rows of a sparse Gaussian model:
            `steingp.devices.mesh()`. By default one device. Not for `latents="joint"`.
        precision: "float32" lets trajectories follow scores in single precision; what
            decides on them and what is kept is in double, so that the posterior is as
            exact. For Gaussian likelihoods with f integrated out on all rows. If single
            precision is too far off, a warning says so and it is given up. "float64"
            does without it. By default it is used on a CPU from 200 rows on.
        seed: same seed, same result.
        progress: show a progress bar (on a terminal only).
        callback: called now and then with the state (of `steingp.corrected`, or of
            `steingp.svgd` and the latest step's info); returns True to stop.
        resume: `posterior.checkpoint` of an earlier fit of the same model that was
            interrupted, or shall go on to a larger effective size: goes on as if it had
            never stopped. Where f is integrated out on all rows the seed is the
            checkpoint's, whatever `seed` is, and so is the effective size, if none is
            given.

    Returns:
        A `Posterior`. Ctrl-C returns what was reached by then.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> posterior = sg.fit(model, effective_size=100, progress=False)
        >>> posterior.predict_f([[0.0]]).mean.shape
        (1,)
    """
    if not isinstance(model, SteinGP):
        raise ValueError(f"model must be a steingp model; got {type(model).__name__}.")
    free = bool(model.target.specification.hyperparameters.free)
    if full_pass:
        if not free and model.stream is not None:
            raise ValueError(
                "full_pass=True: every hyperparameter is fixed, so that no gradient is "
                "needed; leave it out."
            )
        model = model.full_pass()
    if num_particles is not None:
        check_count("num_particles", num_particles)
    check_precision(precision, model)
    batched = isinstance(model.target, Variational)
    if (batched or model.target.num_latents) and effective_size is not None:
        raise ValueError(
            f"effective_size={effective_size}: this fit ends after num_steps; only where "
            "f is integrated out on all rows can draws be counted. Leave it out, or see "
            "full_pass."
        )
    if (batched or model.target.num_latents) and explore:
        raise ValueError(
            "explore=True is for fits in which f is integrated out on all rows; this "
            "model has batches or joint latents. Leave it out, or see full_pass."
        )
    if not (batched or model.target.num_latents) and num_steps is not None:
        raise ValueError(
            f"num_steps={num_steps}: this fit stops at an effective size, not after a "
            "number of steps; pass effective_size. Plain SVGD is steingp.SVGD(model)."
        )
    if model.target.num_latents and mesh is not None:
        raise ValueError('mesh is not for models with latents="joint"; leave it out.')
    if not (model.has_unknowns or batched):  # which still has to find q(u)
        return of_known(model)
    some_particles = 20 if num_particles is None else num_particles
    run: SVGD | Ensemble | Fit
    if model.target.num_latents:
        run = SVGD(model, None, some_particles, seed=seed)
    elif batched:
        num = some_particles if free else 1  # with q(u) alone all would be the same
        run = Ensemble(model, num, num_steps or 1000, seed, mesh)
    else:
        run = Fit(model, num_particles, effective_size, seed, explore, mesh, precision)
    if resume is not None:
        run.load_state_dict(resume)
    if isinstance(run, SVGD):
        run.run(num_steps or 1000, progress=progress, callback=callback)
    else:
        run.run(progress=progress, callback=callback)
    return run.posterior()
