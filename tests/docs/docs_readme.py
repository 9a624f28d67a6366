"""Runs the blocks of the documents, and finds what they print.

`python tests/docs/docs_readme.py` writes the outputs into the documents anew; those of the README,
whose programs are PyTorch's, where it is installed.

Blocks under one heading share a folder, which also has the files of the headings before, and those
of `own_torch.md`. A block whose first line is a comment with a file name is
written to that file. Every `python` block is also executed, in a fresh namespace; a `py` block is
only written. The commands of a
`console` block follow `$ `, and their output follows them; a `text` block is the output of the
`python` block before it.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
OWN: Final = ROOT / "docs" / "own_torch.md"
TUTORIAL: Final = ROOT / "docs" / "tutorial.md"
LONG: Final = ROOT / "docs" / "long_sequences.md"
TESTING: Final = ROOT / "docs" / "testing.md"
SWEEPS: Final = ROOT / "docs" / "sweeps.md"
COLLECTIVES: Final = ROOT / "docs" / "collective_files.md"
WITH_BLOCKS: Final = (OWN, TUTORIAL, LONG, SWEEPS, TESTING, COLLECTIVES)
"""Documents whose blocks are run here; those of the README run programs of PyTorch."""
WITH_TIMES: Final = (README,)
"""Documents with rows of simulated times beside measured ones."""
RUN: Final = frozenset({"py", "python", "yaml", "console", "text"})
"""Languages of blocks that are written to files, run or compared."""

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"# ([\w.]+\.(?:py|yaml))\n")
_SECONDS: Final = re.compile(r"(?<= )\d+\.\d\d( ?s)\b")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block; `start` and `end` enclose its content in the text."""

    heading: str
    language: str
    content: str
    start: int
    end: int


def fences(text: str) -> list[Fence]:
    """Returns the blocks of a text in order."""
    headings = [
        (match.start(), match[1]) for match in re.finditer(r"^#{2,3} (.+)$", text, re.MULTILINE)
    ]
    found = []
    for match in _FENCE.finditer(text):
        above = [name for start, name in headings if start < match.start()]
        heading = above[-1] if above else ""
        found.append(Fence(heading, match[1], match[2], match.start(2), match.end(2)))
    return found


def tutorial(text: str) -> dict[str, list[Fence]]:
    """Returns the blocks that can be run, by heading. Each step may use files of those before."""
    steps: dict[str, list[Fence]] = {}
    for fence in fences(text):
        if fence.language in RUN:
            steps.setdefault(fence.heading, []).append(fence)
    return steps


def files_before(document: Path) -> list[Fence]:
    """Returns the blocks whose files a document's steps find from the beginning."""
    if document == OWN:
        return []
    return [
        fence for blocks in tutorial(OWN.read_text(encoding="utf-8")).values() for fence in blocks
    ]


def write_files(blocks: list[Fence], folder: Path) -> None:
    """Writes the blocks that have a file name, but for `ccl.yaml`, which would change others."""
    for fence in blocks:
        name = _FILE.match(fence.content)
        if name is not None and name[1] != "ccl.yaml":
            (folder / name[1]).write_text(fence.content, encoding="utf-8")


def outputs(blocks: list[Fence], folder: Path) -> Iterator[tuple[Fence, str]]:
    """Runs the blocks of a step in `folder`, the working directory; yields what they should show.

    `folder` must be on `sys.path`.
    """
    printed = ""
    for fence in blocks:
        name = _FILE.match(fence.content)
        if name is not None:
            (folder / name[1]).write_text(fence.content, encoding="utf-8")
        if fence.language == "python":
            file = folder / (name[1] if name is not None else "block.py")
            file.write_text(fence.content, encoding="utf-8")
            printed = _captured(lambda: _execute(file))  # noqa: B023 - called at once
        elif fence.language == "console":
            yield fence, _shown(_console(fence.content), folder)
        elif fence.language == "text":
            yield fence, _shown(printed, folder)


def _execute(file: Path) -> None:
    code = compile(file.read_text(encoding="utf-8"), str(file), "exec")
    exec(code, {"__name__": file.stem})


def _console(content: str) -> str:
    lines = []
    for line in content.splitlines():
        if line.startswith("$ "):
            lines += [line + "\n", _command(shlex.split(line[2:]))]
    return "".join(lines)


def _command(words: list[str]) -> str:
    if words[0] == "kernbench" and words[1] != "test":
        return _captured(lambda: _kernbench(words[1:]))
    program = words
    if words[0] == "pytest":
        plugins = importlib.metadata.entry_points(group="pytest11", name="kernbench")
        program = ["pytest", *([] if plugins else ["-p", "kernbench.testing.plugin"]), *words[1:]]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *program],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
    )
    return _SECONDS.sub(r"0.50\1", done.stdout + done.stderr)


def _kernbench(arguments: list[str]) -> None:
    from kernbench.cli.app import app

    app(arguments, standalone_mode=False)


def _captured(call: Any) -> str:
    before = dict(sys.modules), list(sys.path)
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            call()
    finally:
        # A bench and what it imports come from the step's folder; the next step has another.
        sys.path[:] = before[1]
        for name in sys.modules.keys() - before[0].keys():
            if name.partition(".")[0] != "kernbench":
                _forget(name)
    return text.getvalue()


def _forget(name: str) -> None:
    file = getattr(sys.modules[name], "__file__", None)
    if file is not None and Path(file).parent == Path.cwd().resolve():
        del sys.modules[name]


def _shown(text: str, folder: Path) -> str:
    for path in (folder, folder.resolve()):
        text = text.replace(f"{path}{os.sep}", "")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


@cache
def simulated(ranks: int, nbytes: int, iterations: int = 4) -> float:
    """Returns the microseconds of a bfloat16 all-reduce on `h200x8`, back to back, without data."""
    import kernbench.torch as torch
    from kernbench.testing import Kernbench

    times = []

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        x = torch.empty(nbytes // 2, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
        torch.distributed.all_reduce(x)
        torch.distributed.barrier()
        torch.matmul(busy, busy)  # until its end, the host has issued all that follows
        start.record()
        for _ in range(iterations):
            torch.distributed.all_reduce(x)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / iterations)

    Kernbench().spawn(worker, nprocs=ranks, topology="h200x8", data=False)
    return sum(times) / ranks


@cache
def simulated_matmul(m: int, n: int, k: int, dtype: str = "bfloat16") -> float:
    """Returns the microseconds of a matmul on `h200x8`, without data."""
    import kernbench.torch as torch
    from kernbench.testing import Kernbench

    times = []

    def worker(rank: int) -> None:
        a = torch.empty(m, k, dtype=getattr(torch, dtype), device="cuda")
        b = torch.empty(k, n, dtype=getattr(torch, dtype), device="cuda")
        busy = torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.matmul(busy, busy)  # keeps the device busy, so that the host's dispatch is hidden
        start.record()
        torch.matmul(a, b)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))

    Kernbench().spawn(worker, nprocs=1, topology="h200x8", data=False)
    return times[0]


_SIZES: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ROW: Final = re.compile(r"^\| (\d+) \| (\d+) (.iB) \| ([\d.]+) \|.*$", re.MULTILINE)
_PRODUCT: Final = re.compile(
    r"^\| (\w+) (\d+) x (\d+) x (\d+) \| ([\d.]+) \|[^|]*\|[^|]*\| (.*) \|$", re.MULTILINE
)


def timed_rows(text: str) -> list[str]:
    """Returns the rows of a text that `with_accuracy` writes."""
    return [match[0] for pattern in (_ROW, _PRODUCT) for match in pattern.finditer(text)]


def with_accuracy(text: str) -> str:
    """Returns a text whose rows of all-reduces and products say what kernbench says."""

    def row(match: re.Match[str]) -> str:
        ranks, number, unit, measured = match.groups()
        us = simulated(int(ranks), int(number) * _SIZES[unit])
        return f"| {ranks} | {number} {unit} | {measured} | {compared(us, measured)} |"

    def product(match: re.Match[str]) -> str:
        dtype, *sizes, measured, before = match.groups()
        m, n, k = map(int, sizes)
        us = simulated_matmul(m, n, k, dtype)
        return f"| {dtype} {m} x {n} x {k} | {measured} | {compared(us, measured)} | {before} |"

    def compared(us: float, measured: str) -> str:
        shown = f"{us:.0f}" if us >= 100 else f"{us:.1f}"
        return f"{shown} | {us / float(measured) - 1:+.0%}"

    return _PRODUCT.sub(product, _ROW.sub(row, text))


def with_evaluations(text: str) -> str:
    """Returns a page with the rows of Megatron-Bridge's table as they are simulated now."""
    start = text.index("| GPUs, tokens, layers, TP, PP |")
    start = text.index("\n|---", start) + 1
    start = text.index("\n", start) + 1
    return text[:start] + "".join(_evaluations()) + text[text.index("\n\n", start - 1) + 1 :]


def _evaluations() -> Iterator[str]:
    from benches.models import eval_table as table
    from kernbench.run_spec import RunSpec
    from kernbench.runtime_api.context import RuntimeContext

    constants = [f"{key}={value}" for key, value in table.CONSTANTS.items()]
    with RuntimeContext(RunSpec(data=False)) as ctx:
        for row in table.ROWS:
            spent = table.simulate(ctx, row, constants, table.FIXED_MS)
            published = row.ms[0] / row.ms[1]
            measured, same = (table.ratio(spent, arm) for arm in ("as measured", "same samples"))
            sizes = f"{row.gpus}, {row.sequence}, {row.layers}, {row.tp}, {row.pp}"
            ratios = f"{published:.2f} | {measured:.2f} | {measured / published - 1:+.0%}"
            yield f"| {sizes} | {ratios} | {same:.2f} | {row.note} |\n"


def programs(text: str) -> dict[str, list[str]]:
    """Returns the lines that a page shows of each program of PyTorch, by its command."""
    shown: dict[str, list[str]] = {}
    for fence in fences(text):
        command = ""
        for line in fence.content.splitlines():
            if line.startswith("$ kernbench torchrun "):
                command = line[2:]
                shown[command] = []
            elif command:
                shown[command].append(line)
    return shown


def printed_by(command: str) -> list[str]:
    """Returns the lines that a command prints, in the folder of the checkout."""
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", *words],
        capture_output=True,
        check=True,
        text=True,
        cwd=ROOT,
    )
    return done.stdout.splitlines()


def with_programs(text: str) -> str:
    """Returns a page whose programs of PyTorch print what they print now."""
    for command, lines in programs(text).items():
        if "softmax.py" in command and importlib.util.find_spec("triton") is None:
            continue
        now = {tuple(line.split()[:2]): line for line in printed_by(command)}
        fresh = [now[tuple(line.split()[:2])] for line in lines]
        before = "\n".join([f"$ {command}", *lines])
        text = text.replace(before, "\n".join([f"$ {command}", *fresh]))
    return text


def with_outputs(text: str, before: list[Fence] | None = None) -> str:
    """Returns a text whose blocks show what is printed now; `before` has the files of others."""
    replaced: list[tuple[Fence, str]] = []
    earlier = list(before or [])
    for blocks in tutorial(text).values():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            sys.path.insert(0, str(folder))
            with contextlib.chdir(folder):
                write_files(earlier, folder)
                replaced += outputs(blocks, folder)
            sys.path.remove(str(folder))
        earlier += blocks
    for fence, output in reversed(replaced):
        text = text[: fence.start] + output + text[fence.end :]
    return text


def main() -> None:
    """Writes the outputs into the documents anew."""
    for document in WITH_TIMES:
        text = with_accuracy(document.read_text(encoding="utf-8"))
        document.write_text(text, encoding="utf-8")
    if importlib.util.find_spec("torch") is not None:
        README.write_text(with_programs(README.read_text(encoding="utf-8")), encoding="utf-8")
    LONG.write_text(with_evaluations(LONG.read_text(encoding="utf-8")), encoding="utf-8")
    for document in WITH_BLOCKS:
        text = with_outputs(document.read_text(encoding="utf-8"), files_before(document))
        document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ["COLUMNS"] = "80"
    main()
