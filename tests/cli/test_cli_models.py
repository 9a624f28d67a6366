"""The benches that run models: the same function however split, and tables that say what was."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benches.tp_mlp
import benches.transformer
import kernbench.torch as torch
from benches.models.gpt import GPTConfig, GPTModel
from benches.models.measure import model_parallel
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.errors import UsageError
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.run_spec import RunSpec
from kernbench.testing import Kernbench

Document = dict[str, Any]

OUTPUTS = [field.name for field in dataclasses.fields(Output)]

SMALL = (
    "--layers", "1", "--hidden", "32", "--ffn", "48", "--heads", "8", "--kv-heads", "4",
    "--sequence", "16", "--batch", "8",
)  # fmt: skip
MLP = ("--hidden", "16", "--ffn", "32", "--tokens", "16", "--dtype", "float64")
SEVENTY_B = (
    "--layers", "80", "--hidden", "8192", "--ffn", "28672", "--heads", "64", "--kv-heads", "8",
    "--dtype", "bfloat16", "--sequence", "128", "--batch", "1", "--dp", "1", "--steps", "2",
)  # fmt: skip


_AT_MOST = "expected at most 8 ranks, one a SIP of sip8 (--topology, or --set system.sips.count=16)"
"""What is said of 16 ranks."""


def _measured(kernbench: Kernbench, bench: Any, *argv: str, **dials: Any) -> Document:
    with kernbench.context(arguments=argv, **dials) as ctx:
        assert bench.run(ctx) == 0
    (document,) = ctx.results
    return document


def _section(document: Document, name: str) -> Document:
    (found,) = [each for each in document["sections"] if each["name"] == name]
    return found  # type: ignore[no-any-return]


def _losses(kernbench: Kernbench, *argv: str) -> np.ndarray[Any, Any]:
    argv = (*SMALL, "--steps", "5", "--dtype", "float64", "--clip", "0.1", *argv)
    document = _measured(kernbench, benches.transformer, *argv)
    return np.array(_section(document, "training step")["losses"])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a bench as the command line does; returns exit code, output and errors."""

    def called(bench: str, *arguments: str, **given: Any) -> tuple[int, str, str]:
        shown = {name: given.pop(name) for name in list(given) if name in OUTPUTS}
        spec = RunSpec(bench=bench, arguments=arguments, **given)
        code = run_bench(spec, Output(**shown))
        return code, *capsys.readouterr()

    return called


# The model


def _reference(
    weights: dict[str, np.ndarray[Any, Any]], config: GPTConfig, ids: Any, targets: Any
) -> float:
    """Returns the loss, sequence by sequence and head by head."""

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def turned(x: Any) -> Any:
        half = config.head // 2
        pairs = x[:, :half] + 1j * x[:, half:]
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
        pairs = pairs * np.exp(1j * angles)
        return np.concatenate((pairs.real, pairs.imag), -1)

    groups = config.num_query_groups
    per_group = config.num_attention_heads // groups
    tied = "embedding" if config.share_embeddings_and_output_weights else "output"
    losses = []
    for row, wanted in zip(ids, targets, strict=True):
        x = weights["embedding.weight"][row]
        for n in range(config.num_layers):
            fused = norm(x, f"layers.{n}.attention_norm") @ weights[
                f"layers.{n}.attention.qkv.weight"
            ].T  # fmt: skip
            pieces = np.split(fused, groups * (per_group + 2), -1)
            outs = []
            for group in range(groups):
                *queries, key, value = pieces[group * (per_group + 2) :][: per_group + 2]
                if config.qk_layernorm:
                    queries = [norm(x, f"layers.{n}.attention.query_norm") for x in queries]
                    key = norm(key, f"layers.{n}.attention.key_norm")
                for query in queries:
                    scores = turned(query) @ turned(key).T / np.sqrt(config.head)
                    scores[np.triu_indices(len(row), 1)] = -np.inf
                    scores = np.exp(scores - scores.max(-1, keepdims=True))
                    outs.append(scores / scores.sum(-1, keepdims=True) @ value)
            x = x + np.concatenate(outs, -1) @ weights[f"layers.{n}.attention.out.weight"].T
            inner = norm(x, f"layers.{n}.mlp_norm") @ weights[f"layers.{n}.mlp.gate_up.weight"].T
            gate, up = np.split(inner, 2, -1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"layers.{n}.mlp.down.weight"].T
        logits = norm(x, "norm") @ weights[f"{tied}.weight"].T
        sums = np.log(np.exp(logits).sum(-1))
        losses.append((sums - logits[np.arange(len(row)), wanted]).mean())
    return float(np.mean(losses))


@pytest.mark.parametrize("qwen", [False, True], ids=["llama", "qwen"])
def test_the_model_is_what_it_says(qwen: bool, kernbench: Kernbench) -> None:
    ids, targets = np.random.default_rng(1).integers(0, 16, (2, 3, 5))
    found = []

    def worker(rank: int) -> None:
        config = GPTConfig(
            num_layers=2,
            hidden_size=24,
            ffn_hidden_size=20,
            num_attention_heads=6,
            num_query_groups=2,
            vocab_size=16,
            kv_channels=8 if qwen else None,
            qk_layernorm=qwen,
            share_embeddings_and_output_weights=qwen,
            params_dtype=torch.float64,
            kernel="library",
        )
        with model_parallel():
            model = GPTModel(config, ProcessGroupCollection.use_mpu_process_groups())
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "norm" in name:
                        parameter.uniform_(0.5, 1.5)
                    else:
                        parameter.normal_(std=0.3)
            losses = model(torch.from_numpy(ids).cuda(), torch.from_numpy(targets).cuda())
            weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
            found.append((losses.mean().item(), weights, config))

    kernbench.spawn(worker, nprocs=1)
    ((loss, weights, config),) = found
    assert ("output.weight" in weights) is not qwen
    assert loss == pytest.approx(_reference(weights, config, ids, targets), rel=1e-12)


_FAST = {(2, 2, 1), (1, 2, 2)}
"""Of the layouts below, those that the default suite runs: (tp, pp, cp)."""


@pytest.mark.parametrize(
    "split",
    [
        ("--tp", "2", "--dp", "1"),
        ("--tp", "1", "--dp", "4"),
        ("--tp", "2", "--dp", "2", "--kernel", "tile"),
        pytest.param(("--tp", "4", "--dp", "2", "--sequence-parallel"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_losses_do_not_depend_on_how_the_model_is_split(
    split: Sequence[str], kernbench: Kernbench
) -> None:
    whole = _losses(kernbench, "--tp", "1", "--dp", "1")
    assert len(set(whole)) == 5
    np.testing.assert_allclose(_losses(kernbench, *split), whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("tp", "pp", "cp"),
    [
        pytest.param(
            *(tp, pp, cp),
            marks=()
            if (tp, pp, cp) in _FAST
            else pytest.mark.slow
            if tp * pp * cp == 8
            else pytest.mark.at_length,
        )
        for tp, pp, cp in itertools.product((1, 2), (1, 2, 4), (1, 2))
        if tp * pp * cp in range(2, 9)
    ],
)
def test_losses_do_not_depend_on_stages_and_shared_sequences(
    tp: int, pp: int, cp: int, kernbench: Kernbench
) -> None:
    argv = ("--layers", "4", "--steps", "3", "--qk-norm", "--tied", "--microbatches", "4")
    whole = _losses(kernbench, "--tp", "1", "--dp", "1", *argv)
    split = ("--tp", str(tp), "--pp", str(pp), "--cp", str(cp), "--dp", "1")
    np.testing.assert_allclose(_losses(kernbench, *argv, *split), whole, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("--pp", "2", "--schedule", "gpipe", "--tp", "2", "--sequence-parallel"),
        ("--pp", "2", "--virtual", "2", "--microbatches", "4", "--tp", "1", "--cp", "2"),
        ("--cp", "4", "--cp-comm-type", "all_gather", "--tp", "1", "--dp", "2"),
        ("--cp", "4", "--cp-comm-type", "a2a", "--tp", "1"),
        ("--cp", "4", "--cp-comm-type", "a2a+p2p", "--tp", "2", "--sequence-parallel"),
    ],
    ids=" ".join,
)
def test_losses_do_not_depend_on_schedules_and_exchanges(
    more: Sequence[str], kernbench: Kernbench
) -> None:
    argv = ("--layers", "4", "--steps", "3", "--dp", "1")
    whole = _losses(kernbench, *argv, "--tp", "1")
    np.testing.assert_allclose(_losses(kernbench, *argv, *more), whole, rtol=1e-12)


def test_a_pipeline_says_how_long_its_stages_wait(kernbench: Kernbench, run: Run) -> None:
    argv = (*SMALL, "--layers", "4", "--steps", "2", "--tp", "1", "--dp", "1", "--pp", "4")
    section = _section(
        _measured(kernbench, benches.transformer, *argv, data=False), "training step"
    )
    assert section["bubble"]["ideal"] == pytest.approx(3 / 7)
    assert 3 / 7 < section["bubble"]["measured"] < 1
    _, out, _ = run("transformer", *argv, data=False)
    share = section["bubble"]["measured"]
    assert f"# stages wait {share:.1%} of a step; ideal bubble of the schedule: 42.9%\n" in out
    assert "\n# schedule 1f1b, virtual 1, microbatches 4\n" in out


@pytest.mark.slow
def test_it_learns(kernbench: Kernbench) -> None:
    argv = (*SMALL, "--tp", "2", "--dp", "1", "--steps", "40", "--lr", "0.01")
    document = _measured(kernbench, benches.transformer, *argv)
    losses = _section(document, "training step")["losses"]
    assert losses[0] == pytest.approx(np.log(256), abs=0.1)
    assert losses[-1] < losses[0] - 1.5


def test_a_seed_is_one_run(kernbench: Kernbench) -> None:
    argv = (*SMALL, "--tp", "1", "--dp", "1", "--steps", "3")
    runs = [_measured(kernbench, benches.transformer, *argv, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    losses = [_section(run, "training step")["losses"] for run in runs]
    assert losses[0] != losses[2]


def test_a_text_of_ones_own(kernbench: Kernbench, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"ab" * 40)
    argv = (*SMALL, "--tp", "1", "--dp", "1", "--steps", "12", "--lr", "0.03", "--text", str(text))
    document = _measured(kernbench, benches.transformer, *argv)
    assert document["flags"]["text"] == str(text)
    assert _section(document, "training step")["losses"][-1] < 2.0


@pytest.mark.parametrize("sequence_parallel", [(), ("--sequence-parallel",)], ids=["whole", "cut"])
def test_the_mlp_is_the_same_function_on_any_ranks(
    sequence_parallel: Sequence[str], kernbench: Kernbench
) -> None:
    whole = _measured(kernbench, benches.tp_mlp, *MLP, "--tp", "1")
    split = _measured(kernbench, benches.tp_mlp, *MLP, "--tp", "4", *sequence_parallel)
    for name in ("forward", "forward + backward"):
        expected = _section(whole, name)["losses"]
        assert len(set(expected)) == 1
        np.testing.assert_allclose(_section(split, name)["losses"], expected, rtol=1e-12)


# What they say


def _step_us(section: Document, rank: int) -> float:
    rows = [row for row in section["breakdown"] if row["rank"] == rank]
    kinds = ("compute_ps", "exposed_ps", "copy_ps", "idle_ps")
    return sum(row[kind] for row in rows for kind in kinds) / section["steps"] / 1e6  # type: ignore[no-any-return]


def test_times_of_layers_add_up_to_the_step_on_every_rank(kernbench: Kernbench) -> None:
    argv = (*SMALL, "--layers", "2", "--steps", "3", "--tp", "2", "--dp", "2")
    section = _section(_measured(kernbench, benches.transformer, *argv), "training step")
    for rank in range(4):
        assert _step_us(section, rank) == pytest.approx(section["step_us"])
    rows = {row["name"]: row for row in section["breakdown"] if row["rank"] == 3}
    assert list(rows)[:8] == [
        "batch", "gradients", "embedding", "layer 0", "layer 1", "output", "optimizer", "(other)",
    ]  # fmt: skip
    for name in ("layer 0", "layer 1"):
        assert rows[name]["compute_ps"] > 0
        assert rows[name]["exposed_ps"] > 0
        assert rows[name]["host_ps"] > 0


def test_memory_is_what_the_sizes_say(kernbench: Kernbench) -> None:
    argv = (*SMALL, "--steps", "2", "--tp", "2", "--dp", "1")
    section = _section(_measured(kernbench, benches.transformer, *argv), "training step")
    hidden, ffn, heads, kv_heads, head = 32, 48, 8, 4, 4
    split = 2 * 256 * hidden + (2 * heads + 2 * kv_heads) * head * hidden + 3 * ffn * hidden
    parameters = 4 * (split // 2 + 3 * hidden)
    for rank, memory in enumerate(section["memory_bytes"]):
        assert memory["rank"] == rank
        assert memory["parameters"] == memory["gradients"] == parameters
        assert memory["optimizer"] == 2 * parameters
        # A layer keeps at least its inputs, of both norms and both products, and the logits.
        assert memory["activations"] > 4 * (4 * 128 * hidden + 128 * 128)
        assert memory["peak"] >= 3 * parameters + memory["activations"]
        assert memory == {**section["memory_bytes"][0], "rank": rank}


def test_time_does_not_depend_on_data(kernbench: Kernbench) -> None:
    argv = (*SMALL, "--steps", "3", "--tp", "2", "--dp", "2", "--sequence-parallel")
    with_data, without = (
        _section(_measured(kernbench, benches.transformer, *argv, data=data), "training step")
        for data in (True, False)
    )
    assert without.pop("losses") == []
    assert len(with_data.pop("losses")) == 3
    assert without == with_data


def test_sequence_parallelism_saves_activations(kernbench: Kernbench) -> None:
    argv = ("--tp", "4", "--hidden", "256", "--ffn", "256", "--tokens", "64", "--forward-only")
    found = []
    for more in ((), ("--sequence-parallel",)):
        document = _measured(kernbench, benches.tp_mlp, *argv, *more, data=False)
        assert [section["name"] for section in document["sections"]] == ["forward"]
        found.append(document["sections"][0]["memory_bytes"][0]["activations"])
    assert found[1] < found[0]


def _tables(text: str) -> dict[str, list[list[str]]]:
    """Returns the rows of each table by the name of its first column."""
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in text.splitlines():
        heading = re.match(r"# +(step|layer|ranks)  ", line)
        if heading:
            name = heading[1]
        elif not line.startswith("#"):
            found.setdefault(name, []).append(re.split(r"  +", line.strip()))
    return found


@pytest.mark.parametrize("bench", ["transformer", "benches/transformer.py"])
def test_tables_show_what_the_results_hold(bench: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    argv = (*SMALL, "--steps", "3", "--tp", "2", "--dp", "1")
    code, out, err = run(bench, *argv, json=file)
    assert (code, err) == (0, "")
    (document,) = json.loads(file.read_text())["results"]
    section = _section(document, "training step")
    head = out.splitlines()[:3]
    assert head[0] == "# transformer on sip8: tp 2, dp 1, sequence parallel off"
    assert head[1].startswith("# layers 1, hidden 32, ffn 48, heads 8, kv heads 4, sequence 16")
    assert head[2] == "# data on, fidelity kernel, kernel library, seed 0"
    assert f"# training step: {section['step_us']:.2f} us a step" in out
    tables = _tables(out)
    assert tables["step"] == [[str(n + 1), f"{x:.6f}"] for n, x in enumerate(section["losses"])]
    layers = {row[0]: [float(cell) for cell in row[1:]] for row in tables["layer"]}
    assert layers["all"][4] == pytest.approx(section["step_us"], abs=0.01)
    for cells in layers.values():
        assert sum(cells[:4]) == pytest.approx(cells[4], abs=0.03)
    memory = section["memory_bytes"][0]
    columns = ("parameters", "gradients", "optimizer", "activations", "peak")
    assert tables["ranks"] == [["0-1", *(f"{memory[column] / 2**20:.3f}" for column in columns)]]


def test_without_data_there_is_no_loss_and_quiet_prints_nothing(run: Run) -> None:
    code, out, _ = run("tp_mlp", *MLP, "--tp", "2", data=False)
    assert code == 0
    assert out.count("# loss: N/A (data off)") == 2
    assert run("tp_mlp", *MLP, "--tp", "2", data=False, quiet=True) == (0, "", "")


def test_without_time_there_is_none_in_the_results(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = {"fidelity": "functional", "breakdown": True, "explain_time": True, "json": file}
    code, out, _ = run("tp_mlp", *MLP, "--tp", "2", **options)
    assert code == 0
    assert "# times: N/A (fidelity functional)\n" in out
    assert "# forward + backward: N/A (fidelity functional)\n" in out
    assert out.count("# where the time of a step goes: N/A (fidelity functional)\n") == 2
    assert out.endswith(
        "\nsimulated time per rank: N/A (fidelity functional)\n"
        "what bounds the run: N/A (fidelity functional)\n"
    )
    assert "us" not in out.split()
    assert "(us)" not in out
    tables = _tables(out)
    assert len(tables["step"]) == 6
    assert set(tables) == {"step", "ranks"}
    (document,) = json.loads(file.read_text())["results"]
    assert document["clock"] is None
    assert [each["step_us"] for each in document["sections"]] == [None, None]
    assert [each["breakdown"] for each in document["sections"]] == [[], []]


def test_a_trace_shows_the_layers(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    code, _, _ = run("tp_mlp", *MLP, "--tp", "2", trace=file, quiet=True)
    assert code == 0
    events = json.loads(file.read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    assert names == {"forward", "forward + backward", "column", "gelu", "row", "loss", "gradients"}


@pytest.mark.parametrize(
    ("bench", "argv", "message"),
    [
        ("tp_mlp", "--tp 3", "tp_mlp: --ffn 4096: expected a multiple of --tp 3"),
        ("tp_mlp", "--tp 16", "tp_mlp: --tp 16: " + _AT_MOST),
        ("tp_mlp", "--tp 0", "tp_mlp: argument --tp: expected a whole number of 1 or more, got "
         "'0'"),
        ("tp_mlp", "--tp 1 --sequence-parallel",
         "tp_mlp: --sequence-parallel: expected --tp 2 or more"),
        ("tp_mlp", "--tp 2 --tokens 3 --sequence-parallel",
         "tp_mlp: --tokens 3: expected a multiple of --tp 2"),
        ("tp_mlp", "--back", "tp_mlp: unrecognized arguments: --back"),
        ("transformer", "--kernel triton", "transformer: argument --kernel: invalid choice: "
         "'triton' (choose from 'tile', 'library')"),
        ("transformer", "--dtype float16", "transformer: argument --dtype: invalid choice: "
         "'float16' (choose from 'float64', 'float32', 'bfloat16')"),
        ("transformer", "--tp 8", "transformer: --kv-heads 4: expected a multiple of --tp 8"),
        ("transformer", "--heads 6", "transformer: --hidden 64: expected a multiple of 2 x --heads "
         "12"),
        ("transformer", "--heads 2", "transformer: --heads 2: expected a multiple of --kv-heads "
         "4"),
        ("transformer", "--dp 3",
         "transformer: --batch 16: expected a multiple of --dp x --microbatches 3"),
        ("transformer", "--dp 1 --pp 2 --microbatches 5",
         "transformer: --batch 16: expected a multiple of --dp x --microbatches 5"),
        ("transformer", "--pp 3",
         "transformer: --layers 2: expected a multiple of --pp x --virtual 3"),
        ("transformer", "--virtual 2", "transformer: --virtual: expected --pp 2 or more"),
        ("transformer", "--virtual 2 --pp 2 --schedule gpipe",
         "transformer: --virtual: expected --schedule 1f1b, not gpipe"),
        ("transformer", "--virtual 2 --pp 2 --microbatches 3",
         "transformer: --microbatches 3: expected a multiple of --pp 2"),
        ("transformer", "--schedule zero",
         "transformer: argument --schedule: invalid choice: 'zero' "
         "(choose from '1f1b', 'gpipe')"),
        ("transformer", "--pp 1 --schedule gpipe",
         "transformer: --schedule gpipe: expected --pp 2 or more"),
        ("transformer", "--cp 2 --a2a-ranks 2",
         "transformer: --a2a-ranks: expected --cp-comm-type a2a+p2p"),
        ("transformer", "--cp 3", "transformer: --sequence 64: expected a multiple of 2 x --cp 6"),
        ("transformer", "--cp-comm-type a2a",
         "transformer: --cp-comm-type a2a: expected --cp 2 or more"),
        ("transformer", "--cp 4 --cp-comm-type a2a",
         "transformer: --kv-heads 4: expected a multiple of --tp x --cp 8"),
        ("transformer", "--cp 3 --sequence 60 --cp-comm-type a2a+p2p",
         "transformer: --cp 3: expected a multiple of --a2a-ranks 2"),
        ("transformer", "--cp 4 --a2a-ranks 4 --cp-comm-type a2a+p2p",
         "transformer: --kv-heads 4: expected a multiple of --tp x --a2a-ranks 8"),
        ("transformer", "--cp 2 --pp 2",
         "transformer: --tp 2 --cp 2 --pp 2 --dp 2: " + _AT_MOST),
        ("transformer", "--tp 4 --dp 4", "transformer: --tp 4 --dp 4: " + _AT_MOST),
        ("transformer", "--steps 1", "transformer: --steps 1: expected 2 or more"),
        ("transformer", "--tp 1 --sequence-parallel",
         "transformer: --sequence-parallel: expected --tp 2 or more"),
        ("transformer", "--sequence 9 --sequence-parallel",
         "transformer: --sequence 9: expected a multiple of --tp x --cp 2"),
        ("transformer", "--lr nan",
         "transformer: argument --lr: expected a number above 0, got 'nan'"),
        ("transformer", "--lr fast",
         "transformer: argument --lr: expected a number above 0, got 'fast'"),
        ("transformer", "--text /nowhere",
         "transformer: --text /nowhere: No such file or directory"),
        ("transformer", "--sequence 999999", None),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_one_line_and_code_2(
    bench: str, argv: str, message: str | None, run: Run
) -> None:
    code, out, err = run(bench, *argv.split())
    assert (code, out) == (2, "")
    if message is None:
        assert re.fullmatch(
            r"kernbench: transformer: --text .*README\.md: expected more than --sequence 999999 "
            r"bytes, got \d+\n",
            err,
        )
    else:
        # Later versions of Python list choices without quotes.
        assert err.replace("'", "") == f"kernbench: {message}\n".replace("'", "")


# What does not fit


def test_a_model_larger_than_a_device_is_refused_before_it_runs(kernbench: Kernbench) -> None:
    ctx = kernbench.context("h200x8", data=False, arguments=(*SEVENTY_B, "--tp", "1"))
    with ctx, pytest.raises(UsageError) as caught:
        benches.transformer.run(ctx)
    text = str(caught.value)
    assert text.startswith(
        "[M7] transformer: the model of rank 0 does not fit its device cuda:0: it needs "
    )
    assert (
        "    896 MiB (939524096 B) layers.0.mlp.gate_up.weight torch.bfloat16[57344, 8192]\n"
        in (text)
    )
    assert ctx.engine.loop.now == 0
    assert not ctx.processes


def test_an_mlp_too_large_is_refused_in_words(run: Run) -> None:
    code, out, err = run("tp_mlp", "--hidden", "262144", "--ffn", "1048576", data=False)
    assert (code, out) == (2, "")
    begin = "kernbench: [M7] tp_mlp: the model of rank 0 does not fit its device cuda:0: it needs "
    assert err.startswith(begin)
    assert "Traceback" not in err
    assert "column.weight torch.float32[131072, 262144]" in err
    assert "ranks 1-7 neither" in err


def test_it_fits_with_enough_ranks(kernbench: Kernbench) -> None:
    ctx = kernbench.context("h200x8", data=False)
    flags = benches.transformer.parse([*SEVENTY_B, "--tp", "8"])
    found = benches.transformer.check(ctx, flags)
    capacity = found[0].capacity
    assert [each.rank for each in found] == list(range(8))
    assert {each.total_bytes < capacity < 8 * each.total_bytes for each in found} == {True}
