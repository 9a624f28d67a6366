"""A model gets the groups of another layout, and its own back however the block ends."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rebinding_cases import (
    Attention,
    Chunk,
    Config,
    Layer,
    MemoisedRotary,
    bindings,
    layout,
    same,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.groups import GroupGrid, ProcessGroupCollection
from kernbench.parallel.rebinding import (
    context_parallel_stream,
    eval_cp_context,
    install_pg_collection,
)
from kernbench.parallel.rotary import RotaryEmbedding, apply_rotary_pos_emb
from kernbench.parallel.zigzag import take_zigzag
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench

Layouts = Callable[[int, int], ProcessGroupCollection]

RANKS = 4


def spawn(
    kernbench: Kernbench, worker: Callable[[Layouts, int], None], nprocs: int = RANKS
) -> None:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank % 2:
            # Ranks do not arrive together.
            (torch.ones(1 << 16, device="cuda") * 2).sum().item()
        worker(lambda tp, cp: layout(nprocs, tp, cp), rank)
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=nprocs)


def check(model: Chunk, groups: ProcessGroupCollection, config: Config) -> None:
    """Checks that a model has the groups of a layout, all of them."""
    assert config.context_parallel_size == groups.cp.size()
    assert model.rotary.cp_group is groups.cp
    for layer in model.layers:
        assert isinstance(layer, Layer)
        assert layer.pg_collection is groups
        assert layer.cp_group is groups.cp
        assert layer.tp_cp_group is groups.tp_cp
        assert layer.tp_dp_cp_group is groups.tp_dp_cp
        assert layer.dp_cp_group is groups.dp_cp
        assert layer.attention.pg_collection is groups
        assert layer.attention.cp_group is groups.cp
        assert layer.attention.cp_global_ranks == [*groups.cp.ranks]
        assert layer.attention.cp_stream is not None
        assert layer.delta.cp_size == groups.cp.size()


@pytest.mark.parametrize(("train", "inside"), [(1, 2), (2, 1), (2, 4), (4, 1)])
def test_all_groups_change_and_change_back(kernbench: Kernbench, train: int, inside: int) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, train), make(1, inside)
        config = Config(train)
        model = Chunk(config, train_pgs)
        before, tp = bindings(model), model.layers[0].tp_group
        parameters = [*map(id, model.parameters())]
        check(model, train_pgs, config)
        with torch.no_grad() if rank % 2 else torch.enable_grad():
            with eval_cp_context(model, eval_pgs, train_pgs):
                check(model, eval_pgs, config)
                assert config.sets == 1  # once, though all layers have it
                assert model.layers[0].tp_group is tp
            assert torch.is_grad_enabled() == (not rank % 2)
        assert same(before, bindings(model))
        check(model, train_pgs, config)
        assert [*map(id, model.parameters())] == parameters
        # Modules were told once their groups were there, both ways.
        assert model.layers[1].delta.seen == [(inside, inside), (train, train)]
        install_pg_collection(model, eval_pgs)
        check(model, eval_pgs, config)

    spawn(kernbench, worker)


def test_one_block_inside_of_another(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        layouts = {cp: make(1, cp) for cp in (1, 2, 4)}
        config = Config(1)
        chunks = [Chunk(config, layouts[1]), Chunk(config, layouts[1])]
        before = [bindings(chunk) for chunk in chunks]
        with eval_cp_context(chunks, layouts[2], layouts[1]):
            assert config.sets == 1  # once, though both chunks have it
            with eval_cp_context(chunks, layouts[4], layouts[2]):
                for chunk in chunks:
                    check(chunk, layouts[4], config)
            for chunk in chunks:
                check(chunk, layouts[2], config)
            # `train_pgs` is not what comes back: the groups that were there are.
            with eval_cp_context(chunks, layouts[4], layouts[1]):
                pass
            for chunk in chunks:
                check(chunk, layouts[2], config)
        assert all(same(*pair) for pair in zip(before, map(bindings, chunks), strict=True))
        assert chunks[0].layers[0].delta.seen == [(n, n) for n in (2, 4, 2, 4, 2, 1)]

    spawn(kernbench, worker)


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_leaves_the_block_unchanged(
    kernbench: Kernbench, error: type[BaseException]
) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        model = Chunk(Config(1), train_pgs)
        before, raised = bindings(model), error("out")
        with pytest.raises(error) as caught, eval_cp_context(model, eval_pgs, train_pgs):
            raise raised
        assert caught.value is raised
        assert raised.__cause__ is None
        assert same(before, bindings(model))
        with eval_cp_context(model, eval_pgs, train_pgs):  # and it may be entered again
            dist.all_reduce(torch.ones(1, device="cuda"), group=model.rotary.cp_group)

    spawn(kernbench, worker)


def test_a_rank_that_is_stopped_changes_back(kernbench: Kernbench) -> None:
    """Another rank's failure stops those that wait; GreenletExit leaves their blocks."""
    models: dict[int, Any] = {}

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        config = Config(1)
        model = Chunk(config, train_pgs)
        models[rank] = config, model, bindings(model)
        with eval_cp_context(model, eval_pgs, train_pgs):
            models[rank] = *models[rank], config.context_parallel_size
            if rank == 3:
                raise RuntimeError("no data")
            dist.all_reduce(torch.ones(1, device="cuda"))
            torch.cuda.synchronize()

    with pytest.raises(SpawnException, match="no data"):
        spawn(kernbench, worker)
    for config, model, before, inside in models.values():
        assert inside == 2
        assert config.context_parallel_size == 1
        assert same(before, bindings(model))


def test_a_change_that_fails_is_undone(kernbench: Kernbench) -> None:
    """Half-way: some layers have the new groups when the last one refuses."""

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        config = Config(1)
        for place in ("attention", "delta", "config"):
            model = Chunk(config, train_pgs)
            layer: Any = model.layers[1]
            refused = RuntimeError(place)

            def refuse(*args: Any, refused: Exception = refused) -> None:
                if args[0] in (2, eval_pgs.cp):
                    raise refused

            if place == "attention":
                layer.attention.set_context_parallel_group = refuse
            elif place == "delta":
                layer.delta.on_context_parallel_change = refuse
            else:

                class Frozen(Config):
                    def __setattr__(self, name: str, value: Any) -> None:
                        raise AttributeError("frozen")

                layer.config = object.__new__(Frozen)
                vars(layer.config).update(context_parallel_size=1, sets=0)
            before = bindings(model)
            for call in (
                partial(install_pg_collection, model, eval_pgs),
                eval_cp_context(model, eval_pgs, train_pgs).__enter__,
            ):
                with pytest.raises((RuntimeError, AttributeError)) as caught:
                    call()
                assert caught.value is refused or str(caught.value) == "frozen"
                assert same(before, bindings(model)), place
                assert config.context_parallel_size == 1

    spawn(kernbench, worker)


def test_a_module_that_fails_on_the_way_back_keeps_nobody_from_it(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        config = Config(1)
        model = Chunk(config, train_pgs)
        first: Any = model.layers[0]

        def refuse(size: int) -> None:
            if size == 1:
                raise RuntimeError("no way back")

        first.delta.on_context_parallel_change = refuse
        body = KeyError("body")
        with (
            pytest.raises(RuntimeError, match="no way back") as caught,
            eval_cp_context(model, eval_pgs, train_pgs),
        ):
            raise body
        assert caught.value.__context__ is body
        first.delta.cp_size = 1
        check(model, train_pgs, config)
        assert model.layers[1].delta.seen == [(2, 2), (1, 1)]

    spawn(kernbench, worker)


def test_what_cannot_be_is_refused_before_anything_changes(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        two = make(2, 1)
        gone = make(1, 4)
        dist.destroy_process_group(gone.cp)

        def without(groups: ProcessGroupCollection, name: str) -> ProcessGroupCollection:
            names = ("tp", "cp", "dp", "tp_cp", "dp_cp", "tp_dp_cp")
            return ProcessGroupCollection(**{n: getattr(groups, n) for n in names if n != name})

        plain = Chunk(Config(1), train_pgs)
        odd = Chunk(Config(1, seq_length=10), train_pgs)
        both = Chunk(Config(1), train_pgs)
        both.layers[0].attention.cp_comm_type = "a2a+p2p"
        heads = Chunk(Config(1), train_pgs, "a2a")
        heads.layers[1].attention.num_gqa_groups = 3
        uneven = without(eval_pgs, "")
        uneven.dp_cp = train_pgs.cp
        cases: list[tuple[Any, Any, type[Exception], str]] = [
            (
                plain,
                without(eval_pgs, "cp"),
                ValueError,
                "the model needs the group 'cp', which is",
            ),
            (plain, without(eval_pgs, "tp_cp"), ValueError, "Layer needs the group 'tp_cp'"),
            (plain, gone, RuntimeError, "which it has destroyed"),
            (plain, uneven, ValueError, "dp_cp has 1 ranks and cp has 2"),
            (plain, two, ValueError, r"tp would change from ranks \[\d\] to \[\d, \d\]"),
            (odd, eval_pgs, ValueError, r"10 is not divisible by 2 \* cp = 4"),
            (both, eval_pgs, ValueError, "'a2a\\+p2p' and needs the groups 'hcp', which is None"),
            (heads, eval_pgs, ValueError, "3 heads on a rank are not divisible by 2"),
            (plain, None, TypeError, "expected a ProcessGroupCollection"),
            (3, eval_pgs, TypeError, "expected a module or a list of modules"),
            ([plain, 3], eval_pgs, TypeError, "expected a module or a list of modules"),
        ]
        known = [(model, bindings(model)) for model in (plain, odd, both, heads)]
        for model, target, kind, message in cases:
            with pytest.raises(kind, match=message) as caught:
                install_pg_collection(model, target)
            assert "test_parallel_rebinding.py" in str(caught.value)
            with pytest.raises(kind, match=message):
                eval_cp_context(model, target, train_pgs).__enter__()
        with pytest.raises(ValueError, match="tp would change"):
            eval_cp_context(plain, eval_pgs, two).__enter__()
        with pytest.raises(TypeError, match=r"eval_cp_context\(train_pgs=...\)"):
            eval_cp_context(plain, eval_pgs, None).__enter__()  # type: ignore[arg-type]
        # 12 tokens fit two ranks, and were never cut among four.
        longer = Chunk(Config(4, seq_length=12), train_pgs)
        with pytest.raises(ValueError, match=r"12 is not divisible by 2 \* cp = 8"):
            eval_cp_context(longer, eval_pgs, make(1, 4)).__enter__()
        assert all(same(before, bindings(model)) for model, before in known)
        # Nothing is under way, and all may go on.
        with eval_cp_context(plain, eval_pgs, train_pgs):
            dist.all_reduce(torch.ones(1, device="cuda"))

    spawn(kernbench, worker)


def test_ranks_that_disagree(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        layouts = {cp: make(1, cp) for cp in (1, 2, 4)}
        model = Chunk(Config(1), layouts[1])
        with eval_cp_context(model, layouts[4 if rank == 2 else 2], layouts[1]):
            torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, worker)
    text = str(caught.value)
    assert "differ in cp" in text
    assert "eval_cp_context(cp=2," in text
    assert "eval_cp_context(cp=4," in text
    assert "test_parallel_rebinding.py" in text


def test_a_rank_that_does_not_enter(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        model = Chunk(Config(1), train_pgs)
        if rank != 1:
            with eval_cp_context(model, eval_pgs, train_pgs):
                pass

    with pytest.raises(SpawnException, match="rank 1") as caught:
        spawn(kernbench, worker)
    assert "eval_cp_context" in str(caught.value)


def test_a_configuration_of_several_ranks(kernbench: Kernbench) -> None:
    """Ranks share one interpreter: what one changes the others see."""
    config = Config(1)
    found = []

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        model = Chunk(config, train_pgs)
        with eval_cp_context(model, eval_pgs, train_pgs):
            found.append(config.context_parallel_size)
            dist.all_reduce(torch.ones(1, device="cuda"))
            torch.cuda.synchronize()

    with pytest.raises(SpawnException, match="with the configuration of rank 0, which is inside"):
        spawn(kernbench, worker)
    assert found == [2]
    assert config.context_parallel_size == 1


def test_attention_in_two_levels(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        grid = GroupGrid([2, 2], ["a2a", "p2p"])
        levels = [grid.create_pg("a2a"), grid.create_pg("p2p")]
        four = ProcessGroupCollection(cp=grid.create_pg(["a2a", "p2p"]), hcp=levels)
        groups = {1: make(1, 1), 4: four}
        model = torch.nn.Sequential(
            Attention(groups[1], "a2a+p2p", fresh=True), Attention(groups[1], "p2p")
        )
        two, ring = model
        stream = ring.cp_stream
        before = bindings(model)
        with eval_cp_context(model, groups[4], groups[1]):
            assert two.cp_group == groups[4].hcp
            assert [level.size() for level in two.cp_group] == [2, 2]
            assert two.cp_global_ranks == [*groups[4].cp.ranks]
            assert ring.cp_group is groups[4].cp
            # One that never had a stream gets that of the rank, another keeps its own.
            assert two.cp_stream is context_parallel_stream()
            assert ring.cp_stream is stream
        assert same(before, bindings(model))
        wrong = ProcessGroupCollection(cp=groups[4].cp, hcp=groups[4].hcp[:1])
        with pytest.raises(ValueError, match=r"hcp has groups of \[2\] ranks and cp has 4"):
            install_pg_collection(model, wrong)

    spawn(kernbench, worker)


def test_attention_that_hands_its_group_on(kernbench: Kernbench) -> None:
    """What works with the group is no module, and is told its old group, too."""

    class Shell(torch.nn.Module):
        cp_comm_type = "p2p"

        def __init__(self, group: Any) -> None:
            super().__init__()
            self.cp_group, self.core = group, SimpleNamespace(group=group)

        def set_context_parallel_group(self, group: Any, *others: Any) -> None:
            self.core.group = group

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        shell = Shell(train_pgs.cp)
        with eval_cp_context(shell, eval_pgs, train_pgs):
            assert shell.cp_group is shell.core.group is eval_pgs.cp
        assert shell.cp_group is shell.core.group is train_pgs.cp

    spawn(kernbench, worker)


def test_attributes_of_classes_and_groups_that_nobody_needs(kernbench: Kernbench) -> None:
    class Lonely(torch.nn.Module):
        cp_group: Any = None
        tp_cp_group: Any = None

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        alone = Lonely()
        with eval_cp_context(alone, ProcessGroupCollection(cp=eval_pgs.cp), train_pgs):
            assert alone.cp_group is eval_pgs.cp
            assert alone.tp_cp_group is None  # it never had one
        assert "cp_group" not in vars(alone)
        with ExitStack() as both:
            both.enter_context(eval_cp_context([], eval_pgs, train_pgs))  # a rank without layers

    spawn(kernbench, worker)


# Positions


def test_every_table_of_a_rotary_module_is_dropped(kernbench: Kernbench) -> None:
    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        rotary = MemoisedRotary(train_pgs.cp)
        for _ in range(2):
            assert rotary(16) == (1, 16)
            assert rotary.table(16).max().item() == 1.0
            with eval_cp_context(rotary, eval_pgs, train_pgs):
                assert rotary(16) == (2, 16)
                assert rotary.table(16).max().item() == 2.0
        assert rotary.made == 4

    spawn(kernbench, worker)


def loss_of(
    model: torch.nn.Module, rotary: RotaryEmbedding, whole: Any, config: Any, cp_group: Any
) -> float:
    """A model without attention: positions weigh the tokens, and ranks add up their shares."""
    x = torch.from_numpy(whole).cuda()
    mine = take_zigzag(x, 0, cp_group.size(), cp_group.rank())
    length = rotary.get_rotary_seq_len(None, None, mine, config)
    freqs = rotary(length, cp_group=getattr(model, "slice_group", None))
    weights = torch.arange(1, 5, device="cuda", dtype=torch.float64)
    total = (apply_rotary_pos_emb(mine, freqs, config) * weights).sum(-1).tanh().square().sum()
    dist.all_reduce(total, group=cp_group)
    return float(total.item())


@pytest.mark.parametrize("order", ["tp-cp-dp", "dp-cp-tp", "cp-dp-tp"])
@pytest.mark.parametrize(("train", "inside"), [(1, 2), (1, 4), (2, 1), (2, 4), (4, 2)])
def test_the_same_batch_has_the_same_loss(
    kernbench: Kernbench, train: int, inside: int, order: str
) -> None:
    whole = np.random.default_rng(7).standard_normal((16, 1, 1, 4))
    losses: list[list[float]] = []

    def worker(make: Layouts, rank: int) -> None:
        layouts = [layout(RANKS, 1, cp, order) for cp in (train, inside)]
        config = Config(train, rotary_interleaved=False)
        model = torch.nn.Module()
        model.config = config
        model.rotary = RotaryEmbedding(4, cp_group=layouts[0].cp, dtype=torch.float64)
        found = []
        for _ in range(2):
            found.append(loss_of(model, model.rotary, whole, config, layouts[0].cp))
            with eval_cp_context(model, layouts[1], layouts[0]):
                found.append(loss_of(model, model.rotary, whole, config, layouts[1].cp))
        losses.append(found)

    spawn(kernbench, worker)
    right = losses[0][0]
    assert losses == [losses[0]] * RANKS
    assert losses[0][::2] == [right, right]
    np.testing.assert_allclose(losses[0], right, rtol=0, atol=1e-10)


def test_the_same_loss_in_both_layouts_and_another_with_wrong_positions(
    kernbench: Kernbench,
) -> None:
    """With the size of training in the configuration, shapes match and positions do not."""
    whole = np.random.default_rng(7).standard_normal((16, 1, 1, 4))
    losses: dict[str, list[float]] = {"train": [], "eval": [], "wrong": [], "after": []}

    def worker(make: Layouts, rank: int) -> None:
        train_pgs, eval_pgs = make(1, 1), make(1, 2)
        config = Config(1, rotary_interleaved=False)
        model = torch.nn.Module()
        model.config = config
        model.rotary = RotaryEmbedding(4, cp_group=train_pgs.cp, dtype=torch.float64)

        def loss(groups: ProcessGroupCollection) -> float:
            return loss_of(model, model.rotary, whole, config, groups.cp)

        losses["train"].append(loss(train_pgs))
        with eval_cp_context(model, eval_pgs, train_pgs):
            losses["eval"].append(loss(eval_pgs))
            # The fault: the length of a share, and no slice of it.
            config.context_parallel_size = 1
            model.slice_group = train_pgs.cp
            losses["wrong"].append(loss(eval_pgs))
            del model.slice_group
        losses["after"].append(loss(train_pgs))

    spawn(kernbench, worker)
    right = losses["train"][0]
    assert losses["after"] == losses["train"] == [right] * RANKS
    np.testing.assert_allclose(losses["eval"], right, rtol=0, atol=1e-10)
    assert all(abs(wrong - right) > 1e-2 for wrong in losses["wrong"])


def test_a_stale_size_with_a_live_group_is_refused(kernbench: Kernbench) -> None:
    """Half of the rebinding: the slice follows, the length does not."""

    def worker(make: Layouts, rank: int) -> None:
        eval_pgs = make(1, 2)
        rotary = RotaryEmbedding(4, cp_group=eval_pgs.cp)
        stale = SimpleNamespace(context_parallel_size=1, sequence_parallel=False)
        mine = torch.zeros(8, 1, 1, 4, device="cuda")
        freqs = rotary(rotary.get_rotary_seq_len(None, None, mine, stale))
        with pytest.raises(ValueError, match="4 angles for 8 tokens"):
            apply_rotary_pos_emb(mine, freqs, stale)

    spawn(kernbench, worker)
