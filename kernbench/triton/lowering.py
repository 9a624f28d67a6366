"""Goes on from Triton's own IR to machine code, to see what that consists of.

It takes a kernel's first launch a second, once: what comes of it is kept in Triton's cache on disk.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict, fields
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
from kernbench.triton.machine_code import Loop, MachineCode, read_cubin

_WAYS: Final = ("machine-code", "ir")
"""What times are worked out from, as `TIME_VARIABLE` says; the first by default."""

_FILE: Final = "kernbench.machine.2.json"
"""Name of what is kept of a kernel; the number is that of `MachineCode`'s form."""

_KNOWN: Final[Table[str, "_Known"]] = Table("triton.machine_code")


def machine_code(text: str, metadata: Any) -> MachineCode | None:
    """Returns what a kernel in machine code consists of; None if it has none, or on demand.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.

    What Triton's later stages cannot compile runs all the same: its numbers are those of the IR.

    Raises:
        OutOfResources: If a program needs more shared memory than a PE has, as on a GPU.
        UsageError: If the environment asks for what there is not.
    """
    way = os.environ.get(TIME_VARIABLE) or _WAYS[0]
    if way not in _WAYS:
        raise UsageError(f"{TIME_VARIABLE}: expected one of {', '.join(_WAYS)}; got {way!r}")
    if way == "ir":
        return None
    found = _KNOWN.get(metadata.hash)
    if found is None:
        kept = get_cache_manager(metadata.hash)
        path = kept.get_file(_FILE)
        if path is None:
            told = _told(text, metadata)
            kept.put(json.dumps(told), _FILE, binary=False)
        else:
            with open(path, encoding="utf-8") as file:
                told = json.load(file)
        found = _KNOWN.keep(metadata.hash, _read(told, metadata))
    if found.code is not None:
        devices = NOW.here()
        most = devices.properties(devices.current())["max_shared_mem"]
        if found.code.shared > most:  # as Triton on a GPU, when it loads the kernel
            raise OutOfResources(found.code.shared, most, "shared memory")
    return found.code


def _told(text: str, metadata: Any) -> dict[str, Any]:
    """Returns what is kept of a kernel: its machine code, or why there is none."""
    try:
        return asdict(_lowered(text, metadata))
    except (PTXASError, RuntimeError) as error:  # of MLIR's passes, or of NVIDIA's assembler
        said = str(error).strip().splitlines() or [""]
        return {"failed": f"{type(error).__name__}: {said[0]}"}


class _Known(NamedTuple):
    """What is known of a kernel.

    Attributes:
        code: Its machine code; None if there is none.
    """

    code: MachineCode | None


def _read(told: dict[str, Any], metadata: Any) -> _Known:
    if "failed" not in told:
        loops = [Loop(**each) for each in told["loops"]]
        return _Known(MachineCode(**{**told, "loops": loops}))
    print(
        f"kernbench: kernel {metadata.name}: Triton makes no machine code of it for "
        f"sm_{metadata.target.arch} ({told['failed']}), and would not on a GPU; its time is an "
        "estimate",
        file=sys.stderr,
    )
    return _Known(None)


def _lowered(text: str, metadata: Any) -> MachineCode:
    stages, shared = stages_of(text, metadata)
    usage = knobs.nvidia.cuobjdump.path
    return read_cubin(stages["cubin"], shared, metadata.target.arch, usage)


def stages_of(text: str, metadata: Any) -> tuple[dict[str, Any], int]:
    """Returns what Triton's later stages make of a kernel, by name, and bytes of shared memory.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.
    """
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
    made: dict[str, Any] = {}
    for name, stage in stages.items():
        if name != "ttir":
            module = stage(module, found)
            made[name] = module if isinstance(module, bytes) else str(module)
    return made, int(found["shared"])
