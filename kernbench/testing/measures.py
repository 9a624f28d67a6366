"""What a test has simulated, as properties of its reports: they reach every process and file."""

from typing import Final

import pytest

SIMULATED: Final = "kb_sim_s"
"""Simulated seconds of all worlds of a test."""

WALL: Final = "kb_wall_s"
"""Seconds of wall time in which they ran."""

WORLDS: Final = "kb_worlds"
"""How many there were."""

LEAKS: Final = "kb_leaks"
"""What they have left behind, in a text."""

SCHEDULE: Final = "kb_schedule"
"""How the test was found to depend on its schedule (P8)."""

RETRIES: Final = "kb_retries"
"""How many further processes were asked, after one that did not answer."""

Value = float | int | str


def note(item: pytest.Item, **values: Value) -> None:
    """Adds to the properties of a test: numbers to what is there, texts as further lines.

    A text that is there already was found twice, and is reported once.

    Args:
        item: The test.
        values: Values by the name of the property; zeros and empty texts of `kb_leaks`,
            `kb_schedule` and `kb_retries` are left out.
    """
    told = dict(item.user_properties)
    for name, value in values.items():
        if not value and name in {LEAKS, SCHEDULE, RETRIES}:
            continue
        before = told.get(name)
        if before is None:
            told[name] = value
        elif isinstance(value, str):
            if f"\n{value}\n" not in f"\n{before}\n":
                told[name] = f"{before}\n{value}"
        else:
            assert isinstance(before, int | float)
            told[name] = before + value
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] != name]
        item.user_properties.append((name, told[name]))
