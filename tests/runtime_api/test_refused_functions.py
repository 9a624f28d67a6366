"""Functions and classes in place of names that are not simulated."""

import pytest

from kernbench.errors import UnsupportedError
from kernbench.runtime_api import refused_functions as refused


def test_a_function_says_what_is_refused_and_what_to_do() -> None:
    function = refused.refused("torch.cuda.tunable.enable", "leave it out")
    assert function.__name__ == "enable"
    with pytest.raises(UnsupportedError, match=r"torch\.cuda\.tunable\.enable") as caught:
        function(1, on=True)
    assert "leave it out" in str(caught.value)


def test_a_class_can_be_asked_for_and_makes_no_object() -> None:
    kind = refused.refused_class("torch.cuda.MemPool", "leave it out")
    assert (kind.__module__, kind.__name__) == ("torch.cuda", "MemPool")
    assert not isinstance(1, kind)
    with pytest.raises(UnsupportedError, match=r"torch\.cuda\.MemPool"):
        kind(1)


def test_names_of_torch_cuda_are_refused_once() -> None:
    assert isinstance(refused.CUDA["MemPool"], type)
    assert not refused.CUDA.keys() & refused.MEMORY.keys()
    assert "torch.cuda" not in refused.OTHERS


def test_a_thing_is_said_once() -> None:
    once = refused.Once()
    with pytest.warns(UserWarning, match="said"):
        once.say("said")
    once.say("said")  # a warning would be an error
