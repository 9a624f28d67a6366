"""Goes on from Triton's own IR to machine code, to see what that consists of.

It takes up to two seconds, once: what comes of it is kept in Triton's cache on disk. A process of
its own does it, so that a launch computes its numbers meanwhile, and the compiler's memory is free
again.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final, NamedTuple

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import Language
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions
from triton.runtime.cache import get_cache_manager
from triton.runtime.errors import OutOfResources, PTXASError

from kernbench.caches import Table
from kernbench.errors import UsageError
from kernbench.triton import TIME_VARIABLE
from kernbench.triton.devices import NOW
from kernbench.triton.machine_code import Coming, Loop, MachineCode, read_cubin
from kernbench.triton.meanwhile import meanwhile

_WAYS: Final = ("machine-code", "ir")
"""What times are worked out from, as `TIME_VARIABLE` says; the first by default."""

_FILE: Final = "kernbench.machine.4.json"
"""Name of what is kept of a kernel; the number is that of `MachineCode`'s form."""

_SHARES: Final = "llir"
"""The stage of Triton's compiler that finds out how much shared memory a program needs."""

_KNOWN: Final[Table[str, "_Known"]] = Table("triton.machine_code")


def machine_code(text: str, metadata: Any) -> Coming:
    """Begins to make a kernel's machine code, to see what that consists of.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.

    What Triton's later stages cannot compile runs all the same: its numbers are those of the IR.

    Raises:
        UsageError: If the environment asks for what there is not.
    """
    way = os.environ.get(TIME_VARIABLE) or _WAYS[0]
    if way not in _WAYS:
        raise UsageError(f"{TIME_VARIABLE}: expected one of {', '.join(_WAYS)}; got {way!r}")
    if way == "ir":
        return _Known(None)
    found = _KNOWN.get(metadata.hash)
    if found is not None:
        return found
    path = get_cache_manager(metadata.hash).get_file(_FILE)
    if path is None:
        return _Begun(text, metadata)
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    return _KNOWN.keep(metadata.hash, _Known(_read(told, metadata)))


class _Known(NamedTuple):
    """A kernel of which all is known; a `machine_code.Coming`.

    Attributes:
        told: Its machine code; None if there is none.
    """

    told: MachineCode | None

    def check(self) -> None:
        """See `Coming`."""
        if self.told is not None and self.told.shared > _most():
            raise OutOfResources(self.told.shared, _most(), "shared memory")

    def code(self) -> MachineCode | None:
        """See `Coming`."""
        return self.told


class _Begun:
    """A kernel that is being compiled; a `machine_code.Coming`.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.
    """

    def __init__(self, text: str, metadata: Any) -> None:
        self._metadata: Final = metadata
        self._answers: Final = meanwhile(partial(_lowered, text, metadata))
        self._told: dict[str, Any] = {}
        self._known: _Known | None = None

    def check(self) -> None:
        """See `Coming`."""
        if not self._told:
            self._told = next(self._answers)
        if self._told.get("shared", 0) > _most():
            _Known(self.code()).check()  # what has no machine code at all is estimated

    def code(self) -> MachineCode | None:
        """See `Coming`."""
        if self._known is None:
            for told in self._answers:
                self._told = told
            self._known = _Known(_read(self._told, self._metadata))
            _KNOWN.keep(self._metadata.hash, self._known)
        return self._known.told


def _most() -> int:
    """Returns how much shared memory a program may have: Triton asks as it loads a kernel."""
    devices = NOW.here()
    return devices.properties(devices.current())["max_shared_mem"]


def _lowered(text: str, metadata: Any) -> Iterator[dict[str, Any]]:
    """Yields bytes of shared memory as soon as they are known, then what is kept of a kernel.

    That is its machine code, or why there is none.
    """
    made: dict[str, Any] = {}
    shared = 0
    try:
        for name, module, shared in _stages(text, metadata):
            made[name] = module
            if name == _SHARES:
                yield {"shared": shared}
        code = read_cubin(made["cubin"], shared, metadata.target.arch, knobs.nvidia.cuobjdump.path)
        told = asdict(code)
    except (PTXASError, RuntimeError) as error:  # of MLIR's passes, or of NVIDIA's assembler
        said = str(error).strip().splitlines() or [""]
        told = {"failed": f"{type(error).__name__}: {said[0]}"}
    get_cache_manager(metadata.hash).put(json.dumps(told), _FILE, binary=False)
    yield told


def _read(told: dict[str, Any], metadata: Any) -> MachineCode | None:
    if "failed" not in told:
        loops = [Loop(**each) for each in told["loops"]]
        return MachineCode(**{**told, "loops": loops})
    print(
        f"kernbench: kernel {metadata.name}: Triton makes no machine code of it for "
        f"sm_{metadata.target.arch} ({told['failed']}), and would not on a GPU; its time is an "
        "estimate",
        file=sys.stderr,
    )
    return None


def stages_of(text: str, metadata: Any) -> tuple[dict[str, Any], int]:
    """Returns what Triton's later stages make of a kernel, by name, and bytes of shared memory.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.
    """
    made, shared = {}, 0
    for name, module, nbytes in _stages(text, metadata):
        made[name], shared = module, nbytes
    return made, shared


def _stages(text: str, metadata: Any) -> Iterator[tuple[str, Any, int]]:
    """Yields what `stages_of` returns, stage by stage."""
    backend = CUDABackend(metadata.target)
    told = {each.name: getattr(metadata, each.name) for each in fields(CUDAOptions)}
    # Triton keeps options as JSON, which has no tuples.
    options = {name: tuple(one) if isinstance(one, list) else one for name, one in told.items()}
    options["extern_libs"] = dict(metadata.extern_libs or ())
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttir", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        module: Any = ir.parse_mlir_module(file.name, context)
    module.context = context
    stages: dict[str, Any] = {}
    CUDABackend.add_stages(backend, stages, backend.parse_options(options), Language.TRITON)
    found: dict[str, Any] = dict(metadata._asdict())
    for name, stage in stages.items():
        if name != "ttir":
            module = stage(module, found)
            yield name, module if isinstance(module, bytes) else str(module), int(found["shared"])
