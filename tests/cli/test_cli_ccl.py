"""The benches that measure in nccl-tests' manner: their flags, sizes, values and tables."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benches.ccl
import benches.ccl_allreduce
from benches.nccl import measure
from benches.nccl.flags import REFUSED, parse
from benches.nccl.operations import OPERATIONS, Case, expected, values, wrong_elements
from kernbench.errors import UsageError
from kernbench.testing import Kernbench
from kernbench.units import format_bytes

ROOT = Path(__file__).parents[2]
REDUCE = ["all_reduce", "reduce", "reduce_scatter"]
ROOTED = ["broadcast", "reduce", "gather", "scatter"]
BLOCKS = ["all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"]
OUT_OF_PLACE_ONLY = ["all_to_all", "sendrecv"]
ALL = [*REDUCE, "broadcast", "gather", "scatter", "all_gather", "all_to_all", "sendrecv"]

Document = dict[str, Any]


def _measured(kernbench: Kernbench, *argv: str, **dials: Any) -> tuple[int, Document]:
    """Returns the exit code and the results of `ccl`."""
    with kernbench.context(arguments=argv, **dials) as ctx:
        status = benches.ccl.run(ctx)
    (document,) = ctx.results
    return status, document


def test_these_operations_are_measured() -> None:
    assert sorted(OPERATIONS) == sorted(ALL)
    assert [name for name in ALL if OPERATIONS[name].reduces] == REDUCE
    assert {name for name in ALL if OPERATIONS[name].rooted} == set(ROOTED)
    assert {name for name in ALL if not OPERATIONS[name].in_place} == set(OUT_OF_PLACE_ONLY)


@pytest.mark.parametrize("name", [name for name in ALL if name != "sendrecv"])
def test_each_row_names_the_algorithm_that_ran(name: str, kernbench: Kernbench) -> None:
    """Sizes on both sides of where the choice changes; `-v` prints what was chosen."""
    said: list[str] = []
    argv = ["--op", name, "-b", "1K", "-e", "1M", "-f", "32"]
    overrides = ["defaults.algorithm=auto"]
    with kernbench.context(arguments=argv, data=False, overrides=overrides) as ctx:
        ctx.on_choice = said.append
        assert benches.ccl.run(ctx) == 0
    (document,) = ctx.results
    assert document["algorithm"] == "auto"
    for row in document["rows"]:
        head = f"{name} {format_bytes(row['size_bytes'])}, 8 ranks of WORLD: "
        (line,) = {line for line in said if line.startswith(head)}
        assert line == f"{head}{row['algorithm']} (auto)"


@pytest.mark.parametrize("name", ALL)
def test_an_operation_gives_right_values_both_ways(name: str, kernbench: Kernbench) -> None:
    status, document = _measured(kernbench, "--op", name, "-b", "1K", "-e", "4K", "-f", "4")
    assert status == 0
    assert document["collective"] == name
    assert document["ranks"] == 8
    for row in document["rows"]:
        assert row["out_of_place"]["wrong"] == 0
        assert row["out_of_place"]["time_us"] > 0
        if name in OUT_OF_PLACE_ONLY:
            assert row["in_place"] is None
        else:
            assert row["in_place"]["wrong"] == 0
            assert row["in_place"]["time_us"] > 0
    blocks = 8 if name in BLOCKS else 1
    assert [row["size_bytes"] for row in document["rows"]] == [1024, 4096]
    assert [row["count"] for row in document["rows"]] == [256 // blocks, 1024 // blocks]
    assert {row["redop"] for row in document["rows"]} == {"sum" if name in REDUCE else "none"}
    assert {row["root"] for row in document["rows"]} == {0 if name in ROOTED else -1}


@pytest.mark.parametrize("name", ALL)
def test_no_bandwidth_passes_the_bound_of_the_links(name: str, kernbench: Kernbench) -> None:
    argv = ("--op", name, "-b", "64M", "-e", "64M")
    _, document = _measured(kernbench, *argv, data=False, topology="sip8")
    bound = document["link_bound_gb_per_s"]
    # A SIP of the ring has two links of 50 GB/s. Of an all-to-all, 4 x 4 blocks of 8 MiB cross the
    # middle of the ring in one direction, over two links; the bus counts 7 / 8 of 64 MiB.
    by_hand = {"all_to_all": 7 / 8 * 64 / (4 * 4 * 8 / 100), "gather": None, "scatter": None}
    assert bound == by_hand.get(name, 100)
    (row,) = document["rows"]
    for side in (row["out_of_place"], row["in_place"]):
        if side is not None and bound is not None:
            assert side["busbw_gb_per_s"] <= bound


@pytest.mark.parametrize("name", ALL)
def test_bandwidths_follow_from_time_and_size(name: str, kernbench: Kernbench) -> None:
    """Formulas as in nccl-tests' doc/PERFORMANCE.md, written out for 4 ranks."""
    _, document = _measured(kernbench, "--op", name, "-b", "64K", "-e", "64K", "-g", "4")
    factor = {"all_reduce": 1.5, "broadcast": 1, "reduce": 1, "sendrecv": 1}.get(name, 0.75)
    (row,) = document["rows"]
    for side in (row["out_of_place"], row["in_place"]):
        if side is not None:
            algbw = 65536 / (side["time_us"] * 1e-6) / 1e9
            assert side["algbw_gb_per_s"] == pytest.approx(algbw)
            assert side["busbw_gb_per_s"] == pytest.approx(algbw * factor)


@pytest.mark.parametrize("name", ROOTED)
def test_any_rank_can_be_the_root(name: str, kernbench: Kernbench) -> None:
    argv = ("--op", name, "-r", "2", "-g", "4", "-b", "1000", "-e", "1000", "-d", "bfloat16")
    status, document = _measured(kernbench, *argv)
    assert status == 0
    (row,) = document["rows"]
    assert row["root"] == 2
    assert row["out_of_place"]["wrong"] == row["in_place"]["wrong"] == 0


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("name", REDUCE)
def test_every_reduction_is_right(name: str, redop: str, kernbench: Kernbench) -> None:
    argv = ("--op", name, "-o", redop, "-g", "4", "-b", "512", "-e", "512")
    status, document = _measured(kernbench, *argv)
    assert status == 0
    (row,) = document["rows"]
    assert row["redop"] == redop
    assert row["out_of_place"]["wrong"] == row["in_place"]["wrong"] == 0


@pytest.mark.parametrize("dtype", ["double", "half", "bfloat16", "int32", "int64", "int8", "uint8"])
@pytest.mark.parametrize("name", ["all_to_all", "reduce_scatter"])
def test_every_type_is_right(name: str, dtype: str, kernbench: Kernbench) -> None:
    argv = ("--op", name, "-d", dtype, "-g", "4", "-b", "1K", "-e", "1K", "-w", "0", "-n", "2")
    status, document = _measured(kernbench, *argv)
    assert status == 0
    (row,) = document["rows"]
    assert row["type"] == dtype
    assert row["size_bytes"] == 1024
    assert row["out_of_place"]["wrong"] == 0


@pytest.mark.parametrize("name", ALL)
def test_one_wrong_element_is_counted(
    name: str,
    kernbench: Kernbench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = OPERATIONS[name]

    def prepare(case: Case, source: Any, target: Any) -> Any:
        call = spec.prepare(case, source, target)

        def corrupted() -> Any:
            result = call()
            if case.rank == 0:
                result[-1] += 1
            return result

        return corrupted

    monkeypatch.setitem(OPERATIONS, name, dataclasses.replace(spec, prepare=prepare))
    argv = ("--op", name, "-b", "1K", "-e", "1K", "-g", "4", "-w", "0")
    status, document = _measured(kernbench, *argv)
    assert status == 1
    (row,) = document["rows"]
    assert row["out_of_place"]["wrong"] == 1
    assert name in OUT_OF_PLACE_ONLY or row["in_place"]["wrong"] == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("name", ALL)
def test_a_size_too_small_to_divide_is_a_row_of_nothing(name: str, kernbench: Kernbench) -> None:
    """As in nccl-tests, whose blocks are multiples of 16 bytes: `-b 8` is what everybody types."""
    status, document = _measured(kernbench, "--op", name, "-b", "8", "-e", "8")
    assert status == 0
    (row,) = document["rows"]
    assert (row["size_bytes"], row["count"]) == ((0, 0) if name in BLOCKS else (8, 2))
    assert row["out_of_place"]["wrong"] == 0


@pytest.mark.parametrize("name", ALL)
def test_time_does_not_depend_on_values(name: str, kernbench: Kernbench) -> None:
    argv = ("--op", name, "-b", "8K", "-e", "8K", "-g", "4")
    _, checked = _measured(kernbench, *argv)
    _, unchecked = _measured(kernbench, *argv, "-c", "0")
    status, without = _measured(kernbench, *argv, data=False)
    assert status == 0
    rows = [document["rows"][0]["out_of_place"] for document in (checked, unchecked, without)]
    assert [row["wrong"] for row in rows] == [0, None, None]
    assert len({row["time_us"] for row in rows}) == 1


def test_the_all_reduce_bench_is_one_of_them(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("-b", "1K", "-e", "16K", "-f", "4", "-d", "half", "-n", "2")
    _, document = _measured(kernbench, "--op", "all_reduce", *sizes, "-o", "max")
    table = capsys.readouterr().out
    with kernbench.context(arguments=(*sizes, "-o", "max")) as ctx:
        assert benches.ccl_allreduce.run(ctx) == 0
    assert ctx.results == [document]
    assert capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("name", "size", "itemsize", "count", "nbytes"),
    [
        # 1000 bytes are 250 floats; 31 for each of 8 ranks, of which 28 are a multiple of 16 bytes.
        ("all_reduce", 1000, 4, 250, 1000),
        ("broadcast", 1002, 4, 250, 1000),
        ("reduce", 1000, 4, 250, 1000),
        ("sendrecv", 1000, 4, 250, 1000),
        ("all_gather", 1000, 4, 28, 896),
        ("reduce_scatter", 1000, 4, 28, 896),
        ("gather", 1000, 4, 28, 896),
        ("scatter", 1000, 4, 28, 896),
        ("all_to_all", 1000, 4, 28, 896),
        ("all_to_all", 1000, 2, 56, 896),
        ("all_to_all", 1000, 1, 112, 896),
        ("all_gather", 127, 8, 0, 0),
        ("all_gather", 128, 8, 2, 128),
    ],
)
def test_sizes_are_counted_as_in_nccl_tests(
    name: str, size: int, itemsize: int, count: int, nbytes: int
) -> None:
    """Worked by hand from `*GetCollByteCount` in nccl-tests' src/."""
    assert OPERATIONS[name].count(size, itemsize, 8) == count
    assert OPERATIONS[name].nbytes(count, itemsize, 8) == nbytes


def _by_hand(name: str, ranks: int, root: int, count: int) -> list[list[int] | None]:
    """Returns every rank's result by the definition of the operation, a number at a time."""
    length = count * (ranks if OPERATIONS[name].input_blocks else 1)
    inputs = [values(name, r, ranks, 0, length, np.int64).tolist() for r in range(ranks)]

    def block(numbers: list[int], rank: int) -> list[int]:
        return numbers[rank * count : (rank + 1) * count]

    def joined(parts: Iterable[list[int]]) -> list[int]:
        return [number for part in parts for number in part]

    total = [sum(numbers) for numbers in zip(*inputs, strict=True)]
    results: dict[str, list[list[int] | None]] = {
        "all_reduce": [total] * ranks,
        "reduce": [total if r == root else inputs[r] for r in range(ranks)],
        "reduce_scatter": [block(total, r) for r in range(ranks)],
        "broadcast": [inputs[root]] * ranks,
        "scatter": [block(inputs[root], r) for r in range(ranks)],
        "all_gather": [joined(inputs)] * ranks,
        "gather": [joined(inputs) if r == root else None for r in range(ranks)],
        "all_to_all": [joined(block(given, r) for given in inputs) for r in range(ranks)],
        "sendrecv": [inputs[r - 1] for r in range(ranks)],
    }
    return results[name]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", ALL)
def test_what_is_right_follows_from_the_definition(name: str, ranks: int) -> None:
    root, count = (ranks - 1 if name in ROOTED else -1), 12
    redop = "sum" if name in REDUCE else "none"
    for rank, right in enumerate(_by_hand(name, ranks, root, count)):
        got = expected(name, redop, rank, ranks, root, count, np.int64)
        assert (None if got is None else got.tolist()) == right


@pytest.mark.parametrize("count", [4, 4096, 4093 * 4])
@pytest.mark.parametrize("name", ["broadcast", "scatter", "all_gather", "all_to_all", "sendrecv"])
def test_blocks_in_another_order_are_seen(name: str, count: int) -> None:
    ranks = 8
    root = 0 if name in ROOTED else -1
    inputs = [values(name, rank, ranks, 0, count * ranks, np.int8) for rank in range(ranks)]
    parts = [given[r * count : (r + 1) * count] for given in inputs for r in range(ranks)]
    # Rank 0's is shortest: after 4093 elements it begins anew.
    distinct = {part.tobytes() for part in parts}
    assert len(distinct) == len(parts) - (ranks - 1 if count % 4093 == 0 else 0)
    right = expected(name, "none", 1, ranks, root, count, np.int8)
    assert right is not None
    assert wrong_elements(np.roll(right, 1), right, "none", ranks) > count // 2


def test_roundings_are_no_mistakes_and_nan_is_one() -> None:
    right = np.array([3.0, 3.0, 3.0, 3.0], np.float32)
    near = np.array([3.0, 3.0 + 2**-21, 3.1, np.nan], np.float32)
    assert wrong_elements(near, right, "avg", 8) == 2
    assert wrong_elements(near, right, "sum", 8) == 3
    assert wrong_elements(near, right, "none", 128) == 3


def _sizes(*argv: str) -> tuple[int, ...]:
    return parse(argv, "ccl", "all_reduce").sizes


def test_sizes_step_or_multiply() -> None:
    assert _sizes("-b", "1K", "-e", "8K") == (1024, 2048, 4096, 8192)
    assert _sizes("-b", "1K", "-e", "5K", "-f", "4") == (1024, 4096)
    assert _sizes("-b", "1K", "-e", "4K", "-i", "1K") == (1024, 2048, 3072, 4096)
    assert _sizes("-b", "10", "-e", "30", "-i", "7") == (10, 17, 24)
    assert _sizes("-b", "64m", "-e", "64M", "-f", "1") == (1 << 26,)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "the following arguments are required: --op"),
        ("--op all_to_al", "did you mean `all_to_all`?"),
        ("--op sum", "sum is a reduction, which -o takes"),
        ("--op all_gather -o sum", "-o: all_gather reduces nothing"),
        ("--op all_gather -r 1", "-r: all_gather has no root"),
        ("--op all_reduce -r 0", "-r: all_reduce has no root"),
        ("--op all_reduce -o xor", "invalid choice: 'xor'"),
        ("--op all_reduce -o avg -d int32", "-o avg: of floats only, as in torch; -d int32 is"),
        ("--op reduce -d uint8 -o avg", "-o avg: of floats only, as in torch; -d uint8 is none"),
        ("--op broadcast -i 1K -f 2", "-i and -f: expected one of them"),
        ("--op broadcast -i 0", "-i: expected a step of 1 or more"),
        ("--op broadcast -f 1", "-f: expected a factor of 2 or more"),
        ("--op broadcast -b 2K -e 1K", "-b and -e: expected 0 < b <= e"),
        ("--op broadcast -b 5X", "expected a size such as 16M"),
        ("--op broadcast -n 0", "expected a number from 1 to 1000000"),
        ("--op broadcast -a 4", "invalid choice: 4"),
        ("--op broadcast --iter 4", "unrecognized arguments: --iter"),
    ],
)
def test_wrong_flags_are_told(argv: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        parse(argv.split(), "ccl")
    assert "usage: ccl" in str(caught.value)


@pytest.mark.parametrize(
    "flag",
    [option for names, _ in REFUSED for option in names],
)
@pytest.mark.parametrize("value", [[], ["1"]])
def test_flags_of_nccl_tests_without_a_meaning_are_refused(flag: str, value: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{flag} of nccl-tests has no meaning here: [a-z]"):
        parse(["--op", "all_gather", flag, *value], "ccl")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--op broadcast -g 9", "-g 9: one rank for each SIP, and sip8 has 8 SIPs"),
        ("--op broadcast -r 8", "-r 8: expected a rank from 0 to 7"),
        ("--op broadcast -g 4 -r 4", "-r 4: expected a rank from 0 to 3"),
        ("--op sendrecv -g 1", "a rank cannot send to itself"),
    ],
)
def test_what_the_machine_cannot_do_is_told(argv: str, said: str, kernbench: Kernbench) -> None:
    with (
        kernbench.context(arguments=argv.split()) as ctx,
        pytest.raises(UsageError, match=re.escape(said)),
    ):
        benches.ccl.run(ctx)


def test_the_time_is_that_of_the_chosen_ranks(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = measure.measure

    def skewed(rank: int, ranks: int, torch: Any, flags: Any) -> Any:
        (result,) = measured(rank, ranks, torch, flags)
        side = dataclasses.replace(result.out_of_place, time_ps=(rank + 2) * 10**6)
        return [dataclasses.replace(result, out_of_place=side)]

    monkeypatch.setattr(measure, "measure", skewed)
    times, dials = [], []
    for average in range(4):
        argv = ("--op", "all_reduce", "-b", "1K", "-e", "1K", "-g", "4", "-a", str(average))
        _, document = _measured(kernbench, *argv)
        times.append(document["rows"][0]["out_of_place"]["time_us"])
        dials.append(document["dials"].get("time"))
    assert times == [2.0, 3.5, 2.0, 5.0]
    assert dials == ["of rank 0", None, "least of ranks", "greatest of ranks"]
    assert "time greatest of ranks" in capsys.readouterr().out


def test_help_is_no_failure(kernbench: Kernbench, capsys: pytest.CaptureFixture[str]) -> None:
    with kernbench.context(arguments=["--help"]) as ctx, pytest.raises(SystemExit) as stop:
        benches.ccl.run(ctx)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--op OPERATION" in out
    assert "--nthreads" not in out


def _kernbench(args: Sequence[str], cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    code += "from kernbench.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("installed", [True, False])
def test_shipped_benches_run_from_anywhere(installed: bool, tmp_path: Path) -> None:
    """They share code, so it must be found wherever they lie: in a checkout, or in a wheel."""
    path, place = ROOT, tmp_path / "place"
    (place / "benches").mkdir(parents=True)
    (place / "benches" / "__init__.py").write_text("raise ImportError('of somebody else')\n")
    if installed:
        path = tmp_path / "site-packages"
        skipped = shutil.ignore_patterns("__pycache__", "_installed")
        shutil.copytree(ROOT / "kernbench", path / "kernbench", ignore=skipped)
        for folder in ("benches", "configs"):
            shutil.copytree(ROOT / folder, path / "kernbench" / "_installed" / folder)
    trace = tmp_path / "trace.json"
    args = ("run", "ccl", "--trace", str(trace), "--", "--op", "all_reduce", "-e", "1K")
    done = _kernbench(args, place, path)
    assert done.returncode == 0, done.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    sites = {event["args"]["call_site"] for event in events if "call_site" in event.get("args", {})}
    shared = path / ("kernbench/_installed/benches/nccl" if installed else "benches/nccl")
    files = {Path(site.rpartition(":")[0]) for site in sites}
    assert files == {shared / "measure.py", shared / "operations.py"}


def test_a_bench_in_a_package_of_its_own_can_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernbench.scripts.program import load_bench

    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "measuring_things" / "deeper"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "sizes_of_things.py").write_text("SIZES = (1, 2)\n")
    (package / "some_bench.py").write_text(
        "from measuring_things.deeper.sizes_of_things import SIZES\n"
        "import sizes_of_things\n"
        "def run(ctx):\n"
        "    return len(SIZES + sizes_of_things.SIZES)\n"
    )
    assert load_bench(package / "some_bench.py").run(None) == 4


def test_without_time_values_are_checked_and_no_time_is_shown(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--op", "all_reduce", "-b", "1K", "-e", "1K")
    _, document = _measured(kernbench, *argv, fidelity="functional")
    out = capsys.readouterr().out
    assert "# times: N/A (fidelity functional)\n" in out
    (row,) = (line for line in out.splitlines() if not line.startswith("#"))
    assert row.split()[5:] == ["N/A", "N/A", "N/A", "0"] * 2
    assert document["clock"] is None
    nothing = {"time_us": None, "algbw_gb_per_s": None, "busbw_gb_per_s": None, "wrong": 0}
    assert document["rows"][0]["out_of_place"] == document["rows"][0]["in_place"] == nothing
