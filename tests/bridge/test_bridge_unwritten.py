"""Memory that nothing has written: what is told (M5), and what is none of it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import on_ranks

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed
F: Any = torch.nn.functional


def _empty(*shape: int, **options: Any) -> Any:
    return torch.empty(*(shape or (8,)), device="cuda", **options)


def _half() -> Any:
    x = torch.empty(8, device="cuda")
    x[:3] = 1
    return x


def _others(*shape: int) -> Any:
    return torch.ones(*(shape or (8,)), device="cuda")


def _of_numpy() -> Any:
    return torch.empty(8).to("cuda")


def _to_empty() -> Any:
    return torch.nn.Linear(4, 4, device="meta").to_empty(device="cuda")


READS: dict[str, Callable[[], Any]] = {
    "an operation": lambda: _empty() + 1,
    "in place": lambda: _empty().add_(1),
    "a sum": lambda: _empty().sum(),
    "item": lambda: _empty(1).item(),
    "bool": lambda: bool(_empty(1)),
    "cpu": lambda: _empty().cpu(),
    "onto the host": lambda: torch.zeros(8).copy_(_empty()).sum(),
    "tolist": lambda: _empty().tolist(),
    "print": lambda: str(_empty()),
    "half": lambda: _half().sum(),
    "half in place": lambda: _half().mul_(2),
    "half, shown": lambda: _half().tolist(),
    "another half": lambda: _half()[2:5] * 2,
    "a view": lambda: _empty(2, 4).t()[1] + 1,
    "a copy": lambda: _empty().clone().exp(),
    "another type": lambda: _empty().to(torch.float64).exp(),
    "copy_": lambda: _others().copy_(_empty()).exp(),
    "half a copy_": lambda: torch.zeros(8, device="cuda").copy_(_half()).exp(),
    "foreach": lambda: torch._foreach_mul([_others(), _empty()], 2),
    "foreach in place": lambda: torch._foreach_add_([_others(), _empty()], 1),
    "a list": lambda: torch.cat([_others(), _empty()]).exp(),
    "half of a list": lambda: torch.cat([_others(), _half()]).exp(),
    "padded": lambda: F.pad(_half(), (1, 1), value=float("-inf")).exp(),
    "repeated": lambda: _half().repeat(2).exp(),
    "a product": lambda: _empty(4, 4) @ _others(4, 4),
    "a layer": lambda: _to_empty()(_others(4)),
    "an embedding": lambda: F.embedding(_others(2).long(), _empty(4, 4)),
    "rows": lambda: _empty(4, 4)[torch.tensor([0, 1], device="cuda")],
    "added rows": lambda: _empty(8).index_add_(0, _others(8).long(), _others()),
    "out=": lambda: torch.add(_empty(), 1, out=_others()),
    "a norm": lambda: F.layer_norm(_empty(2, 4), (4,)),
    "a loss": lambda: F.mse_loss(_empty(), _others()),
    "a comparison": lambda: torch.equal(_empty(), _others()),
    "new_empty": lambda: _others().new_empty(4) + 1,
    "empty_like": lambda: torch.empty_like(_others()) + 1,
    "empty_strided": lambda: torch.empty_strided((2, 2), (1, 2), device="cuda") + 1,
    "an old class": lambda: torch.cuda.FloatTensor(4) + 1,
    "on the host": lambda: torch.empty(4) + 1,
    "from the host": lambda: _of_numpy() + 1,
    "with gradients": lambda: (_empty(8, requires_grad=True) * 2).sum().backward(),
    "a sum of products with beta": lambda: torch.addmm(_empty(4, 4), _others(4, 4), _others(4, 4)),
}


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("name", READS)
def test_a_read_of_what_nothing_has_written_is_told(name: str, data: bool) -> None:
    if not data and name in {"item", "bool", "tolist", "print", "half, shown", "a comparison"}:
        pytest.skip("there are no numbers, which is told")
    if not data and name in {"cpu", "onto the host"}:
        pytest.skip("no values can go to the host")

    def run(rank: int) -> None:
        READS[name]()

    with pytest.raises(SpawnException) as failed:
        on_ranks(run, data=data)
    text = str(failed.value)
    assert re.search(r"\[M5\] \d+ of \d+ elements of tensor \[.*were never written", text)
    assert re.search(r"allocated at .*test_bridge_unwritten\.py:\d+", text)
    assert "site-packages" not in text


def test_the_report_has_the_line_of_the_read_and_of_the_tensor() -> None:
    def run(rank: int) -> None:
        x = torch.empty(1024, device="cuda")  # made
        x[:512] = 1
        x.sum()  # read

    with pytest.raises(SpawnException) as failed:
        on_ranks(run)
    lines = [line.strip() for line in str(failed.value).splitlines()]
    never = "[M5] 512 of 1024 elements of tensor [1024] torch.float32 were never written"
    assert lines[1].endswith(never)
    assert lines[2].startswith("first unwritten element 512, last 1023")
    assert lines[3].startswith("allocated at")
    assert lines[3].endswith('x = torch.empty(1024, device="cuda")  # made')
    assert lines[4].startswith("last written by aten::fill_, issued at")
    assert lines[4].endswith("x[:512] = 1")
    assert lines[5].endswith("x.sum()  # read")


def _cache() -> float:
    """A cache of keys with a mask: most of it is written later, or never."""
    cache = torch.empty(1, 2, 8, 4, device="cuda")
    cache[:, :, :3] = 1
    query = torch.ones(1, 2, 1, 4, device="cuda")
    mask = (torch.arange(8, device="cuda") < 3)[None, None, None]
    scores = (query @ cache.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
    by_hand = scores.softmax(-1) @ torch.where(mask.transpose(-1, -2), cache, 0)
    whole = F.scaled_dot_product_attention(query, cache, cache, attn_mask=mask)
    rows = cache[0, 0].index_select(0, torch.tensor([0, 2], device="cuda"))
    return float((by_hand.sum() + whole.sum() + rows.sum()).item())


def _written_by_parts() -> float:
    x = torch.empty(8, device="cuda")
    x[0::2] = 1
    x[1::2].fill_(2)
    y = torch.empty(2, 4, device="cuda")
    torch.add(x[:4], 1, out=y[0])
    y[1].copy_(x[4:])
    return float((x.sum() + y.sum()).item())


def _filled() -> float:
    x = torch.empty(4, 4, device="cuda")
    x.normal_()
    other = torch.empty_like(x)
    torch._foreach_copy_([other], [x])
    torch.nn.init.orthogonal_(torch.empty(4, 4, device="cuda"))
    torch.nn.init.trunc_normal_(torch.empty(4, 4, device="cuda"))
    torch.zeros_like(torch.empty(4, device="cuda"))
    torch.empty(4, device="cuda").new_zeros(3)
    product = torch.baddbmm(
        torch.empty(1, 4, 4, device="cuda"), x[None], x[None], beta=0.0, alpha=2.0
    )
    layers = [
        torch.nn.Embedding(4, 4, padding_idx=0, device="cuda"),
        torch.nn.BatchNorm1d(4, device="cuda"),
        torch.nn.LayerNorm(4, device="cuda"),
        torch.nn.MultiheadAttention(4, 2, device="cuda"),
        torch.nn.LSTM(4, 4, device="cuda"),
    ]
    out = layers[0](torch.tensor([[0, 1]], device="cuda"))
    out = layers[2](layers[1](out[0]))
    out = layers[4](layers[3](out, out, out)[0])[0]
    out.sum().backward()
    return float((product - 2 * x @ x).abs().max().item())


def _moved_before_it_is_written() -> float:
    first = torch.nn.Linear(4, 4, device="meta").to_empty(device="cpu")
    model = torch.nn.Sequential(first).to("cuda")
    copy = __import__("copy").deepcopy(model)
    for one in (model, copy):
        for parameter in one.parameters():
            torch.nn.init.ones_(parameter)
    return float((model(_others(4)) - copy(_others(4))).sum().item())


def _given_to_other_code() -> float:
    host = torch.empty(4)
    host.numpy()[:] = 1
    other = torch.empty(4)
    other.untyped_storage().fill_(0)
    third = torch.empty(4)
    torch.utils.dlpack.from_dlpack(third).zero_()
    fourth = torch.empty(4)
    fourth.untyped_storage()[0] = 0
    fifth = torch.empty(4).share_memory_()
    return float((host + other + third + fourth).sum().item() + fifth.numel())


def _nothing_in_it() -> float:
    return float(torch.empty(0, device="cuda").sum().item() + torch.empty(3, 0).sum().item())


def _begun_by_a_fused_optimizer() -> float:
    weight = torch.ones(8, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    return float(weight.sum().item())


RIGHT = [_cache, _written_by_parts, _filled, _moved_before_it_is_written, _given_to_other_code]
RIGHT += [_begun_by_a_fused_optimizer]
EXPECTED = {
    "_cache": 8 + 8 + 8,
    "_written_by_parts": 12 + 10 + 6,
    "_begun_by_a_fused_optimizer": 8 * (1 - 0.5 - 0.5 * 1.5),
}


@pytest.mark.parametrize("worker", [*RIGHT, _nothing_in_it], ids=lambda each: each.__name__)
def test_what_is_written_before_it_matters_is_no_mistake(worker: Callable[[], float]) -> None:
    (found,) = on_ranks(lambda rank: worker())
    if worker.__name__ in EXPECTED:
        assert found == EXPECTED[worker.__name__]


def _collectives(rank: int) -> float:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
    given = torch.full((4,), float(rank), device="cuda")
    gathered = torch.empty(8, device="cuda")
    dist.all_gather_single(gathered, given)
    parts = [torch.empty(4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, given)
    taken = torch.empty(4, device="cuda")
    dist.reduce_scatter_single(taken, gathered)
    buffer = torch.empty(8, device="cuda")  # the second half pads
    buffer[:4] = given
    dist.all_reduce(buffer)
    received = torch.empty(4, device="cuda")
    ops = [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return float((gathered.sum() + parts[1].sum() + taken.sum() + received.sum()).item())


def test_collectives_write_their_results_and_send_what_pads_them() -> None:
    assert kernbench.torchrun_spawn(_collectives, nprocs=2).returned == [12.0, 16.0]


def test_a_part_that_nothing_has_written_is_not_sent() -> None:
    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        buffer = torch.empty(8, device="cuda")
        buffer[:4] = 1
        dist.all_reduce(buffer[4:])

    with pytest.raises(SpawnException, match=r"\[M5\]"):
        on_ranks(run, 2)


def test_what_is_not_told_is_the_same_in_every_rank_and_run() -> None:
    def run(rank: int) -> list[float]:
        torch.cuda.set_device(rank)
        for size in (3, 1000, 1 << 16):  # memory that was used before
            torch.full((size,), 7.0 + rank, device="cuda").sum()
            torch.full((size,), 7.0 + rank)
        half = torch.empty(1000, 4, device="cuda")
        half[:1] = 1
        found = half @ torch.ones(4, 1, device="cuda")
        return [*found.flatten().tolist(), *torch.Tensor(1000).tolist()]

    first, second = on_ranks(run, 2)
    assert first == second
    assert first == [4.0] + [0.0] * 1999


def test_operations_on_what_is_written_take_the_short_way_beside_what_is_not() -> None:
    def run(rank: int) -> tuple[bool, bool]:
        from kernbench.bridge.base.here import this_rank

        kept, x = torch.empty(8, device="cuda"), torch.ones(8, device="cuda")
        hazards, mode, walks = this_rank().hazards, this_rank().mode, list[Any]()
        x + 1
        real = mode.walk

        def noted(*args: Any, **options: Any) -> Any:
            walks.append(args[0])
            return real(*args, **options)

        mode.walk = noted
        for _ in range(3):
            x + 1
        short = not walks
        kept.zero_()
        mode.walk = real
        return short and bool(hazards.watch is False), bool(walks)

    assert on_ranks(run) == [(True, True)]


def test_memory_that_is_given_again_is_forgotten() -> None:
    def run(rank: int) -> float:
        for _ in range(3):
            x = torch.empty(64, device="cuda")
            x[:5] = 1
            del x
            y = torch.ones(64, device="cuda")
            y + 1
        return float(y.sum().item())

    assert on_ranks(run) == [64.0]
