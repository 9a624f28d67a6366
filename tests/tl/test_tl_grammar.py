"""A kernel is refused where Triton refuses to compile it, and nowhere else (K12)."""

import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import triton_kernels
from tl_machine import Machine
from triton_kernels import ACCEPTED, REFUSED

from kernbench import tl
from kernbench.hw.pe import PeCosts
from kernbench.tl.constants import constexpr
from kernbench.tl.grammar import check
from kernbench.tl.launch import Kernel
from kernbench.tl.typed import CompilationError
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def machine(topology: Callable[[str], Topology]) -> Machine:
    return Machine(topology("sip8"))


def checked(machine: Machine, kernel: Kernel) -> None:
    arguments = {
        "x": tl.Pointer(machine.tensor(np.zeros(64, np.float32)), 0),
        "h": tl.Pointer(machine.tensor(np.zeros(64, np.float16)), 0),
        "n": 7,
        "f": 1.5,
        "B": 16,
    }
    check(kernel, arguments, PeCosts.of(machine.engine.devices[0].sip))


@pytest.mark.parametrize("function", ACCEPTED, ids=lambda f: f.__name__)
def test_what_triton_compiles_is_accepted(machine: Machine, function: Any) -> None:
    checked(machine, Kernel(function))


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_triton_refuses_is_refused(machine: Machine, function: Any) -> None:
    with pytest.raises(CompilationError) as caught:
        checked(machine, Kernel(function))
    assert caught.value.code == "K12"
    assert REFUSED[function] in str(caught.value)
    assert caught.value.facts[0].startswith(f"at {triton_kernels.__file__}:")
    assert caught.value.hint
    checked(machine, Kernel(function, portable=False))


def _for_triton(function: Any, made: dict[Any, Any]) -> Any:
    """Returns the same function with Triton's language under the name `tl`."""
    import triton

    if function not in made:
        scope = dict(function.__globals__)
        made[function] = triton.jit(FunctionType(function.__code__, scope, function.__name__))
        for name, value in function.__globals__.items():
            if value is tl:
                scope[name] = triton.language
            elif value is tl.float16:
                scope[name] = triton.language.float16
            elif isinstance(value, constexpr):
                scope[name] = triton.language.constexpr(value.value)
            elif isinstance(value, Kernel):
                scope[name] = _for_triton(value.function, made)
    return made[function]


def _compiled(function: Any) -> None:
    """Compiles a function to Triton's own representation, as for an H100."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    signature = {"x": "*fp32", "h": "*fp16", "n": "i32", "f": "fp32", "B": "constexpr"}
    source = ASTSource(_for_triton(function, {}), signature, {"B": 16})
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = backend.get_codegen_implementation(options)
    source.make_ir(target, options, made, backend.get_module_map(), context)


@pytest.mark.torch
@pytest.mark.parametrize("function", [*ACCEPTED, *REFUSED], ids=lambda f: f.__name__)
def test_the_lists_are_what_triton_says(function: Any) -> None:
    pytest.importorskip("triton")
    from triton.compiler.errors import CompilationError as Refused

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if function in REFUSED:
            with pytest.raises((Refused, RecursionError, KeyError)):
                _compiled(function)
        else:
            _compiled(function)
