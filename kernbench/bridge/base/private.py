"""Private names of PyTorch on which the bridge stands, for each version, and a check of them."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import torch

from kernbench.errors import UsageError
from kernbench.runtime_api.private_names import NAMES, missing_names
from kernbench.runtime_api.pytorch_versions import NEWEST, minor_of

VERSION: Final = minor_of(torch.__version__)
"""The version of this PyTorch, such as (2, 13)."""


class Place(NamedTuple):
    """A private name that is not the same in all versions.

    Attributes:
        module: The module that has it.
        names: The name in it, by the first version (major and minor) that has it so.
    """

    module: str
    names: Mapping[tuple[int, int], str]

    def name(self, version: tuple[int, int] = VERSION) -> str:
        """Returns the name in a version of PyTorch."""
        return self.names[max(first for first in self.names if first <= version)]


PIPELINE_STARTS: Final = Place(
    "torch.distributed.pipelining.schedules",
    {
        (2, 13): "_PipelineSchedule._warmup_p2p",
        (2, 15): "_PipelineSchedule._initialize_pipeline_distributed_state",
    },
)
"""What lets stages vote whether shapes are known, and connects them. Its arguments: the stages,
whether there is a backward pass, and a flag of the connections."""

PLACES: Final = (PIPELINE_STARTS,)
"""Names that differ from version to version: they are chosen here and nowhere else."""

PRIVATE: Final[Mapping[str, tuple[str, ...]]] = {
    **NAMES,
    "torch.distributed.pipelining.schedules": (PIPELINE_STARTS.name(),),
}
"""The names, by module. Those of a module that a program does not import need not be there."""


def check_private_names(modules: Iterable[str] | None = None) -> None:
    """Checks that this PyTorch has the private names that are used.

    Args:
        modules: Names of modules that have been imported; None: all, which are imported for it.

    Raises:
        UsageError: If names are missing; the error lists them.
    """
    if modules is None:
        modules = PRIVATE
        for module in modules:
            importlib.import_module(module)
    missing = missing_names(PRIVATE, {module: sys.modules[module] for module in modules})
    if missing:
        raise UsageError(
            f"PyTorch {torch.__version__} lacks what programs of PyTorch need here",
            [f"missing: {', '.join(missing)}"],
            hint=f"pip install 'torch<{NEWEST[0]}.{NEWEST[1] + 1}', which is known to work",
        )
