"""The timeline of a page: its data are the log's, and a browser makes of them what the log says."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from page_reader import parts
from test_pages_runs import left_by, simulate

from kernbench.pages import Run, of_run, write_run_page
from kernbench.pages import timeline as timelines
from kernbench.pages.page import Note, Timeline
from kernbench.report import breakdown
from kernbench.report.records import is_engine
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import load_topology
from kernbench.units import format_time

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def data_of(run: Run) -> dict[str, Any]:
    (timeline,) = parts(of_run(run), Timeline)
    data: dict[str, Any] = json.loads(zlib.decompress(base64.urlsafe_b64decode(timeline.data)))
    return data


def test_slices_are_those_of_hosts_streams_and_engines_to_the_picosecond() -> None:
    ctx = simulate()
    data = data_of(left_by(ctx))
    shown: list[tuple[int, str, int, int]] = []
    of_engines: list[tuple[int, str, int, int]] = []
    for lane in data["lanes"]:
        time = data["start"]
        kinds = lane["k"] if isinstance(lane["k"], list) else data["lanes"][lane["k"]]["k"]
        for start, lasting, kind in zip(lane["s"], lane["d"], kinds, strict=True):
            time += start
            if not lane["h"]:
                these = of_engines if lane["e"] else shown
                these.append((lane["r"], data["names"][kind][0], time, time + lasting))
    logged = [
        (is_engine(record.track), (record.rank, record.name, record.start, record.end))
        for record in ctx.engine.op_log.records
        if record.category not in {"host", "range"}
    ]
    assert sorted(shown) == sorted(told for engine, told in logged if not engine)
    assert sorted(of_engines) == sorted(told for engine, told in logged if engine) != []
    lines = {(name, kind): line for name, kind, line, _ in data["names"]}
    assert lines["all_reduce", timelines.KINDS.index("communication")] == "program.py:11"
    assert data["alike"] == [[0, 1, 2, 3]]


def log_of(*records: Record) -> Run:
    log = OpLog("full")
    for record in records:
        log.add(record)
    return Run(document={}, op_log=log, topology=load_topology("sip8").topology_obj)


def kernel(name: str, rank: int, start: int, end: int, category: Any = "compute") -> Record:
    return Record(name, category, rank, "stream 0", start, start, end, dispatch=0)


def test_ranks_that_do_something_else_are_not_folded() -> None:
    data = data_of(
        log_of(
            *(kernel("a", rank, 0, 10 + rank) for rank in range(4)),
            *(kernel("c" if rank == 2 else "b", rank, 20, 30) for rank in range(4)),
        )
    )
    assert data["alike"] == [[0, 1, 3], [2]]


def test_ranks_of_a_log_that_was_cut_are_alike_as_far_as_it_goes() -> None:
    run = log_of(*(kernel("a", rank, 0, 10) for rank in range(3)), kernel("b", 1, 20, 30))
    assert data_of(run)["alike"] == [[0, 2], [1]]
    assert run.op_log is not None
    run.op_log.dropped = 5
    assert data_of(run)["alike"] == [[0, 1, 2]]


def test_messages_have_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(flow: int, start: int) -> list[Record]:
        return [
            Record("s", "send", 1, "dma.send", 0, start, start + 50, args={"bytes": 8}, flow=flow),
            Record("r", "recv", 3, "dma.recv", 0, start, start + 70, flow=flow),
        ]

    run = log_of(kernel("a", 1, 0, 900), *message(1, 400), *message(2, 100))
    assert data_of(run)["messages"] == [100, 70, 1, 3, 8, 300, 70, 1, 3, 8]
    monkeypatch.setattr(timelines, "MOST_MESSAGES", 1)
    monkeypatch.setattr(timelines, "MOST_SLICES", 1)
    notes = [note.text for note in parts(of_run(run), Note, "Timeline")]
    assert "The first 1 of 2 messages are drawn; --trace has all." in notes


SCRIPT = """
<script>
const waiting = setInterval(() => {
  const root = document.querySelector(".timeline.ready");
  if (!root) return;
  clearInterval(waiting);
  const cells = () => [...root.querySelectorAll(".range td.n")].map((cell) => cell.dataset.n);
  const whole = cells();
  root.timeline.brush([0, 100]);
  const out = document.createElement("pre");
  out.id = "out";
  root.timeline.search("KERN");
  const hits = root.querySelector(".hits").textContent;
  root.querySelector("input").value = "GEMM";
  root.querySelector("[data-act=engines]").click();
  const lanes = root.timeline.rows.flatMap((row) => row.lane ? [row.lane.name] : []);
  out.textContent = JSON.stringify(
    [whole, cells(), hits, lanes, root.querySelector(".hits").textContent]);
  document.body.append(out);
}, 20);
</script></body>"""


@pytest.mark.browser
def test_a_browser_breaks_down_the_run_as_python_does(tmp_path: Path) -> None:
    assert BROWSER is not None, "chromium is to be in the path"
    run = log_of(
        kernel("kernel", 0, 0, 40),
        kernel("kernel", 0, 90, 200),
        kernel("all_reduce", 0, 30, 120, "collective"),
        kernel("copy", 0, 110, 300, "copy"),
        kernel("copy", 0, 400, 500, "copy"),
        Record("gemm 16x16", "compute", 0, "pe0.gemm", 0, 10, 30, None),
    )
    file = tmp_path / "page.html"
    write_run_page(file, run)
    file.write_text(file.read_text().replace("</body>", SCRIPT))
    dom = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/me",
         "--virtual-time-budget=5000", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    found = re.search(r'<pre id="out">(.*?)</pre>', dom)
    assert found is not None
    whole, brushed, hits, lanes, of_engines = json.loads(found[1])
    assert run.op_log is not None
    (row,) = breakdown(run.op_log, 0)
    of_row = [row.compute_ps, row.exposed_ps, row.copy_ps, row.idle_ps, row.host_ps]
    assert list(map(int, whole)) == of_row == [150, 50, 200, 100, 0]
    # Of 0 to 100 ps: kernels 0 to 40 and 90 to 100, and what the all-reduce has for itself.
    assert list(map(int, brushed)) == [50, 50, 0, 0, 0]
    assert hits == "2 found"
    assert lanes == ["default stream", "default stream (2)", "default stream (3)", "pe0.gemm"]
    assert of_engines == "1 found"
    assert format_time(row.span_ps) == "500 ps"
