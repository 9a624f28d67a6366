"""Two documents of results, compared: figures, rows, what fails."""

import copy
import math
from fractions import Fraction
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.report import RangeBreakdown
from kernbench.run_spec import RunSpec
from kernbench.sweeps.comparing import Comparison, compare
from kernbench.sweeps.figures import is_whole_time, kind_of

SPEC = RunSpec(bench="ccl").to_json()


def nccl(times: dict[tuple[int, str, str], float], **more: Any) -> dict[str, Any]:
    """Returns the results of nccl tables: times by size, type, and out of or in place."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for (size, dtype, place), us in times.items():
        row = rows.setdefault(
            (size, dtype),
            {
                "size_bytes": size,
                "count": size // 4,
                "type": dtype,
                "redop": "sum",
                "root": -1,
                "algorithm": "ring",
                "out_of_place": None,
                "in_place": None,
            },
        )
        row[place] = {"time_us": us, "busbw_gb_per_s": size / us / 1e3 if us else None, "wrong": 0}
    return {
        "schema_version": 1,
        "clock": "simulated",
        "collective": "all_reduce",
        "machine": "sip8",
        "ranks": 8,
        "algorithm": "auto",
        "dials": {"data": "on"},
        "rows": list(rows.values()),
        "average_busbw_gb_per_s": 1.0,
        **more,
    }


def run(*results: Any, **more: Any) -> dict[str, Any]:
    return {"kernbench": 1, "run": "a run", "spec": SPEC, "results": list(results), **more}


def record(varied: dict[str, str], *results: Any, **more: Any) -> dict[str, Any]:
    return {
        "spec": SPEC,
        "varied": varied,
        "ok": True,
        "results": list(results),
        "sim_ps": 10,
        "failure": None,
        "report": "",
        "wall_s": 0.1,
        **more,
    }


def sweep(*records: dict[str, Any]) -> dict[str, Any]:
    return {"kernbench": 1, "sweep": {}, "records": list(records)}


TIMES = st.dictionaries(
    st.tuples(
        st.sampled_from([1 << n for n in range(8, 20)]),
        st.sampled_from(["float", "half"]),
        st.sampled_from(["out_of_place", "in_place"]),
    ),
    st.integers(0, 50).map(lambda n: n / 4),
    max_size=12,
)


def expected(
    before: dict[Any, float], after: dict[Any, float], percent: int
) -> tuple[int, int, int, int, int]:
    """Returns how many are slower, faster, the same, only before and only after."""
    slower = faster = same = 0
    for key in before.keys() & after.keys():
        # Quarters times 100 are exact integers, in both sides of each comparison.
        one, other = round(before[key] * 400), round(after[key] * 400)
        if other * 100 > one * (100 + percent):
            slower += 1
        elif other * 100 < one * (100 - percent):
            faster += 1
        else:
            same += 1
    return (
        slower,
        faster,
        same,
        len(before.keys() - after.keys()),
        len(after.keys() - before.keys()),
    )


@settings(max_examples=examples(50))
@given(TIMES, TIMES, st.integers(0, 60))
def test_what_is_found_is_what_the_times_say(
    before: dict[Any, float], after: dict[Any, float], percent: int
) -> None:
    slower, faster, same, lost, new = expected(before, after, percent)
    documents = run(nccl(before)), run(nccl(after))
    if not before.keys() & after.keys():
        with pytest.raises(UsageError, match="no figure in common"):
            compare(*documents, tolerance=Fraction(percent, 100))
        return
    found = compare(*documents, tolerance=Fraction(percent, 100))
    verdicts = [row.verdict for row in found.rows]
    assert [verdicts.count(each) for each in ("slower", "faster", "same")] == [slower, faster, same]
    assert (len(found.only_before), len(found.only_after)) == (lost, new)
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict != "slower")
    ratios = [row.ratio for row in found.rows if row.verdict == "slower"]
    assert ratios == sorted(ratios, reverse=True)
    assert found.passed() == (not slower and not lost and not new)
    assert found.passed(only_common=True) == (not slower)
    assert found.passed(both=True, only_common=True) == (not slower and not faster)


@settings(max_examples=examples(30))
@given(TIMES.filter(bool))
def test_a_document_is_as_good_as_itself(times: dict[Any, float]) -> None:
    for document in (run(nccl(times)), sweep(record({"a": "1"}, nccl(times)), record({"a": "2"}))):
        found = compare(document, copy.deepcopy(document))
        assert found.passed(both=True)
        assert not found.differences
        assert all(row.ratio == 1 for row in found.rows)


@settings(max_examples=examples(30))
@given(TIMES, TIMES)
def test_the_other_way_round_ratios_are_inverse(
    before: dict[Any, float], after: dict[Any, float]
) -> None:
    common = before.keys() & after.keys()
    if not common:
        return
    there = compare(run(nccl(before)), run(nccl(after)))
    back = compare(run(nccl(after)), run(nccl(before)))
    assert set(there.only_before) == set(back.only_after)
    assert set(there.only_after) == set(back.only_before)
    inverse = {(row.row, row.figure): row for row in back.rows}
    for row in there.rows:
        other = inverse[row.row, row.figure]
        assert (row.before, row.after) == (other.after, other.before)
        if row.before and row.after:
            assert row.ratio * other.ratio == pytest.approx(1)
        assert {"slower": "faster", "faster": "slower", "same": "same"}[
            row.verdict
        ] == other.verdict


def compared(before: Any, after: Any, **options: Any) -> Comparison:
    return compare(run(before), run(after), **options)


ONE = {(1024, "float", "out_of_place"): 4.0}


def test_runs_that_measure_nothing_themselves_are_compared_by_their_ends() -> None:
    def ended(sim_ps: int, *results: Any) -> dict[str, Any]:
        return {**run(*results), "sim_ps": sim_ps}

    compared = compare(ended(2000), ended(3000))
    assert [(row.figure, row.before, row.after) for row in compared.rows] == [
        ("sim_ps", 2000, 3000)
    ]
    compared = compare(ended(2000, {"time_us": 1}), ended(3000, {"time_us": 1}))
    assert [row.figure for row in compared.rows] == ["time_us"]


def test_rows_are_told_by_what_they_are_about_and_not_by_how_they_came_out() -> None:
    (row,) = compared(nccl(ONE), nccl(ONE)).rows
    assert (row.row, row.figure) == (
        "all_reduce / size_bytes=1024 float sum",
        "out_of_place.time_us",
    )
    other = nccl({(1024, "float", "out_of_place"): 5.0}, ranks=4)
    other["rows"][0]["algorithm"] = "tree"
    found = compared(nccl(ONE), other)
    assert [row.verdict for row in found.rows] == ["slower"]
    assert [(each.name, each.before, each.after) for each in found.differences] == [
        ("ranks", "8", "4"),
        ("algorithm", "ring", "tree"),
    ]


@pytest.mark.parametrize(
    "change",
    [{"collective": "all_gather"}, {"rows": nccl({(1024, "half", "in_place"): 4})["rows"]}],
)
def test_other_operations_and_types_are_other_rows(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no figure in common"):
        compared(nccl(ONE), nccl(ONE, **change))


def test_a_size_that_is_measured_twice_is_two_rows() -> None:
    twice = nccl(ONE)
    twice["rows"] *= 2
    rows = [row.row for row in compared(twice, twice).rows]
    assert rows == [
        "all_reduce / size_bytes=1024 float sum count=256 root=-1",
        "all_reduce / size_bytes=1024 float sum count=256 root=-1 #2",
    ]


@pytest.mark.parametrize(
    ("keys", "kind", "whole"),
    [
        (("time_us",), "time", True),
        (("us",), "time", True),
        (("times", "us"), "time", True),
        (("step_us", "forward"), "time", True),
        (("sim_ps",), "time", True),
        (("compute_ps",), "time", False),
        (("times", "exposed_us"), "time", False),
        (("wall_s",), "time", False),
        (("busbw_gb_per_s",), "rate", False),
        (("sent_bytes",), "bytes", False),
        (("gpus",), "other", False),
        (("losses",), "other", False),
    ],
)
def test_a_key_says_what_its_number_is(keys: tuple[str, ...], kind: str, whole: bool) -> None:
    assert (kind_of(keys), is_whole_time(keys)) == (kind, whole)


def test_no_part_of_a_breakdown_is_a_time_of_its_own() -> None:
    names = [name for name in RangeBreakdown.__slots__ if name.endswith("_ps")]
    assert names
    assert not any(is_whole_time([name]) for name in names)


def model(step_us: float, idle_ps: int, sent: int) -> dict[str, Any]:
    return {
        "bench": "mine",
        "clock": "simulated",
        "sections": [
            {
                "name": "forward",
                "step_us": step_us,
                "sent_bytes": sent,
                "losses": [1.0],
                "breakdown": [{"rank": rank, "name": "row", "idle_ps": idle_ps} for rank in (0, 1)],
            }
        ],
    }


def test_parts_and_bytes_are_compared_if_they_are_named() -> None:
    one, other = model(2.0, 100, 10), model(2.0, 300, 12)
    assert compared(one, other).passed()
    parts = compared(one, other, metrics=["idle_ps"])
    assert [(row.row, row.ratio) for row in parts.rows] == [
        ("mine / sections / forward / breakdown / rank=0 row", 3.0),
        ("mine / sections / forward / breakdown / rank=1 row", 3.0),
    ]
    both = compared(one, other, metrics=["sent_bytes", "step_us"])
    assert [row.verdict for row in both.rows] == ["more", "same"]


def test_a_larger_bandwidth_is_faster() -> None:
    more = {(1024, "float", "out_of_place"): 2.0}
    found = compared(nccl(ONE), nccl(more), metrics=["out_of_place.busbw_gb_per_s"])
    assert [(row.verdict, row.ratio) for row in found.rows] == [("faster", 2.0)]
    assert not compared(nccl(more), nccl(ONE), metrics=["busbw_gb_per_s"]).passed()


def test_a_time_from_nothing_is_infinitely_slower() -> None:
    zero = nccl({(1024, "float", "out_of_place"): 0.0})
    (row,) = compared(zero, nccl(ONE), tolerance=Fraction(9)).rows
    assert (row.verdict, row.ratio) == ("slower", math.inf)
    assert row.to_json()["ratio"] is None


def test_runs_of_a_sweep_are_told_by_what_is_varied() -> None:
    one = sweep(record({"--op": "a", "n": "4"}, nccl(ONE)), record({"--op": "b", "n": "4"}))
    other = sweep(record({"--op": "b", "n": "4"}, sim_ps=12), record({"--op": "c", "n": "4"}))
    found = compare(one, other)
    assert [(row.row, row.figure, row.ratio) for row in found.rows] == [
        ("--op=b n=4", "sim_ps", 1.2)
    ]
    assert (found.only_before, found.only_after) == (["--op=a n=4"], ["--op=c n=4"])


def test_a_run_and_a_sweep_are_not_compared() -> None:
    with pytest.raises(UsageError, match=r"before has n=1; n=2\n  after has ccl\n"):
        compare(sweep(record({"n": "1"}), record({"n": "2"})), run(nccl(ONE)))


@pytest.mark.parametrize(
    ("before", "after", "where", "passed", "common"),
    [
        (True, False, "failed_after", False, False),
        (False, True, "failed_before", False, True),
        (False, False, "failed_both", True, True),
    ],
)
def test_a_run_that_has_failed_is_told(
    before: bool, after: bool, where: str, passed: bool, common: bool
) -> None:
    one, other = (
        sweep(record({"n": "1"}, nccl(ONE)), record({"n": "2"}, ok=ok)) for ok in (before, after)
    )
    found = compare(one, other)
    assert getattr(found, where) == ["n=2"]
    assert {row.row for row in found.rows} == {
        "n=1",
        "n=1 / all_reduce / size_bytes=1024 float sum",
    }
    assert found.passed() is passed
    assert found.passed(only_common=True) is common


def test_a_failed_run_fails_though_nothing_is_compared() -> None:
    found = compare(run(nccl(ONE)), run(failure={"class": "Error"}))
    assert found.failed_after == ["ccl"]
    assert not found.passed(only_common=True)
    with pytest.raises(UsageError, match="failed in both: ccl"):
        compare(run(failure={}), run(failure={}))


def test_the_specifications_differences_are_told() -> None:
    other = run(nccl(ONE)) | {"spec": RunSpec(bench="ccl", overrides=("system.name=x",)).to_json()}
    (told,) = compare(run(nccl(ONE)), other).differences
    assert (told.name, told.before, told.after) == ("spec.overrides", "none", "system.name=x")


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {},
        {"kernbench": 2, "results": []},
        {"kernbench": 1, "spec": {}},
        {"kernbench": 1, "spec": {}, "results": 3},
        {"kernbench": 1, "spec": None, "results": []},
        {"kernbench": 1, "records": 3},
        {"kernbench": 1, "records": [3]},
        {"kernbench": 1, "records": [{"varied": {}, "ok": True}]},
    ],
)
def test_what_is_no_document_of_results_is_refused(document: Any) -> None:
    for pair in ((document, run(nccl(ONE))), (run(nccl(ONE)), document)):
        with pytest.raises(UsageError, match=r"holds no results of kernbench"):
            compare(*pair)


def test_an_unknown_figure_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean `busbw_gb_per_s`\?"):
        compared(nccl(ONE), nccl(ONE), metrics=["busbw_gb_per"])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["a", "b_us", "us", "c_bytes", "rows"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(VALUES, VALUES)
def test_any_results_are_compared_or_refused(one: Any, other: Any) -> None:
    try:
        found = compare(run(one), run(other))
    except UsageError:
        return
    assert len({(row.row, row.figure) for row in found.rows}) == len(found.rows)
    found.to_json()
