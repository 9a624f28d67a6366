"""One run specification on the command line: said, written, read again, repeated."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from run_specs import run_specs
from typer.testing import CliRunner

from kernbench.cli import run
from kernbench.cli.app import app
from kernbench.cli.option_table import OPTIONS, options_of
from kernbench.cli.output import Output
from kernbench.cli.program_command import default_of, plain
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.run_spec.options import ALL, OF_SPEC, ONE, CommandName, Option
from kernbench.run_spec.specification import usual_of
from kernbench.scripts import pytorch

Said = tuple[RunSpec, Output, tuple[int, int]]


def _said(argv: list[str]) -> Said:
    """Returns what a bench would be run with."""
    seen: list[Said] = []

    def note(spec: RunSpec, output: Output, explore: int, hash_seeds: int) -> int:
        seen.append((spec, output, (explore, hash_seeds)))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_bench", note)
        done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    (only,) = seen
    return only


def _repeated(command: str) -> Said:
    program, *argv = shlex.split(command)
    assert program == "kernbench"
    return _said(argv)


def _with_an_end(spec: RunSpec) -> RunSpec:
    """Returns a specification without a limit of simulated time where there is no such time."""
    timed = spec.fidelity != "functional"
    return dataclasses.replace(spec, max_time_ps=spec.max_time_ps if timed else 0)


@given(spec=run_specs(bench="my bench.py").map(_with_an_end))
def test_a_command_says_all_but_what_the_log_keeps(spec: RunSpec) -> None:
    if spec.pytorch is not None:  # `torchrun` has neither, and `program_of` refuses them
        spec = dataclasses.replace(spec, as_torch=False, default_device="cuda")
    with _a_machine_of_one_node():
        again, output, tries = _repeated(spec.command("--explore", "7", "--hash-seeds", "3"))
    assert again == dataclasses.replace(spec, record="summary")
    assert (output, tries) == (Output(), (7, 3))


@contextmanager
def _a_machine_of_one_node() -> Iterator[None]:
    """Leaves the devices of a specification as they are, whose machine need not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "with_devices", lambda spec: spec)
        yield


def test_every_option_sets_a_field_or_an_output_and_every_field_has_one() -> None:
    set_ = {name for option in OF_SPEC for name in option.sets}
    of_all = {field.name for field in dataclasses.fields(RunSpec)}
    of_pytorch = {f"pytorch.{field.name}" for field in dataclasses.fields(PytorchRun)}
    # Outputs decide `record`; the program and its arguments are no options.
    assert set_ == of_all - {"record", "bench", "arguments", "pytorch"} | of_pytorch
    outputs = {field.name for field in dataclasses.fields(Output)}
    for command in ONE:
        options = {each.name for each in options_of(command) if not each.sets}
        assert options - {"spec"} == outputs | {"explore", "hash_seeds"}


@pytest.mark.parametrize("command", ALL)
def test_no_command_has_an_option_twice(command: CommandName) -> None:
    flags = [flag for option in options_of(command) for flag in option.flags]
    assert len(set(flags)) == len(flags)
    fields = [name for option in options_of(command) for name in option.sets]
    assert len(set(fields)) == len(fields)


def _named(option: Option) -> str:
    return f"{option.commands[0]} {option.name}"


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.sets], ids=_named)
def test_what_an_option_writes_it_reads(option: Option) -> None:
    values = usual_of(option)
    if option.kind in {"flag", "texts"} or (None in values and option.name != "schedule"):
        return
    read = option.read(default_of(option))
    assert (read if len(values) > 1 else (read,)) == values


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("run a.py --nnodes 2", "--nnodes: only kernbench torchrun has it"),
        ("run a.py --same-ranks", "--same-ranks: only kernbench torchrun has it"),
        ("run a.py --races warn", "has it: here such an access always ends the run"),
        ("torchrun --as-torch a.py", "have it: here `import torch` is the real one"),
        ("torchrun --default-device cpu a.py", "here PyTorch itself decides where tensors are"),
        ("torchrun --spec a.json", "`kernbench run --spec FILE` repeats its runs, too"),
        ("sweep a.py --trace b.json", "--trace: only kernbench run and kernbench torchrun have"),
        ("sweep a.py --explore 3", "--explore: only kernbench run and kernbench torchrun"),
        ("run a.py --jobs 3", "--jobs: only kernbench sweep has it"),
        ("run a.py -b 1K", "those of the program come behind --: kernbench run PROGRAM -- -b ..."),
        ("torchrun -b 1K a.py", "No such option: -b"),
        ("run a.py --report", "Option '--report' requires an argument."),
        ("run a.py --sed 3", "No such option: --sed"),
    ],
)
def test_an_option_of_another_command_is_refused_by_name(argv: str, said: str) -> None:
    assert said in " ".join(_run(argv, 2).split())


def test_help_has_every_option_under_its_heading() -> None:
    for command in ALL:
        text = _run(f"{command} --help")
        groups = dict.fromkeys(option.group for option in options_of(command))
        headings = [*groups, "Help"]
        assert re.findall(r"^(\w[\w ]+):$", text, re.MULTILINE) == ["Arguments", *headings]
        for option in options_of(command):
            part = text.partition(f"\n{option.group}:\n")[2].partition("\n\n")[0]
            assert option.flags[0] in part
            assert plain(option.help) in " ".join(part.split())


def test_options_become_a_specification() -> None:
    text = (
        "run race.py --topology my.yaml --ccl my/ccl.yaml --set system.sips.count=4 "
        "--set defaults.n_elem=8 --devices 0,2 --default-device cpu --data off --fidelity tile "
        "--shadow --eager-limit 4096 "
        "--watchdog 2.5 --max-time 1.5ms --step-budget 10 --group-limit 4 --seed 9 --schedule 2.1 "
        "--trace a.json --trace-ranks 0,2 --report d.html --trace-limit 7 "
        "--flight-recorder b --json c --breakdown --explain-time --quiet -- --op 'two words'"
    )
    spec, output, tries = _said(shlex.split(text))
    assert spec == RunSpec(
        topology="my.yaml",
        ccl="my/ccl.yaml",
        overrides=("system.sips.count=4", "defaults.n_elem=8"),
        devices=(0, 2),
        default_device="cpu",
        data=False,
        fidelity="tile",
        shadow=True,
        eager_limit=4096,
        watchdog_s=2.5,
        max_time_ps=1_500_000_000,
        step_budget=10,
        group_limit=4,
        seed=9,
        schedule=(2, 1),
        bench="race.py",
        arguments=("--op", "two words"),
    )
    assert output == Output(
        trace=Path("a.json"),
        trace_ranks=(0, 2),
        report=Path("d.html"),
        trace_limit=7,
        flight_recorder=Path("b"),
        json=Path("c"),
        breakdown=True,
        explain_time=True,
        quiet=True,
    )
    assert tries == (0, 0)


def test_a_trace_of_some_ranks_says_which_are_not_there(bench: str) -> None:
    said = _run(f"run {bench} --trace a.trace --trace-ranks 1,3")
    assert said == "kernbench: the trace does not show rank 3: the run has 3 ranks\n"
    events = json.loads(Path("a.trace").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 1 (sip1)", "links"}
    assert "expected ranks with commas" in _run(f"run {bench} --trace a --trace-ranks one", 2)


def test_options_without_an_effect_are_told(bench: str, tmp_path: Path) -> None:
    said = _run(f"run {bench} --trace-limit 7", 2)
    assert "--trace-limit without what it limits" in said
    assert "hint: add --trace FILE, --trace-kineto FOLDER, --report FILE, --breakdown or" in said
    _run(f"run {bench} --trace-limit 7 --trace a.trace")

    told = "kernbench: --routing W4: no layer of experts has asked for it\n"
    assert _run(f"run {bench} --routing W4") == told
    assert _run(f"run {bench} --routing W4 -q") == ""
    layer = tmp_path / "layer.py"
    layer.write_text(
        """
from kernbench import torch
from kernbench.ep import MoEConfig, MoELayer
from kernbench.parallel import parallel_state

def run(ctx):
    def worker(rank):
        torch.distributed.init_process_group("nccl")
        parallel_state.initialize_model_parallel()
        MoELayer(MoEConfig(hidden_size=8, moe_ffn_hidden_size=8, num_moe_experts=4))
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    ctx.multiprocessing.spawn(worker, nprocs=1)
"""
    )
    assert "has asked" not in _run(f"run {layer} --routing W4")


def test_the_usual_values_are_those_of_a_specification() -> None:
    assert _said(["run", "race.py"]) == (RunSpec(bench="race.py"), Output(), (0, 0))
    assert RunSpec(bench="race.py").command() == "kernbench run race.py --seed 0"


BENCH = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def worker(rank, torch_):
    dist.init_process_group("nccl")
    x = torch.rand(64, device="cuda")
    dist.all_reduce(x)
    if rank == 0:
        start = torch.cuda.Event(enable_timing=True)
        torch_.results.append({"sum": float(x.sum()), "argv": torch_.argv})
    if "fail" in torch_.argv and rank == 1:
        raise ValueError("asked for")

def run(ctx):
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=3)
"""

DIALS = (
    "--topology torus4x4 --set system.sips.network.bandwidth='9 GB/s' --set defaults.n_slots=3 "
    "--devices 5,0,3 --seed 11 --step-budget 500 --fidelity tile"
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(BENCH)
    return "bench.py"


def _run(text: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, shlex.split(text))
    assert done.exit_code == status, done.output
    return done.output


@pytest.mark.parametrize("trace", ["", "--trace a.trace"])
def test_results_hold_what_repeats_them_byte_for_byte(bench: str, trace: str) -> None:
    _run(f"run {bench} {DIALS} --json a.json {trace} -- one 'two words'")
    _run(f"run --spec a.json --json b.json {trace.replace('a.', 'b.')}")
    assert Path("b.json").read_bytes() == Path("a.json").read_bytes()
    document = json.loads(Path("a.json").read_text())
    spec = RunSpec.from_json(document["spec"])
    assert (spec.seed, spec.devices, spec.arguments) == (11, (5, 0, 3), ("one", "two words"))
    assert spec.record == ("full" if trace else "summary")
    assert document["results"][0]["argv"] == ["one", "two words"]
    if trace:
        assert Path("b.trace").read_bytes() == Path("a.trace").read_bytes()
    # Another seed gives other results, so that the comparison can fail.
    Path("c.json").write_text(json.dumps({**document["spec"], "seed": 12}))
    _run("run --spec c.json --json d.json")
    assert json.loads(Path("d.json").read_text())["results"] != document["results"]


def test_a_failure_is_repeated_by_its_line_and_by_its_file(bench: str) -> None:
    first = _run(f"run {bench} --seed 3 --topology h200x8 --json a.json -- fail", 1)
    (command,) = re.findall(r"^replay: kernbench (.*)$", first, re.MULTILINE)
    assert command == "run bench.py --topology h200x8 --seed 3 -- fail"
    document = json.loads(Path("a.json").read_text())
    assert document["failure"]["replay"]["command"] == f"kernbench {command}"
    for again in (command, "run --spec a.json"):
        second = _run(again, 1)
        assert second == first.partition("\n")[2], "the first line says where the failure is"


def test_a_trace_of_a_repeated_run_is_whole(bench: str) -> None:
    _run(f"run {bench} --json a.json")
    _run("run --spec a.json --trace b.trace --json b.json")
    assert len(json.loads(Path("b.trace").read_text())["traceEvents"]) > 10
    assert json.loads(Path("b.json").read_text())["spec"]["record"] == "full"


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ("other.py", "BENCH"),
        ("--seed 0", "--seed"),
        ("--topology sip8 --set system.sips.count=2", "--topology, --set"),
        ("-- -e 1K", "BENCH, ARGUMENTS"),
        ("--schedule 1 --devices all", "--devices, --schedule"),
    ],
)
def test_what_the_file_says_is_not_said_beside_it(beside: str, named: str) -> None:
    text = _run(f"run --spec no.json --quiet {beside}", 2)
    assert f"the file says what runs, so {named} cannot stand beside it" in text


def test_a_file_without_a_program_cannot_be_run(bench: str) -> None:
    Path("a.json").write_text(json.dumps(RunSpec().to_json()))
    assert "bench: expected text: a command names it" in _run("run --spec a.json", 2)
    Path("a.json").write_text(json.dumps(RunSpec(topology=None, bench=bench).to_json()))
    assert "topology: expected text: a command names it" in _run("run --spec a.json", 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "expected one, or --spec FILE"),
        ("--spec no.json", "no such file"),
        ("b.py --devices 1;2", "expected numbers with commas between, such as 0,2,5; or all"),
        ("b.py --devices 1,1", "devices: expected all, or different integers from 0"),
        ("b.py --watchdog inf", "--watchdog: expected seconds from 0, got inf"),
        ("b.py --watchdog -1", "--watchdog"),
        ("b.py --step-budget -1", "--step-budget"),
        ("b.py --max-time 1ms --fidelity functional", "no run passes it"),
        ("b.py --max-time 1", "--max-time: "),
        ("b.py --set system.x", "--set system.x"),
        ("b.py --set sistem.x=1", "did you mean `system`?"),
        ("b.py --topology ''", "topology: expected a file, the name of a shipped machine, or None"),
    ],
)
def test_wrong_options(options: str, said: str) -> None:
    text = _run(f"run {shlex.join(shlex.split(options))}", 2)
    assert said in text
    assert "Traceback" not in text


def test_devices_that_the_machine_lacks(bench: str) -> None:
    text = _run(f"run {bench} --devices 0,8,9", 2)
    assert "--devices 0,8,9 (devices=) does not fit a machine of 8 SIPs" in text
    assert "expected 'all' or different indices 0..7" in text
