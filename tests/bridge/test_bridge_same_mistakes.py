"""A mistake has one code and one report, whichever torch the program uses."""

import mistakes
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", mistakes.MISTAKES)
def test_a_mistake_has_the_same_code_and_facts_under_both_torches(name: str) -> None:
    mistake, code, ranks = mistakes.MISTAKES[name]
    own = mistakes.facts(mistakes.of_own_torch(mistake, ranks))
    real = mistakes.facts(mistakes.of_real_torch(mistake, ranks))

    assert f"[{code}] " in own
    assert "mistakes.py:" in own
    assert real == own
