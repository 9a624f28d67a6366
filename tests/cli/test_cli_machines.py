"""`kernbench new-machine` and `kernbench show-machine`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernbench.cli.app import app
from kernbench.cli.failures import Exit
from kernbench.topology import load_topology, shipped_machines


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_the_new_file_is_a_machine() -> None:
    done = told("new-machine", "mine")
    assert done.exit_code == Exit.OK
    assert done.stdout == (
        "wrote mine.yaml; change its numbers, then\n"
        "  kernbench run ccl_allreduce --topology mine.yaml\n"
        "  kernbench show-machine mine.yaml\n"
    )
    assert load_topology("mine.yaml").topology_obj.name == "mine"


def test_what_is_printed_next_can_be_run() -> None:
    told("new-machine", "mine")
    done = told(
        "run", "ccl_allreduce", "--topology", "mine.yaml", "--set", "defaults.algorithm=auto",
        "--", "-b", "1K", "-e", "1K",
    )  # fmt: skip
    assert done.exit_code == Exit.OK, done.output
    assert "on mine: 8 ranks" in done.stdout


@pytest.mark.slow
def test_a_model_trains_on_the_new_machine() -> None:
    told("new-machine", "mine")
    done = told(
        "run", "transformer", "--topology", "mine.yaml", "--data", "off",
        "--set", "defaults.algorithm=auto", "--", "--steps", "2",
    )  # fmt: skip
    assert done.exit_code == Exit.OK, done.output


@pytest.mark.parametrize("origin", sorted(shipped_machines()))
def test_a_copy_differs_in_its_name_only(origin: str) -> None:
    source = shipped_machines()[origin].read_text()
    assert told("new-machine", "mine", "--from", origin).exit_code == Exit.OK
    copy = Path("mine.yaml").read_text()
    head, rest = copy.splitlines()[:2], copy.splitlines()[2:]
    assert f"copy of {origin}" in head[0]
    differing = [
        (old, new) for old, new in zip(source.splitlines(), rest, strict=True) if old != new
    ]
    assert [old.split(":")[0].strip() for old, _ in differing] == ["name", "description"]
    ours = load_topology("mine.yaml").topology_obj.machine.system
    theirs = load_topology(origin).topology_obj.machine.system
    assert (ours.name, ours.description) == ("mine", f"mine, made from {origin}")
    assert (ours.host, ours.sips, ours.sip) == (theirs.host, theirs.sips, theirs.sip)
    assert (ours.algorithms, ours.queue) == (theirs.algorithms, theirs.queue)


def test_a_copy_of_a_copy() -> None:
    told("new-machine", "mine")
    assert told("new-machine", "other", "--from", "mine.yaml").exit_code == Exit.OK
    assert load_topology("other.yaml").topology_obj.name == "other"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("mine.yaml",), "NAME: expected a name that begins with a letter and has letters, "
         "digits, - and _ only, got 'mine.yaml'\n  hint: did you mean `mine`?"),
        (("a/b",), "got 'a/b'"),
        (("",), "got ''"),
        (("h200x8",), "h200x8 is a machine that comes with kernbench\n  hint: give the copy a "
         "name of its own: kernbench new-machine my-h200x8 --like h200x8"),
        (("mine", "--from", "h20x8"), "did you mean `h200x8`?"),
        (("mine", "--from", "not_there.yaml"), "no such file"),
        (("there",), "there.yaml is there already\n  hint: give another name"),
        (("mine", "--from", "there.yaml"), "system.nme: expected one of name, "),
    ],
)  # fmt: skip
def test_what_cannot_be_written(arguments: tuple[str, ...], expected: str, folder: Path) -> None:
    (folder / "there.yaml").write_text("system: {nme: x}\n")
    done = told("new-machine", *arguments)
    assert done.exit_code == Exit.USAGE
    assert expected in done.stderr
    assert [path.name for path in folder.iterdir()] == ["there.yaml"]
    assert (folder / "there.yaml").read_text() == "system: {nme: x}\n"


def test_a_place_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = told("new-machine", "mine")
    assert done.exit_code == Exit.USAGE
    assert "[F15]" in done.stderr


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("queue=nvlnk", "system.queue of mine: expected one of nvlink, nccl_simple, "),
        ("algorithms=[rng]", "system.algorithms of mine: expected one of ring"),
    ],
)
def test_what_the_machine_names_and_the_shipped_file_lacks(override: str, expected: str) -> None:
    told("new-machine", "mine")
    command = ("run", "ccl_allreduce", "--topology", "mine.yaml", "--set", f"system.{override}")
    done = told(*command, "--", "-b", "1K", "-e", "1K")
    assert done.exit_code == Exit.USAGE
    assert f"[F7] {expected}" in done.stderr
    assert "did you mean `" in done.stderr
    # A file of the user's own need not have them: its defaults serve then.
    Path("ccl.yaml").write_text(
        "defaults: {algorithm: mine}\nalgorithms: {mine: {module: kernbench.ccl.algorithms.ring}}\n"
    )
    done = told(*command, "--", "-b", "1K", "-e", "1K")
    assert done.exit_code == Exit.OK, done.output


def test_every_value_is_shown_with_its_origin() -> None:
    told("new-machine", "mine")
    done = told("show-machine", "mine.yaml")
    assert done.exit_code == Exit.OK
    lines = done.stdout.splitlines()
    assert "      pes: 132" in lines
    assert "    dispatch: 9.3 us                    # default" in lines
    assert "      dma: 3.35 TB/s                    # follows from other values" in lines
    assert "          fp16: 7.49 TFLOP/s            # follows from other values" in lines
    assert "          bf16: 7.49 TFLOP/s" in lines
    Path("shown.yaml").write_text(done.stdout)
    shown, mine = (load_topology(name).topology_obj for name in ("shown.yaml", "mine.yaml"))
    assert shown == mine
    assert "# follows" not in told("show-machine", "shown.yaml").stdout


def test_a_machine_that_is_not_there_is_not_shown() -> None:
    done = told("show-machine", "h200x9")
    assert done.exit_code == Exit.USAGE
    assert "did you mean `h200x8`?" in done.stderr
