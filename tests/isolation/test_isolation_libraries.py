"""What libraries do in ranks: keep state for a process, replace functions, copy to the host."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import kernbench

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

_STATE = """
import torch.distributed as dist

_GROUP = None
_REGISTRY = {}

def set_group(value):
    global _GROUP
    _GROUP = value

def note(rank):
    rank.number = dist.get_rank()
    _REGISTRY[dist.get_rank()] = True

def rank():
    pass

class Shared:
    _shared_state = {}
    made = None

    def __init__(self):
        self.__dict__ = self._shared_state

    @classmethod
    def the(cls):
        if cls.made is None:
            cls.made = dist.get_rank()
        return cls.made

rank.number = 0

def counted(count=[0], *, seen={}):
    count[0] += 1
    seen[dist.get_rank()] = True
    return count[0], sorted(seen)

class Counter:
    @staticmethod
    def add(to=["first"]):
        to.append(dist.get_rank())
        return to[:]
"""

_REGISTERS = """
import torch
from fakelib import state

state._REGISTRY["plugin"] = torch.float32
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package `fakelib`."""
    folder = tmp_path / "site-packages" / "fakelib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "state.py").write_text(_STATE)
    (folder / "plugin.py").write_text(_REGISTERS)
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "fakelib"]:
        monkeypatch.delitem(sys.modules, name)


def _keeps_state(rank: int) -> tuple[object, ...]:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    state = importlib.import_module("fakelib.state")
    state.set_group(f"group {rank}")
    state.note(state.rank)
    state.Shared().place = rank
    state.Shared.the()
    dist.barrier(device_ids=[rank])
    importlib.import_module("fakelib.plugin")
    dist.barrier(device_ids=[rank])
    return (
        state._GROUP,
        state.rank.number,
        sorted(state._REGISTRY, key=str),
        vars(state.Shared()),
        state.Shared.the(),
    )


@pytest.mark.usefixtures("library")
def test_each_rank_has_its_own_state_of_a_library() -> None:
    for _ in range(2):  # a later run begins as the first one
        outcome = kernbench.torchrun_spawn(_keeps_state, nprocs=3)
        assert outcome.returned == [
            (f"group {rank}", rank, [rank, "plugin"], {"place": rank}, rank) for rank in range(3)
        ]
        state = importlib.import_module("fakelib.state")
        assert (state._GROUP, state.Shared.made, state.Shared._shared_state) == (None, None, {})


def _fills_defaults(rank: int) -> list[object]:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    state = importlib.import_module("fakelib.state")
    found: list[object] = []
    for _ in range(2):
        found.append((state.counted(), state.Counter.add()))
        dist.barrier(device_ids=[rank])
    return found


@pytest.mark.usefixtures("library")
def test_each_rank_has_its_own_defaults_that_functions_of_a_library_fill() -> None:
    for _ in range(2):  # a later run begins as the first one
        outcome = kernbench.torchrun_spawn(_fills_defaults, nprocs=3)
        assert outcome.returned == [
            [((1, [rank]), ["first", rank]), ((2, [rank]), ["first", rank, rank])]
            for rank in range(3)
        ]


def _copies(rank: int) -> list[object]:
    torch.cuda.set_device(rank)
    there = torch.ones(1 << 20, device="cuda")
    here, part, value = torch.zeros(1 << 20), torch.zeros(8), torch.zeros(())
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    here.copy_(there)
    there.copy_(here)
    end.record()
    end.synchronize()
    part[3] = there[3]
    value.copy_(there[0])
    return [here.device.type, part.device.type, value.device.type, begin.elapsed_time(end)]


def test_a_copy_into_a_tensor_leaves_it_where_it_is_and_takes_the_bus() -> None:
    (found,) = kernbench.torchrun_spawn(_copies, nprocs=1).returned
    assert found[:3] == ["cpu", "cpu", "cpu"]
    assert found[3] > 2 * (4 << 20) / 64e9 * 1e3  # ms; the bus moves at most 64 GB/s


def _replaces(rank: int) -> tuple[str, bool]:
    from torch.nn import functional

    name = functional.scaled_dot_product_attention.__name__
    torch.cuda.set_device(rank)
    setattr(functional, name, len)
    sys.modules.pop("torch.utils.hooks", None)  # a module of PyTorch that is imported later
    importlib.import_module("torch.utils.hooks")
    return name, functional.scaled_dot_product_attention is len


def test_a_function_that_a_program_replaces_stays_replaced() -> None:
    real = torch.nn.functional.scaled_dot_product_attention
    (found,) = kernbench.torchrun_spawn(_replaces, nprocs=1).returned
    assert found == ("scaled_dot_product_attention", True)
    assert torch.nn.functional.scaled_dot_product_attention is real


def _counts(rank: int) -> list[int]:
    torch.cuda.set_device(rank)
    values = torch.tensor([1, 2, 2, 3], device="cuda", dtype=torch.int32)
    found: list[int] = torch.histc(values, bins=4, min=0, max=3).tolist()
    return found


def test_integers_are_counted_as_on_cuda() -> None:
    assert kernbench.torchrun_spawn(_counts, nprocs=1).returned == [[0, 1, 2, 1]]


def _chooses(rank: int) -> None:
    torch.cuda.set_device(rank)
    x = torch.ones(2, device="cuda")
    torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_operation_of_higher_order_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="cond is not simulated"):
        kernbench.torchrun_spawn(_chooses, nprocs=1)


def _shards_the_sequence(rank: int) -> float:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (4,))
    torch.manual_seed(0)
    whole = [torch.randn(1, 2, 32, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    expected = functional.scaled_dot_product_attention(*whole, is_causal=True)
    parts = [each.clone() for each in whole]
    with (
        sdpa_kernel([SDPBackend.FLASH_ATTENTION]),
        context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]),
    ):
        out = functional.scaled_dot_product_attention(*parts, is_causal=True)
        (found,) = context_parallel_unshard(mesh, [out], [2])
    dist.destroy_process_group()
    return float((found - expected).abs().max())


def test_context_parallel_attention_is_that_of_the_whole_sequence() -> None:
    outcome = kernbench.torchrun_spawn(_shards_the_sequence, nprocs=4)
    assert max(outcome.returned) < 0.02  # bfloat16
    assert outcome.document["late_events"] == 0


def _shards_parameters(rank: int) -> list[float]:
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffload, MixedPrecision
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)},
        {"cpu_offload": CPUOffload(True)},
    )
    losses = []
    for kind in kinds:
        torch.manual_seed(0)
        inner = [Fsdp(torch.nn.Linear(16, 16), device_id=rank, **kind) for _ in range(2)]
        model = Fsdp(torch.nn.Sequential(*inner), device_id=rank, **kind)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss = model(torch.ones(4, 16, device="cuda")).float().square().mean()
            loss.backward()
            optimiser.step()
        Fsdp.optim_state_dict(model, optimiser)
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_fsdp1_trains_with_mixed_precision_and_offload() -> None:
    outcome = kernbench.torchrun_spawn(_shards_parameters, nprocs=2)
    plain, mixed, offloaded = outcome.returned[0]
    assert outcome.returned[0] == outcome.returned[1]
    assert offloaded == pytest.approx(plain, rel=1e-6)
    assert mixed == pytest.approx(plain, rel=0.05)


HYDRA = """\
class Singleton(type):
    _instances = {}

    def __call__(cls, *args, **kwargs):
        if cls not in cls._instances:
            cls._instances[cls] = super(Singleton, cls).__call__(*args, **kwargs)
        return cls._instances[cls]


class GlobalHydra(metaclass=Singleton):
    hydra = None
"""


def test_each_rank_has_its_own_only_object_of_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "hydra" / "core"
    folder.mkdir(parents=True)
    (folder / "singleton.py").write_text(HYDRA, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")

    def worker(rank: int) -> list[Any]:
        import torch.distributed as dist

        singleton = importlib.import_module("hydra.core.singleton")
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        before = singleton.GlobalHydra().hydra
        singleton.GlobalHydra().hydra = rank
        dist.all_reduce(torch.ones(1, device="cuda"))
        return [before, singleton.GlobalHydra().hydra]

    found = kernbench.torchrun_spawn(worker, nprocs=2).returned
    for name in ("hydra", "hydra.core", "hydra.core.singleton"):
        sys.modules.pop(name, None)
    assert found == [[None, 0], [None, 1]]
