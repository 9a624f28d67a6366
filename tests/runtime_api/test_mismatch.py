"""Ranks that disagree about a collective: who, where, what."""

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def _here(text: str) -> str:
    """Cuts the folders of file names, which differ between machines."""
    lines = []
    for line in text.splitlines():
        before, found, after = line.partition("test_mismatch.py")
        lines.append(f"{before.rpartition(' ')[0]} FILE{after}" if found else line)
    return "\n".join(lines)


def _fail(kernbench: Kernbench, worker: object, nprocs: int = 3) -> dict[int, KernbenchError]:
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=nprocs)  # type: ignore[arg-type]
    errors = {}
    for rank, error in caught.value.errors.items():
        assert isinstance(error, KernbenchError)
        errors[rank] = error
    return errors


def test_a_rank_that_returns_without_the_collective(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        if rank != 1:
            dist.all_reduce(x)
            x.numpy()

    errors = _fail(kernbench, worker)
    assert list(errors) == [0, 2]
    assert errors[0].code == "C1"
    text = _here(str(errors[0]))
    assert "all_reduce #2 of group WORLD: ranks 0, 2 wait for rank 1" in text
    assert "missing rank 1 returned; its last collective was #1" in text
    assert "FILE:39" in text or "dist.all_reduce(x)" in text


def test_a_rank_that_returned_before_the_others_call(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            return
        x = torch.ones(4, device="cuda")
        for _ in range(5):
            x = x + 1
        x.numpy()
        dist.all_reduce(x)

    errors = _fail(kernbench, worker)
    assert set(errors) <= {1, 2}
    assert {error.code for error in errors.values()} == {"C1"}
    assert "it called none" in str(errors[1])


@pytest.mark.parametrize(
    ("code", "what"),
    [("C2", "collective"), ("C3", "shape"), ("C4", "dtype"), ("C5", "reduce operation")],
)
def test_what_differs_is_named(kernbench: Kernbench, code: str, what: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        odd = rank == 2
        shape = (8, 4) if code == "C3" and odd else (4, 8)
        dtype = torch.float16 if code == "C4" and odd else torch.bfloat16
        op = dist.ReduceOp.MAX if code == "C5" and odd else dist.ReduceOp.SUM
        x = torch.zeros(shape, dtype=dtype, device="cuda")
        if code == "C2" and odd:
            dist.barrier()
        else:
            dist.all_reduce(x, op)

    errors = _fail(kernbench, worker)
    assert list(errors) == [0, 1, 2]
    error = errors[0]
    assert error.code == code
    assert f"ranks 0, 1, 2 differ in {what}" in str(error)
    hints = {"C3": "hardware would not notice", "C4": "the types have the same size"}
    assert hints.get(code, "") in str(error)


def test_using_the_group_before_init_and_twice(kernbench: Kernbench) -> None:
    def early(rank: int) -> None:
        dist.all_reduce(torch.ones(1, device="cuda"))

    def twice(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.init_process_group("nccl")

    def late(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.destroy_process_group()
        dist.all_reduce(torch.ones(1, device="cuda"))

    for worker in (early, twice, late):
        errors = _fail(kernbench, worker, 1)
        assert errors[0].code == "C18"


def test_tensors_that_cannot_take_part(kernbench: Kernbench) -> None:
    def on_host(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cpu"))

    def strided(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones((4, 4), device="cuda").t())

    def bits(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"), dist.ReduceOp.BXOR)

    assert "expected one on cuda:0" in str(_fail(kernbench, on_host, 1)[0])
    assert "not contiguous" in str(_fail(kernbench, strided, 1)[0])
    assert "bxor is not defined for torch.float32" in str(_fail(kernbench, bits, 1)[0])


def test_reading_what_nobody_wrote_is_reported_by_its_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(4, device="cuda") if rank else torch.empty(4, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()

    errors = _fail(kernbench, worker, 2)
    assert list(errors) == [0]
    assert errors[0].code == "M5"
    assert "all_reduce was issued at" in str(errors[0])


def test_a_faulty_input_of_one_rank_reaches_no_other(kernbench: Kernbench) -> None:
    seen: list[object] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(4, device="cuda") if rank else torch.empty(4, device="cuda")
        dist.all_reduce(x)
        if rank:
            seen.append(x.tolist())
        torch.cuda.synchronize()

    for fidelity in ("kernel", "tile", "functional"):
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, nprocs=3, fidelity=fidelity)
        assert list(caught.value.errors) == [0]
    assert seen == []
