"""The kernel language: `from kernbench import tl` where a Triton file imports its language."""

from typing import Any

from kernbench.tl.language import *  # noqa: F403 - the language is this module's face
from kernbench.tl.launch import Kernel, jit
from kernbench.tl.notices import KernelWarning
from kernbench.tl.program import Program

__all__ = ["Kernel", "KernelWarning", "Program", "jit"]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"tl.{name} is not simulated")
