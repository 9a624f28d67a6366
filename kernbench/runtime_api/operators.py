"""Operators of tensors with operands that are neither tensors nor numbers."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.operations.elementwise import OPERANDS, elementwise
from kernbench.tensors.operands import hint_for, not_a_tensor, type_name
from kernbench.tensors.tensor import Tensor

Method = Callable[[Any, Any], Any]

_STEMS: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)

MIRRORS: Final[Mapping[str, str | None]] = {
    **{f"__{stem}__": f"__r{stem}__" for stem in _STEMS},
    **{f"__i{stem}__": f"__r{stem}__" for stem in _STEMS},
    **{f"__r{stem}__": None for stem in _STEMS},
    "__lt__": "__gt__",
    "__le__": "__ge__",
    "__gt__": "__lt__",
    "__ge__": "__le__",
}
"""For each operator of a tensor the one that Python asks the other operand for; None for none."""

_DIRECT: Final[Mapping[str, Method]] = {
    "__add__": partial(elementwise, "aten::add", np.add),
    "__radd__": partial(elementwise, "aten::add", np.add),
    "__mul__": partial(elementwise, "aten::mul", np.multiply),
    "__rmul__": partial(elementwise, "aten::mul", np.multiply),
}
"""What the functions of the most frequent operators do without further arguments."""


def with_foreign(name: str, method: Method) -> Method:
    """Returns an operator that leaves operands of other kinds to their own operators.

    As in PyTorch `list += tensor` extends the list, and a class of the user's own may define what
    it is to be added to a tensor.

    Args:
        name: Name of the operator, such as `__add__`; in `MIRRORS`.
        method: What it does with tensors and numbers.
    """
    mirror = MIRRORS[name]
    products = name == "__matmul__"
    operands = (Tensor,) if products else OPERANDS
    direct = _DIRECT.get(name, method)

    @wraps(method)
    def operator(self: Tensor, other: Any) -> Any:
        if type(other) is Tensor or isinstance(other, operands):
            return direct(self, other)
        if mirror is None or _has_own(other, mirror):
            return NotImplemented
        if products:
            raise not_a_tensor("matmul(): argument 'other'", "Tensor", other)
        raise OperandError(
            f"{name} takes tensors and numbers; got {type_name(other)}",
            [site_fact(call_site())],
            hint=hint_for(other),
        )

    return operator


def _has_own(other: object, name: str) -> bool:
    """Returns whether the class of an operand defines an operator itself; arrays leave it to us."""
    found = getattr(type(other), name, None)
    return (
        found is not None
        and found is not getattr(object, name, None)
        and not isinstance(other, np.ndarray)
    )
