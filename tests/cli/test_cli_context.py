"""The benches of context parallelism: what schemes send, evaluation in another layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import benches.cp_attention
import benches.eval_cp
import kernbench.torch.distributed as dist
from benches.models import eval_table
from benches.models.groups import lay_out
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.testing import Kernbench

Document = dict[str, Any]
Run = Callable[..., tuple[int, str, str]]


_AT_MOST = "expected at most 8 ranks, one a SIP of sip8 (--topology, or --set system.sips.count=16)"
"""What is said of 16 ranks."""


def _document(kernbench: Kernbench, bench: Any, argv: str, code: int = 0, **dials: Any) -> Document:
    with kernbench.context(arguments=tuple(argv.split()), **dials) as ctx:
        assert bench.run(ctx) == code
    (document,) = ctx.results
    return document


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a bench as the command line does; returns exit code, output and errors."""

    def called(
        bench: str, argv: str, json: Path | None = None, **given: Any
    ) -> tuple[int, str, str]:
        spec = RunSpec(bench=bench, arguments=tuple(argv.split()), **given)
        return run_bench(spec, Output(json=json)), *capsys.readouterr()

    return called


# cp_attention


def _passes(document: Document) -> dict[tuple[str, str], Document]:
    return {(each["comm"], each["direction"]): each for each in document["passes"]}


def test_bytes_are_those_of_the_formulas(kernbench: Kernbench) -> None:
    # Keys and values of a rank take 1 MiB, queries and outputs 4; 16-bit gradients travel in 32.
    argv = "--cp 4 --seq 1024 --heads 32 --kv-heads 8 --head-dim 128 --a2a-ranks 2"
    passes = _passes(_document(kernbench, benches.cp_attention, argv, data=False))
    expected = {
        ("p2p", "forward"): 3,
        ("p2p", "backward"): 3 + 6,
        ("all_gather", "forward"): 3,
        ("all_gather", "backward"): 3 + 6,
        ("a2a", "forward"): 5 * 3 / 4,
        ("a2a", "backward"): 5 * 3 / 4,
        ("a2a+p2p", "forward"): 5 / 2 + 1,
        ("a2a+p2p", "backward"): 5 / 2 + 1 + 2,
    }
    assert {key: each["sent_bytes"] / 2**20 for key, each in passes.items()} == expected
    assert all(each["formula_bytes"] == each["sent_bytes"] for each in passes.values())


@pytest.mark.parametrize(
    "argv",
    [
        "--cp 2 --dtype float64 --mask no_mask --batch 2",
        "--cp 3 --seq 96 --heads 6 --kv-heads 3 --head-dim 24 --value-dim 16 --dtype float32",
        pytest.param(
            "--cp 6 --seq 96 --heads 6 --kv-heads 6 --a2a-ranks 3", marks=pytest.mark.slow
        ),
        pytest.param(
            "--cp 8 --seq 64 --heads 4 --kv-heads 4 --a2a-ranks 2", marks=pytest.mark.slow
        ),
    ],
)
def test_formulas_hold_for_all_sizes(argv: str, kernbench: Kernbench) -> None:
    passes = _passes(_document(kernbench, benches.cp_attention, argv, data=False))
    assert len(passes) >= 4
    for each in passes.values():
        assert each["sent_bytes"] == each["formula_bytes"] > 0


def test_times_add_up_and_a_ring_hides_its_transfers(kernbench: Kernbench) -> None:
    argv = "--cp 4 --seq 65536 --heads 32 --kv-heads 8"
    # Messages of `h200x8` give way to kernels; here they do not.
    beside = ["system.sip.overlap=null"]
    document = _document(
        kernbench, benches.cp_attention, argv, machine="h200x8", data=False, overrides=beside
    )
    passes = _passes(document)
    for each in passes.values():
        times = each["times"]
        parts = times["compute_us"] + times["exposed_us"] + times["idle_us"]
        assert parts <= times["us"] * (1 + 1e-9)
        assert parts > 0.9 * times["us"]
    for direction in ("forward", "backward"):
        ring = passes["p2p", direction]["times"]
        assert ring["exposed_us"] < 0.1 * ring["communication_us"]
        gather = passes["all_gather", direction]["times"]
        assert gather["exposed_us"] == pytest.approx(gather["communication_us"])


def test_times_do_not_depend_on_data(kernbench: Kernbench) -> None:
    argv = "--cp 2 --seq 32 --head-dim 16"
    found = [
        _document(kernbench, benches.cp_attention, argv, data=data)["passes"]
        for data in (True, False)
    ]
    assert found[0] == found[1]


def test_the_table_shows_what_the_results_hold(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    argv = "--cp 4 --seq 64 --heads 6 --kv-heads 2"
    code, out, err = run("cp_attention", argv, file, data=False)
    assert (code, err) == (0, "")
    (document,) = json.loads(file.read_text())["results"]
    assert out.startswith("# cp_attention on sip8: 1 x 64 tokens shared by 4 ranks, causal\n")
    assert "# a2a: left out, --kv-heads 2 is no multiple of 4\n" in out
    assert "# a2a+p2p: 2 ranks exchange heads, rings of 2\n" in out
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[:2] for row in rows] == [
        [each["comm"], each["direction"]] for each in document["passes"]
    ]
    for row, each in zip(rows, document["passes"], strict=True):
        assert row[2] == f"{each['times']['us']:.1f}"
        assert row[-2:] == [f"{each['sent_bytes'] / 2**20:.3f}"] * 2


def test_without_time_there_are_formulas_only(run: Run) -> None:
    code, out, _ = run("cp_attention", "--cp 2 --seq 16 --comm p2p", fidelity="functional")
    assert code == 0
    assert out.count("N/A") == 1 + 2 * 7
    assert "# times: N/A (fidelity functional)\n" in out


def test_what_is_the_same_twice_is_left_out(run: Run) -> None:
    _, out, _ = run("cp_attention", "--cp 2 --seq 16 --heads 3 --kv-heads 3", data=False)
    assert "# a2a: left out, --kv-heads 3 is no multiple of 2\n" in out
    assert "# a2a+p2p: left out, with 1 rank that exchanges heads it is p2p\n" in out


# eval_cp

CHECK = "--part check --dtype float64 --steps 2 --layers 2 --sequence 16"


def test_a_model_evaluates_alike_and_trains_on_as_if_alone(kernbench: Kernbench) -> None:
    check = _document(kernbench, benches.eval_cp, CHECK)["check"]
    assert check["good"] == {"same_batch": True, "training_unchanged": True, "restored": True}
    first, second = check["same_batch"]
    assert first == pytest.approx(second, abs=1e-10)
    assert check["plain"] == check["interleaved"]
    assert len({*check["plain"], *check["evaluations"]}) == 4
    assert check["evaluation_us"]["2"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        "--cp-train 2 --cp-eval 1",
        "--cp-train 2 --cp-eval 4 --sequence 32",
        "--ranks 8 --tp 2 --pp 2 --sequence-parallel",
        "--dtype bfloat16",
        "--eval-batch 6",
        "--cp-comm-type a2a",
        "--cp-comm-type all_gather --dtype float32",
    ],
)
def test_it_does_so_in_any_layout(more: str, kernbench: Kernbench) -> None:
    check = _document(kernbench, benches.eval_cp, f"{CHECK} {more}")["check"]
    assert all(check["good"].values())


@pytest.mark.parametrize(
    "more",
    ["", pytest.param("--cp-train 2 --cp-eval 1", marks=pytest.mark.slow)],
    ids=["more", "fewer"],
)
def test_positions_of_the_other_layout_are_found(more: str, run: Run) -> None:
    code, out, err = run("eval_cp", f"{CHECK} {more} --wrong-rotary")
    assert (code, err) == (1, "")
    (line,) = [line for line in out.splitlines() if line.startswith("# loss of one batch")]
    assert line.endswith(" of 1e-10: WRONG")
    assert out.count("good") == 2


def test_a_row_of_the_table_is_bound_by_the_host(kernbench: Kernbench) -> None:
    row = eval_table.ROWS[2]
    assert row[:5] == (8, 1024, 4, 2, 1)
    constants = [f"{key}={value}" for key, value in eval_table.CONSTANTS.items()]
    with kernbench.context() as ctx:
        spent = eval_table.simulate(ctx, row, constants, eval_table.FIXED_MS)
    assert spent["one"].host_ms > 3 * spent["one"].compute_ms
    assert eval_table.ratio(spent, "as measured") == pytest.approx(8.9 / 12.4, rel=0.15)
    assert eval_table.ratio(spent, "same samples") < 0.5


def test_a_layout_with_ranks_left_over_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match=r"world_size \(3\) is not divisible by 2") as caught:
            lay_out(cp=2)
        assert "2 = tensor 1 * context 2 * pipeline 1" in str(caught.value)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


def test_ideal_ratios_are_those_of_the_bubbles() -> None:
    found = [eval_table.ideal_ratio(row) for row in eval_table.ROWS[3:6]]
    assert found == pytest.approx([1.0, 1.2, 10 / 7])


def test_the_arithmetic_of_a_large_run(run: Run) -> None:
    code, out, _ = run("eval_cp", "--part motive", data=False)
    assert code == 0
    assert "cp 1: dp 1024, 4 microbatches each: 4096 samples a step" in out
    assert "cp 4: dp  256, 4 microbatches each: 1024 samples a step" in out


# Wrong flags


@pytest.mark.parametrize(
    ("bench", "argv", "message"),
    [
        ("cp_attention", "--ring 3", "unrecognized arguments: --ring 3"),
        ("cp_attention", "--cp 0",
         "argument --cp: expected a whole number of 1 or more, got '0'"),
        ("cp_attention", "--cp 1", "--cp 1: expected 2 or more"),
        ("cp_attention", "--cp 16", "--cp 16: " + _AT_MOST),
        ("cp_attention", "--cp 4 --seq 12", "--seq 12: expected a multiple of 2 x --cp 8"),
        ("cp_attention", "--heads 6", "--heads 6: expected a multiple of --kv-heads 4"),
        ("cp_attention", "--cp 8 --comm a2a", "--kv-heads 4: expected a multiple of --cp 8"),
        ("cp_attention", "--comm a2a+p2p --a2a-ranks 3",
         "--cp 4: expected a multiple of --a2a-ranks 3"),
        ("cp_attention", "--comm a2a+p2p --a2a-ranks 2 --kv-heads 1",
         "--kv-heads 1: expected a multiple of --a2a-ranks 2"),
        ("cp_attention", "--comm p2p --a2a-ranks 2",
         "--a2a-ranks: expected --comm a2a+p2p or all"),
        ("eval_cp", "--part table --layers 4", "--layers: expected --part check, not table"),
        ("eval_cp", "--part motive --wrong-rotary",
         "--wrong-rotary: expected --part check, not motive"),
        ("eval_cp", "--table", "unrecognized arguments: --table"),
        ("eval_cp", "--cp-eval 1", "--cp-eval 1: expected another than --cp-train"),
        ("eval_cp", "--sequence 6", "--sequence 6: expected a multiple of 2 x the larger --cp 4"),
        ("eval_cp", "--ranks 3", "--ranks 3: expected a multiple of --tp x --pp x --cp-eval 2"),
        ("eval_cp", "--ranks 16 --batch 16 --eval-batch 16",
         "--ranks 16: " + _AT_MOST),
        ("eval_cp", "--eval-batch 5",
         "--eval-batch 5: expected a multiple of --micro-batch x dp of --cp-eval 2"),
        ("eval_cp", "--batch 2", "--batch 2: expected a multiple of --micro-batch x dp of "
         "--cp-train 4"),
        ("eval_cp", "--layers 3 --pp 2", "--layers 3: expected a multiple of --pp 2"),
        ("eval_cp", "--sequence-parallel", "--sequence-parallel: expected --tp 2 or more"),
        ("eval_cp", "--cp-comm-type a2a --kv-heads 1",
         "--kv-heads 1: expected a multiple of --tp x the larger --cp 2"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_one_line_and_code_2(bench: str, argv: str, message: str, run: Run) -> None:
    code, out, err = run(bench, argv)
    assert (code, out) == (2, "")
    assert err == f"kernbench: {bench}: {message}\n"


@pytest.mark.parametrize(
    ("part", "dials"), [("check", {"data": False}), ("table", {"fidelity": "functional"})]
)
def test_a_part_that_cannot_be_done_is_refused(
    part: str, dials: dict[str, Any], kernbench: Kernbench
) -> None:
    ctx = kernbench.context(arguments=("--part", part), **dials)
    with ctx, pytest.raises(UsageError, match=f"eval_cp: --part {part} "):
        benches.eval_cp.run(ctx)
