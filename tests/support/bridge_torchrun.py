"""Runs commands of kernbench in this process."""

import pytest

from kernbench.cli.app import app


def run(*words: object, command: str = "torchrun") -> object:
    """Returns the exit code of `kernbench COMMAND WORDS`."""
    with pytest.raises(SystemExit) as ended:
        app([command, *map(str, words)])
    return ended.value.code
