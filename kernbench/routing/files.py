"""Routings in files: JSON lines, a header and then a line for each step, layer and rank.

| field | meaning |
|---|---|
| `schema` | 1, in the header |
| `experts`, `topk`, `tokens_per_rank` | of the layers: numbers, and a list; in the header |
| `step`, `layer`, `rank` | whose line |
| `experts` | the choices of each token, `[[e, ..], ..]`; or |
| `counts` | how many rows each expert gets from this rank |
| `gates` | weights of the choices, of the same shape; optional |
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kernbench.config.near import did_you_mean
from kernbench.routing.choices import Array, Asked, Choices, Routing, RoutingError, spread

SCHEMA: Final = 1

_HEADER: Final = ("schema", "experts", "topk", "tokens_per_rank")
_ROW: Final = ("step", "layer", "rank", "experts", "counts", "gates")

_SUM: Final = 1e-3
"""How far the gates of a token may be from 1 in all: those of 16-bit floats are rounded."""


@dataclass(frozen=True)
class _Header:
    """The first line of a file.

    Attributes:
        experts: Experts of each layer.
        topk: Choices of a token.
        tokens: Tokens of each rank.
    """

    experts: int
    topk: int
    tokens: tuple[int, ...]


class Recorded(Routing):
    """A routing from a file."""

    def __init__(
        self, name: str, header: _Header, rows: Mapping[tuple[int, int, int], Choices]
    ) -> None:
        super().__init__(name)
        self._header = header
        self._rows = rows

    def tokens_of(self, rank: int) -> int:
        """Returns the tokens of a rank, from the header.

        Raises:
            RoutingError: If the header has fewer ranks.
        """
        if rank >= len(self._header.tokens):
            raise RoutingError(
                f"{self.name}: no tokens of rank {rank} among those that share the experts",
                [f"tokens_per_rank has {len(self._header.tokens)} numbers"],
            )
        return self._header.tokens[rank]

    def choices(self, asked: Asked) -> Choices:
        """Returns the choices of a line.

        Raises:
            RoutingError: If there is none, or the header does not fit the program.
        """
        header = self._header
        for what, theirs, ours in (
            ("experts", header.experts, asked.experts),
            ("topk", header.topk, asked.topk),
            (f"tokens of rank {asked.rank}", self.tokens_of(asked.rank), asked.tokens),
        ):
            if theirs != ours:
                raise RoutingError(
                    f"{self.name}: {what}: the file has {theirs}, the program {ours}",
                    [f"in step {asked.step} of layer {asked.layer}"],
                )
        found = self._rows.get((asked.step, asked.layer, asked.rank))
        if found is None:
            raise RoutingError(
                f"{self.name}: nothing of step {asked.step} of layer {asked.layer}, "
                f"rank {asked.rank}",
                hint="a step is a call of the layer, from 0",
            )
        return found


def read_routing(path: str) -> Recorded:
    """Reads a file.

    Raises:
        RoutingError: If it cannot be read, or is not well formed; with the number of the line.
    """
    rows: dict[tuple[int, int, int], Choices] = {}
    header: _Header | None = None
    for where, line in _lines_of(path):
        _check_names(line, _HEADER if header is None else _ROW, where)
        if header is None:
            header = _header_of(line, where)
            continue
        whose = tuple(_whole(line, name, where) for name in ("step", "layer", "rank"))
        if whose in rows:
            raise RoutingError(f"{where}: step, layer and rank {whose} are there twice")
        rows[whose[0], whose[1], whose[2]] = _choices_of(line, whose[2], header, where)
    if header is None:
        raise RoutingError(f"{path}: no header")
    return Recorded(path, header, rows)


def _lines_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a file, each with its place."""
    try:
        with Path(path).open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    where = f"{path}:{number}"
                    yield where, _object_of(text, where)
    except OSError as error:
        raise RoutingError(f"{path}: cannot be read: {error.strerror or error}") from None


def _object_of(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise RoutingError(f"{where}: expected UTF-8; byte {error.start} is none") from None
    except ValueError as error:
        raise RoutingError(f"{where}: no JSON: {error}") from None
    except RecursionError:
        raise RoutingError(f"{where}: expected lists in an object, got deeper nesting") from None
    if not isinstance(line, dict):
        raise RoutingError(f"{where}: expected an object of JSON, got {line!r:.40}")
    return line


def _check_names(line: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in line:
        if name not in known:
            raise RoutingError(
                f"{where}: expected fields of {', '.join(known)}; got {name!r:.40}",
                hint=did_you_mean(name, known),
            )


def write_routing(
    path: str | Path, experts: int, topk: int, rows: Iterable[tuple[int, int, int, Array]]
) -> None:
    """Writes a file of choices.

    Args:
        path: Of the file.
        experts: Experts of each layer.
        topk: Choices of a token.
        rows: Step, layer, rank and choices `[tokens, topk]`.
    """
    every = list(rows)
    tokens = dict(sorted((rank, len(chosen)) for _, _, rank, chosen in every))
    header = {"schema": SCHEMA, "experts": experts, "topk": topk}
    lines = [{**header, "tokens_per_rank": [*tokens.values()]}]
    lines += [
        {"step": step, "layer": layer, "rank": rank, "experts": chosen.tolist()}
        for step, layer, rank, chosen in every
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    Path(path).write_text(text, encoding="utf-8")


def _header_of(line: Mapping[str, Any], where: str) -> _Header:
    if line.get("schema") != SCHEMA:
        raise RoutingError(f"{where}: schema: expected {SCHEMA}, got {line.get('schema')!r}")
    experts, topk = _whole(line, "experts", where, 1), _whole(line, "topk", where, 1)
    tokens = line.get("tokens_per_rank")
    if not isinstance(tokens, list) or not tokens or any(not _is_whole(each) for each in tokens):
        raise RoutingError(f"{where}: tokens_per_rank: expected whole numbers, got {tokens!r:.40}")
    if topk > experts:
        raise RoutingError(f"{where}: topk {topk} of {experts} experts")
    return _Header(experts, topk, tuple(tokens))


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _whole(line: Mapping[str, Any], name: str, where: str, least: int = 0) -> int:
    value = line.get(name)
    if not _is_whole(value, least):
        raise RoutingError(f"{where}: {name}: expected a number of {least} or more, got {value!r}")
    return int(value)  # type: ignore[arg-type]


def _choices_of(line: Mapping[str, Any], rank: int, header: _Header, where: str) -> Choices:
    if rank >= len(header.tokens):
        raise RoutingError(f"{where}: rank {rank}: the header has {len(header.tokens)} ranks")
    shape = header.tokens[rank], header.topk
    if ("experts" in line) == ("counts" in line):
        raise RoutingError(f"{where}: expected either experts or counts")
    if "counts" in line and "gates" in line:
        raise RoutingError(f"{where}: gates: expected them beside experts, not counts")
    if "counts" in line:
        counts = _array(line["counts"], (header.experts,), "counts", np.int64, where)
        if counts.sum() != shape[0] * shape[1] or counts.min() < 0 or counts.max() > shape[0]:
            raise RoutingError(
                f"{where}: counts add up to {counts.sum()}, the largest is {counts.max()}",
                [f"expected {shape[0]} x {shape[1]} in all, and at most {shape[0]} of one expert"],
            )
        chosen = spread(counts, *shape)
    else:
        chosen = _array(line["experts"], shape, "experts", np.int64, where)
        outside = (chosen < 0) | (chosen >= header.experts)
        if outside.any():
            token = int(np.flatnonzero(outside.any(axis=1))[0])
            raise RoutingError(
                f"{where}: token {token} chooses {chosen[token].tolist()}; expected experts 0 to "
                f"{header.experts - 1}"
            )
        ordered = np.sort(chosen, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if twice.any():
            token = int(np.flatnonzero(twice)[0])
            raise RoutingError(
                f"{where}: token {token} chooses an expert twice: {chosen[token].tolist()}"
            )
    gates = None
    if "gates" in line:
        gates = _array(line["gates"], shape, "gates", np.float64, where)
        wrong = ~(gates >= 0).all(axis=1) | ~(np.abs(gates.sum(axis=1) - 1) <= _SUM)
        if wrong.any():
            token = int(np.flatnonzero(wrong)[0])
            raise RoutingError(
                f"{where}: gates of token {token}: {gates[token].tolist()}",
                ["expected numbers from 0, which add up to 1"],
            )
    return Choices(chosen, gates, header.experts)


def _array(value: Any, shape: tuple[int, ...], name: str, dtype: Any, where: str) -> Array:
    """Returns nested lists of numbers as an array; `[]` is one of any shape without elements."""
    try:
        found = np.array(value)
    except ValueError:
        found = np.empty(0, np.object_)
    if found.size == 0 and 0 in shape:
        found = np.empty(shape, dtype)
    kinds = "iu" if dtype is np.int64 else "iuf"
    if found.shape != shape or found.dtype.kind not in kinds:
        kind = "whole numbers" if dtype is np.int64 else "numbers"
        raise RoutingError(f"{where}: {name}: expected {kind} of shape {list(shape)}")
    return found.astype(dtype)
