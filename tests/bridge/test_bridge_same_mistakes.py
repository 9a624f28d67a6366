"""A mistake has one code and one report, whichever torch the program uses."""

import pytest
import same_mistakes

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", same_mistakes.MISTAKES)
def test_a_mistake_has_the_same_code_and_facts_under_both_torches(name: str) -> None:
    mistake, code, ranks = same_mistakes.MISTAKES[name]
    own = same_mistakes.facts(same_mistakes.of_own_torch(mistake, ranks))
    real = same_mistakes.facts(same_mistakes.of_real_torch(mistake, ranks))

    assert f"[{code}] " in own
    assert "same_mistakes.py:" in own
    assert real == own
