"""`kernbench.torch` is frozen: whoever adds a public name to it writes down why (ADR 0045)."""

from collections.abc import Mapping

import frozen_names
import pytest

ANEW = "then `python tests/torch/frozen_names.py` writes the list anew"


def _frozen() -> dict[str, frozenset[str]]:
    lines = frozen_names.FILE.read_text(encoding="utf-8").splitlines()
    rows = (line.partition(": ") for line in lines if not line.startswith("#"))
    return {path: frozenset(names.split()) for path, _, names in rows}


def _check(now: Mapping[str, frozenset[str]], frozen: Mapping[str, frozenset[str]]) -> None:
    pairs = _pairs(now), _pairs(frozen)
    new, gone = sorted(pairs[0] - pairs[1]), sorted(pairs[1] - pairs[0])
    assert not new, (
        f"{', '.join(new)}: the names of kernbench.torch are frozen. Programs of PyTorch run with "
        f"`kernbench torchrun`, which has this name. If it is needed here nevertheless, an ADR in "
        f"docs/adr must say why (see 0045); {ANEW}"
    )
    assert not gone, (
        f"{', '.join(gone)}: programs may use these names of kernbench.torch. If they must go, "
        f"CHANGELOG.md says so; {ANEW}"
    )


def _pairs(names: Mapping[str, frozenset[str]]) -> set[str]:
    return {f"{path}.{name}" for path, each in names.items() for name in each}


def test_kernbench_torch_has_the_names_that_it_had() -> None:
    _check(frozen_names.listed(), _frozen())


def test_the_list_has_functions_classes_and_methods() -> None:
    frozen = _pairs(_frozen())
    assert len(frozen) > 1000
    assert {
        "torch.zeros",
        "torch.Tensor.add_",
        "torch.cuda.Stream.wait_event",
        "torch.distributed.all_reduce",
        "torch.nn.Linear",
        "torch.nn.Module.state_dict",
        "torch.nn.functional.gelu",
        "torch.ops.aten._scaled_dot_product_flash_attention",
        "torch.optim.AdamW",
        "torch.utils.data.DataLoader",
    } <= frozen


@pytest.mark.parametrize("path", ["torch", "torch.Tensor", "torch.nn.functional"])
def test_a_new_name_asks_for_a_decision(path: str) -> None:
    frozen = _frozen()
    with pytest.raises(AssertionError, match=rf"{path}.brand_new: .* are frozen.* an ADR in"):
        _check({**frozen, path: frozen[path] | {"brand_new"}}, frozen)


def test_a_name_that_is_gone_is_told() -> None:
    frozen = _frozen()
    with pytest.raises(AssertionError, match=r"torch\.zeros: programs may use"):
        _check({**frozen, "torch": frozen["torch"] - {"zeros"}}, frozen)


def test_a_name_added_to_a_module_or_a_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernbench.torch as torch

    monkeypatch.setattr(torch.nn.functional, "brand_new", len, raising=False)
    monkeypatch.setattr(torch.Tensor, "brand_new_", len, raising=False)
    new = _pairs(frozen_names.listed()) - _pairs(_frozen())
    assert new == {"torch.nn.functional.brand_new", "torch.Tensor.brand_new_"}
