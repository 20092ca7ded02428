"""Stein kernels kappa, bandwidth rules, the SVGD direction phi, and the discrepancy.

Nothing here knows of Gaussian processes: particles are rows of a matrix (J, d), scores
are grad log p at each of them.

    phi(x) = 1/J sum_j [kappa(x_j, x) grad log p(x_j) + grad_{x_j} kappa(x_j, x)]   (5)

The first term attracts to high density, the second repels particles from each other.
The bandwidth h is a constant within a step: no gradient flows through it.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from steingp.linalg import safe_sqrt, squared_distances

Step = Int[Array, ""]


class Bandwidth(eqx.Module):
    """A rule for h, the squared length over which particles feel each other."""

    @abc.abstractmethod
    def __call__(self, particles: Float[Array, "J d"], step: Step) -> Float[Array, ""]:
        """h at this step."""


class Constant(Bandwidth):
    """The same h at every step.

    Example:
        >>> from steingp import stein
        >>> stein.Constant(0.5).h
        0.5
    """

    h: float = 1.0

    def __check_init__(self) -> None:
        if not self.h > 0:
            raise ValueError(f"Constant(h=...) must be positive; got {self.h}.")

    def __call__(self, particles: Array, step: Step) -> Array:
        return jnp.asarray(self.h, particles.dtype)


class Median(Bandwidth):
    """h = med_{i<j} |x_i - x_j|^2 / log(J + 1), anew at each step (the paper's).

    Sources differ by log J, by counting the diagonal, and by a factor of 2: this is our
    choice. With one particle h = 1, which does not matter.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import stein
        >>> h = stein.Median()(jnp.array([[0.0], [1.0], [3.0]]), jnp.array(0))
        >>> round(float(h), 4)   # the median of 1, 4, 9 is 4: 4 / log 4
        2.8854
    """

    def __call__(self, particles: Array, step: Step) -> Array:
        J = len(particles)
        if J == 1:
            return jnp.ones((), particles.dtype)
        i, j = jnp.triu_indices(J, 1)
        median = jnp.median(squared_distances(particles, particles)[i, j])
        return jax.lax.stop_gradient(jnp.maximum(median / jnp.log(J + 1.0), 1e-10))


class Cyclical(Bandwidth):
    """The median rule for `start` steps, then a triangle wave between two values of h.

    Wide bandwidths let modes exchange particles, narrow ones spread them inside a mode.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import stein
        >>> rule = stein.Cyclical(low=1.0, high=3.0, period=100)
        >>> [float(rule(jnp.zeros((2, 1)), jnp.array(t))) for t in (0, 25, 50, 100)]
        [1.0, 2.0, 3.0, 1.0]
    """

    low: float
    high: float
    period: int = 100
    start: int = 0

    def __check_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(
                f"Cyclical needs 0 < low <= high; got low={self.low}, high={self.high}."
            )
        if self.period < 2:
            raise ValueError(f"Cyclical(period=...) must be >= 2; got {self.period}.")

    def __call__(self, particles: Array, step: Step) -> Array:
        phase = ((step - self.start) % self.period) / self.period
        wave = 1.0 - jnp.abs(2.0 * phase - 1.0)
        h = (self.low + (self.high - self.low) * wave).astype(particles.dtype)
        return jnp.where(step < self.start, Median()(particles, step), h)


class Terms(NamedTuple):
    """phi = attraction + repulsion, each (J, d)."""

    attraction: Array
    repulsion: Array


class SteinKernel(eqx.Module):
    """kappa(x, y) between particles, with its bandwidth rule."""

    bandwidth: eqx.AbstractVar[Bandwidth]

    def __check_init__(self) -> None:
        if not isinstance(self.bandwidth, Bandwidth):
            raise ValueError(
                f"{type(self).__name__}(bandwidth=...) must be a rule such as Median() "
                f"or Constant(1.0); got {self.bandwidth!r}."
            )

    @abc.abstractmethod
    def pair(
        self, x: Float[Array, " d"], y: Float[Array, " d"], h: Float[Array, ""]
    ) -> Float[Array, ""]:
        """kappa(x, y) at bandwidth h."""

    @abc.abstractmethod
    def terms(
        self,
        particles: Float[Array, "J d"],
        scores: Float[Array, "J d"],
        h: Float[Array, ""],
    ) -> Terms:
        """Both terms of equation (5) at every particle."""


def plain_terms(kappa: SteinKernel, particles: Array, scores: Array, h: Array) -> Terms:
    """Equation (5) as it stands, by automatic differentiation of `pair`, O(J^2 d)."""

    def at(x: Array) -> tuple[Array, Array]:
        value = jax.vmap(lambda xj: kappa.pair(xj, x, h))(particles)
        slope = jax.vmap(lambda xj: jax.grad(kappa.pair)(xj, x, h))(particles)
        return jnp.mean(value[:, None] * scores, axis=0), jnp.mean(slope, axis=0)

    return Terms(*jax.vmap(at)(particles))


class Radial(SteinKernel):
    """kappa(x, y) = g(|x - y|^2 / h)."""

    bandwidth: Bandwidth = Median()

    @abc.abstractmethod
    def profile(self, s: Array) -> Array:
        """g(s)."""

    @abc.abstractmethod
    def slope(self, s: Array) -> Array:
        """g'(s), finite at s = 0."""

    def pair(self, x: Array, y: Array, h: Array) -> Array:
        return self._smooth_profile(jnp.sum((x - y) ** 2) / h)

    def _smooth_profile(self, s: Array) -> Array:
        """g(s) whose derivative is `slope`, also where g goes through sqrt(s) at 0."""
        profile = jax.custom_jvp(self.profile)
        profile.defjvp(
            lambda primals, tangents: (
                self.profile(*primals),
                self.slope(*primals) * tangents[0],
            )
        )
        return profile(s)

    def terms(self, particles: Array, scores: Array, h: Array) -> Terms:
        # grad_{x_j} g(|x_j - x|^2 / h) = 2/h g'(s) (x_j - x), summed over j by matmul
        J = len(particles)
        s = squared_distances(particles, particles) / h
        G = self.slope(s)
        pull = G @ particles - jnp.sum(G, axis=1)[:, None] * particles
        return Terms(self.profile(s) @ scores / J, 2.0 / (h * J) * pull)


class RBF(Radial):
    """exp(-|x - y|^2 / h): the paper's.

    Example:
        >>> from steingp import RBF, Median
        >>> RBF(bandwidth=Median())
        RBF(bandwidth=Median())
    """

    def profile(self, s: Array) -> Array:
        return jnp.exp(-s)

    def slope(self, s: Array) -> Array:
        return -jnp.exp(-s)


class IMQ(Radial):
    """(c^2 + |x - y|^2 / h)^beta, beta < 0: heavy tails, so that distant particles
    still repel (Gorham and Mackey 2017).

    Example:
        >>> from steingp.stein import IMQ, Constant
        >>> IMQ(bandwidth=Constant(1.0), c=1.0, beta=-0.5).beta
        -0.5
    """

    c: float = 1.0
    beta: float = -0.5

    def __check_init__(self) -> None:
        if not self.beta < 0:
            raise ValueError(f"IMQ(beta=...) must be negative; got {self.beta}.")
        if not self.c > 0:
            raise ValueError(f"IMQ(c=...) must be positive; got {self.c}.")

    def profile(self, s: Array) -> Array:
        return (self.c**2 + s) ** self.beta

    def slope(self, s: Array) -> Array:
        return self.beta * (self.c**2 + s) ** (self.beta - 1.0)


class Matern(Radial):
    """The Matern kernel of order nu = 3/2 or 5/2 in r = |x - y| / sqrt(h).

    nu = 1/2 is left out: it has no gradient where particles meet.

    Example:
        >>> from steingp.stein import Matern
        >>> Matern(nu=2.5).nu
        2.5
    """

    nu: float = eqx.field(default=1.5, static=True)

    def __check_init__(self) -> None:
        if self.nu not in (1.5, 2.5):
            raise ValueError(f"Matern(nu=...) must be 1.5 or 2.5; got {self.nu}.")

    def profile(self, s: Array) -> Array:
        r = jnp.sqrt(2.0 * self.nu) * safe_sqrt(s)
        polynomial = 1.0 + r if self.nu == 1.5 else 1.0 + r + r * r / 3.0
        return polynomial * jnp.exp(-r)

    def slope(self, s: Array) -> Array:
        # d/ds (1 + r) e^-r = -3/2 e^-r with r^2 = 3 s; likewise -5/6 (1 + r) e^-r
        r = jnp.sqrt(2.0 * self.nu) * safe_sqrt(s)
        if self.nu == 1.5:
            return -1.5 * jnp.exp(-r)
        return -(5.0 / 6.0) * (1.0 + r) * jnp.exp(-r)


class RandomFourier(SteinKernel):
    """RBF through random features, O(J R d) instead of O(J^2 d) (Rahimi, Recht 2007).

    exp(-|x - y|^2 / h) ~ 2/R sum_r cos(w_r'x + b_r) cos(w_r'y + b_r) with w_r ~
    N(0, 2/h I), b_r ~ U[0, 2 pi]; the draws are those of `seed` at every step.

    Example:
        >>> from steingp.stein import RandomFourier
        >>> RandomFourier(num_features=200).num_features
        200
    """

    bandwidth: Bandwidth = Median()
    num_features: int = eqx.field(default=500, static=True)
    seed: int = eqx.field(default=0, static=True)

    def __check_init__(self) -> None:
        if self.num_features < 1:
            raise ValueError(
                f"RandomFourier(num_features=...) must be >= 1; got {self.num_features}."
            )

    def _angles(self, x: Array, h: Array) -> tuple[Array, Array]:
        """w'x + b for every feature, and the frequencies w (R, d)."""
        frequency_key, phase_key = jax.random.split(jax.random.key(self.seed))
        shape = (self.num_features, x.shape[-1])
        w = jnp.sqrt(2.0 / h) * jax.random.normal(frequency_key, shape, x.dtype)
        b = 2.0 * jnp.pi * jax.random.uniform(phase_key, shape[:1], x.dtype)
        return x @ w.T + b.reshape((1,) * (x.ndim - 1) + (-1,)), w

    def pair(self, x: Array, y: Array, h: Array) -> Array:
        both, _ = self._angles(jnp.stack([x, y]), h)
        return 2.0 / self.num_features * jnp.cos(both[0]) @ jnp.cos(both[1])

    def terms(self, particles: Array, scores: Array, h: Array) -> Terms:
        J, R = len(particles), self.num_features
        angles, w = self._angles(particles, h)
        features, slopes = jnp.cos(angles), -jnp.sin(angles)
        attraction = 2.0 / (R * J) * features @ (features.T @ scores)
        mean_gradient = (
            jnp.sum(slopes, axis=0)[:, None] * w
        )  # sum_j d features_r / dx_j
        return Terms(attraction, 2.0 / (R * J) * features @ mean_gradient)


def phi(
    kappa: SteinKernel, particles: Float[Array, "J d"], scores: Float[Array, "J d"]
) -> Float[Array, "J d"]:
    """The SVGD direction at every particle, equation (5), at step 0's bandwidth."""
    h = kappa.bandwidth(particles, jnp.asarray(0))
    attraction, repulsion = kappa.terms(particles, scores, h)
    return attraction + repulsion


def squared_ksd(
    kappa: SteinKernel,
    particles: Float[Array, "J d"],
    scores: Float[Array, "J d"],
    h: Float[Array, ""],
) -> Float[Array, ""]:
    """KSD^2 = 1/J^2 sum_ij u(x_i, x_j), the kernel Stein discrepancy (V-statistic).

    u(x, y) = kappa s(x)'s(y) + s(x)'grad_y kappa + s(y)'grad_x kappa + tr grad_x grad_y
    kappa (Liu, Lee and Jordan 2016). It is also minus the rate at which phi lowers the
    divergence to the target: dKL / d eps = -KSD^2.
    """

    def u(x: Array, sx: Array, y: Array, sy: Array) -> Array:
        value, dx = jax.value_and_grad(kappa.pair)(x, y, h)
        dy = jax.grad(kappa.pair, argnums=1)(x, y, h)
        mixed = jax.jacfwd(jax.grad(kappa.pair), argnums=1)(x, y, h)
        return value * sx @ sy + sx @ dy + sy @ dx + jnp.trace(mixed)

    def against_all(x: Array, sx: Array) -> Array:
        return jnp.mean(jax.vmap(lambda y, sy: u(x, sx, y, sy))(particles, scores))

    return jnp.mean(jax.lax.map(lambda pair: against_all(*pair), (particles, scores)))
