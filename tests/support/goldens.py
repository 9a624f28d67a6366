"""Programs that fail, each with the full text that every rank gets."""

from collections.abc import Callable
from typing import Any

import pytest
from report_text import alike, relative

import kernbench.torch as torch
from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

Texts = tuple[tuple[tuple[int, ...], str], ...]
"""Ranks that get the same text, and the text."""


def ones(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    """Returns a tensor on the rank's device, by default of 4 elements."""
    return torch.ones(shape or (4,), dtype=dtype, device="cuda")


class Case:
    """A program, and what its ranks are told.

    Args:
        worker: Runs as each rank.
        texts: What those get that fail.
    """

    def __init__(self, worker: Callable[[int], None], nprocs: int, texts: Texts) -> None:
        self.worker = worker
        self.nprocs = nprocs
        self.texts = texts

    def name(self) -> str:
        """Returns the name of the test."""
        return self.worker.__name__

    def found(self, kernbench: Kernbench) -> Texts:
        """Runs the program and returns what its ranks are told."""
        ctx = kernbench.context(group_limit=4)
        with pytest.raises(SpawnException) as caught:
            ctx.multiprocessing.spawn(self.worker, nprocs=self.nprocs)
        return tuple(alike(caught.value, self._shown).items())

    def _shown(self, error: BaseException) -> str:
        assert isinstance(error, KernbenchError), error
        return relative(str(error), self.worker)

    def expected(self) -> Texts:
        """Returns what its ranks should be told."""
        return tuple((ranks, text.strip()) for ranks, text in self.texts)


class Cases(list[Case]):
    """The cases of a file."""

    def add(
        self, nprocs: int, *texts: tuple[tuple[int, ...], str]
    ) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
        """Returns a decorator that adds a program."""

        def added(worker: Callable[[int], None]) -> Callable[[int], None]:
            self.append(Case(worker, nprocs, texts))
            return worker

        return added
