"""kernbench: multi-GPU programs on simulated machines, real numbers and predicted time."""

from typing import TYPE_CHECKING, Any

from kernbench.version import __version__

if TYPE_CHECKING:
    from kernbench.scripts.calls import context, spawn
    from kernbench.scripts.torchrun import torchrun_spawn
    from kernbench.sweeps.sweeping import sweep

__all__ = ["__version__", "context", "spawn", "sweep", "torchrun_spawn"]


def __getattr__(name: str) -> Any:
    # Imported when they are first asked for: every start imports this module, even `--help`.
    if name in {"context", "spawn"}:
        from kernbench.scripts import calls

        return getattr(calls, name)
    if name == "torchrun_spawn":
        from kernbench.scripts.torchrun import torchrun_spawn

        return torchrun_spawn
    if name == "sweep":
        from kernbench.sweeps.sweeping import sweep

        return sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_told(name)}")


def _told(name: str) -> str:
    """Returns what to say of a name that is not there; nothing of one that Python looks for."""
    if name == "explore":
        return "; the fixture `kernbench` of pytest has it"
    from importlib.util import find_spec

    # `from kernbench import tl` asks for the attribute before it imports the module.
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        return ""
    from kernbench.config.near import nearest

    near = nearest(name, __all__)
    return "" if near is None else f"; did you mean `{__name__}.{near}`?"
