"""Dropout of `torch.nn.functional`."""

from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.operations.elementwise import check_complex
from kernbench.operations.fused import widened
from kernbench.operations.random import drawn_chances
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.new import new_tensor
from kernbench.tensors.operands import not_a_tensor, read_in_cpp
from kernbench.tensors.running import run
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["dropout"]


def check_probability(p: float) -> None:
    """Checks the probability with which elements are dropped.

    Raises:
        OptionError: If `p` is not between 0 and 1.
    """
    if not 0 <= p <= 1:
        raise OptionError(
            f"dropout probability has to be between 0 and 1, but got {p}", [site_fact(call_site())]
        )


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets each element to 0 with probability `p`, and multiplies the others with `1 / (1 - p)`.

    The random numbers come from the calling rank's generator, which draws them during the call.

    Args:
        input: The tensor.
        p: Probability with which an element becomes 0.
        training: Whether to drop elements; if not, `input` is returned.
        inplace: Must be False.

    Raises:
        OperandError: If `input` is no tensor.
        OptionError: If `p` is not between 0 and 1.
        UnsupportedError: For `inplace`.
    """
    if not isinstance(input, Tensor):
        raise not_a_tensor("dropout(): argument 'input'", "Tensor", input)
    check_probability(p)
    if inplace:
        raise UnsupportedError("dropout(inplace=True) is not simulated", [site_fact(call_site())])
    if not training or p == 0:
        return input
    if input.window.dtype.is_complex:
        check_complex("native_dropout", input.dtype, frozenset())
    process = current_process()
    site = process.call_site()
    factor = 1 / (1 - p) if p < 1 else 0.0
    shape, device = input.window.shape, input.device
    kept = drawn_chances(process, shape, 1 - p, device)
    mask = new_tensor(process, shape, dtypes.bool_, device, site)
    out = new_tensor(process, shape, input.dtype, device, site)
    source, target, drawn = input.window, out.window, mask.window

    def effect() -> None:
        assert kept is not None
        x = widened(source)
        drawn.adopt(kept)
        target.adopt(x * kept * x.dtype.type(factor))

    # One kernel, as in PyTorch: it draws the mask, keeps it, and multiplies.
    run(process, "aten::native_dropout", [input], out, effect, also=[mask], site=site)
    node = None
    if input.memory.tracked and input.dtype.is_floating_point:
        options = {"factor": factor}
        node = tape.begin(process, "native_dropout", (input, mask), options, site=site)
    if node is not None:
        tape.finish(node, out)
    return out
