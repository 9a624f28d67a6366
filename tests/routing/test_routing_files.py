"""Routings in files: what is read, and what is refused, with its line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench.routing import Asked, RoutingError, routing_of
from kernbench.routing.files import write_routing

HEADER = {"schema": 1, "experts": 4, "topk": 2, "tokens_per_rank": [3, 0]}
ROW = {"step": 0, "layer": 0, "rank": 0}


def _file(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_choices_come_back_as_they_were_written(tmp_path: Path) -> None:
    path, chosen = tmp_path / "r.jsonl", np.array([[0, 3], [1, 2], [0, 1]])
    empty = np.empty((0, 2), np.int64)
    write_routing(path, 4, 2, [(0, 5, 0, chosen), (0, 5, 1, empty)])
    routing = routing_of(str(path))
    found = routing.choices(Asked(0, 5, 0, 3, 4, 2))
    assert found.experts.tolist() == chosen.tolist()
    assert found.counts.tolist() == [2, 2, 1, 1]
    assert found.gates is None
    assert routing.choices(Asked(0, 5, 1, 0, 4, 2)).counts.tolist() == [0] * 4
    assert [routing.tokens_of(rank) for rank in (0, 1)] == [3, 0]


def test_counts_alone_give_each_expert_its_rows_and_no_token_one_twice(tmp_path: Path) -> None:
    name = _file(tmp_path / "r", HEADER, {**ROW, "counts": [3, 0, 1, 2]})
    found = routing_of(name).choices(Asked(0, 0, 0, 3, 4, 2))
    assert found.counts.tolist() == [3, 0, 1, 2]
    assert (found.experts[:, 0] < found.experts[:, 1]).all()


GOOD = [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"experts": [[0, 1], [1, 1], [2, 3]]}, "r:2: token 1 chooses an expert twice: [1, 1]"),
        (
            {"experts": [[0, 1], [1, 2], [2, 4]]},
            "r:2: token 2 chooses [2, 4]; expected experts 0 to 3",
        ),
        ({"experts": GOOD[:2]}, "experts: expected whole numbers of shape [3, 2]"),
        ({"experts": [[0, 1], [1, 2], [2.5, 3]]}, "expected whole numbers of shape [3, 2]"),
        ({"experts": [0, 1, 1, 2, 2, 3]}, "expected whole numbers of shape [3, 2]"),
        ({"experts": [["0", "1"]] * 3}, "expected whole numbers of shape [3, 2]"),
        ({"experts": [[0, 1], [1, 2], [2]]}, "expected whole numbers of shape [3, 2]"),
        ({"experts": [[0, 1], [1, 2], [2, 10**400]]}, "expected whole numbers of shape [3, 2]"),
        ({"counts": [[2, 2], [1, 1]]}, "counts: expected whole numbers of shape [4]"),
        (
            {"counts": [2, 2, 1, 1], "gates": [[0.5, 0.5]] * 3},
            "gates: expected them beside experts",
        ),
        ({"experts": GOOD, "gate": [[0.5, 0.5]] * 3}, "got 'gate'\n  hint: did you mean `gates`?"),
        ({"counts": [3, 1, 1, 0]}, "counts add up to 5, the largest is 3"),
        ({"counts": [4, 1, 1, 0]}, "counts add up to 6, the largest is 4"),
        ({"counts": [3, 3, 1, -1]}, "counts add up to 6"),
        ({"experts": GOOD, "gates": [[0.5, 0.5]] * 2 + [[float("nan"), 1]]}, "gates of token 2"),
        ({"experts": GOOD, "gates": [[0.5, 0.5]] * 2 + [[-0.5, 1.5]]}, "gates of token 2"),
        ({"experts": GOOD, "gates": [[0.5, 0.6]] + [[0.5, 0.5]] * 2}, "gates of token 0"),
        ({"experts": GOOD, "counts": [1, 2, 2, 1]}, "expected either experts or counts"),
        ({"experts": GOOD, "rank": 2}, "rank 2: the header has 2 ranks"),
        ({"experts": GOOD, "step": -1}, "step: expected a number of 0 or more, got -1"),
    ],
)
def test_a_line_that_is_wrong_is_told_by_its_number(
    tmp_path: Path, line: dict[str, Any], said: str
) -> None:
    with pytest.raises(RoutingError) as caught:
        routing_of(_file(tmp_path / "r", HEADER, {**ROW, **line}))
    assert said in str(caught.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    row = {**ROW, "experts": GOOD}
    for lines, said in (
        ([], "no header"),
        ([{**HEADER, "schema": 2}], "schema: expected 1, got 2"),
        ([{**HEADER, "top_k": 2}], "got 'top_k'"),
        ([{**HEADER, "topk": 5}], "topk 5 of 4 experts"),
        ([[1]], "expected an object"),
        ([HEADER, row, row], r"\(0, 0, 0\) are there twice"),
    ):
        with pytest.raises(RoutingError, match=said):
            routing_of(_file(tmp_path / "r", *lines))
    (tmp_path / "r").write_text("{", encoding="utf-8")
    with pytest.raises(RoutingError, match="r:1: no JSON"):
        routing_of(str(tmp_path / "r"))
    for content, said in (
        (b"\n\xff\xfe\n", "r:2: expected UTF-8; byte 0 is none"),
        (b"[" * 100_000, "r:1: expected lists in an object, got deeper nesting"),
    ):
        (tmp_path / "r").write_bytes(content)
        with pytest.raises(RoutingError, match=said):
            routing_of(str(tmp_path / "r"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(1, 0, 0, 3, 4, 2), "nothing of step 1 of layer 0, rank 0"),
        (Asked(0, 0, 0, 5, 4, 2), "tokens of rank 0: the file has 3, the program 5"),
        (Asked(0, 0, 0, 3, 8, 2), "experts: the file has 4, the program 8"),
        (Asked(0, 0, 0, 3, 4, 1), "topk: the file has 2, the program 1"),
        (Asked(0, 0, 2, 3, 4, 2), "no tokens of rank 2"),
    ],
)
def test_what_does_not_fit_the_program_is_told_with_both_numbers(
    tmp_path: Path, asked: Asked, said: str
) -> None:
    routing = routing_of(_file(tmp_path / "r", HEADER, {**ROW, "experts": GOOD}))
    with pytest.raises(RoutingError, match=said):
        routing.choices(asked)
