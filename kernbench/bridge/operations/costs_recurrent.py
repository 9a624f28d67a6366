"""Recurrent networks: which argument is which."""

from math import prod
from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_gemm import precision_of
from kernbench.bridge.operations.costs_operands import Formula, layout
from kernbench.cuda_on_cpu.recurrent import GATES, Call
from kernbench.hw.library import Library
from kernbench.kernels.recurrent import Recurrent, recurrent_ps

_ATEN: Final = torch.ops.aten


def _time(first: int, *, backward: bool) -> Formula:
    """Returns the time of networks.

    Args:
        first: Place of the first argument of `Call`.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs, out
        call, given = Call(*args[first : first + 9]), layout(args[0])
        rows = prod(given.shape[:-1])
        network = Recurrent(
            GATES[call.mode],
            len(call.batch_sizes) or given.shape[call.batch_first],
            rows,
            given.shape[-1],
            call.hidden_size,
            call.num_layers,
            call.directions,
            given.dtype,
            precision_of("cuda", "rnn") == "tf32",
        )
        return recurrent_ps(library, network, backward=backward) if rows else 0

    return duration


FORMULAS: Final[dict[Any, Formula]] = {
    _ATEN._cudnn_rnn: _time(6, backward=False),
    _ATEN._cudnn_rnn_backward: _time(10, backward=True),
}
"""Times of networks, by operation."""
