"""Programs end under `kernbench run` as they do under Python, which is run beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit
import os
import sys

rank = os.environ.get("RANK", "0")


class Log:
    def __init__(self, name):
        self.file = open(f"{name}-{rank}", "w")
        self.write = self.add  # refers to itself
        self.write(name)

    def add(self, text):
        self.file.write(text)

    def __del__(self):
        self.file.write(", dropped")


def bye():
    log.write(f", {text.strip()}")
    print("the last function")


text = "text\\n"
unclosed = open(f"unclosed-{rank}", "w")
unclosed.write(text)
log = Log("log")
atexit.register(bye)
atexit.register(lambda: print("the last but one"))
print("the program")
if sys.argv[1:] == ["raises"]:
    raise ValueError("asked for")
if sys.argv[1:]:
    sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


def left_by(folder: Path, *command: str) -> tuple[int, str, str, dict[str, str]]:
    """Returns the exit code, the output, the last line of errors, and the files of a process."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    files = {path.name: path.read_text() for path in folder.iterdir()}
    told = [line for line in done.stderr.splitlines() if not line.startswith("replay: ")]
    return done.returncode, done.stdout, told[-1] if told else "", files


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize("argument", ["", "0", "3", "a reason", "raises"])
def test_a_program_ends_as_under_python(tmp_path: Path, program: str, argument: str) -> None:
    arguments = [argument] if argument else []
    expected = left_by(tmp_path / "python", program, *arguments)
    assert expected[3] == {"unclosed-0": "text\n", "log-0": "log, text, dropped"}
    command = ("-m", "kernbench", "run", "--quiet", program, "--", *arguments)
    assert left_by(tmp_path / "kernbench", *command) == expected


def test_each_rank_ends_as_a_process_of_its_own(tmp_path: Path, program: str) -> None:
    command = ("-m", "kernbench", "run", "--quiet", "--nproc-per-node", "2", program)
    code, _, _, files = left_by(tmp_path / "ranks", *command)
    contents = {"unclosed": "text\n", "log": "log, text, dropped"}
    assert files == {f"{n}-{rank}": text for n, text in contents.items() for rank in range(2)}
    assert code == 0
