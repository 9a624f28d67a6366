"""`torch.ops.aten`: kernels that libraries call by the names of PyTorch's operators."""

from math import sqrt
from typing import NamedTuple

from kernbench.attention.backends import FLASH
from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.numbers import Dropout
from kernbench.attention.rows import Segment, in_order
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.nn.attention import attended
from kernbench.nn.dropouts import check_probability
from kernbench.operations.attention import Attention, attend_backward
from kernbench.operations.creation import empty
from kernbench.operations.from_values import tensor
from kernbench.operations.random import drawn_seed
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import guard, read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = [
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
]


class _Flash(NamedTuple):
    """What `_scaled_dot_product_flash_attention` returns, in PyTorch's order."""

    output: Tensor
    logsumexp: Tensor
    cum_seq_q: None
    cum_seq_k: None
    max_q: int
    max_k: int
    rng_state: Tensor
    unused: Tensor
    debug_attn_mask: Tensor


def _scaled_dot_product_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, None, None, int, int, Tensor, Tensor, Tensor]:
    """Returns attention and the logarithms of the sums of its rows, as one command.

    Parts of a sequence's attention are merged by these logarithms, as ring attention does. Unlike
    PyTorch's, it takes float32, float64 and tensors on the host, too, so that such a merge can be
    tested in other types.

    Args:
        query: `[b, heads, L, E]`.
        key: `[b, groups, S, E]`; each group is for `heads / groups` queries.
        value: `[b, groups, S, V]`.
        dropout_p: Probability with which a weight is dropped.
        is_causal: Whether the last query sees all keys, and each one before it one key less.
        return_debug_mask: Must be False.
        scale: Factor of the scores; 1 / sqrt(E) by default.

    Returns:
        Output `[b, heads, L, V]`, which has a gradient; logsumexp `[b, heads, L]`, float32 or
        float64, -inf for a query that sees no key; two times None, since sequences are of one
        length; L; S; rng_state, two integers on the host from which dropout follows; two empty
        tensors.

    Raises:
        OptionError: If `dropout_p` is not between 0 and 1.
        TensorError: If shapes, types or devices do not fit.
        UnsupportedError: For `return_debug_mask`.
    """
    if return_debug_mask:
        raise UnsupportedError(
            "_scaled_dot_product_flash_attention(return_debug_mask=True) is not simulated",
            [site_fact(call_site())],
        )
    check_probability(dropout_p)
    given = _given(query, key, value, is_causal, scale)
    seed = drawn_seed(query.device) if dropout_p else 0
    drops = Dropout(dropout_p, seed) if dropout_p else None
    out, lse = attended(*given[:3], None, given.patterns[0], given.scale, drops, FLASH)
    state = tensor([seed, 0], dtype=dtypes.int64, device="cpu")
    nothing = [empty(0, dtype=each, device="cpu") for each in (dtypes.int64, query.dtype)]
    sizes = query.window.shape[2], key.window.shape[2]
    return _Flash(out, lse, None, None, *sizes, state, *nothing)


def _scaled_dot_product_flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key and value, as one command.

    `out` and `logsumexp` may be of more keys than are given: then these are the gradients that pass
    through the given ones.

    Args:
        grad_out: Gradient of `out`.
        query: As in forward.
        key: As in forward.
        value: As in forward.
        out: What forward returned.
        logsumexp: What forward returned.
        cum_seq_q: What forward returned: None.
        cum_seq_k: What forward returned: None.
        max_q: What forward returned: L.
        max_k: What forward returned: S.
        dropout_p: As in forward.
        is_causal: As in forward.
        philox_seed: The `rng_state` that forward returned.
        philox_offset: What forward returned; not read.
        scale: As in forward.

    Raises:
        OptionError: If `dropout_p` is not between 0 and 1.
        TensorError: If shapes, types or devices do not fit.
    """
    del cum_seq_q, cum_seq_k, philox_offset
    check_probability(dropout_p)
    given = _given(query, key, value, is_causal, scale)
    sizes = query.window.shape[2], key.window.shape[2]
    if (max_q, max_k) != sizes:
        raise TensorError(
            f"_scaled_dot_product_flash_attention_backward: max_q and max_k are {max_q} and "
            f"{max_k}, but there are {sizes[0]} queries and {sizes[1]} keys",
            [site_fact(call_site())],
        )
    if dropout_p:
        seed = int(philox_seed.tolist()[0]) if current_process().engine.enable_data else 0
        given = given._replace(dropout=Dropout(dropout_p, seed))
    found = attend_backward(given, grad_out, out, logsumexp)
    return found.query, found.key, found.value


def _given(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None
) -> Attention:
    q, k = query.window.shape, key.window.shape
    if len(q) != 4 or len(k) != 4:
        raise TensorError(
            "_scaled_dot_product_flash_attention: expected four dimensions each, got "
            f"{list(q)} and {list(k)}",
            [site_fact(call_site())],
        )
    rows = (Segment(0, k[2] - q[2], q[2], 0),) if q[2] else ()
    seen = bands(rows, in_order(k[2]), CAUSAL if causal else EVERYTHING)
    factor = 1 / sqrt(max(q[3], 1)) if scale is None else scale
    return Attention(query, key, value, (seen,), factor)


guard(globals())
