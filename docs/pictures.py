"""Makes the pictures of the README: `python docs/pictures.py` writes them to `docs/img`.

`table.svg` is what `kernbench run benches/ccl_allreduce.py` prints; `timeline.svg` shows a trace of
`docs/overlap.py`, `ring.svg` one of `docs/ring.py`, `blocks.svg` the file of
`docs/collective_files.md`. A test compares them with what kernbench does. `sweep.svg`, of
`docs/sweeps.md`, needs matplotlib, and stays as it is without. `pytorch.svg` needs PyTorch, and the
folder with the script that the README fetches: `python docs/pictures.py FOLDER`.
"""

import importlib.util
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

HERE: Final = Path(__file__).resolve().parent
BENCH: Final = "benches/ccl_allreduce.py"
TIMELINES: Final[dict[str, tuple[Path | str, ...]]] = {
    "timeline": (HERE / "overlap.py",),
    "ring": (HERE / "ring.py", "--topology", "h200x8", "--data", "off"),
}
"""Programs of the pictures of traces, and the options with which they are run."""

SWEEP: Final = (
    *("sweep", "ccl_allreduce", "--set", "system.sips.count=2,4,8", "--data", "off"),
    *("--quiet", "--plot", "sweep.svg"),
)
"""The sweep of the picture of `docs/sweeps.md`, as it stands there."""

BLOCKS: Final = (
    ("write", "two_shot", "--ranks", "4", "-o", "pairs.xml"),
    ("show", "pairs.xml", "--svg", "pairs.svg"),
)
"""The commands of the picture of a collective's blocks."""

TUTORIAL_FILES: Final = ("multigpu_torchrun.py", "datautils.py")
"""Files of PyTorch's tutorial, of the folder that is given."""

TUTORIAL: Final = (
    *("torchrun", "--nproc-per-node", "4", "--trace", "trace.json"),
    *(TUTORIAL_FILES[0], "4", "2"),
)
"""How the README runs the script of the tutorial."""

_WIDTH: Final = 960
_NAMES: Final = 190
_ROW: Final = 18
_GAP: Final = 10
_TOP: Final = 34
_COLOURS: Final = {
    "cpu_op": "#8d99ae",
    "kernel": "#2a6f97",
    "gpu_memcpy": "#e09f3e",
    "cuda_sync": "#adb5bd",
}
_COLLECTIVE: Final = "#9a031e"


def kernbench(*arguments: str, folder: Path | None = None) -> str:
    """Returns what `kernbench` prints to standard output."""
    command = [sys.executable, "-c", "from kernbench.cli import main; main()", *arguments]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder or HERE.parent
    )
    return done.stdout


def table_svg(text: str) -> str:
    """Returns the table as a picture of a terminal."""
    from rich.console import Console
    from rich.text import Text

    width = max(map(len, text.splitlines())) + 1
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text(f"$ kernbench run {BENCH}\n{text}"), soft_wrap=True)
    svg = console.export_svg(title="simulated times on an invented machine of 8 SIPs")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def trace(program: Path | str, *options: Path | str) -> dict[str, Any]:
    """Returns the trace of a program, run with some options."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        kernbench("run", str(program), "--trace", str(file), *map(str, options))
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def timeline_svg(document: Mapping[str, Any], ranks: Sequence[int]) -> str:
    """Returns the tracks of some ranks as a picture, with an arrow for each message."""
    picture = _Timeline(document["traceEvents"], {rank + 1 for rank in ranks})
    return "\n".join(picture.lines()) + "\n"


class _Timeline:
    def __init__(self, events: Sequence[Mapping[str, Any]], pids: set[int]) -> None:
        mine = [event for event in events if event["pid"] in pids]
        self._slices = [event for event in mine if event["ph"] == "X"]
        self._arrows = [e for e in events if e["ph"] in "sf" and e["cat"] == "message"]
        self._processes = {
            event["pid"]: event["args"]["name"] for event in mine if event["name"] == "process_name"
        }
        self._threads = {
            event["tid"]: (event["pid"], event["args"]["name"])
            for event in mine
            if event["name"] == "thread_name"
        }
        self._begin = min(event["ts"] for event in self._slices)
        self._end = max(event["ts"] + event["dur"] for event in self._slices)
        self._rows: dict[int, int] = {}
        y, last = _TOP, None
        for tid in sorted(self._threads):
            pid = self._threads[tid][0]
            y += _GAP if last not in {None, pid} else 0
            last = pid
            self._rows[tid] = y
            y += _ROW
        self._height = y + 12

    def lines(self) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._height}" '
            'font-family="ui-monospace, monospace" font-size="10">'
        )
        yield f'<rect width="{_WIDTH}" height="{self._height}" fill="#ffffff"/>'
        yield from self._axis()
        for tid, y in self._rows.items():
            pid, name = self._threads[tid]
            text = escape(f"{self._processes[pid].split(' (')[0]}  {name}")
            yield f'<text x="4" y="{y + 12}" fill="#333333">{text}</text>'
            yield f'<path d="M{_NAMES} {y + _ROW}H{_WIDTH}" stroke="#eeeeee"/>'
        for event in self._slices:
            yield from self._slice(event)
        yield from self._messages()
        yield "</svg>"

    def _x(self, us: float) -> float:
        share: float = (us - self._begin) / (self._end - self._begin)
        return round(_NAMES + share * (_WIDTH - _NAMES - 10), 2)

    def _axis(self) -> Iterator[str]:
        span = self._end - self._begin
        step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if span / s <= 12)
        tick = -(-self._begin // step) * step
        while tick <= self._end:
            x = self._x(tick)
            yield f'<path d="M{x} 20V{self._height}" stroke="#dddddd"/>'
            yield f'<text x="{x}" y="14" text-anchor="middle" fill="#666666">{tick:g} us</text>'
            tick += step

    def _slice(self, event: Mapping[str, Any]) -> Iterator[str]:
        x, y = self._x(event["ts"]), self._rows[event["tid"]]
        width = round(max(self._x(event["ts"] + event["dur"]) - x, 0.5), 2)
        name = event["name"]
        colour = _COLLECTIVE if name == "all_reduce" and event["cat"] == "kernel" else None
        colour = colour or _COLOURS[event["cat"]]
        yield (
            f'<rect x="{x}" y="{y + 2}" width="{width}" height="{_ROW - 4}" rx="2" fill="{colour}">'
            f"<title>{escape(name)}: {event['ts']:.3f} us, {event['dur']:.3f} us</title></rect>"
        )
        label = name.removeprefix("aten::").lstrip("_")
        if 6.5 * len(label) >= width:
            label = f"{label[: int(width / 6.5) - 2]}…" if width > 50 else ""
        if label:
            yield f'<text x="{x + 3}" y="{y + 12}" fill="#ffffff">{escape(label)}</text>'

    def _messages(self) -> Iterator[str]:
        ends: dict[int, dict[str, Mapping[str, Any]]] = {}
        for event in self._arrows:
            ends.setdefault(event["id"], {})[event["ph"]] = event
        for pair in ends.values():
            if {"s", "f"} <= pair.keys() and all(e["tid"] in self._rows for e in pair.values()):
                (x, y), (to_x, to_y) = (
                    (self._x(pair[end]["ts"]), self._rows[pair[end]["tid"]] + _ROW // 2)
                    for end in "sf"
                )
                yield (
                    f'<path d="M{x} {y}L{to_x} {to_y}" stroke="#333333" stroke-width="0.7" '
                    'fill="none" opacity="0.6"/>'
                )


def tutorial_svg(document: Mapping[str, Any]) -> str:
    """Returns one step of a trace of the script of PyTorch's tutorial, of ranks 0 and 1."""
    events = document["traceEvents"]
    steps = sorted(
        event["ts"] + event["dur"]
        for event in events
        if event["ph"] == "X" and event["pid"] == 1 and event["name"].startswith("Optimizer.step")
    )
    begin, end = steps[_STEP], steps[_STEP + 1]
    shown = [
        event
        for event in events
        if event["ph"] == "X"
        and event["cat"] != "user_annotation"
        and begin <= event["ts"]
        and event["ts"] + event["dur"] <= end
    ]
    rows = {event["tid"] for event in shown}
    names = [
        event
        for event in events
        if event["name"] == "process_name"
        or (event["name"] == "thread_name" and event["tid"] in rows)
    ]
    return timeline_svg({"traceEvents": shown + names}, (0, 1))


_STEP: Final = 5
"""The step after which the picture of the tutorial's script begins."""


def sweep_svg() -> str:
    """Returns the picture of the sweep."""
    with tempfile.TemporaryDirectory() as name:
        kernbench(*SWEEP, folder=Path(name))
        return Path(name, "sweep.svg").read_text(encoding="utf-8")


def blocks_svg() -> str:
    """Returns the picture of the file of `docs/collective_files.md`."""
    with tempfile.TemporaryDirectory() as name:
        for command in BLOCKS:
            kernbench("collective", *command, folder=Path(name))
        return Path(name, "pairs.svg").read_text(encoding="utf-8")


def main() -> None:
    """Writes the pictures."""
    images = HERE / "img"
    images.mkdir(exist_ok=True)
    (images / "table.svg").write_text(table_svg(kernbench("run", BENCH)), encoding="utf-8")
    (images / "blocks.svg").write_text(blocks_svg(), encoding="utf-8")
    for name, program in TIMELINES.items():
        svg = timeline_svg(trace(*program), (0, 1))
        (images / f"{name}.svg").write_text(svg, encoding="utf-8")
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as name:
            for file in TUTORIAL_FILES:
                Path(name, file).write_bytes(Path(sys.argv[1], file).read_bytes())
            kernbench(*TUTORIAL, folder=Path(name))
            document = json.loads(Path(name, "trace.json").read_text(encoding="utf-8"))
        (images / "pytorch.svg").write_text(tutorial_svg(document), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is not None:
        (images / "sweep.svg").write_text(sweep_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
