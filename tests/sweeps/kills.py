"""Kills a sweep at random moments, again and again: `python tests/sweeps/kills.py 500`.

Nothing that was done is lost, nothing is torn, nothing is done twice; and the files of a sweep that
was killed often are those of one that was not.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernbench.cli import sweeping
from kernbench.cli.program_command import Varied
from kernbench.run_spec import RunSpec
from kernbench.scripts.running import run_once
from kernbench.sweeps.local import Local
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import Files
from kernbench.sweeps.worker import values_of

BENCH = """\
import os, time


def run(ctx):
    number = ctx.argv[1]
    log = os.open("started", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(log, f"{os.environ['ATTEMPT']} {number}\\n".encode())
    os.close(log)
    time.sleep(0.004)
    ctx.results.append({"number": int(number), "text": "x" * 50 * int(number)})
    if int(number) % 5 == 3:
        raise ValueError(number)
"""

RUNS = 12

POLL_S = 0.0005


def _here(runs: Iterable[Run]) -> Generator[Record, None, None]:
    """Runs in the process of the sweep: without the start of workers, more kills meet its files."""
    for run in runs:
        values = values_of(run_once(run.spec))
        if values["failure"] is not None:
            values["failure"]["output"] = ""
        yield Record(run=run, **values)


def _attempt(folder: Path, number: int, workers: bool) -> int:
    """Begins or resumes the sweep of a folder in a child; returns its process."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(os.open("told", os.O_APPEND | os.O_CREAT | os.O_WRONLY), 2)
        os.chdir(folder)
        os.environ.update(ATTEMPT=str(number), TMPDIR=str(folder))
        tempfile.tempdir = None
        numbers = ",".join(map(str, range(RUNS)))
        code = sweeping.run_sweep(
            RunSpec(bench="bench.py"),
            [Varied("arg", f"-n={numbers}")],
            ["bench.py"],
            executor=Local(2) if workers else _here,
            files=Files(json=Path("s.json"), csv=Path("s.csv")),
            resume=True,
            quiet=True,
        )
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _kept(folder: Path) -> list[dict[str, Any]]:
    """Returns the records on disk, read without the code under test."""
    file, journal = folder / "s.json", folder / "s.json.journal"
    if file.exists():
        found: list[dict[str, Any]] = json.loads(file.read_text())["records"]
        return found
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line[9:]) for line in text.split("\n")[1:-1]]


def _contents(folder: Path) -> tuple[str, str]:
    text = (folder / "s.json").read_text().replace(str(folder), "")
    return re.sub(r'"wall_s": [\d.e-]+', "", text), (folder / "s.csv").read_text()


def _wait(child: int, seconds: float, folder: Path, records: int) -> int | None:
    """Waits for a time, or for a number of records; returns the exit code of a child that ends."""
    end = time.monotonic() + seconds
    journal = folder / "s.json.journal"
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        with suppress(FileNotFoundError):  # not yet there, or no longer
            if records and journal.read_bytes().count(b"\n") > records:
                time.sleep(random.random() * 0.01)
                return None
        time.sleep(POLL_S)
    return None


def _new_folder(parent: Path, number: int) -> Path:
    folder = parent / f"sweep-{number}"
    folder.mkdir()
    (folder / "bench.py").write_text(BENCH)
    return folder


def kill_often(most: int, seed: int, seconds: float, share: float, parent: Path) -> tuple[int, int]:
    """Kills sweeps and resumes them, until there were enough kills or the time is over.

    Args:
        most: Number of kills.
        seed: Of the moments.
        seconds: Wall time after which no further sweep begins.
        share: Of the attempts that have workers.
        parent: An empty folder.

    Returns:
        How many kills there were, and how many sweeps came to their end.
    """
    random.seed(seed)
    over = time.monotonic() + seconds
    spans = {}
    for ended, workers in enumerate((True, False)):
        begin = time.monotonic()
        folder = _new_folder(parent, ended)
        code = _wait(_attempt(folder, 0, workers), 600.0, folder, 0)
        assert code == 1, f"exit code {code}: {Path('told').read_text()[-2000:]}"
        whole, spans[workers] = _contents(folder), time.monotonic() - begin
    kills, ended, attempts = 0, 2, 0
    while kills < most and time.monotonic() < over:
        folder = _new_folder(parent, ended)
        kept: list[dict[str, Any]] = []
        while True:
            attempts += 1
            last = kills >= most or time.monotonic() > over
            workers = random.random() < share
            span = spans[workers]
            child = _attempt(folder, attempts, workers)
            # A resumed sweep is shorter, and most of it is the start of the workers.
            records = len(kept) + random.randint(1, RUNS // 2) if random.random() < 0.6 else 0
            limit = 600.0 if last else span * (1.2 if records else 1.2 * random.random())
            code = _wait(child, limit, folder, 0 if last else records)
            if code is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills += 1
            kept = _check(folder, kept, attempts)
            if code is not None:
                break
        assert code == 1, f"exit code {code}: {Path('told').read_text()[-2000:]}"
        assert _contents(folder) == whole, "the files are not those of a sweep that nobody killed"
        assert not list(folder.glob("*.journal"))
        shutil.rmtree(folder, ignore_errors=True)
        ended += 1
    return kills, ended


def _check(folder: Path, kept: list[dict[str, Any]], attempt: int) -> list[dict[str, Any]]:
    """Returns what is kept now; nothing may be lost, torn, or done twice."""
    now = _kept(folder)
    keys = [record["key"] for record in now]
    assert len(set(keys)) == len(keys), "twice on disk"
    for record in kept:
        assert record in now, "lost"
    before = {record["varied"]["-n"] for record in kept}
    log = folder / "started"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    mine = [number for which, number in lines if which == str(attempt)]
    assert not before & set(mine), "done twice"
    assert len(set(mine)) == len(mine), "done twice"
    assert len(set(mine) - {record["varied"]["-n"] for record in now}) <= 2, "more than under way"
    return now


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--workers", type=float, default=1.0, help="share of the attempts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        os.chdir(parent)
        kills, ended = kill_often(
            given.kills, given.seed, given.seconds, given.workers, Path(parent)
        )
    print(f"{kills} kills, {ended} sweeps with all runs once")


if __name__ == "__main__":
    main()
    sys.exit(0)
