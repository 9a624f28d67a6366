"""What `cp_attention` is called with, checked, and as one value for all schemes.

All that can be refused is refused here, before a message is sent.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any, Final, TypeAlias

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.cp.lengths import sequences_of
from kernbench.cp.problem import Arguments, Members, Problem, bad_option
from kernbench.cp.sequences import Sequences
from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact, warn_at_call
from kernbench.parallel.members import Group, refuse_option, size_of

Groups: TypeAlias = Group | Sequence[Group] | None
"""Who shares the sequences: one group; for `a2a+p2p` the one of heads and the one of the ring."""

_DIMENSIONS: Final = {"bshd": 4, "sbhd": 4, "thd": 3}
_NAMES: Final = {
    "cp_comm_type": ("p2p", "all_gather", "a2a", "a2a+p2p"),
    "qkv_format": (*_DIMENSIONS,),
    "attn_mask_type": ("no_mask", "causal", "padding", "padding_causal"),
    "softmax_type": ("vanilla", "off-by-one", "learnable"),
}


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
    check_name("cp_comm_type", given.cp_comm_type)
    check_name("qkv_format", given.qkv_format)
    check_name("softmax_type", given.softmax_type)
    check_bool("return_max_logit", given.return_max_logit)
    if given.pad_between_seqs is not None:
        check_bool("pad_between_seqs", given.pad_between_seqs)
    inner, outer = members(given.cp_comm_type, given.cp_group)
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
    queries, keys = sequences_of(given, kind, q, k, ranks)
    _check_sink(given.softmax_type, sink, heads, q.device)
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
        _stream(given.cp_stream, q.device),
    )
    _agree(given, problem, q, k, v, bias)
    return problem


def check_name(name: str, value: object) -> None:
    """Refuses what is not one of the names that an argument may be.

    Args:
        name: Of the argument.
        value: What was given for it.

    Raises:
        OptionError: If it is none of them.
    """
    if not isinstance(value, str) or value not in _NAMES[name]:
        unknown = "Unsupported communication type" if name == "cp_comm_type" else f"unknown {name}"
        raise refuse_option(f"{unknown}: {value!r}", f"{name} is one of {', '.join(_NAMES[name])}")


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
    return type(value).__name__


def members(comm: str, group: Any) -> tuple[Members, Members]:
    """Returns who exchanges heads, and who shares keys.

    Args:
        comm: `cp_comm_type`.
        group: `cp_group`.

    Raises:
        OptionError: If the groups are none, or do not fit the scheme or each other.
        GroupError: If the calling rank may not use a group (C8, C18).
    """
    if comm == "a2a+p2p":
        if not isinstance(group, list | tuple) or len(group) != 2:
            raise refuse_option(
                "cp_comm_type='a2a+p2p' takes a list of two groups",
                "expected cp_group=[a2a_group, p2p_group]",
                f"got {len(group)} groups"
                if isinstance(group, list | tuple)
                else f"got {_kind(group)}",
            )
        inner, outer = (_one_group(each) for each in group)
        near, far = (dist.get_process_group_ranks(each) for each in group)
        facts = f"a2a: ranks {near}, p2p: ranks {far}"
        common = sorted({*near} & {*far})
        if len(common) != 1:
            raise refuse_option(
                f"the groups of a2a+p2p have {len(common)} ranks in common, expected the caller",
                facts,
            )
        before, after = far[: outer.rank], far[outer.rank + 1 :]
        if (
            any(each > near[0] for each in before)
            or any(each < near[-1] for each in after)
            or any(there - here < len(near) for here, there in pairwise(far))
        ):
            raise refuse_option(
                "the a2a group of a2a+p2p is of ranks that are no neighbours",
                facts,
                hint="cp_group=[a2a_group, p2p_group]: are they in the other order?",
            )
        return inner, outer
    if isinstance(group, list | tuple):
        raise refuse_option(
            f"cp_comm_type={comm!r} takes one group, got a list of {len(group)}",
            "only a2a+p2p takes a list",
        )
    mine = Members() if group is None else _one_group(group)
    return (mine, Members()) if comm == "a2a" else (Members(), mine)


def _one_group(group: Any) -> Members:
    outside = isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER
    if not isinstance(group, Group) and not outside:
        raise refuse_option("cp_group is no process group", f"got {_kind(group)}")
    return Members(group, size_of(group), dist.get_rank(group))


def _check_tensors(layout: str, q: object, k: object, v: object) -> None:
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not isinstance(each, torch.Tensor):
            raise OperandError(
                f"cp_attention: {name} is no tensor", [site_fact(call_site()), f"got {_kind(each)}"]
            )
        if each.ndim != _DIMENSIONS[layout]:
            raise bad_option(
                f"{name} has {each.ndim} dimensions",
                f"qkv_format={layout!r} has {_DIMENSIONS[layout]}; {name} is {list(each.shape)}",
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
    check_name("attn_mask_type", kind)
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
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.integer | np.floating):
        raise bad_option(f"softmax_scale={scale!r}", "expected a real number")
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


def _stream(stream: object, device: torch.device) -> "torch.cuda.Stream | None":
    if stream is None:
        return None
    if not isinstance(stream, torch.cuda.Stream):
        raise bad_option(f"cp_stream={stream!r}", "expected a torch.cuda.Stream, or None")
    _check_device("cp_stream", stream.device, device)
    return stream


def _check_device(name: str, device: torch.device, expected: torch.device) -> None:
    if device != expected:
        raise bad_option(f"{name} is on {device}, q, k and v are on {expected}")


def _check_sink(kind: str, sink: object, heads: int, device: torch.device) -> None:
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
    _check_device("softmax_offset", sink.device, device)


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
    _check_device("core_attention_bias", bias.device, q.device)


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
