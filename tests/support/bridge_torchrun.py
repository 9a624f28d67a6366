"""Runs `kernbench torchrun` in this process."""

import pytest

from kernbench.cli.app import app


def run(*words: object) -> object:
    """Returns the exit code of `kernbench torchrun WORDS`."""
    with pytest.raises(SystemExit) as ended:
        app(["torchrun", *map(str, words)])
    return ended.value.code
