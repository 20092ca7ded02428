"""The metric of the moves: a covariance from few draws, shrunk."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from steingp.checks import as_numbers


def shrunk_factor(draws: ArrayLike) -> Float[np.ndarray, "d d"]:
    """Lower F with F F' the covariance of pooled draws, its correlations shrunk.

    Variances are the sample's. The eigenvalues of the correlation matrix are shrunk
    one by one by the formula of Ledoit and Wolf (2020), which spares a strong
    correlation of a few coordinates; with n <= 1.25 d + 1 draws, where it is not
    reliable, by a common weight (OAS: Chen, Wiesel, Eldar and Hero 2010). A further
    weight d / (2 d + 10 n) towards the identity guards against draws that are less
    independent than they are many. A coordinate without spread is given the smallest
    spread among the others, or 1, and no correlations.

    Args:
        draws: (..., d); all axes but the last are pooled.

    Returns:
        The factor, (d, d).

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> x = np.random.default_rng(0).normal(size=(400, 2))
        >>> F = moves.shrunk_factor(x @ np.array([[3.0, 1.0], [0.0, 1.0]]))
        >>> np.round(F @ F.T, 0).tolist()   # exact: 9, 3; 3, 2
        [[9.0, 3.0], [3.0, 2.0]]
    """
    array = as_numbers(draws)
    if (
        array is None
        or array.ndim < 2
        or 0 in array.shape
        or not np.isfinite(array).all()
    ):
        raise ValueError("draws must be finite numbers of shape (..., d).")
    array = array.reshape(-1, array.shape[-1])
    array = array[np.lexsort(array.T)]  # sums do not depend on the order of the draws
    n, d = array.shape
    centred = array - array.mean(axis=0)
    spread = np.sqrt(np.sum(centred**2, axis=0) / max(n - 1, 1))
    # a mean of equal numbers may differ from them by rounding
    moving = spread > 1e-12 * (np.abs(array).max(axis=0) + spread.max())
    smallest = spread[moving].min() if moving.any() else 1.0
    correlation = np.eye(d)
    if moving.sum() > 1:
        white = centred[:, moving] / spread[moving]
        correlation[np.ix_(moving, moving)] = _shrunk_correlation(white)
    spread = np.where(moving, spread, smallest)
    return spread[:, None] * np.linalg.cholesky(correlation)


def curved_factor(draws: ArrayLike, scores: ArrayLike) -> Float[np.ndarray, "d d"]:
    """Lower F with F F' the inverse curvature of a density, of draws and scores there.

    With C the covariance of draws and S that of scores, the G with G S G = C, the
    geometric mean of C and the inverse of S. Under a Gaussian scores are -P (z - m), so
    that S = P C P and G is the inverse of P, however wide the draws are: it needs no
    draws from the density.

    Args:
        draws: (..., d), positions near the mass.
        scores: of the log density there.

    Returns:
        The factor, (d, d).

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> z = 0.1 * np.random.default_rng(0).normal(size=(200, 2))
        >>> F = moves.curved_factor(z, -z / np.array([9.0, 1.0]))     # of N(0, diag(9, 1))
        >>> bool(np.allclose(F @ F.T, np.diag([9.0, 1.0]), atol=0.2))
        True
    """
    C, S = (f @ f.T for f in (shrunk_factor(draws), shrunk_factor(scores)))
    L = np.linalg.cholesky(C)
    eigenvalues, vectors = np.linalg.eigh(L.T @ S @ L)
    root = L @ (vectors * np.maximum(eigenvalues, 1e-300) ** -0.25)
    return np.linalg.cholesky(root @ root.T)  # L (L' S L)^(-1/2) L'


def _shrunk_correlation(white: np.ndarray) -> np.ndarray:
    """The correlation matrix of n draws of variance 1 and mean 0, shrunk."""
    n, d = white.shape
    eigenvalues, vectors = np.linalg.eigh(white.T @ white / (n - 1))
    if n - 1 > 1.25 * d:
        eigenvalues = _nonlinear_shrinkage(np.maximum(eigenvalues, 1e-10), n - 1)
    else:
        squares = np.sum(eigenvalues**2)
        above = (1.0 - 2.0 / d) * squares + d**2
        below = (n + 1.0 - 2.0 / d) * (squares - d)
        weight = above / below if below > above else 1.0
        eigenvalues = (1.0 - weight) * eigenvalues + weight
    matrix = (vectors * eigenvalues) @ vectors.T
    scale = np.sqrt(np.diagonal(matrix))
    weight = d / (2.0 * d + 10.0 * n)
    return (1.0 - weight) * matrix / np.outer(scale, scale) + weight * np.eye(d)


def _nonlinear_shrinkage(eigenvalues: np.ndarray, n: int) -> np.ndarray:
    """Ledoit and Wolf (2020), equations 4.7 to 4.9, for n degrees of freedom, n > d.

    The density f of the eigenvalues and its Hilbert transform Hf are estimated with the
    Epanechnikov kernel of width n^(-1/3) times each eigenvalue.
    """
    ratio, root5 = len(eigenvalues) / n, np.sqrt(5.0)
    width = n ** (-1.0 / 3.0) * eigenvalues[None, :]
    x = (eigenvalues[:, None] - eigenvalues[None, :]) / width
    bump = 1.0 - x**2 / 5.0
    f = np.mean(0.75 / root5 * np.maximum(bump, 0.0) / width, axis=1)
    below, above = (np.maximum(np.abs(root5 + s * x), 1e-300) for s in (-1.0, 1.0))
    hilbert = -0.3 * x + 0.75 / root5 * bump * np.log(below / above)
    Hf = np.mean(hilbert / (np.pi * width), axis=1)
    slope = np.pi * ratio * eigenvalues
    return eigenvalues / ((slope * f) ** 2 + (1.0 - ratio - slope * Hf) ** 2)
