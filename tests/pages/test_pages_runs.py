"""The page of a whole run: what is there, what is left out and said, and that it stays the same."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_reader import parts, read, section_titles

from kernbench.errors import UsageError
from kernbench.pages import Page, Run, of_run, write_run_page
from kernbench.pages.html import page_html
from kernbench.pages.page import Bars, Code, Facts, Note, Strips, Table, Verdict
from kernbench.report import as_json, breakdown
from kernbench.report.nccl_table import Header, Measurement, busbw_factor, timing
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import load_topology

PROGRAM = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def worker(rank, ctx):
    dist.init_process_group("nccl")
    x = torch.ones(1 << 12, device="cuda")
    for layer in range(2):
        with torch.cuda.nvtx.range("forward"), torch.cuda.nvtx.range(f"layer {layer}"):
            y = x * 2.0
            dist.all_reduce(y)
    torch.cuda.synchronize()

def run(ctx):
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=4)
"""

SECTIONS = [
    "Verdict",
    "Timeline",
    "Results",
    "Bus bandwidth",
    "What bounds the run",
    "Where the time went",
    "By range of the program",
    "Slowest commands",
    "Utilisation of devices over time",
    "Utilisation of links over time",
    "Memory over time",
    "Specification",
    "What is not modelled",
]


def simulate(folder: str = "/somewhere", **fields: Any) -> RuntimeContext:
    names: dict[str, Callable[[RuntimeContext], None]] = {}
    exec(compile(PROGRAM, f"{folder}/program.py", "exec"), names)
    spec = RunSpec(bench="program.py", record="full", **fields)
    with RuntimeContext(spec, quiet=True) as ctx:
        names["run"](ctx)
    factor = busbw_factor("all_reduce", 4)
    row = Measurement(
        16384, 4096, "float", "sum", -1, timing(16384, 10**7, factor, wrong=0), None, "ring"
    )
    header = Header("all_reduce", "sip8", 4, "auto", {"data": "on"})
    ctx.results.append(as_json(header, [row]))
    return ctx


def left_by(ctx: RuntimeContext, **more: Any) -> Run:
    engine = ctx.engine
    document = {"run": ctx.spec.name, "spec": ctx.spec.to_json(), "results": ctx.results}
    return Run(
        **{
            "document": document,
            "op_log": engine.op_log,
            "topology": engine.topology,
            "dispatch_ps": engine.dispatch_ps,
            "sips": dict(enumerate(ctx.devices)),
            **more,
        }
    )


@pytest.fixture(scope="module")
def ran() -> RuntimeContext:
    return simulate()


def text_of(page: Page) -> str:
    return "".join(page_html(page))


def test_a_page_has_all_sections(ran: RuntimeContext) -> None:
    page = of_run(left_by(ran))
    assert section_titles(page) == SECTIONS
    assert (page.title, page.failed) == ("program", "")
    assert list(page.facts)[:2] == ["machine sip8", "4 ranks"]
    read(text_of(page))


def test_bars_are_those_of_the_breakdown(ran: RuntimeContext) -> None:
    page = of_run(left_by(ran))
    rows = breakdown(ran.engine.op_log, ran.engine.dispatch_ps)
    (bars,) = parts(page, Bars, "Where the time went")
    assert [(bar.label, tuple(bar.parts), bar.beside) for bar in bars.bars] == [
        (
            f"rank {row.rank}",
            (row.compute_ps, row.exposed_ps, row.copy_ps, row.idle_ps),
            row.host_ps,
        )
        for row in rows
    ]
    assert all(sum(bar.parts) == rows[0].span_ps for bar in bars.bars)


def test_layers_are_found_inside_of_other_ranges(ran: RuntimeContext) -> None:
    outer, inner = parts(of_run(left_by(ran)), Bars, "By range of the program")
    assert [bar.label for bar in outer.bars] == ["forward", "(no range)"]
    assert [bar.label for bar in inner.bars] == ["layer 0", "layer 1", "(no range)"]
    assert sum(map(sum, (b.parts for b in outer.bars))) == sum(
        map(sum, (b.parts for b in inner.bars))
    )


def test_the_slowest_commands_have_their_lines(ran: RuntimeContext) -> None:
    (table,) = parts(of_run(left_by(ran)), Table, "Slowest commands")
    lines = {(row[0].text, row[7].text): row[2].number for row in table.rows}
    assert lines["all_reduce", "program.py:11"] == 8
    totals = [row[3].number or 0 for row in table.rows]
    records = ran.engine.op_log.records
    reduces = [r for r in records if r.category == "collective"]
    assert sum(r.end - r.start for r in reduces) in totals


def test_equal_runs_in_other_folders_give_equal_files(tmp_path: Path) -> None:
    files: list[bytes] = []
    for folder in ("/one/nowhere", "/another/nowhere/deeper"):
        file = tmp_path / f"{len(files)}.html"
        write_run_page(file, left_by(simulate(folder)))
        files.append(file.read_bytes())
    assert files[0] == files[1]
    assert b"nowhere" not in files[0]


def test_a_run_without_time_says_so() -> None:
    page = of_run(left_by(simulate(fidelity="functional")))
    assert section_titles(page) == [
        "Results",
        "Bus bandwidth",
        "Simulated time",
        "Specification",
        "What is not modelled",
    ]
    (note,) = parts(page, Note, "Simulated time")
    assert "--fidelity functional" in note.text
    assert list(page.facts) == ["machine sip8", "4 ranks"]
    assert not parts(page, Strips)


def test_an_empty_log_says_so() -> None:
    run = Run(document={}, op_log=OpLog("full"), topology=load_topology("sip8").topology_obj)
    page = of_run(run)
    assert section_titles(page) == ["Simulated time", "What is not modelled"]
    (note,) = parts(page, Note, "Simulated time")
    assert note.text == "The run issued no command that takes time."
    assert (page.title, list(page.facts)) == ("run", ["machine sip8"])
    read(text_of(page))


def test_a_log_without_records_is_refused(ran: RuntimeContext) -> None:
    with pytest.raises(UsageError, match="a page needs every record"):
        of_run(left_by(ran, op_log=OpLog("summary")))


def test_what_the_log_dropped_is_said(ran: RuntimeContext) -> None:
    log = OpLog("full")
    log.limit = 20
    for record in ran.engine.op_log.records:
        log.add(record)
    for change in ran.engine.op_log.memory * 9:
        log.add_memory(change.sip, abs(change.nbytes))
    page = of_run(left_by(ran, op_log=log))
    note = parts(page, Note, "Verdict")[0]
    total = len(ran.engine.op_log.records)
    assert f"counts the first 20 records of {total}; --trace-limit 0 counts all" in note.text
    assert parts(page, Note, "Memory over time")[-1].text == (
        "The first 20 changes were kept; --trace-limit sets the limit."
    )


def test_the_specification_and_the_command_are_there(ran: RuntimeContext) -> None:
    page = of_run(left_by(ran))
    (code,) = parts(page, Code, "Specification")
    assert code.text == ran.spec.command() == "kernbench run program.py --seed 0"
    (facts,) = parts(page, Facts, "Specification")
    assert ("topology", "sip8") in facts.rows


def test_a_machine_made_by_code_has_no_command(ran: RuntimeContext) -> None:
    document = {"spec": {**ran.spec.to_json(), "topology": None}}
    (note,) = parts(of_run(left_by(ran, document=document)), Note, "Specification")
    assert "no command repeats the run" in note.text


REPORT = 'rank 1 failed:\n  File "/home/me/my/train.py", line 3, in f\nValueError: <b>bad</b>'


def test_a_failure_comes_first_and_has_its_command(ran: RuntimeContext) -> None:
    document = {**left_by(ran).document, "failure": {"replay": {"command": "kernbench run <x>"}}}
    page = of_run(left_by(ran, document=document, report=REPORT))
    assert section_titles(page) == ["Failure", *SECTIONS]
    assert page.failed == "failed"
    report, command = parts(page, Code, "Failure")
    assert report.text == REPORT.replace("/home/me/my/", "")
    assert command.text == "kernbench run <x>"
    html = text_of(page)
    assert "<b>" not in html
    assert REPORT.splitlines()[-1] in read(html).text


def test_a_failure_before_any_run_has_a_page_too() -> None:
    page = of_run(Run(document={"run": "x", "spec": RunSpec(bench="x").to_json()}, report="no"))
    assert section_titles(page) == ["Failure", "Specification", "What is not modelled"]
    assert list(page.facts) == []


def test_a_long_report_is_cut(ran: RuntimeContext) -> None:
    page = of_run(left_by(ran, report="x" * 100_000))
    (code,) = parts(page, Code, "Failure")
    (note,) = parts(page, Note, "Failure")
    assert len(code.text) == 60_000
    assert note.text == "The first 60000 of 100000 characters are shown."


def test_values_under_the_mouse_belong_to_the_picture(ran: RuntimeContext) -> None:
    page = of_run(left_by(ran))
    html = text_of(page)
    shown = [list(map(int, v.split(","))) for v in re.findall(r'data-v="([\d,]+)"', html)]
    strips = [strip.values for chart in parts(page, Strips) for strip in chart.strips]
    assert shown == [list(values) for values in strips]
    areas = re.findall(r'class="area" d="M0 1000([^Z]*)Z"', html)
    assert len(areas) == len(shown)
    for values, path in zip(shown, areas, strict=True):
        heights, now, at = [], 0, 0
        for place, height in re.findall(r"H(\d+)(?:V(\d+))?", path):
            heights += [now] * (int(place) - at)
            at, now = int(place), 1000 - int(height or 1000)
        assert heights == values


def test_what_the_program_printed_and_what_kernbench_noted_are_apart(ran: RuntimeContext) -> None:
    noted = {"pytorch": {"numbers": "CPU"}}
    document = {**left_by(ran).document, "results": [noted, {"loss": 0.25}]}
    run = left_by(ran, document=document, prints="step 0\n/home/me/x.py\n", printed=99)
    page = of_run(run)
    (printed,) = parts(page, Code, "What the program printed")
    assert printed.text == "step 0\nx.py"
    (cut,) = parts(page, Note, "What the program printed")
    assert cut.text == "The first 21 of 99 characters are shown."
    (results,) = parts(page, Facts, "Results")
    assert [name for name, _ in results.rows] == ["loss"]
    (internals,) = parts(page, Facts, "What else is known of the run")
    assert [name for name, _ in internals.rows] == ["pytorch.numbers"]


def test_the_verdict_says_the_time_the_bound_and_the_gain() -> None:
    # A host of 9 us a command and kernels of 1 us: of 20 us, 18 us are the host's.
    log = OpLog("full")
    for number in range(2):
        end = 10_000_000 * (number + 1)
        log.add(
            Record("k", "compute", 0, "stream 0", end - 1_000_000, end - 1_000_000, end,
                   dispatch=9_000_000)
        )  # fmt: skip
        log.add(Record("Optimizer.step#SGD.step", "range", 0, "host", end, 0, end))
    page = of_run(Run(document={}, op_log=log, topology=load_topology("sip8").topology_obj))
    (verdict,) = parts(page, Verdict)
    assert verdict.sentence.startswith("Host-bound: the device idles 90% of the time")
    assert [(figure.label, figure.value) for figure in verdict.figures] == [
        ("Step time", "10 us"),
        ("Most time goes to", "90%"),
        ("Largest thing to gain", "at most 90%"),
    ]
    assert verdict.figures[2].said == "18 us less with hosts that issue in time"
