"""Recomputing: random numbers, memory, ranks and errors; the rest is compared with PyTorch."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError, OperandError, OptionError, UnsupportedError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_early_stop,
)

KINDS = pytest.mark.parametrize("reentrant", [True, False])


def _leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda").requires_grad_()


def _grad(tensor: torch.Tensor) -> list[Any]:
    assert tensor.grad is not None
    found: list[Any] = tensor.grad.tolist()
    return found


@KINDS
@pytest.mark.parametrize("default_device", ["cuda", "cpu"])
def test_backward_draws_the_numbers_of_forward(
    kernbench: Kernbench, reentrant: bool, default_device: str
) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x, 0.5).exp()
        return x * torch.rand(x.shape, device="cpu").to(x.device) + F.dropout(x, 0.5)

    def worker(rank: int) -> None:
        found = []
        for kept in (True, False):
            torch.manual_seed(3)
            x = _leaf(8, 8)
            y = noisy(x) if kept else checkpoint(noisy, x, use_reentrant=reentrant)
            middle = [torch.rand(3, device=each).tolist() for each in ("cuda", "cpu")]
            y.sum().backward()
            after = [torch.rand(3, device=each).tolist() for each in ("cuda", "cpu")]
            found.append((y.tolist(), _grad(x), middle, after))
        assert found[0] == found[1]

    kernbench.spawn(worker, nprocs=2, default_device=default_device)


@KINDS
def test_new_numbers_on_request(kernbench: Kernbench, reentrant: bool) -> None:
    masks = []

    def noisy(x: torch.Tensor) -> torch.Tensor:
        masks.append(torch.rand(64, device="cuda").tolist())
        return x.exp()

    with kernbench.context():
        for preserve in (True, False):
            x = _leaf(3)
            y = checkpoint(noisy, x, use_reentrant=reentrant, preserve_rng_state=preserve)
            y.sum().backward()
    assert masks[0] == masks[1]
    assert masks[2] != masks[3]


@KINDS
def test_only_the_arguments_stay_in_memory(kernbench: Kernbench, reentrant: bool) -> None:
    size = 1 << 20

    def block(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.sin()
        return x

    def used(again: bool) -> tuple[int, int]:
        """Returns what four blocks keep for backward, and the most that both passes need."""
        x = _leaf(size // 4)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = x
        for _ in range(4):
            y = checkpoint(block, y, use_reentrant=reentrant) if again else block(y)
        kept = torch.cuda.memory_allocated() - before
        loss = y.sum()
        del y
        loss.backward()
        return kept, torch.cuda.max_memory_allocated() - before

    with kernbench.context():
        kept, most = used(again=False)
        # Each `sin` keeps its operand; the first one is the leaf, which was there before.
        assert kept == 16 * size
        kept_again, most_again = used(again=True)
        assert kept_again == 4 * size
        assert most_again <= most - 7 * size
        left = torch.cuda.memory_allocated()
        used(again=True)
        assert torch.cuda.memory_allocated() == left


def test_nested_calls_keep_only_the_outer_argument(kernbench: Kernbench) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin().sin()

    def outer(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(inner, x.cos(), use_reentrant=False)
        return checkpoint(inner, x.cos(), use_reentrant=False).sum()

    with kernbench.context():
        x = _leaf(1 << 18)
        before = torch.cuda.memory_allocated()
        y = checkpoint(outer, x, use_reentrant=False)
        assert torch.cuda.memory_allocated() - before < 1024  # the result alone
        y.backward()
        found = _grad(x)
        x.grad = None
        outer(x).backward()
        assert found == _grad(x)


def test_ranks_communicate_again(kernbench: Kernbench) -> None:
    from kernbench.torch.distributed.comm_debug import CommDebugMode

    def block(x: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = dist.nn.functional.all_reduce(x.exp())
        return summed.sin()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        found = []
        for again in (False, True):
            x = _leaf(4)
            with CommDebugMode() as mode:
                y = checkpoint(block, x, use_reentrant=False) if again else block(x)
                y.sum().backward()
            found.append((_grad(x), mode.get_comm_counts()))
        assert found[0][0] == found[1][0]
        assert [each[1] for each in found] == [{"all_reduce": 2}, {"all_reduce": 3}]

    kernbench.spawn(worker, nprocs=3)


@KINDS
def test_under_data_parallelism(kernbench: Kernbench, reentrant: bool) -> None:
    class Net(torch.nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
            self.again = again

        def block(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.down(self.up(x).relu())
            return out

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (
                checkpoint(self.block, x, use_reentrant=reentrant) if self.again else self.block(x)
            )

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        found = []
        for again in (False, True):
            net = Net(again).to("cuda")
            model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
            x = (_leaf(2, 4) * (rank + 1)).detach().requires_grad_()
            model(x).pow(2).sum().backward()
            found.append([_grad(each) for each in (x, *net.parameters())])
        assert found[0] == found[1]

    kernbench.spawn(worker, nprocs=2)


def test_tensors_are_made_where_they_were(kernbench: Kernbench) -> None:
    places = []

    def block(x: torch.Tensor) -> torch.Tensor:
        places.append(str(torch.ones(2).device))
        return x.exp()

    def worker(rank: int) -> None:
        x = torch.ones(3).requires_grad_()
        with torch.device("cuda"):
            y = checkpoint(block, x, use_reentrant=False)
        y.sum().backward()
        places.append(str(torch.ones(2).device))

    kernbench.spawn(worker, nprocs=1, default_device="cpu")
    assert places == ["cuda:0", "cuda:0", "cpu"]


def test_an_error_names_both_lines(kernbench: Kernbench) -> None:
    calls: list[int] = []

    def changing(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        x = x.double() if len(calls) == 1 else x.reshape(3, 1)
        return x.exp().sin().sum()  # where they are saved

    with kernbench.context():
        x = _leaf(3)
        y = checkpoint(changing, x, use_reentrant=False)  # the call
        with pytest.raises(CheckpointError) as caught:
            y.backward()
    lines = str(caught.value).splitlines()
    assert "different metadata than during the forward pass" in lines[0]
    assert lines[1].endswith("y.backward()")
    assert lines[2].strip().startswith("the checkpoint was called at")
    assert "# the call" in lines[2]
    assert lines[3].strip() == (
        "tensor at position 0: [3] torch.float64 on cuda:0 in the forward pass, "
        "[3, 1] torch.float32 on cuda:0 in the recomputation"
    )
    assert all("# where they are saved" in each for each in lines[4:6])
    assert "the same course both times" in lines[-1]


def test_counts_of_tensors_are_named(kernbench: Kernbench) -> None:
    counts = [2, 1, 1, 2]

    def changing(x: torch.Tensor) -> torch.Tensor:
        for _ in range(counts.pop(0)):
            x = x.sin()
        return x.sum()

    with kernbench.context():
        fewer = checkpoint(changing, _leaf(3), use_reentrant=False)
        with pytest.raises(CheckpointError, match="different number of tensors") as caught:
            fewer.backward()
        assert "during forward: 2" in str(caught.value)
        assert "during recomputation: 1" in str(caught.value)
        with set_checkpoint_early_stop(False):
            more = checkpoint(changing, _leaf(3), use_reentrant=False)
        with pytest.raises(CheckpointError, match="save more tensors during recomp") as caught:
            more.backward()
        assert "x = x.sin()" in str(caught.value)


@KINDS
def test_reentrance_returns_as_many_results(kernbench: Kernbench, reentrant: bool) -> None:
    calls: list[int] = []

    def changing(x: torch.Tensor) -> Any:
        calls.append(1)
        return (x.exp(), x) if len(calls) == 1 else x.exp()

    with kernbench.context():
        y, _ = checkpoint(changing, _leaf(3), use_reentrant=reentrant)
        if reentrant:
            with pytest.raises(CheckpointError, match="returned 2 values the first time and 1"):
                y.sum().backward()
        else:
            y.sum().backward()  # only what is kept must be the same


def test_what_is_refused(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = _leaf(3)
        with pytest.raises(UnsupportedError, match=r"checkpoint\(debug=True\) is not simulated"):
            checkpoint(torch.exp, x, use_reentrant=False, debug=True)
        with pytest.raises(OperandError, match="'function' must be callable, not kernbench"):
            checkpoint(x, x, use_reentrant=False)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="got 2 functions for 3 segments"):
            checkpoint_sequential([torch.exp, torch.sin], 3, x, use_reentrant=False)
        with pytest.raises(AttributeError, match=r"CheckpointPolicy is not in kernbench"):
            torch.utils.checkpoint.CheckpointPolicy  # noqa: B018
        with pytest.raises(OptionError, match="suppressed an exception") as caught:
            checkpoint(
                lambda t: t / "x", x, use_reentrant=False, context_fn=lambda: (_Hiding(), _Hiding())
            )
        assert isinstance(caught.value, KernbenchError)
        (x * x).sum().backward()  # nothing is packed any more
        assert _grad(x) == [2.0] * 3


class _Hiding:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return True


def test_warnings_name_the_users_line(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.warns(UserWarning, match="use_reentrant parameter should be passed") as seen:
            checkpoint(torch.exp, _leaf(3))
        assert seen[0].filename == __file__
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            checkpoint(torch.exp, torch.ones(3), use_reentrant=True)


def test_each_rank_packs_its_own(kernbench: Kernbench) -> None:
    packed: list[int] = []
    shared: list[Any] = []

    def worker(rank: int) -> None:
        def pack(t: torch.Tensor) -> torch.Tensor:
            packed.append(rank)
            return t

        dist.init_process_group("nccl")
        if rank == 0:
            shared.append(torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t))
        dist.barrier()
        x = _leaf(3)
        if rank == 0:
            shared[0].__enter__()
        dist.barrier()
        x.exp().sum().backward()
        dist.barrier()
        if rank == 0:
            shared[0].__exit__()
        x.exp().sum().backward()

    kernbench.spawn(worker, nprocs=2)
    assert packed == [0]


def test_the_second_run_takes_time_and_ends_early(kernbench: Kernbench) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    def counts(again: bool) -> dict[str, int]:
        with kernbench.context(), torch.profiler.profile() as profile:
            x = _leaf(3)
            (checkpoint(block, x, use_reentrant=False) if again else block(x)).sum().backward()
        return {each.key: each.count for each in profile.key_averages()}

    plain, again = counts(again=False), counts(again=True)
    assert again["aten::sin"] == plain["aten::sin"] + 1
    # The operand of `cos` is the last tensor that is kept, so it is not computed again.
    assert again["aten::cos"] == plain["aten::cos"]


def test_a_rank_that_is_aborted_leaves_nothing_packed(kernbench: Kernbench) -> None:
    from kernbench.tensors import nodes

    def block(x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 0:
            raise ValueError("mine")
        dist.barrier()
        return x.exp()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        checkpoint(block, _leaf(3), use_reentrant=False)

    with pytest.raises(SpawnException, match="mine"):
        kernbench.spawn(worker, nprocs=2)
    assert nodes._HOOKED == []


def test_without_data_the_second_run_takes_the_same_time(kernbench: Kernbench) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5).exp()

    times: list[float] = []

    def worker(rank: int) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        checkpoint(block, _leaf(4096), use_reentrant=False).sum().backward()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))

    for data in (True, False):
        kernbench.spawn(worker, nprocs=1, data=data)
    assert times[0] == times[1] > 0


def test_what_nobody_needs_is_not_kept_the_second_time(kernbench: Kernbench) -> None:
    size = 1 << 20
    left: list[int] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        unused = x
        for _ in range(6):
            unused = unused.sin()
        middle = x.exp()
        middle.register_hook(lambda g: left.append(torch.cuda.memory_allocated() - before))
        return middle.sin()

    with kernbench.context():
        loss = checkpoint(block, _leaf(size // 4), use_reentrant=False).sum()
        before = torch.cuda.memory_allocated()
        loss.backward()
    assert left == [pytest.approx(2 * size, abs=1024)]  # the result of `exp` and the gradient


def test_a_tensor_is_given_out_once_in_a_pass(kernbench: Kernbench) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            twice: torch.Tensor = g * (ctx.saved_tensors[0] + ctx.saved_tensors[0])
            return twice

    with kernbench.context():
        y = checkpoint(Square.apply, _leaf(3), use_reentrant=False)
        with pytest.raises(CheckpointError, match="already unpacked once") as caught:
            y.sum().backward()
        assert "read ctx.saved_tensors once" in str(caught.value)
