"""Tensors belong to the machine of the context that made them."""

import pytest

import kernbench
import kernbench.torch as torch
from kernbench.process.access import OwnershipError


def test_a_tensor_of_another_machine_is_refused_with_both_lines() -> None:
    with kernbench.context(topology="sip8"):
        outer = torch.ones(4, device="cuda")
        with kernbench.context(topology="h200x8"):
            inner = torch.ones(4, device="cuda")
            with pytest.raises(OwnershipError, match="a tensor of another context") as raised:
                outer + inner
        assert (outer + 1).tolist() == [2.0] * 4
    told = str(raised.value)
    assert "M14" in told
    assert 'outer = torch.ones(4, device="cuda")' in told
    assert "outer + inner" in told


def test_a_tensor_on_the_host_goes_from_context_to_context() -> None:
    with kernbench.context(topology="sip8"):
        given = torch.ones(4, device="cuda").cpu()
    with kernbench.context(topology="h200x8"):
        assert given.to("cuda").sum().item() == 4


def test_a_tensor_of_a_context_that_has_ended_is_refused() -> None:
    with kernbench.context(topology="sip8"):
        given = torch.ones(4, device="cuda")
    with (
        kernbench.context(topology="sip8"),
        pytest.raises(OwnershipError, match="use it inside of the context that made it"),
    ):
        given.sum()
