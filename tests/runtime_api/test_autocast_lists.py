"""The lists of CUDA's autocast: each operation is under one rule."""

from collections import Counter

from kernbench.runtime_api import autocast_lists as lists


def test_an_operation_is_under_one_rule() -> None:
    rules = (lists.LOWER, lists.FULL, lists.FULL_INSIDE, lists.FULL_BY, lists.WIDEST, lists.INSIDE)
    counts = Counter(name for rule in rules for name in rule)
    assert [name for name, count in counts.items() if count > 1] == []
    assert counts.keys() | {lists.UNSAFE} == lists.KNOWN


def test_what_cudnn_computes_too_is_not_of_another_rule() -> None:
    assert not set(lists.CUDNN) & lists.KNOWN
