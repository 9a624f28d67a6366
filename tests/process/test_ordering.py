"""The table of which calls order what, as the documents show it, and what a copy waits for."""

from pathlib import Path

import pytest

import kernbench
from kernbench.process.ordering import ROWS, Copy, copy_rule


def test_the_documents_show_the_table() -> None:
    text = Path(kernbench.__file__).parents[1].joinpath("docs/pytorch.md").read_text()
    for row in ROWS:
        call = f"`{row.call}`" if "(" in row.call else row.call
        told = row.streams or "-"
        assert f"| {call} | {row.host} | {told} | {row.buffer or '-'} | {row.source} |" in text


@pytest.mark.parametrize("to_device", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_blocking_copy_waits_and_lends_nothing(to_device: bool, pinned: bool) -> None:
    assert copy_rule(to_device=to_device, pinned=pinned, non_blocking=False) == Copy(True, False)


def test_only_a_copy_of_pinned_memory_lends_it() -> None:
    for to_device in (False, True):
        found = copy_rule(to_device=to_device, pinned=True, non_blocking=True)
        assert found == Copy(waits=False, lends=True)
        found = copy_rule(to_device=to_device, pinned=False, non_blocking=True)
        assert found == Copy(waits=not to_device, lends=False)
