"""Diagnostics: what was checked, what was found, and what to do about it."""

from typing import NamedTuple


class Check(NamedTuple):
    """One question that was asked of a posterior."""

    name: str
    passed: bool | None
    """None: it was not asked, and `finding` says why."""
    finding: str
    """What was seen, with its number and the bound."""
    remedy: str = ""
    """What to do if it failed."""


class Verdict(NamedTuple):
    """Whether to trust a posterior, and all that this rests on."""

    checks: tuple[Check, ...]

    @property
    def trusted(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)
