"""Numbers that are known in runs without numbers: what follows from values of the host alone."""

from typing import Any

import pytest

import kernbench

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")


def _generates(rank: int) -> tuple[int, bool]:
    """Draws words until all sequences have ended, or are as long as may be, as `generate` does."""
    torch.cuda.set_device(rank)
    ends = torch.tensor([2], device="cuda")
    words = torch.randint(3, 90, (2, 5), device="cuda")
    unfinished = torch.ones(2, dtype=torch.long, device="cuda")
    finished, drawn = False, 0
    while not finished and drawn < 100:
        following = torch.randn(2, 90, device="cuda").argmax(-1) * unfinished
        words, drawn = torch.cat([words, following[:, None]], -1), drawn + 1
        done = torch.full((2,), False, device="cuda")
        done = done | torch.isin(words[:, -1], ends)
        done = done | torch.full((2,), words.shape[1] >= 12, device="cuda")
        unfinished = unfinished & ~done
        finished = bool(unfinished.max() == 0)
    return drawn, finished


def test_a_program_that_counts_on_its_device_ends() -> None:
    outcome = kernbench.torchrun_spawn(_generates, nprocs=1, data="fake")
    assert outcome.returned == [(7, True)]
    assert outcome.document["made_up_values"]["count"] == 6  # whether the first six words end it


def _transformers(rank: int) -> tuple[int, ...]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.cuda.set_device(rank)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=128,
        num_attention_heads=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **sizes,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to("cuda").eval()
    words = torch.randint(3, 128, (2, 5), device="cuda")
    return tuple(model.generate(words, max_new_tokens=12).shape)


@pytest.mark.parametrize("data", [True, "fake"])
@pytest.mark.filterwarnings("ignore")  # those of the library
def test_generate_of_transformers_ends(data: Any) -> None:
    pytest.importorskip("transformers")
    assert kernbench.torchrun_spawn(_transformers, nprocs=1, data=data).returned == [(2, 17)]


def _same(device: str) -> list[Any]:
    """Returns numbers that all follow from values of the host."""
    x = torch.tensor([[1.5, -2.0, 3.0], [0.0, 4.0, -1.0]], device=device)
    y = torch.arange(6, device=device).reshape(2, 3).float()
    flags = torch.zeros(4, dtype=torch.bool, device=device)
    flags[1] = True
    flags[2:] |= torch.ones(2, device=device, dtype=torch.bool)
    blank = torch.empty(3, device=device)
    blank.copy_(torch.tensor([7.0, 8.0, 9.0]))
    y.t()[0].add_(x[0, 0]).mul_(2)
    torch._foreach_add_([x, y], [y, x])
    out = torch.empty_like(x).fill_(3)
    turned = torch.full((), 5, device=device).to(torch.int16)
    moved = torch.tensor([1, 0]).to(device)
    found = [x, y, flags, blank, out, turned, moved, x @ y.T, x.softmax(-1), torch.cat([x, y])[2:]]
    found += [x[moved], x[y > 4], flags.nonzero(), (x > y).any(), torch.where(x > 0, x, y)]
    return [one.tolist() for one in found] + [x.sum().item(), torch.equal(x, y)]


def test_what_follows_from_values_of_the_host_is_as_on_a_cpu() -> None:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        return _same("cuda")

    outcome = kernbench.torchrun_spawn(worker, nprocs=1, data="fake")
    assert outcome.returned == [_same("cpu")]
    assert outcome.document["made_up_values"]["count"] == 0


def _unknown(rank: int) -> list[Any]:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    big = torch.ones(4096, device="cuda")

    def known() -> Any:
        return torch.full((2,), 3.0, device="cuda")

    summed, drawn, masked, part = known(), known(), known(), known()
    dist.all_reduce(summed)
    drawn.uniform_()
    masked.add_(big.sum())  # of too many elements to keep
    part[0] = big[0]
    kept, drops = known(), known()
    for one in (big.sum() + kept, torch.cat([kept, big[:1]]), torch.rand(2, device="cuda")):
        assert one.tolist() == [0.0] * len(one)
    drops.resize_(4)
    found = [one.tolist() for one in (summed, drawn, masked, part, kept, drops)]
    dist.destroy_process_group()
    return found


@pytest.mark.filterwarnings("ignore:.*resize")
def test_what_something_else_has_a_say_in_is_read_as_0() -> None:
    outcome = kernbench.torchrun_spawn(_unknown, nprocs=2, data="fake")
    nothing = [0.0, 0.0]
    assert outcome.returned == [[nothing] * 4 + [[3.0, 3.0], [0.0] * 4]] * 2
    assert outcome.document["made_up_values"]["count"] == 2 * 8


def _settled(rank: int) -> list[bool]:
    torch.cuda.set_device(rank)
    unknown = torch.rand(3, device="cuda") > 0.5
    yes, no = (torch.full((3,), flag, device="cuda") for flag in (True, False))
    mixed = torch.tensor([True, False, True], device="cuda")
    found = [unknown | yes, no & unknown, torch.logical_or(yes, unknown), yes.logical_and(unknown)]
    found += [unknown | no, mixed | unknown]
    unknown |= yes
    return [bool(one.all()) for one in (*found, unknown)] + [bool((~found[1]).all())]


def test_a_flag_settles_what_it_settles_whatever_the_other_is() -> None:
    outcome = kernbench.torchrun_spawn(_settled, nprocs=1, data="fake")
    assert outcome.returned == [[True, False, True, False, False, False, True, True]]
    assert outcome.document["made_up_values"]["count"] == 3


def _many(rank: int) -> int:
    torch.cuda.set_device(rank)
    wrong = 0
    for number in range(10_000):  # more than are kept, at addresses that come again
        known = torch.full((3,), number, device="cuda")
        wrong += number % 500 == 0 and known[1].item() != number
        unknown = torch.randint(1, 9, (3,), device="cuda")
        wrong += number % 500 == 0 and unknown[1].item() != 0
    return int(wrong)


def test_numbers_of_what_is_gone_are_nobodys() -> None:
    assert kernbench.torchrun_spawn(_many, nprocs=1, data="fake").returned == [0]


def _groups(rank: int) -> list[float]:
    """Times products of the same sizes: 64 rows are one group of eight, or eight groups of 8."""
    torch.cuda.set_device(rank)
    rows, weights = (
        torch.zeros(*size, dtype=torch.bfloat16, device="cuda")
        for size in ((64, 1024), (8, 1024, 4096))
    )
    busy = torch.zeros(1024, 1024, device="cuda")
    times = []
    for counts in ([64, *[0] * 7], [8] * 8, [64, *[0] * 7]):
        ends = torch.tensor(counts).cumsum(0).to("cuda", torch.int32)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        busy @ busy  # until its end, the host has issued all that follows
        begin.record()
        torch._grouped_mm(rows, weights, offs=ends)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def test_a_product_of_groups_takes_the_time_of_its_groups_each_time() -> None:
    def under(data: Any) -> list[float]:
        found: list[float] = kernbench.torchrun_spawn(_groups, nprocs=1, data=data).returned[0]
        return found

    one, even, again = under("fake")
    assert one == again < even
    assert under(True) == [one, even, one]


def _long(rank: int) -> list[bool]:
    """Asks of a sequence of 40000 what transformers asks: is anything padded, or packed?"""
    torch.cuda.set_device(rank)
    words = torch.randint(3, 90, (2, 40000), device="cuda")
    mask = torch.ones_like(words, dtype=torch.bool)
    places = torch.arange(40000, device="cuda")
    packed = (places.diff() != 1).cumsum(0)
    return [bool(mask.all()), bool(packed[-1] == 0), bool((words >= 0).all())]


def test_masks_and_positions_of_a_long_sequence_are_known() -> None:
    # What the words are is not known, so that the last answer is made up.
    outcome = kernbench.torchrun_spawn(_long, nprocs=1, data="fake")
    assert outcome.returned == [[True, True, False]]
    assert outcome.document["made_up_values"]["count"] == 1
