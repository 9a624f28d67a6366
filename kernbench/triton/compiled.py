"""Compiled kernels of which later stages of Triton's compiler are run when a program asks for them.

A launch needs Triton's own IR alone. To go on to machine code takes ten times as long, and is for
programs that look at it: `kernel.asm["ptx"]`, `kernel.n_regs`, `kernel.metadata.shared`.
"""

import re
import subprocess
import tempfile
from dataclasses import fields
from functools import cached_property
from typing import Any, Final

import triton
from triton.backends.nvidia.compiler import CUDAOptions
from triton.compiler.compiler import CompiledKernel

from kernbench.errors import UsageError, call_site, site_fact

_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")
_WORD: Final = 4
"""Bytes of a register, and so of one that is spilled."""


class _Whole:
    """Whether kernels are compiled to machine code now."""

    def __init__(self) -> None:
        self.on = False


WHOLE: Final = _Whole()


class Compiled(CompiledKernel):  # type: ignore[misc]
    """A kernel that goes on to machine code when it is asked for what only that tells."""

    def __init__(self, src: Any, metadata_group: Any, hash: Any) -> None:
        self._loading = False
        self.asm: dict[str, Any]
        self.metadata: Any
        super().__init__(src, metadata_group, hash)
        if not WHOLE.on:
            self.asm = _Stages(self.asm, self)
            kind = type(self.metadata)
            shared = property(lambda _: self._shared)
            self.metadata = type(kind.__name__, (kind,), {"shared": shared})(*self.metadata)

    @cached_property
    def whole(self) -> Any:
        """The same kernel in machine code, which nothing here runs.

        Raises:
            UsageError: If the compiler's last stages fail.
        """
        metadata = self.metadata
        told = [(field.name, getattr(metadata, field.name)) for field in fields(CUDAOptions)]
        # Triton keeps them as JSON, which has no tuples.
        options = {name: tuple(one) if isinstance(one, list) else one for name, one in told}
        options["extern_libs"] = dict(metadata.extern_libs or ())
        source = getattr(self.src, "path", self.src)
        WHOLE.on = True
        try:
            return triton.compile(source, target=metadata.target, options=options)
        finally:
            WHOLE.on = False

    @cached_property
    def _used(self) -> tuple[int, int]:
        """Registers of a thread, and those of it that are kept in memory."""
        tool = triton.knobs.nvidia.cuobjdump.path
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.whole.asm["cubin"])
            file.flush()
            command = [tool, "-res-usage", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = _USAGE.search(done.stdout)
        if found is None:
            raise UsageError(
                f"kernel {self.name}: {tool} does not tell its registers",
                [site_fact(call_site()), done.stderr.strip()],
            )
        return int(found[1]), int(found[2]) // _WORD

    @property
    def _shared(self) -> int:
        return 0 if self._loading else int(self.whole.metadata.shared)

    @property
    def n_regs(self) -> int:
        """Registers of a thread."""
        return self._used[0]

    @n_regs.setter
    def n_regs(self, value: int) -> None:
        """What the driver has told, which knows no machine code."""

    @property
    def n_spills(self) -> int:
        """Registers of a thread that are kept in memory."""
        return self._used[1]

    @n_spills.setter
    def n_spills(self, value: int) -> None:
        """What the driver has told, which knows no machine code."""

    def _init_handles(self) -> None:
        self._loading = True  # Triton compares what it needs with what there is
        try:
            super()._init_handles()
        finally:
            self._loading = False


class _Stages(dict[str, Any]):
    """Texts of a kernel by stage; those of later ones when they are asked for."""

    def __init__(self, known: dict[str, Any], kernel: Compiled) -> None:
        super().__init__(known)
        self._kernel: Final = kernel

    def __missing__(self, stage: str) -> Any:
        return self._kernel.whole.asm[stage]
