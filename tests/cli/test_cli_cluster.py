"""The bench of clusters: collapsed as with every rank, and wrong sizes told in sentences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benches.ccl_allreduce
import benches.cluster
import benches.moe
import benches.transformer
import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models.cluster_model import layers_of
from benches.models.published import MODELS
from benches.models.sharded_optimizer import ShardedOptimizer
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.errors import UsageError
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.report.explanation import explanation
from kernbench.run_spec import RunSpec
from kernbench.run_spec.values import Collapse
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench


def _step(kernbench: Kernbench, collapse: Collapse, ranks: int, *flags: str) -> dict[str, Any]:
    with kernbench.context(
        topology="h200x8_x4_nodes",
        overrides=(f"system.sips.count={ranks}",),
        data=False,
        collapse=collapse,
        arguments=("--sequence", "512", "--ranks", str(ranks), *flags),
    ) as ctx:
        assert benches.cluster.run(ctx) == 0
    (document,) = ctx.results
    found: dict[str, Any] = document["step"]
    return found


@pytest.mark.parametrize(
    ("ranks", "flags", "classes"),
    [
        (16, ("--layers", "3", "--tp", "8", "--pp", "2", "--microbatches", "2"), 2),
        (16, ("--layers", "1", "--tp", "8", "--cp", "2", "--microbatches", "1"), 2),
        (16, ("--layers", "2", "--pp", "2", "--virtual", "2", "--microbatches", "2"), 2),
        pytest.param(
            16,
            ("--model", "deepseek-v3", "--layers", "4", "--tp", "1", "--ep", "8"),
            16,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["stages", "sequences", "chunks", "experts"],
)
def test_one_rank_of_each_stage_stands_for_all(
    kernbench: Kernbench, ranks: int, flags: tuple[str, ...], classes: int
) -> None:
    some, every = (_step(kernbench, how, ranks, *flags) for how in ("exact", "off"))

    assert len(some.pop("classes")) == classes
    assert every.pop("classes") == []
    assert some == every


@pytest.mark.parametrize(
    ("flags", "report"),
    [
        ("--ranks 20", "--ranks 20: expected a multiple of --tp x --cp x --pp 8"),
        ("--ranks 16 --dp 3", "--dp 3: expected --ranks 16 / (--tp x --cp x --pp 8) = 2"),
        ("--tp 16", "the heads of keys of llama3-70b, 8: expected a multiple of --tp 16"),
        ("--ep 2", "--ep 2: llama3-70b has no experts"),
        ("--ranks 262144", "262144 ranks: expected at most 131072"),
        ("--sequence 100", "--sequence 100: expected a multiple of 2 x --cp x --tp 16"),
        (
            "--layers 5 --pp 4",
            "--pp 4: 5 layers, of which each stage has one or more; the embedding and the output "
            "count as one each",
        ),
        (
            "--layers 5 --pp 2 --virtual 4",
            "--pp 2 x --virtual 4 = 8 chunks: expected at most 7: 5 layers, the embedding and the "
            "output",
        ),
        ("--virtual 2", "--virtual 2: expected --pp 2 or more"),
        (
            "--pp 2 --virtual 2 --microbatches 3",
            "--microbatches 3: expected a multiple of --pp 2",
        ),
        (
            "--model deepseek-v3 --tp 2",
            "--tp 2: the attention of deepseek-v3 is not cut; expected --tp 1",
        ),
        (
            "--model deepseek-v3 --tp 1 --sequence 40",
            "choices of a rank's tokens, 320: expected a multiple of the experts 256",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_told(flags: str, report: str) -> None:
    with pytest.raises(UsageError) as caught:
        benches.cluster.parse(flags.split())

    assert str(caught.value) == f"cluster: {report}"


def test_the_embedding_and_the_output_count_as_a_layer_each() -> None:
    def counts(layers: int, stages: int) -> list[int]:
        found = [layers_of(layers, stages, stage) for stage in range(stages)]
        assert [number for part in found for number in part] == list(range(layers))
        return list(map(len, found))

    assert counts(126, 16) == [7, *[8] * 14, 7]  # as Llama 3 405B was
    assert counts(5, 1) == [5]
    assert counts(8, 4) == [1, 3, 3, 1]


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("llama3-70b", 70.6, 69.5), ("llama3-405b", 405.9, 403.7), ("deepseek-v3", 671.0, 36.6)],
)
def test_published_models_have_as_many_weights_as_they_say(
    name: str, billions: float, active: float
) -> None:
    # 70.6 B and 405.9 B: the models' pages. 671 B, of which 37 B are active: arXiv 2412.19437.
    model = MODELS[name]

    assert model.parameters() / 1e9 == pytest.approx(billions, rel=2e-3)
    assert model.parameters(active=True) / 1e9 == pytest.approx(active, rel=5e-3)


def test_a_sharded_optimizer_updates_as_a_whole_one_does(kernbench: Kernbench) -> None:
    weights = np.arange(15, dtype=np.float32).reshape(3, 5) / 8
    rows = [np.ones(5, np.float32), -2 * np.ones(5, np.float32)]
    found: dict[int, Any] = {}

    def linear() -> torch.nn.Linear:
        made = torch.nn.Linear(5, 3, bias=False, device="cuda")
        with torch.no_grad():
            made.weight.copy_(torch.from_numpy(weights))
        return made

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        alone = dist.new_group([rank], use_local_synchronization=True)
        world = dist.group.WORLD
        groups = ProcessGroupCollection(
            dp_cp=world, expt_dp=world, tp=alone, ep=alone, pp=alone, cp=alone
        )
        model = linear()
        optimizer = ShardedOptimizer(model, groups, overlap=True)
        whole = linear()
        adam = torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.from_numpy(rows[rank]).cuda()).sum().backward()
            optimizer.step()
            adam.zero_grad()
            (sum(whole(torch.from_numpy(each).cuda()).sum() for each in rows) / 2).backward()
            torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
            adam.step()
        found[rank] = model.weight.detach().cpu().numpy(), whole.weight.detach().cpu().numpy()
        dist.destroy_process_group()

    with kernbench.context(topology="h200x8", data=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)

    for mine, expected in found.values():
        np.testing.assert_allclose(mine, expected, rtol=1e-5)
        assert not np.array_equal(mine, weights)


def test_the_command_line_says_the_classes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec = RunSpec(
        bench="cluster",
        topology="h200x8_x4_nodes",
        data=False,
        collapse="exact",
        arguments=(
            "--layers",
            "3",
            "--pp",
            "2",
            "--ranks",
            "32",
            "--microbatches",
            "1",
            "--sequence",
            "512",
        ),
    )

    trace = tmp_path / "trace.json"
    assert run_bench(spec, Output(verbose=True, trace=trace, trace_ranks=(5, 16))) == 0

    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if "stage" in line or "rank 5" in line]
    assert told == [
        "kernbench: the trace does not show rank 5: rank 0 ran for it; with --witnesses 5 it runs, "
        "too",
        "kernbench:   stage 0: 16 ranks, run by rank 0",
        "kernbench:   stage 1: 16 ranks, run by rank 16",
    ]
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 16 (sip16)", "links"}


def _spent(collapse: Collapse) -> dict[str, float]:
    """Returns the shares of what the time of ranks of two stages is spent on, one of them late."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        whole = dist.device_mesh.init_device_mesh("cuda", (2, 4), mesh_dim_names=("pp", "tp"))
        x = torch.ones(1 << 20, device="cuda")
        if rank < 4:
            x = x + x
        dist.all_reduce(x, group=whole.get_group("tp"))
        dist.all_reduce(x, group=whole.get_group("pp"))
        dist.destroy_process_group()

    spec = RunSpec(topology="h200x8", data=False, record="full", collapse=collapse)
    ctx = RuntimeContext(spec)
    ctx.roles = lambda rank: f"stage {rank // 4}"
    ctx.multiprocessing.spawn(worker, nprocs=8)
    told = explanation(ctx.engine.op_log, ctx.engine.topology, 0)
    return {bound: told.share(bound) for bound in told.spent}


def test_what_bounds_a_run_is_the_same_where_ranks_stand_for_others() -> None:
    """But for what messages take for their bytes and beyond them, where they are not kept."""
    live, collapsed = _spent("off"), _spent("exact")
    assert "messages" not in live
    assert collapsed["messages"] > 0.1
    assert live["ranks"] > 0
    for told in (live, collapsed):
        told["messages"] = told.pop("link") + told.pop("protocol") + told.get("messages", 0)
    assert collapsed == pytest.approx(live, abs=0.002)


@pytest.mark.parametrize("bench", [benches.ccl_allreduce, benches.moe, benches.transformer])
def test_benches_that_show_every_rank_refuse_to_be_collapsed(
    kernbench: Kernbench, bench: Any
) -> None:
    with (
        kernbench.context(topology="h200x8", data=False, collapse="exact") as ctx,
        pytest.raises(UsageError, match="--collapse exact: it shows what every rank has measured"),
    ):
        bench.run(ctx)
