"""Modules of the shapes that `install_pg_collection` looks for, and layouts for them."""

from functools import lru_cache
from typing import Any

import kernbench.torch as torch
from kernbench.parallel.groups import GroupGrid, ProcessGroupCollection
from kernbench.parallel.rotary import RotaryEmbedding


class Config:
    """What a chunk and its layers are told; counts how often the size is set."""

    def __init__(self, cp: int, **more: Any) -> None:
        self.sets = 0
        self.context_parallel_size = cp
        self.sequence_parallel = False
        self.sets = 0
        vars(self).update(more)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "context_parallel_size":
            vars(self)["sets"] += 1
        super().__setattr__(name, value)


class Attention(torch.nn.Module):
    """Attention as TransformerEngine's: it keeps what it is given, and counts its ranks."""

    num_attention_heads = 4
    num_gqa_groups = 2

    def __init__(
        self, groups: ProcessGroupCollection, comm: str = "p2p", fresh: bool = False
    ) -> None:
        super().__init__()
        self.cp_comm_type = comm
        self.pg_collection = groups
        self.cp_group: Any = None
        self.cp_global_ranks: Any = None
        self.cp_stream: Any = None
        self.calls: list[Any] = []
        if not fresh:
            group = groups.hcp if comm == "a2a+p2p" else groups.cp
            self.set_context_parallel_group(group, [*groups.cp.ranks], torch.cuda.Stream(), comm)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str
    ) -> None:
        self.calls.append(cp_group)
        self.cp_group, self.cp_global_ranks = cp_group, cp_global_ranks
        self.cp_stream, self.cp_comm_type = cp_stream, cp_comm_type
        self.derived = [cp_group]


class MemoisedRotary(torch.nn.Module):
    """A rotary module as Megatron-Core's: one memo for all objects, whose key is not the group."""

    def __init__(self, cp_group: Any) -> None:
        super().__init__()
        self.cp_group = cp_group
        self.max_seq_len_cached = 0
        self.register_buffer("cos_cached", None)
        self.made = 0

    @lru_cache(maxsize=32)  # noqa: B019 - as there
    def forward(self, length: int) -> tuple[int, int]:
        return self.cp_group.size(), length

    def table(self, length: int) -> Any:
        if length > self.max_seq_len_cached:
            self.max_seq_len_cached = length
            self.made += 1
            self.cos_cached = torch.full((length,), float(self.cp_group.size()))
        return self.cos_cached


class DeltaNet(torch.nn.Module):
    """A module that keeps the size it was built with."""

    def __init__(self, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self.pg_collection = groups
        self.cp_size = groups.cp.size()
        self.seen: list[tuple[int, int]] = []

    def on_context_parallel_change(self, cp_size: int) -> None:
        self.cp_size = cp_size
        # Its groups are there already.
        self.seen.append((cp_size, self.pg_collection.cp.size()))


class Layer(torch.nn.Module):
    """A layer with all attributes that hold groups."""

    fallback: Any = None

    def __init__(self, config: Config, groups: ProcessGroupCollection, comm: str = "p2p") -> None:
        super().__init__()
        self.config = config
        self.pg_collection = groups
        self.tp_group, self.cp_group = groups.tp, groups.cp
        self.tp_cp_group, self.tp_dp_cp_group = groups.tp_cp, groups.tp_dp_cp
        self.dp_cp_group = groups.dp_cp
        self.attention = Attention(groups, comm)
        self.delta = DeltaNet(groups)
        self.weight = torch.nn.Parameter(torch.ones(4))


class Chunk(torch.nn.Module):
    """A piece of a model, with its configuration."""

    def __init__(self, config: Config, groups: ProcessGroupCollection, comm: str = "p2p") -> None:
        super().__init__()
        self.config = config
        self.layers = torch.nn.ModuleList([Layer(config, groups, comm) for _ in range(2)])
        self.rotary = RotaryEmbedding(4, cp_group=groups.cp, dtype=torch.float64)


def layout(world: int, tp: int, cp: int, order: str = "tp-cp-dp") -> ProcessGroupCollection:
    """Makes the groups of a layout; every rank calls it."""
    sizes = {"tp": tp, "cp": cp, "dp": world // (tp * cp)}
    names_of_axes = order.split("-")
    grid = GroupGrid([sizes[name] for name in names_of_axes], names_of_axes)
    names = {
        "tp": "tp",
        "cp": "cp",
        "dp": "dp",
        "tp_cp": ["tp", "cp"],
        "dp_cp": ["cp", "dp"],
        "tp_dp_cp": ["tp", "cp", "dp"],
    }
    return ProcessGroupCollection(**{name: grid.create_pg(dims) for name, dims in names.items()})


def bindings(model: torch.nn.Module) -> list[tuple[str, str, Any]]:
    """Returns every attribute of every module and configuration, but for counts and tables."""
    skipped = {"sets", "calls", "seen", "made", "_tables", "cos_cached", "max_seq_len_cached"}
    found = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in skipped and not name.startswith("_"):
                found.append((path, name, value))
        for name, value in vars(getattr(module, "config", object.__new__(Layer))).items():
            if name not in skipped:
                found.append((path, f"config.{name}", value))
    return found


def same(before: list[tuple[str, str, Any]], after: list[tuple[str, str, Any]]) -> bool:
    """Returns whether two lists of `bindings` have the same objects."""
    return len(before) == len(after) and all(
        one[:2] == two[:2] and one[2] is two[2]
        for one, two in zip(sorted_by_name(before), sorted_by_name(after), strict=True)
    )


def sorted_by_name(found: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    return sorted(found, key=lambda entry: entry[:2])
