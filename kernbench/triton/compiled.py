"""Compiled kernels of which later stages of Triton's compiler are run when a program asks for them.

A launch needs Triton's own IR alone. Programs may look at what is made of it: `kernel.asm["ptx"]`,
`kernel.n_regs`, `kernel.metadata.shared`.
"""

from functools import cached_property
from typing import Any, Final

import triton
from triton.compiler.compiler import CompiledKernel

from kernbench.errors import call_site, site_fact
from kernbench.triton.launches import LaunchError
from kernbench.triton.lowering import stages_of
from kernbench.triton.machine_code import registers_of

_WORD: Final = 4
"""Bytes of a register, and so of one that is kept in memory."""

_MOST_EXTENTS: Final = 3
"""Axes of a grid."""


class Compiled(CompiledKernel):  # type: ignore[misc]
    """A kernel that goes on to machine code when it is asked for what only that tells."""

    def __init__(self, src: Any, metadata_group: Any, hash: Any) -> None:
        self._loading = False
        self.asm: dict[str, Any]
        self.metadata: Any
        super().__init__(src, metadata_group, hash)
        self.asm = _Stages(self.asm, self)
        self._told: Final = self.metadata
        kind = type(self.metadata)
        shared = property(lambda _: self._shared)
        self.metadata = type(kind.__name__, (kind,), {"shared": shared})(*self.metadata)

    def __del__(self) -> None:
        """Unloads nothing, unlike Triton's: that asks the driver, and the run may be over."""

    @cached_property
    def later(self) -> tuple[dict[str, Any], int]:
        """What Triton's later stages make of it, by name, and bytes of shared memory."""
        return stages_of(self.asm["ttir"], self._told)

    @cached_property
    def _used(self) -> tuple[int, int]:
        return registers_of(self.later[0]["cubin"], triton.knobs.nvidia.cuobjdump.path)

    @property
    def _shared(self) -> int:
        return 0 if self._loading else self.later[1]

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
        return self._used[1] // _WORD

    @n_spills.setter
    def n_spills(self, value: int) -> None:
        """What the driver has told, which knows no machine code."""

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> Any:
        """Returns what hooks are told of a launch; the first that gets the program's own grid.

        Raises:
            LaunchError: If it has more than three extents, of which Triton leaves out the others
                (K1).
        """
        if len(grid) > _MOST_EXTENTS:
            raise LaunchError(
                f"kernel {self._told.name}: a grid has one to three extents; got {tuple(grid)}",
                [site_fact(call_site()), "Triton launches without those after the third"],
                hint="fold two axes into one: tl.program_id(0) // n and tl.program_id(0) % n",
                code="K1",
            )
        return super().launch_metadata(grid, stream, *args)

    def _init_handles(self) -> None:
        self._loading = True  # Triton compares what it needs with what there is: launches do
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
        if stage == "sass":
            return triton.tools.disasm.get_sass(self["cubin"])
        return self._kernel.later[0][stage]
