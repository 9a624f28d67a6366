"""Goes on from Triton's own IR to machine code, to see what that consists of.

It takes a kernel's first launch a second, once: what comes of it is kept in Triton's cache on disk.
"""

import json
import os
import tempfile
from dataclasses import asdict, fields
from typing import Any, Final

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import Language
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions
from triton.runtime.cache import get_cache_manager

from kernbench.caches import Table
from kernbench.triton.machine_code import Loop, MachineCode, read_cubin

VARIABLE: Final = "KERNBENCH_TRITON_TIME"
"""Environment variable: `ir` lets times be estimated from Triton's own IR alone."""

_FILE: Final = "kernbench.machine.json"
_KNOWN: Final[Table[str, MachineCode]] = Table("triton.machine_code")


def machine_code(text: str, metadata: Any) -> MachineCode | None:
    """Returns what a kernel in machine code consists of; None if nobody is to look at it.

    Args:
        text: Triton's IR of the kernel.
        metadata: What Triton's compiler has found out so far, with its options.

    Raises:
        Exception: Whatever Triton's compiler raises, as it would on a GPU.
    """
    if os.environ.get(VARIABLE) == "ir":
        return None
    found = _KNOWN.get(metadata.hash)
    if found is None:
        kept = get_cache_manager(metadata.hash)
        path = kept.get_file(_FILE)
        if path is None:
            found = _lowered(text, metadata)
            kept.put(json.dumps(asdict(found)), _FILE, binary=False)
        else:
            with open(path, encoding="utf-8") as file:
                told = json.load(file)
            found = MachineCode(**{**told, "loops": [Loop(**each) for each in told["loops"]]})
        _KNOWN.keep(metadata.hash, found)
    return found


def _lowered(text: str, metadata: Any) -> MachineCode:
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
    tools = knobs.nvidia
    return read_cubin(module, found["shared"], tools.cuobjdump.path, tools.nvdisasm.path)
