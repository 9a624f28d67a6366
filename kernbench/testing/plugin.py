"""The pytest plugin: a fixture `kernbench`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernbench.testing.harness import Kernbench


@pytest.fixture
def kernbench() -> "Iterator[Kernbench]":
    """Runs workers on fresh simulated machines; fails the test if anything is left behind."""
    # Imported here, so that tests that do not simulate do not pay for it.
    from kernbench.testing.harness import Kernbench

    harness = Kernbench()
    yield harness
    harness.check_nothing_left()
