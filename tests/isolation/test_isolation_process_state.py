"""State that PyTorch and Python keep for a whole process, of which each rank has its own."""

import contextlib
import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from bridge_ranks import on_ranks, others

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def test_a_hook_of_all_modules_is_called_for_those_of_its_rank() -> None:
    def worker(rank: int) -> tuple[int, int]:
        calls = []
        hooks = torch.nn.modules.module
        handle = hooks.register_module_forward_hook(lambda *_: calls.append(rank))
        others()
        module = torch.nn.Linear(2, 2, device="cuda")
        for _ in range(rank + 1):
            module(torch.ones(1, 2, device="cuda"))
            others() if rank == 0 else None
        others() if rank == 1 else None
        handle.remove()
        return len(calls), len(hooks._global_forward_hooks)

    assert on_ranks(worker, 2) == [(1, 0), (2, 0)]


def test_a_rank_may_send_its_output_elsewhere() -> None:
    before = sys.stdout

    def worker(rank: int) -> str:
        if rank == 1:
            sys.stdout = io.StringIO()
            others()
            print("quiet")
            return sys.stdout.getvalue()
        with contextlib.redirect_stdout(io.StringIO()) as told:
            others()
            print("loud")
        return told.getvalue()

    assert on_ranks(worker, 2) == ["loud\n", "quiet\n"]
    assert sys.stdout is before


def test_ranks_gather_states_of_fsdp1_at_a_time() -> None:
    def worker(_: int) -> dict[str, Any]:
        from torch.distributed.fsdp import FullyShardedDataParallel

        torch.manual_seed(0)
        model = FullyShardedDataParallel(torch.nn.Linear(4, 4).cuda())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
        return {name: value["exp_avg"].tolist() for name, value in state.items()}

    first, second = on_ranks(worker, 2)
    assert first == second
    assert first["bias"] == pytest.approx([0.1] * 4)


def test_who_counts_with_join_may_drop_the_work_of_its_notice() -> None:
    def worker(rank: int) -> float:
        import torch.distributed as dist
        from torch.distributed.algorithms.join import Join, Joinable, JoinHook

        def shadowed(_: Any) -> None:
            dist.all_reduce(torch.zeros(1, device="cuda"))

        def begin(self: Any) -> None:
            Joinable.__init__(self)  # itself it is abstract

        hook = type("Shadow", (JoinHook,), {"main_hook": shadowed})
        names = {
            "__init__": begin,
            "join_hook": lambda *_, **__: hook(),
            "join_device": torch.device("cuda", rank),
            "join_process_group": dist.group.WORLD,
        }
        counter = type("Counter", (Joinable,), names)()
        count = torch.zeros(1, device="cuda")
        with Join([counter]):
            for _ in range(3 + rank):
                Join.notify_join_context(counter)
                one = torch.ones(1, device="cuda")
                dist.all_reduce(one)
                count += one
        return float(count.item())

    assert on_ranks(worker, 2) == [6.0, 7.0]


def test_a_block_of_a_rank_chooses_attention_for_it_alone() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.backends.cuda.math_sdp_enabled()

    def worker(rank: int) -> tuple[bool, bool]:
        with sdpa_kernel(SDPBackend.MATH if rank else SDPBackend.FLASH_ATTENTION):
            others()
            inside = torch.backends.cuda.math_sdp_enabled()
            others()
        return inside, torch.backends.cuda.math_sdp_enabled()

    assert on_ranks(worker, 2) == [(False, before), (True, before)]
    assert torch.backends.cuda.math_sdp_enabled() == before


def test_what_is_replaced_for_each_rank_runs_for_the_user() -> None:
    """The guard against code that never yields stops the user's code below these modules."""
    from kernbench.isolation import per_rank, processes
    from kernbench.ranks.watchdog import users_code_runs

    for ours, users in ((per_rank, True), (processes, True), (kernbench, False)):
        frame: Any = None
        for module in ("train", ours.__name__, "random"):
            frame = SimpleNamespace(f_globals={"__name__": module}, f_back=frame)
        assert users_code_runs(frame) is users
