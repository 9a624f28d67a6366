"""Layers of LSTM, GRU and plain recurrent networks, as cuDNN runs them: a step after the other."""

from typing import Final, NamedTuple

from kernbench.hw.library import Library
from kernbench.kernels import products
from kernbench.memory import DType

_PLAIN: Final = 1
"""Gates of a network without any: twice as much of it fits on a device."""


class Recurrent(NamedTuple):
    """A recurrent network and its input.

    Attributes:
        gates: Products of a cell: 4 of an LSTM, 3 of a GRU, 1 of a plain one.
        steps: Elements of the longest sequence.
        rows: Elements of all sequences.
        inputs: Width of the input.
        hidden: Width of the state.
        layers: Number of layers.
        directions: 1, or 2 if each layer also goes backwards.
        dtype: Type of the operands.
        tf32: Whether float32 may be multiplied as TF32.
    """

    gates: int
    steps: int
    rows: int
    inputs: int
    hidden: int
    layers: int
    directions: int
    dtype: DType | None
    tf32: bool


def recurrent_ps(library: Library, network: Recurrent, *, backward: bool) -> int:
    """Returns the picoseconds of a recurrent network, or of its gradients.

    The input of a layer is multiplied at once, and so are gradients of its weights. Of a step, the
    library launches kernels from the host, `launches` of `recurrent_step` at least; on the device
    it takes a product and elementwise work. A layer of another type than bfloat16 whose state is no
    wider than `beyond` of `recurrent_held` (twice that of a plain one) runs as one kernel, which
    holds the weights on the device. Source: cuDNN 9.19 on an H200, `benchmarks/h200_recurrent.csv`.
    """
    end = "_backward" if backward else ""
    call, held = library.kernel(f"recurrent{end}"), library.kernel(f"recurrent_held{end}")
    launch, ways = library.sip.launch, network.layers * network.directions
    width, hidden = network.gates * network.hidden, network.hidden
    total = call.launches * launch + network.directions * sum(
        _at_once(library, network, width, inputs, backward=backward) for inputs in _widths(network)
    )
    narrow = held.beyond * (2 if network.gates == _PLAIN else 1)
    if hidden <= narrow and network.dtype is not None and network.dtype.name != "bfloat16":
        work = held.row * width * network.steps
        return total + ways * (held.launches * launch + _engines_ps(library, work))
    layer, step = library.kernel(f"recurrent_layer{end}"), library.kernel(f"recurrent_step{end}")
    batch = -(-network.rows // network.steps)
    sizes = (batch, hidden, width) if backward else (batch, width, hidden)
    device = _product(library, network, *sizes) + _engines_ps(library, step.element * batch * width)
    each = max(step.launches * launch, device + launch)
    return total + ways * (layer.launches * launch + network.steps * each)


def _widths(network: Recurrent) -> list[int]:
    """Returns the width of what each layer takes."""
    return [network.inputs, *[network.hidden * network.directions] * (network.layers - 1)]


def _at_once(
    library: Library, network: Recurrent, width: int, inputs: int, *, backward: bool
) -> int:
    """Returns the picoseconds of what a layer multiplies for all steps at once."""
    rows = network.rows
    if not backward:
        return _product(library, network, rows, width, inputs)
    shapes = (rows, inputs, width), (width, inputs, rows), (width, network.hidden, rows)
    return sum(_product(library, network, *shape) for shape in shapes)


def _product(library: Library, network: Recurrent, m: int, n: int, k: int) -> int:
    size = 4 if network.dtype is None else network.dtype.itemsize
    nbytes = size * (m * n + n * k + m * k)
    sizes = products.Sizes(1, m, n, k)
    return products.duration_ps(library, network.dtype, sizes, nbytes, tf32=network.tf32)


def _engines_ps(library: Library, operations: int) -> int:
    """Returns the picoseconds of operations of all MATH engines, without a launch."""
    found: int = library.elementwise(0, operations) - library.elementwise(0, 0)
    return found
