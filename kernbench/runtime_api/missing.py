"""Errors about missing names of `torch`: at run time, and from `kernbench check`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kernbench.caches import cached
from kernbench.config.near import nearest
from kernbench.runtime_api.refused_names import refusal

RUNS: Final = "`kernbench torchrun FILE` runs it"
"""What is said of names that PyTorch has and the bridge does not refuse."""

_INSTEAD: Final[Mapping[str, str]] = {
    "torch.distributed.launch": "use kernbench run FILE --nproc-per-node N",
    "torch.distributed.run": "use kernbench run FILE --nproc-per-node N",
    "torch.multiprocessing.Queue": "ranks exchange objects with torch.distributed",
    "torch.multiprocessing.SimpleQueue": "ranks exchange objects with torch.distributed",
    "torch.multiprocessing.ProcessExitedException": "catch torch.multiprocessing.SpawnException",
    "torch.multiprocessing.ProcessRaisedException": "catch torch.multiprocessing.SpawnException",
    "torch.multiprocessing.get_context": "use torch.multiprocessing.Process and spawn themselves",
}
"""What a program may use in `kernbench.torch` in place of a name."""

_BUILT_ON_TORCH: Final = frozenset(
    {
        "accelerate",
        "apex",
        "bitsandbytes",
        "deepspeed",
        "diffusers",
        "fairscale",
        "flash_attn",
        "ignite",
        "lightning",
        "megatron",
        "peft",
        "pytorch_lightning",
        "timm",
        "torchao",
        "torchaudio",
        "torchdata",
        "torchmetrics",
        "torchtext",
        "torchtitan",
        "torchtune",
        "torchvision",
        "transformer_engine",
        "transformers",
        "triton",
        "trl",
        "vllm",
        "xformers",
    }
)

_CUDA_CODE: Final = frozenset(
    {"apex", "bitsandbytes", "flash_attn", "transformer_engine", "vllm", "xformers"}
)
"""Packages that are kernels of their own for CUDA, which nothing here runs."""

_BESIDE: Final[Mapping[str, str]] = {
    "apex": "torch.nn and torch.optim have what is simulated",
    "megatron": "kernbench.tp and kernbench.parallel have its tensor-parallel layers",
    "torchvision": "for data, torch.randn of the same shapes takes the same time",
    "triton": "write kernels with `from kernbench import tl`",
}


@cached("runtime_api.pytorch_names")
def pytorch_names() -> Mapping[str, frozenset[str]]:
    """Returns the public names of PyTorch 2.13, by module; of a few classes, too."""
    text = (Path(__file__).parent / "pytorch_names.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    parts = [line.partition(":") for line in lines]
    return {path: frozenset(names.split()) for path, _, names in parts}


def in_pytorch(path: str) -> bool:
    """Returns whether PyTorch has a name, or may have it since it is private or lies in a class.

    Args:
        path: The whole name, such as `torch.nn.Conv2d`.
    """
    module, _, name = path.rpartition(".")
    if name.startswith("_"):
        return True
    known = pytorch_names()
    if path in known:
        return True
    names = known.get(module)
    if names is None or not names:
        # A class, whose attributes are not listed, or a module of which only the name is.
        return bool(module) and in_pytorch(module)
    return name in names


def missing(path: str, ours: Iterable[str]) -> str:
    """Returns what to say about a name that is not there.

    Args:
        path: The whole name, such as `torch.nn.Conv2d`.
        ours: Names that are there in its place, such as those in `torch.nn`.

    Returns:
        A sentence: that the name is not in `kernbench.torch`, with the way out; that it is not
        simulated, if programs of PyTorch may not use it either; or for a name that PyTorch does
        not have, the nearest name that one of both has.
    """
    module, _, name = path.rpartition(".")
    here = [each for each in ours if not each.startswith("_")]
    if in_pytorch(path):
        near = None if module in pytorch_names() else nearest(name, here)
        if near is not None:  # of a class, of which the names are not known
            return f"{path} is not in kernbench.torch; did you mean `{module}.{near}`?"
        refused = refusal(path)
        return refused or f"{path} is not in kernbench.torch; {_INSTEAD.get(path, RUNS)}"
    near = nearest(name, [*here, *pytorch_names().get(module, ())])
    text = f"PyTorch {_VERSION} has no {path}"
    if near is None:
        return text
    found = f"{text}; did you mean `{module}.{near}`"
    return f"{found}?" if near in here else f"{found}, which is not in kernbench.torch?"


_VERSION: Final = "2.13"


def missing_package(name: str) -> str | None:
    """Returns what to say about a package that is built on PyTorch itself; None for any other.

    Args:
        name: The name that is imported, such as `torchvision.datasets`.
    """
    root = name.partition(".")[0]
    if root not in _BUILT_ON_TORCH:
        return None
    nowhere = runs_nowhere(root)
    if nowhere is not None:
        return nowhere
    text = f"{root} is built on PyTorch itself; {RUNS}"
    return f"{text}; or: {_BESIDE[root]}" if root in _BESIDE else text


def runs_nowhere(name: str) -> str | None:
    """Returns what to say about a package that `kernbench torchrun` does not run, either; or None.

    Args:
        name: The name that is imported, such as `apex.optimizers`.
    """
    root = name.partition(".")[0]
    if root not in _CUDA_CODE:
        return None
    text = f"{root} has kernels of its own for CUDA, which are not simulated"
    return f"{text}; {_BESIDE[root]}" if root in _BESIDE else text
