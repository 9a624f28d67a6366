"""Colours of what time is spent on: the same on pages, in plots and on the terminal.

The hues are told apart also by those who see no difference between red and green: Okabe and Ito,
"Color universal design" (2008), darkened or lightened to a contrast of 3:1 with the background.
"""

from collections.abc import Mapping, Sequence
from typing import Final

LIGHT: Final[Sequence[str]] = (
    "#0072b2", "#d55e00", "#009e73", "#b8558f", "#b07a00", "#3d9ad1", "#6b4fa0", "#5a6570",
)  # fmt: skip
"""Colours on a light background, by number."""

DARK: Final[Sequence[str]] = (
    "#4ba3dc", "#f08a4b", "#35c39a", "#e39ac6", "#e2ae3f", "#9bd3f5", "#b7a0e6", "#a7b2bc",
)  # fmt: skip
"""The same colours on a dark background."""

KINDS: Final[Mapping[str, int]] = {"compute": 0, "communication": 1, "copy": 2}
"""Number of the colour of each kind of work of a device; what is idle is grey."""

IDLE: Final = ("#d5dbe1", "#3b454f")
"""Grey of idle devices, on a light and on a dark background."""

HOST: Final = ("#7b8794", "#8f9ba7")
"""Grey of hosts, on a light and on a dark background."""


def style_variables(dark: bool) -> str:
    """Returns the colours as variables of CSS: `--c0` and so on, `--rest` and `--host`."""
    hues = DARK if dark else LIGHT
    numbered = "".join(f"--c{number}:{hue};" for number, hue in enumerate(hues))
    return f"{numbered}--rest:{IDLE[dark]};--host:{HOST[dark]};"
