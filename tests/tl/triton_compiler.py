"""Triton's own compiler, in a process of its own: in this one its interpreter may be on."""

import json
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from kernbench import tl
from kernbench.tl.constants import constexpr
from kernbench.tl.launch import Kernel


def refusals(kernels: Sequence[tuple[str | Path, str]]) -> list[str | None]:
    """Returns why Triton refuses kernels; None for each that it compiles.

    Args:
        kernels: File and name of each function.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps([(str(file), name) for file, name in kernels]),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    said: list[str | None] = json.loads(done.stdout.splitlines()[-1])  # Triton prints, too
    return said


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


def _compile(function: Any) -> None:
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


def _refusal(function: Any) -> str | None:
    from triton.compiler.errors import CompilationError

    try:
        _compile(function)
    except (CompilationError, RuntimeError, KeyError) as error:
        return str(error.__cause__ or error) or type(error).__name__
    return None


def _main() -> None:
    warnings.simplefilter("ignore")
    modules: dict[str, dict[str, Any]] = {}
    answers = []
    for file, name in json.load(sys.stdin):
        if file not in modules:
            modules[file] = runpy.run_path(file)
        answers.append(_refusal(modules[file][name]))
    print(json.dumps(answers))


if __name__ == "__main__":
    _main()
