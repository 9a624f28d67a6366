"""What `cp_attention` is called with, checked, and as one value for all schemes.

All that can be refused is refused here, before a message is sent.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.cp.problem import Members, Problem
from kernbench.cp.sequences import Sequences
from kernbench.errors import (
    OperandError,
    OptionError,
    UnsupportedError,
    call_site,
    site_fact,
    warn_at_call,
)
from kernbench.parallel.members import Group, size_of

Groups: TypeAlias = Group | Sequence[Group] | None
Lengths: TypeAlias = "torch.Tensor | np.ndarray[Any, Any] | Sequence[int] | None"

COMM_TYPES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
FORMATS: Final = {"bshd": 4, "sbhd": 4, "thd": 3}
MASKS: Final = ("no_mask", "causal", "padding", "padding_causal")
SOFTMAXES: Final = ("vanilla", "off-by-one", "learnable")


class Arguments(NamedTuple):
    """What `cp_attention` is called with but for tensors of heads; see there."""

    cp_group: Any
    cp_comm_type: Any
    qkv_format: Any
    attn_mask_type: Any
    window_size: Any
    softmax_type: Any
    softmax_scale: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    cu_seqlens_q_padded: Any
    cu_seqlens_kv_padded: Any
    max_seqlen_q: Any
    max_seqlen_kv: Any
    pad_between_seqs: Any
    return_max_logit: Any
    grad_comm_dtype: Any
    cp_stream: Any


def bad_option(text: str, *facts: str, hint: str = "") -> OptionError:
    """Returns the error of a refused argument, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report.
        hint: What to try.
    """
    return OptionError(f"cp_attention: {text}", [site_fact(call_site()), *facts], hint=hint)


def problem_of(
    given: Arguments,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Problem:
    """Returns what is computed.

    Args:
        given: The other arguments.
        q: As the user gave it; so are the others.
        k: Keys.
        v: Values.
        sink: `softmax_offset`.
        bias: `core_attention_bias`.

    Raises:
        OptionError: If a value breaks a rule.
        OperandError: If a tensor is none.
        UnsupportedError: If a bias is given to another scheme than `p2p`, or with packed tokens.
        GroupError: If the calling rank may not use a group (C8, C18).
        GroupMismatchError: If another rank called it differently (C9).
    """
    _one_of("cp_comm_type", given.cp_comm_type, COMM_TYPES, "Unsupported communication type")
    _one_of("qkv_format", given.qkv_format, tuple(FORMATS), "unknown qkv_format")
    _one_of("softmax_type", given.softmax_type, SOFTMAXES, "unknown softmax_type")
    check_bool("return_max_logit", given.return_max_logit)
    if given.pad_between_seqs is not None:
        check_bool("pad_between_seqs", given.pad_between_seqs)
    inner, outer = _members(given)
    _check_tensors(given.qkv_format, q, k, v)
    kind, mask = _mask(given)
    heads, groups = q.shape[-2], k.shape[-2]
    for name, count in (("query", heads), ("key/value", groups)):
        if count % inner.size:
            raise bad_option(
                f"{count} {name} heads cannot be shared by {inner.size} ranks",
                f"cp_comm_type={given.cp_comm_type!r} exchanges heads: {count} is not divisible "
                f"by {inner.size}",
                hint="p2p and all_gather take any number of heads",
            )
    ranks = inner.size * outer.size
    queries, keys = _sequences(given, kind, q, k, ranks)
    _check_sink(given.softmax_type, sink, heads)
    if bias is not None:
        _check_bias(given, bias, q, k, ranks)
    problem = Problem(
        given.cp_comm_type,
        1 if given.qkv_format == "bshd" else 0,
        queries,
        keys,
        mask,
        _scale(given.softmax_scale, q.shape[-1]),
        inner,
        outer,
        given.return_max_logit,
        _message(given.grad_comm_dtype, q.dtype),
        _stream(given.cp_stream),
    )
    _agree(given, problem, q, k, v, bias)
    return problem


def _one_of(name: str, value: object, known: Sequence[str], text: str) -> None:
    if not isinstance(value, str) or value not in known:
        raise bad_option(f"{text}: {value!r}", f"{name} is one of {', '.join(known)}")


def check_bool(name: str, value: object) -> None:
    """Refuses what is no bool, such as the text "True".

    Args:
        name: Of the argument.
        value: What was given for it.

    Raises:
        OptionError: If it is no bool.
    """
    if not isinstance(value, bool):
        raise bad_option(
            f"{name}={value!r} is no bool", f"expected True or False, got {_kind(value)}"
        )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _members(given: Arguments) -> tuple[Members, Members]:
    """Returns who exchanges heads, and who shares keys."""
    group, comm = given.cp_group, given.cp_comm_type
    if comm == "a2a+p2p":
        if not isinstance(group, list | tuple) or len(group) != 2:
            raise bad_option(
                "cp_comm_type='a2a+p2p' needs two groups",
                "expected cp_group=[a2a_group, p2p_group]",
                f"got {len(group)} groups" if isinstance(group, list | tuple) else _kind(group),
            )
        inner, outer = (_one_group(each) for each in group)
        both = [dist.get_process_group_ranks(each) for each in group]
        common = sorted(set(both[0]) & set(both[1]))
        if len(common) != 1:
            raise bad_option(
                f"the groups of a2a+p2p have {len(common)} ranks in common, expected the caller",
                f"a2a: ranks {both[0]}, p2p: ranks {both[1]}",
            )
        return inner, outer
    if isinstance(group, list | tuple):
        raise bad_option(
            f"cp_comm_type={comm!r} takes one group, got a list of {len(group)}",
            "only a2a+p2p takes a list",
        )
    mine = Members() if group is None else _one_group(group)
    return (mine, Members()) if comm == "a2a" else (Members(), mine)


def _one_group(group: object) -> Members:
    if not isinstance(group, Group):
        raise bad_option("cp_group is no process group", f"got {_kind(group)}")
    return Members(group, size_of(group), dist.get_rank(group))


def _check_tensors(layout: str, q: object, k: object, v: object) -> None:
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not isinstance(each, torch.Tensor):
            raise OperandError(
                f"cp_attention: {name} is no tensor", [site_fact(call_site()), f"got {_kind(each)}"]
            )
        if each.ndim != FORMATS[layout]:
            raise bad_option(
                f"{name} has {each.ndim} dimensions",
                f"qkv_format={layout!r} has {FORMATS[layout]}; {name} is {list(each.shape)}",
            )
    assert isinstance(q, torch.Tensor)
    assert isinstance(k, torch.Tensor)
    assert isinstance(v, torch.Tensor)
    facts = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)} in {layout}"
    if not q.dtype == k.dtype == v.dtype:
        raise bad_option(f"types differ: q {q.dtype}, k {k.dtype}, v {v.dtype}")
    if not q.dtype.is_floating_point or q.dtype.itemsize == 1:
        raise bad_option(f"no attention of {q.dtype}", "expected a float of 16, 32 or 64 bits")
    if not q.device == k.device == v.device:
        raise bad_option(f"devices differ: q {q.device}, k {k.device}, v {v.device}")
    if q.shape[-1] != k.shape[-1]:
        raise bad_option(f"head widths of q and k differ: {q.shape[-1]} and {k.shape[-1]}", facts)
    if k.shape[:-1] != v.shape[:-1]:
        raise bad_option("k and v differ in tokens or heads", facts)
    if layout != "thd":
        at = layout.index("b")
        if q.shape[at] != k.shape[at]:
            raise bad_option(f"batches differ: {q.shape[at]} and {k.shape[at]}", facts)
    heads, groups = q.shape[-2], k.shape[-2]
    if not groups or not heads or heads % groups:
        raise bad_option(
            f"{heads} query heads are no multiple of {groups} key/value heads",
            facts,
            f"H % G must be 0, is {heads % groups if groups else 'undefined'}",
        )


def _mask(given: Arguments) -> tuple[str, extend.Mask]:
    """Returns the kind of mask, and what a query sees."""
    kind = given.attn_mask_type
    _one_of("attn_mask_type", kind, MASKS, "unknown attn_mask_type")
    if given.qkv_format == "thd":
        if kind == "no_mask":
            raise bad_option(
                "qkv_format='thd' needs a padding mask, got attn_mask_type='no_mask'",
                "packed sequences do not see each other",
                hint="'padding', or 'padding_causal'",
            )
        if kind == "causal":
            kind = "padding_causal"
    causal = "causal" in kind
    window = given.window_size
    if window is None:
        return kind, extend.CAUSAL if causal else extend.EVERYTHING
    if (
        not isinstance(window, list | tuple)
        or len(window) != 2
        or any(isinstance(each, bool) or not isinstance(each, int | np.integer) for each in window)
    ):
        raise bad_option(f"window_size={window!r}", "expected (left, right), two integers")
    left, right = int(window[0]), int(window[1])
    asked = left, right
    if causal:
        if asked == (-1, -1) or (left >= 0 and right != 0):
            right = 0
        elif asked != (-1, 0) and (left < 0 or right != 0):
            raise bad_option(
                f"window_size={asked} with attn_mask_type={given.attn_mask_type!r}",
                "a causal mask takes (-1, 0) or (left, 0) with left >= 0",
            )
    elif asked == (-1, 0):
        right = -1
    elif asked != (-1, -1) and (left < 0 or right < 0):
        raise bad_option(
            f"window_size={asked} with attn_mask_type={given.attn_mask_type!r}",
            "a mask that is not causal takes (-1, -1), or two numbers of at least 0",
        )
    if (left, right) != asked:
        warn_at_call(
            f"cp_attention: window_size={asked} is taken as {(left, right)}, as "
            f"attn_mask_type={given.attn_mask_type!r} has it"
        )
    return kind, extend.Mask(None if left < 0 else left, None if right < 0 else right)


def _scale(scale: object, width: int) -> float:
    if scale is None:
        return 1 / sqrt(width) if width else 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.number):
        raise bad_option(f"softmax_scale={scale!r}", "expected a number")
    value = float(scale)
    if not isfinite(value):
        raise bad_option(f"softmax_scale={scale!r}", "expected a finite number")
    return value


def _message(dtype: object, of: torch.dtype) -> torch.dtype:
    if dtype is None:
        return torch.float32 if of.itemsize == 2 else of
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize == 1:
        raise bad_option(
            f"grad_comm_dtype={dtype!r}", "expected a float of 16, 32 or 64 bits, or None"
        )
    return dtype


def _stream(stream: object) -> "torch.cuda.Stream | None":
    if stream is not None and not isinstance(stream, torch.cuda.Stream):
        raise bad_option(f"cp_stream={stream!r}", "expected a torch.cuda.Stream, or None")
    return stream


def _check_sink(kind: str, sink: object, heads: int) -> None:
    if kind != "learnable":
        if sink is not None:
            raise bad_option(
                f"softmax_offset with softmax_type={kind!r}",
                "only softmax_type='learnable' takes one",
            )
        return
    if not isinstance(sink, torch.Tensor):
        raise bad_option(
            f"softmax_type='learnable' needs softmax_offset of shape [{heads}], got {sink!r}"
        )
    if tuple(sink.shape) not in {(heads,), (1, heads, 1, 1)} or not sink.dtype.is_floating_point:
        raise bad_option(
            f"softmax_offset of shape {list(sink.shape)} and type {sink.dtype}",
            f"expected floats, one for each of {heads} heads: [{heads}]",
        )


def _check_bias(
    given: Arguments, bias: object, q: torch.Tensor, k: torch.Tensor, ranks: int
) -> None:
    if given.cp_comm_type != "p2p" or given.qkv_format == "thd":
        raise UnsupportedError(
            f"cp_attention: core_attention_bias with cp_comm_type={given.cp_comm_type!r} and "
            f"qkv_format={given.qkv_format!r} is not simulated",
            [site_fact(call_site()), "expected cp_comm_type='p2p', and bshd or sbhd"],
        )
    if not isinstance(bias, torch.Tensor):
        raise bad_option(f"core_attention_bias={bias!r} is no tensor")
    rows = given.qkv_format.index("s")
    b, heads, n, m = q.shape[1 - rows], q.shape[2], q.shape[rows], k.shape[rows]
    fits = [{1, b}, {1, heads}, {1, n, n * ranks}, {m * ranks}]
    shape = list(bias.shape)
    if len(shape) != 4 or any(size not in fit for size, fit in zip(shape, fits, strict=True)):
        raise bad_option(
            f"core_attention_bias of shape {shape}",
            f"expected [1 or {b}, 1 or {heads}, 1 or {n} or {n * ranks}, {m * ranks}]: queries of "
            "this rank or of all ranks, and all keys",
        )
    if not bias.dtype.is_floating_point:
        raise bad_option(f"core_attention_bias of {bias.dtype}", "expected floats")


def _sequences(
    given: Arguments, kind: str, q: torch.Tensor, k: torch.Tensor, ranks: int
) -> tuple[Sequences, Sequences]:
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


def cumulative(
    name: str, given: Any, bad_option: Callable[..., OptionError] = bad_option
) -> tuple[int, ...]:
    """Returns cumulative lengths as integers; of a tensor on a device the host waits for them.

    Args:
        name: What they are called in reports.
        given: A tensor, an array, or a sequence of integers.
        bad_option: Makes the report.

    Raises:
        OptionError: If they are no integers, begin with another number than 0, or decrease.
    """
    values = given.tolist() if isinstance(given, torch.Tensor | np.ndarray) else given
    if not isinstance(values, list | tuple) or any(
        isinstance(each, bool) or not isinstance(each, int | np.integer) for each in values
    ):
        raise bad_option(
            f"{name} holds no cumulative lengths", f"expected integers, got {given!r:.80}"
        )
    found = tuple(int(each) for each in values)
    if len(found) < 1 or found[0] != 0:
        raise bad_option(f"{name} begins with {found[0] if found else 'nothing'}", "expected 0")
    for number, (before, after) in enumerate(pairwise(found)):
        if after < before:
            raise bad_option(
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


def _agree(
    given: Arguments,
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """Compares what the ranks are called with; nobody waits."""
    arguments = {
        "cp_comm_type": problem.comm,
        "qkv_format": given.qkv_format,
        "q": tuple(q.shape),
        "k": tuple(k.shape),
        "v": tuple(v.shape),
        "dtype": str(q.dtype),
        "attn_mask_type": given.attn_mask_type,
        "window_size": tuple(problem.mask),
        "softmax_type": given.softmax_type,
        "softmax_scale": problem.scale,
        "cu_seqlens_q": _shown(problem.queries),
        "cu_seqlens_kv": _shown(problem.keys),
        "core_attention_bias": None if bias is None else tuple(bias.shape),
        "return_max_logit": problem.wants_peak,
        "grad_comm_dtype": str(problem.message),
    }
    for members in (problem.inner, problem.outer):
        if members.group is not None and members.size > 1:
            extend.agree("cp_attention", arguments, members.group)


def _shown(sequences: Sequences) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns lengths that shapes do not tell."""
    if not sequences.packed and sequences.used == sequences.room:
        return None
    return sequences.used, sequences.room
