"""The interface of a likelihood p(y | f), and the checks all of them share."""

import abc
from typing import Any, ClassVar

import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.checks import as_numbers
from steingp.likelihoods.quadrature import gaussian_expectation
from steingp.precision import is_traced
from steingp.priors import Component, Hyperparameters, assign

Values = Float[Array, "*shape"]
"""One number per observation; all arguments of a call have one common shape."""


class Likelihood(Component):
    """p(y | f) of one observation given one latent value, elementwise over arrays.

    The slots must hold scalars by the time a method is called (see `at_start`). A
    likelihood may know one number per row: the user hands it over as the field called
    `row_name`, and every method takes it as its argument `row`; `row_neutral` is the
    value that changes nothing. Latent variances may be 0: then f = mean.
    """

    is_discrete: ClassVar[bool]
    real_valued: ClassVar[bool]
    row_name: ClassVar[str | None]
    row_neutral: ClassVar[float]
    log_concave: ClassVar[bool] = False
    """Whether log p(y | f) is concave in f, for every y and hyperparameter."""

    def __check_init__(self) -> None:
        if self.row_values is not None and not is_traced(self.row_values):
            self.check_rows(
                self.row_values, f"{type(self).__name__}({self.row_name}=...)"
            )

    def check_rows(self, values: Any, name: str) -> None:
        """Refuse numbers per row that this likelihood cannot use, or has no use for."""
        if self.row_name is None:
            raise ValueError(
                f"{name} was given, but {type(self).__name__} knows nothing per row; "
                "leave it out."
            )
        # a row's number may be 0 where 0 is neutral, and divides otherwise
        _check_row(name, values, zero_allowed=self.row_neutral == 0.0)

    @property
    def row_values(self) -> Any:
        """What the user gave per row: an array, or None."""
        return None if self.row_name is None else getattr(self, self.row_name)

    @abc.abstractmethod
    def log_prob(self, y: Values, f: Values, row: Values) -> Values:
        """log p(y | f)."""

    @abc.abstractmethod
    def conditional_mean(self, f: Values, row: Values) -> Values:
        """E[y | f]."""

    @abc.abstractmethod
    def conditional_variance(self, f: Values, row: Values) -> Values:
        """Var[y | f]."""

    @abc.abstractmethod
    def conditional_cdf(self, y: Values, f: Values, row: Values) -> Values:
        """P(Y <= y | f)."""

    @abc.abstractmethod
    def sample(self, key: Array, f: Values, row: Values) -> Values:
        """One draw of y for each f."""

    @abc.abstractmethod
    def expected_log_prob(
        self, y: Values, mean: Values, variance: Values, row: Values
    ) -> Values:
        """E log p(y | f) for f ~ N(mean, variance)."""

    @abc.abstractmethod
    def predictive_log_prob(
        self, y: Values, mean: Values, variance: Values, row: Values
    ) -> Values:
        """log int p(y | f) N(f; mean, variance) df."""

    @abc.abstractmethod
    def predictive_mean(self, mean: Values, variance: Values, row: Values) -> Values:
        """E[y] for f ~ N(mean, variance)."""

    @abc.abstractmethod
    def predictive_variance(
        self, mean: Values, variance: Values, row: Values
    ) -> Values:
        """Var[y] for f ~ N(mean, variance)."""

    def expected_variance(self, mean: Values, variance: Values, row: Values) -> Values:
        """E Var[y | f] for f ~ N(mean, variance): what noise alone adds to y."""
        return gaussian_expectation(
            lambda f: self.conditional_variance(f, row), mean, variance
        )

    @abc.abstractmethod
    def predictive_cdf(
        self, y: Values, mean: Values, variance: Values, row: Values
    ) -> Values:
        """P(Y <= y) for f ~ N(mean, variance)."""

    @abc.abstractmethod
    def check_targets(self, y: np.ndarray) -> None:
        """Refuse observations this likelihood cannot produce.

        Raises:
            ValueError: naming the first such row, its value, and the remedy.
        """


def at_start(likelihood: Likelihood) -> Likelihood:
    """The likelihood with its start values in its slots, ready to be evaluated.

    Example:
        >>> from steingp import likelihoods
        >>> likelihoods.at_start(likelihoods.StudentT()).df.item()
        3.0
    """
    hyperparameters = Hyperparameters.bind({"likelihood": likelihood}, 1)
    start = hyperparameters.complete(hyperparameters.start())
    return assign(likelihood, start, "likelihood")


def convert_row(values: Any) -> Any:
    """Numbers, lists and series become NumPy arrays; all else stays as it is."""
    if values is None or isinstance(values, Array):
        return values
    array = as_numbers(values)
    # what is no number is refused by Likelihood.__check_init__, which knows its name
    return values if array is None else array


def refuse_rows(y: np.ndarray, good: np.ndarray, expected: str, remedy: str) -> None:
    """Raise for the first row of y that is not good; NaN and infinity never are."""
    bad = np.flatnonzero(~(good & np.isfinite(y)))
    if bad.size:
        raise ValueError(
            f"y must hold {expected}; row {bad[0]} is {y[bad[0]]} (one of {bad.size} "
            f"such rows). {remedy}"
        )


def _check_row(name: str, values: Any, zero_allowed: bool) -> None:
    sign = "0 or more" if zero_allowed else "greater than 0"
    expected = f"must be None, a number or one number per row, each finite and {sign}"
    array = as_numbers(values)
    if array is None:
        raise ValueError(f"{name} {expected}; got {values!r}.")
    if array.ndim > 1:
        raise ValueError(
            f"{name} {expected}; got an array of shape {array.shape}. Pass one column, "
            "for instance values[:, 0]."
        )
    flat = np.atleast_1d(array)
    good = np.isfinite(flat) & ((flat >= 0.0) if zero_allowed else (flat > 0.0))
    if not np.all(good):
        first = np.flatnonzero(~good)[0]
        raise ValueError(
            f"{name} {expected}; row {first} is {flat[first]}. Correct or drop such "
            "rows."
        )
