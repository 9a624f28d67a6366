"""For users' tests: run workers on a fresh simulated machine, and leave nothing behind."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.testing.cases import dist_case
    from kernbench.testing.configs import register_config
    from kernbench.testing.harness import Kernbench
    from kernbench.testing.pytorch_cases import on_kernbench
    from kernbench.testing.worlds import WorldBatch

__all__ = ["Kernbench", "WorldBatch", "dist_case", "on_kernbench", "register_config"]

_HOMES = {
    "Kernbench": "harness",
    "WorldBatch": "worlds",
    "dist_case": "cases",
    "on_kernbench": "pytorch_cases",
    "register_config": "configs",
}


def __getattr__(name: str) -> Any:
    # pytest imports this room for its plugin at every start, even if no test simulates anything.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
