"""All that is imported of pytest and is not public; what is lost where a version lacks it.

The plugin loads without any of it. Whoever uses a part looks into `LOST` first.
"""

from typing import Any, Final, Literal, cast

import pytest

Part = Literal["marks", "assertions", "junit", "items"]
"""What the names are for."""

LOST: Final[dict[Part, str]] = {}
"""What this version of pytest does not allow: a sentence for each part of which names are gone."""


class LostPartWarning(pytest.PytestWarning):
    """This version of pytest lacks what a part of the plugin needs."""


def lost(part: Part, error: Exception) -> None:
    """Notes that a part is lost."""
    LOST[part] = f"kernbench does not know this version of pytest ({error}): {_LOSSES[part]}"


_LOSSES: Final[dict[Part, str]] = {
    "marks": "cases are not collected first, so in mode batch each runs singly",
    "assertions": "failed assertions of cases in worker processes are reported as Python does",
    "junit": "the file of --junitxml has no system-err of tests with cases",
    "items": "tests with the fixture kernbench run in the process of pytest in every mode",
}

try:
    from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks
except ImportError as error:
    lost("marks", error)

try:
    from _pytest.assertion import AssertionState, pytest_assertrepr_compare, util
    from _pytest.assertion import truncate as _truncate
    from _pytest.assertion.rewrite import AssertionRewritingHook, assertstate_key

    if hasattr(_truncate, "materialize_with_truncation"):
        shorten: Any = _truncate.materialize_with_truncation
    else:  # before pytest 9.1

        def shorten(lines: list[str], config: Any) -> list[str]:
            """Returns the lines of a text that is not too long."""
            item = type("Item", (), {"config": config})
            return cast(list[str], cast(Any, _truncate).truncate_if_required(list(lines), item))

    util._reprcompare, util._config  # noqa: B018 - they are set later
except (ImportError, AttributeError) as error:
    lost("assertions", error)

try:
    from _pytest.junitxml import bin_xml_escape, xml_key
except ImportError as error:
    lost("junit", error)

try:
    from _pytest._code.code import (
        ExceptionChainRepr,
        ReprEntryNative,
        ReprFileLocation,
        ReprTraceback,
    )
    from _pytest.config import _prepareconfig as prepare_config
    from _pytest.runner import SetupState

    SetupState.teardown_exact, pytest.Config._do_configure  # noqa: B018 - called by these names
    pytest.Config._ensure_unconfigure  # noqa: B018
except (ImportError, AttributeError) as error:
    lost("items", error)


def warn_of_losses(config: pytest.Config, mode: str) -> None:
    """Warns of the parts that are lost and that a session would use.

    Args:
        config: The configuration of the session.
        mode: Where its cases run.
    """
    for part, text in LOST.items():
        used = bool(config.getoption("xmlpath", None)) if part == "junit" else mode != "inline"
        if used:
            config.issue_config_time_warning(LostPartWarning(text), stacklevel=2)


__all__ = [
    "LOST",
    "AssertionRewritingHook",
    "AssertionState",
    "ExceptionChainRepr",
    "LostPartWarning",
    "ReprEntryNative",
    "ReprFileLocation",
    "ReprTraceback",
    "assertstate_key",
    "bin_xml_escape",
    "evaluate_skip_marks",
    "evaluate_xfail_marks",
    "lost",
    "prepare_config",
    "pytest_assertrepr_compare",
    "shorten",
    "util",
    "warn_of_losses",
    "xml_key",
]
