"""The options and settings of the plugin; little is imported before the first conftest."""

import argparse
from typing import Final, Literal, get_args

import pytest

Mode = Literal["inline", "pool", "batch"]
"""Where cases run: in the process of pytest, in workers one by one, or there in batches."""

AS_TORCH: Final = "kernbench_as_torch"
SUMMARY_OPTION: Final = "kb_summary"
SUMMARY_SETTING: Final = "kernbench_summary"

EXTENDED: Final = "kb_extended"
"""Marker of tests, or of their parameters, that are more than the essential ones."""

PREFIX: Final = "KERNBENCH_"
VARIABLES: Final = "kernbench_variables"
"""Setting of pytest that lists further variables with our prefix, which a suite reads itself."""

SEED: Final = 1234


def add_options(parser: pytest.Parser) -> None:
    """Adds the options and settings to pytest."""
    group = parser.getgroup("kernbench")
    text = "lets `import torch` mean kernbench.torch in conftest files, tests and what they import"
    group.addoption("--kernbench-as-torch", action="store_true", dest=AS_TORCH, help=text)
    parser.addini(AS_TORCH, text, type="bool", default=False)
    group.addoption(
        "--kb-mode",
        choices=get_args(Mode),
        default=None,
        help="where cases of world_batch run: in this process (inline, the default), or in worker "
        "processes, one by one (pool) or in batches (batch); KERNBENCH_TEST_MODE",
    )
    group.addoption(
        "--kb-seed",
        type=_seed,
        default=None,
        metavar="N",
        help=f"where random generators start in each case of world_batch; {SEED} by default",
    )
    group.addoption(
        "--kb-machine",
        default=None,
        metavar="MACHINE",
        help="topology file, or shipped machine, of cases of world_batch that name none",
    )
    parser.addini(
        VARIABLES,
        f"further environment variables {PREFIX}..., which the suite reads itself",
        type="args",
        default=[],
    )
    text = "tells at the end what the tests have simulated: worlds, times, leaks, flaky schedules"
    group.addoption("--kb-summary", action="store_true", dest=SUMMARY_OPTION, help=text)
    parser.addini(SUMMARY_SETTING, text, type="bool", default=False)


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 10 or int(text) >= 1 << 32:  # numpy takes no other
        raise argparse.ArgumentTypeError(f"expected an integer from 0 to 4294967295, got {text!r}")
    return int(text)
