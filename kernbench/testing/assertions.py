"""The same texts of failed assertions in worker processes as in the process of pytest."""

import importlib.util
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from kernbench.testing import internals

Settings = Mapping[str, Any]
"""What the texts depend on: settings of pytest by name, and the verbosity."""

_VERBOSITY: Final = "verbosity"
_INI: Final = ("truncation_limit_lines", "truncation_limit_chars", "assertion_text_diff_style")
"""Settings of which the texts depend; an older pytest lacks some."""


def settings_of(module: str, config: pytest.Config) -> Settings | None:
    """Returns how assertions of a module are reported; None if as Python does.

    Args:
        module: Name of a module that has been imported.
        config: The configuration of pytest.
    """
    if "assertions" in internals.LOST:
        return None
    loader = getattr(sys.modules.get(module), "__loader__", None)
    if not isinstance(loader, internals.AssertionRewritingHook):
        return None
    verbosity = config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS)
    settings = {_VERBOSITY: verbosity}
    for name in _INI:
        with suppress(ValueError):
            settings[name] = config.getini(name)
    return settings


def rewritten(module: str, file: str, settings: Settings) -> ModuleSpec:
    """Returns how to import a module so that its assertions are reported as pytest reports them.

    Args:
        module: Name of the module.
        settings: What `settings_of` has returned.
    """
    # What the two modules of pytest ask of its configuration, which takes 0.4 s to make.
    plain = {**settings, "python_files": [], "enable_assertion_pass_hook": False}
    nothing = SimpleNamespace(get=lambda name: lambda *args: None)
    config: Any = SimpleNamespace(
        stash=pytest.Stash(),
        trace=SimpleNamespace(root=nothing),
        pluginmanager=SimpleNamespace(has_plugin=lambda name: False),
        get_terminal_writer=lambda: SimpleNamespace(_highlight=lambda text, lexer="": text),
        getini=plain.get,
        get_verbosity=lambda kind=None: settings[_VERBOSITY],
    )
    config.stash[internals.assertstate_key] = internals.AssertionState(config, "rewrite")
    hook = internals.AssertionRewritingHook(config)

    def compared(op: str, left: object, right: object) -> str | None:
        told = internals.shorten(
            internals.pytest_assertrepr_compare(config, op, left, right) or [], config
        )
        return "\n~".join(line.replace("\n", "\\n") for line in told).replace("%", "%%") or None

    internals.util._reprcompare, internals.util._config = compared, config
    return cast(ModuleSpec, importlib.util.spec_from_file_location(module, file, loader=hook))
