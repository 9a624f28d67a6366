"""The pytest plugin: a fixture `kernbench`, and `import torch` as ours on demand."""

import re
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernbench.testing.harness import Kernbench

_OPTION: Final = "kernbench_as_torch"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--kernbench-as-torch`, and the same in a configuration file."""
    text = "lets `import torch` mean kernbench.torch in conftest files, tests and what they import"
    group = parser.getgroup("kernbench")
    group.addoption("--kernbench-as-torch", action="store_true", dest=_OPTION, help=text)
    parser.addini(_OPTION, text, type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Lets `import torch` mean `kernbench.torch`, before the first conftest is imported."""
    given = getattr(early_config.known_args_namespace, _OPTION)
    if given or early_config.getini(_OPTION):
        from kernbench.scripts.as_torch import as_torch

        stack = ExitStack()
        # Unlike `pytest_unconfigure` this also comes after a conftest that fails.
        early_config.add_cleanup(stack.close)
        stack.enter_context(as_torch())


@pytest.fixture
def kernbench() -> "Iterator[Kernbench]":
    """Runs workers on fresh simulated machines; fails the test if anything is left behind."""
    # Imported here, so that tests that do not simulate do not pay for it.
    from kernbench.ranks.world import GroupLeakWarning
    from kernbench.testing.harness import Kernbench

    harness = Kernbench()
    with warnings.catch_warnings():
        # Behind the project's own filters, which may still ignore it.
        left = re.escape("[C17] process groups were made and not destroyed")
        warnings.filterwarnings("error", left, GroupLeakWarning, append=True)
        yield harness
    harness.check_nothing_left()
