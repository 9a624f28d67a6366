"""Errors of data sets that PyTorch tells with an `AssertionError`."""

from kernbench.errors import KernbenchError, OptionError, call_site, site_fact


class DatasetError(KernbenchError, AssertionError):
    """Data sets that do not fit together."""


def need(condition: bool, text: str) -> None:
    """Checks an argument.

    Raises:
        OptionError: With `text`, unless the condition holds.
    """
    if not condition:
        raise OptionError(text, [site_fact(call_site())])


def need_fitting(condition: bool, text: str) -> None:
    """Checks that data sets fit together.

    Raises:
        DatasetError: With `text`, unless the condition holds.
    """
    if not condition:
        raise DatasetError(text, [site_fact(call_site())])


def check_count(name: str, value: object) -> None:
    """Checks a number of samples.

    Raises:
        OptionError: If it is no positive integer.
    """
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    need(whole, f"{name} should be a positive integer value, but got {name}={value}")
