"""`kernbench collective`: exit codes, and what is printed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.ccl.config import shipped_ccl_file
from kernbench.ccl.cut_bound import cut_bound
from kernbench.ccl.files.load import load
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.search import gathering_rounds
from kernbench.cli.app import app
from kernbench.topology import load_topology


def kernbench(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["collective", *map(str, words)])
    return result.exit_code, result.output


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    out = tmp_path / "ring.xml"
    assert kernbench("write", "ring", "--ranks", 4, "-o", out)[0] == 0
    return out


def test_the_exit_code_is_that_of_the_worst_file(ring: Path, tmp_path: Path) -> None:
    wrong, broken, out = tmp_path / "wrong.xml", tmp_path / "broken.xml", tmp_path / "all.json"
    wrong.write_text(ring.read_text().replace('type="rrc"', 'type="r"', 1))
    broken.write_text(ring.read_text().replace('type="rrc"', 'type="rrx"', 1))
    assert kernbench("check", ring)[0] == 0
    assert kernbench("check", wrong, ring)[0] == 1
    code, text = kernbench("check", ring, broken, wrong, "--json", out)
    assert code == 2
    assert "type: expected one of nop" in text
    first, second, third = json.loads(out.read_text())
    assert (first["proved"], third["proved"]) == (True, False)
    assert second["error"]["code"] == "F1"


@pytest.mark.parametrize(
    ("name", "protocol"),
    [("nccl_ll", "LL"), ("nccl_ll128", "LL128"), ("nccl_simple", "Simple"), ("ring", "Simple")],
)
def test_what_is_written_has_the_protocol_of_its_queues(
    tmp_path: Path, name: str, protocol: str
) -> None:
    out = tmp_path / "a.xml"
    assert kernbench("write", name, "--ranks", 2, "-o", out)[0] == 0
    assert load(out).protocol == protocol


def test_an_algorithm_without_the_operation_is_told_with_those_that_have_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "a.xml"
    code, text = kernbench("write", "chain", "--ranks", 4, "--operation", "all_to_all", "-o", out)
    assert code == 2
    assert "algorithm chain has no all_to_all" in text
    assert "hint: algorithms of that file with one: nccl_p2p, nccl_p2p_ll, direct, pairwise" in text
    assert not out.exists()


def test_a_file_takes_as_long_as_the_algorithm_that_it_was(ring: Path) -> None:
    code, text = kernbench("time", ring, "--topology", "sip8", "-b", "2M", "-e", "2M")
    assert code == 0
    # A ring takes 71.07 us, as the shipped one; the library's choice, two rings, takes 67.69.
    assert "71.07" in text.splitlines()[-1]
    assert text.splitlines()[-1].split()[-3:] == ["ring_two_way", "67.69", "1.05"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (("-b", "0"), "-b: expected at least 4 bytes, a float32 a block; got 0"),
        (("-b", "3"), "-b: expected at least 4 bytes, a float32 a block; got 3"),
        (("-b", "2K", "-e", "1K"), "-e: expected at least the size of -b, 2048 bytes; got 1024"),
        (("-b", "many"), "expected a number and a unit, such as '32 MiB'; got 'many'"),
    ],
)
def test_sizes_that_cannot_be_timed_are_refused(
    ring: Path, sizes: tuple[str, ...], said: str
) -> None:
    code, text = kernbench("time", ring, *sizes)
    assert code == 2
    assert said in text
    assert "#" not in text  # nothing of a table before the mistake is told


def test_a_size_is_that_of_whole_elements_and_search_writes_no_file_without_one(
    ring: Path, tmp_path: Path
) -> None:
    code, text = kernbench("time", ring, "--topology", "sip8", "-b", "1023", "-e", "1023")
    assert code == 0
    assert text.splitlines()[-1].split()[0] == "1020"
    out = tmp_path / "none.xml"
    code, text = kernbench(
        "search", "--ranks", 4, "-o", out, "--operation", "all_gather", "-b", "0"
    )
    assert code == 2
    assert "-b: expected at least 16 bytes, a float32 a block; got 0" in text
    assert not out.exists()
    code, text = kernbench("search", "--ranks", 4, "-o", out, "--operation", "all_gathr")
    assert code == 2
    assert "did you mean `all_gather`?" in text


def test_more_ranks_than_sips_are_refused(ring: Path) -> None:
    code, text = kernbench("write", "ring", "--ranks", 9, "-o", ring)
    assert code == 2
    assert "h200x8 has 8 SIPs; the group has 9 ranks" in text


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("machine", ["sip8", "h200x8"])
def test_what_is_searched_is_proved(tmp_path: Path, operation: str, machine: str) -> None:
    out = tmp_path / "a.xml"
    words = ("--ranks", 8, "-o", out, "--operation", operation, "--topology", machine, "-b", "64K")
    assert kernbench("search", *words)[0] == 0
    assert prove(load(out)).proved


def test_rounds_share_no_link_and_the_bound_is_the_smallest_cut() -> None:
    ring, switch = (load_topology(name).topology_obj for name in ("sip8", "h200x8"))
    # Two links of 50 GB/s into each rank of the ring: 7 chunks come in 4 rounds.
    assert [len(each) for each in gathering_rounds(ring, 8)] == [16, 16, 16, 8]
    # Through a switch, a rank gets one chunk a round.
    assert [len(each) for each in gathering_rounds(switch, 8)] == [8] * 7
    # 7/8 of 8 MB through 100 GB/s, and through 361 GB/s.
    of_ring = cut_bound(ring, "all_gather", 8_000_000, range(8))
    of_switch = cut_bound(switch, "all_reduce", 8_000_000, range(8))
    assert of_ring is not None
    assert of_switch is not None
    assert of_ring.time == 70_000_000
    assert int(of_switch.time) == 2 * 7_000_000 * 10**12 // 361 // 10**9


def plan(folder: Path, *, signals: bool) -> Path:
    """Writes a plan of one rank, whose block copies its input by way of scratch."""
    ends = [{"type": buffer, "index": 0, "size": 1} for buffer in "iso"]
    ops = [{"name": "copy", "src_buff": [a], "dst_buff": [b]} for a, b in pairwise(ends)]
    ops[1:1] = [{"name": "nop"}] if signals else []
    block = {"id": 0, "ops": ops, "channels": []}
    extents = {"input_chunks": 1, "output_chunks": 1, "scratch_chunks": 1}
    gpu = {"id": 0, **extents, "threadblocks": [block], "channels": []}
    root = {"name": "copies", "collective": "allgather", "protocol": "Simple", "inplace": False}
    path = folder / f"{signals}.json"
    path.write_text(json.dumps({**root, "gpus": [gpu]}))
    return path


def test_a_plan_is_checked_and_shown(tmp_path: Path) -> None:
    right, wrong = plan(tmp_path, signals=True), plan(tmp_path, signals=False)
    assert kernbench("check", right) == (
        0,
        f"{right}: all_gather of 1 ranks, Simple, out of place\n"
        "  proved for every schedule\n"
        "  by one run: 3 steps of 1 blocks, 4 accesses without a race, 0 chunks sent\n",
    )
    code, text = kernbench("check", wrong)
    assert code == 1
    assert "race: " in text
    assert kernbench("check", right, "--slots", 2)[0] == 2
    assert kernbench("show", right)[1].splitlines()[1].split()[-2:] == ["copy", "copy"]


def test_a_file_is_timed_beside_a_ccl_yaml_that_names_files_alone(
    ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ccl.yaml").write_text(
        "defaults: {algorithm: mine}\nalgorithms:\n  mine: {file: ring.xml}\n"
    )
    code, text = kernbench("time", ring, "--topology", "h200x8", "-b", "64K", "-e", "64K")
    assert code == 0
    assert "all_reduce of 4 ranks on h200x8" in text


def own_algorithm(folder: Path, name: str, body: str) -> None:
    """Writes a module with an all-reduce, and a `ccl.yaml` that names it."""
    (folder / f"{name}.py").write_text(f"def all_reduce(comm):\n    {body}\n")
    (folder / "ccl.yaml").write_text(
        f"defaults: {{algorithm: mine}}\nalgorithms:\n  mine: {{module: {name}}}\n"
    )


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("raises_as_recorded", "[][comm.rank]", "IndexError: list index out of range"),
        ("raises_as_it_runs", "comm.tl.load(0)", "AttributeError: "),
    ],
)
def test_an_algorithm_that_raises_is_told_by_its_own_line(
    ring: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    body: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    own_algorithm(tmp_path, name, body)
    code, text = kernbench("time", ring, "--topology", "sip8", "-b", "1K", "-e", "1K")
    assert code == 1
    told = text.partition("Traceback of your code")[2]
    assert f'{name}.py", line 2, in all_reduce' in told
    assert said in told
    assert told.count("File ") == 1


def test_a_ccl_yaml_that_was_not_named_is_told(
    ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own_algorithm(tmp_path, "sends_nothing", "pass")
    sizes = ("--topology", "sip8", "-b", "2M", "-e", "2M")
    code, text = kernbench("time", ring, *sizes)
    assert code == 0
    assert f"algorithms are those of {tmp_path / 'ccl.yaml'}; --ccl FILE names others" in text
    assert "   mine  " in text
    code, text = kernbench("time", ring, *sizes, "--ccl", shipped_ccl_file())
    assert (code, "algorithms are those of" in text) == (0, False)
    assert "   mine  " not in text
    out = tmp_path / "a.xml"
    assert "no algorithm 'ring'" in kernbench("write", "ring", "--ranks", 4, "-o", out)[1]
    named = ("--ccl", shipped_ccl_file())
    assert kernbench("write", "ring", "--ranks", 4, "-o", out, *named)[0] == 0
    assert load(out).ranks == 4
