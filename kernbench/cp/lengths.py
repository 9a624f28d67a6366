"""Cumulative lengths as the user gives them, checked, and the sequences that they make."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

import kernbench.torch as torch
from kernbench.cp.problem import Arguments, bad_option
from kernbench.cp.sequences import Sequences
from kernbench.parallel.members import refuse_option

Cumulative: TypeAlias = torch.Tensor | np.ndarray[Any, Any] | Sequence[int]
"""Cumulative lengths from 0 on; values of a tensor do not exist while data is off."""


def sequences_of(
    given: Arguments, kind: str, q: torch.Tensor, k: torch.Tensor, ranks: int
) -> tuple[Sequences, Sequences]:
    """Returns the sequences of queries, and those of keys.

    Args:
        kind: Of the mask.
        q: The rank's queries, as the user gave them.
        k: Its keys.
        ranks: How many share the sequences.

    Raises:
        OptionError: If lengths break a rule.
    """
    cus = [
        None if getattr(given, name) is None else cumulative(name, getattr(given, name))
        for name in (
            "cu_seqlens_q",
            "cu_seqlens_q_padded",
            "cu_seqlens_kv",
            "cu_seqlens_kv_padded",
        )
    ]
    if cus[2] is None and cus[3] is None:
        cus[2:] = cus[:2]
        names = ("cu_seqlens_q",) * 2
    else:
        names = ("cu_seqlens_q", "cu_seqlens_kv")
    if given.qkv_format == "thd":
        found = _packed(given, names, cus, (q.shape[0], k.shape[0]), ranks)
    else:
        if given.pad_between_seqs:
            raise bad_option(
                f"pad_between_seqs=True with qkv_format={given.qkv_format!r}",
                "only packed sequences (thd) have padding between them",
            )
        at = given.qkv_format.index("s")
        b = q.shape[1 - at]
        found = [
            _dense(names[i], cus[2 * i : 2 * i + 2], b, each.shape[at] * ranks, ranks, kind)
            for i, each in enumerate((q, k))
        ]
    for name, each in zip(("max_seqlen_q", "max_seqlen_kv"), found, strict=True):
        most = getattr(given, name)
        if most is None:
            continue
        if isinstance(most, bool) or not isinstance(most, int | np.integer):
            raise bad_option(f"{name}={most!r}", "expected an integer, or None")
        if max(each.used, default=0) > most:
            raise bad_option(f"a sequence has {max(each.used)} tokens, more than {name}={most}")
    return found[0], found[1]


def cumulative(name: str, given: Any) -> tuple[int, ...]:
    """Returns cumulative lengths as integers; of a tensor on a device the host waits for them.

    Args:
        name: What they are called in reports.
        given: A tensor, an array, or a sequence of integers.

    Raises:
        OptionError: If they are no integers, begin with another number than 0, or decrease.
    """
    values = given.tolist() if isinstance(given, torch.Tensor | np.ndarray) else given
    if not isinstance(values, list | tuple) or any(
        isinstance(each, bool) or not isinstance(each, int | np.integer) for each in values
    ):
        raise refuse_option(
            f"{name} holds no cumulative lengths", f"expected integers, got {given!r:.80}"
        )
    found = tuple(int(each) for each in values)
    if len(found) < 1 or found[0] != 0:
        raise refuse_option(f"{name} begins with {found[0] if found else 'nothing'}", "expected 0")
    for number, (before, after) in enumerate(pairwise(found)):
        if after < before:
            raise refuse_option(
                f"{name} decreases from {before} to {after} at sequence {number}",
                "cumulative lengths never decrease",
            )
    return found


def _lengths(cumulative: Sequence[int]) -> tuple[int, ...]:
    return tuple(b - a for a, b in pairwise(cumulative))


def _packed(
    given: Arguments,
    names: Sequence[str],
    cus: Sequence[tuple[int, ...] | None],
    rows: Sequence[int],
    ranks: int,
) -> list[Sequences]:
    between = given.pad_between_seqs
    for name, cu, padded in zip(names, cus[::2], cus[1::2], strict=True):
        if cu is None or padded is None:
            missing = name if cu is None else f"{name}_padded"
            raise bad_option(
                f"qkv_format='thd' needs {missing}",
                "cumulative lengths of all sequences of the batch: real ones, and allocated ones",
                hint=f"without padding {name}_padded is {name}",
            )
        if len(cu) != len(padded):
            raise bad_option(
                f"{name} has {len(cu)} entries, {name}_padded has {len(padded)}",
                "expected one more than sequences in both",
            )
        if between is False and cu != padded:
            raise bad_option(
                f"pad_between_seqs=False, but {name} and {name}_padded differ",
                f"{name} ends at {cu[-1]}, {name}_padded at {padded[-1]}",
                hint="leave pad_between_seqs out: it is inferred from them",
            )
    if len(cus[0] or ()) != len(cus[2] or ()):
        raise bad_option(
            f"{len(cus[0] or ()) - 1} sequences of queries, {len(cus[2] or ()) - 1} of keys",
            "sequence i of the queries sees sequence i of the keys",
        )
    pads = between is True or any(cus[at] != cus[at + 1] for at in (0, 2))
    return [
        _one_packed(names[i], cus[2 * i] or (), cus[2 * i + 1] or (), rows[i], ranks, pads)
        for i in range(2)
    ]


def _one_packed(
    name: str, cu: Sequence[int], padded: Sequence[int], rows: int, ranks: int, pads: bool
) -> Sequences:
    used, room = _lengths(cu), _lengths(padded)
    for number, (length, size) in enumerate(zip(used, room, strict=True)):
        if length > size:
            raise bad_option(
                f"sequence {number} has {length} tokens by {name}, and room for {size} by "
                f"{name}_padded"
            )
        if ranks > 1 and size % (2 * ranks):
            raise bad_option(
                f"sequence {number} of {name}_padded has {size} rows, which {ranks} ranks cannot "
                "share",
                f"{size} is not divisible by 2 * cp = {2 * ranks}",
                hint="kernbench.cp.pad_thd_sequences_for_cp pads ids and labels",
            )
    expected = padded[-1] // ranks
    if rows < expected or (rows > expected and not pads):
        raise bad_option(
            f"{rows} local rows, but {name}_padded[-1] / cp = {padded[-1]} / {ranks} = {expected}",
            "the tensors are this rank's share, the lengths those of the whole batch",
            hint="with pad_between_seqs=True further rows are padding" if rows > expected else "",
        )
    return Sequences(used, room, packed=True, tail=rows - expected)


def _dense(
    name: str,
    cus: Sequence[tuple[int, ...] | None],
    batch: int,
    length: int,
    ranks: int,
    kind: str,
) -> Sequences:
    if ranks > 1 and length % (2 * ranks):
        raise bad_option(
            f"a sequence of {length} tokens cannot be shared by {ranks} ranks",
            f"{length} is not divisible by 2 * cp = {2 * ranks}: {length // ranks} local tokens "
            "are not even",
        )
    cu, padded = cus
    full = tuple(length * i for i in range(batch + 1))
    if padded is not None and padded != full:
        raise bad_option(
            f"{name}_padded={list(padded)} with {batch} sequences of {length} rows",
            f"without packing it is {list(full)}, or left out",
        )
    if "padding" not in kind:
        if cu is not None and cu != full:
            raise bad_option(
                f"{name}={list(cu)} with attn_mask_type={kind!r}",
                f"without a padding mask each of {batch} sequences has {length} tokens: "
                f"{list(full)}, or left out",
                hint="'padding' and 'padding_causal' take shorter sequences",
            )
        return Sequences((length,) * batch, (length,) * batch, packed=False)
    if cu is None:
        raise bad_option(
            f"attn_mask_type={kind!r} needs {name}", "cumulative numbers of tokens of the batch"
        )
    used = _lengths(cu)
    if len(used) != batch:
        raise bad_option(f"{name} has {len(used)} sequences for a batch of {batch}")
    if max(used, default=0) > length:
        raise bad_option(f"{name} has a sequence of {max(used)} tokens, in rows for {length}")
    return Sequences(used, (length,) * batch, packed=False)
