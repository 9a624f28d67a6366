"""The table of `torch.Tensor`'s methods, and which of them read values on the host."""

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, cast

from kernbench.autograd import backward, leaves
from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact
from kernbench.memory import Storage, dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.operations import (
    complex_numbers,
    copies,
    counting,
    creation,
    cuda,
    filling,
    host_reads,
    indexing,
    linalg,
    pointwise,
    printing,
    random,
    reductions,
    sampling,
    shaping,
    typed,
    unary,
    views,
)
from kernbench.operations.elementwise import OPERANDS
from kernbench.runtime_api.operators import MIRRORS, with_foreign
from kernbench.tensors import nodes
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import guarded_function, read_in_cpp
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Sequence

    from kernbench.memory import DType
    from kernbench.operations.elementwise import Operand

read_in_cpp(__name__)

__all__ = ["Tensor"]

_HOST_READ_BARRIERS: Final[dict[str, Literal["read", "view"]]] = {
    "__array__": "read",
    "__bool__": "read",
    "__complex__": "read",
    "__contains__": "read",
    "__float__": "read",
    "__format__": "read",
    "__index__": "read",
    "__int__": "read",
    "__repr__": "read",
    "__str__": "read",
    "allclose": "read",
    "bincount": "read",
    "cpu": "read",
    "equal": "read",
    "histc": "read",
    "is_nonzero": "read",
    "item": "read",
    "nonzero": "read",
    "numpy": "read",
    "tolist": "read",
    "unique": "read",
    "__getitem__": "view",
    "__iter__": "view",
    "__len__": "view",
    "data": "view",
    "detach": "view",
}
"""Every method that reads values on the host, and views that look as if they did.

A `read` waits for all earlier commands of the current stream, then copies; a `view` waits for
nothing and works with data off. `__getitem__` and `__setitem__` read their index if it is a mask or
a single value on a device.
"""


class TensorMethods(Tensor):
    """Everything that `Tensor` has besides its state; a table, never instantiated (ADR 0021)."""

    __hash__ = object.__hash__
    __init__ = typed.init

    # Facts
    size, stride, numel, nelement = views.size, views.stride, views.numel, views.numel
    is_pinned = copies.is_pinned
    record_stream = cuda.record_stream

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.window.shape)

    def dim(self) -> int:
        """Returns the number of dimensions."""
        return len(self.window.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.window.dtype.itemsize

    def element_size(self) -> int:
        """Returns the bytes of one element."""
        return self.window.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.window.nbytes

    def storage_offset(self) -> int:
        """Returns the place of the first element in the storage, in elements."""
        return self.window.offset

    def data_ptr(self) -> int:
        """Returns the address of the first element in its memory."""
        return self.memory.storage.address.offset + self.window.offset * self.window.dtype.itemsize

    def untyped_storage(self) -> Storage:
        """Returns the memory, which the tensor shares with its views."""
        return self.memory.storage

    def is_contiguous(self) -> bool:
        """Returns whether the elements lie in row-major order without gaps."""
        return is_contiguous(self.window)

    def is_floating_point(self) -> bool:
        """Returns whether the elements are floating-point numbers."""
        return self.window.dtype.is_floating_point

    is_complex = complex_numbers.is_complex

    def get_device(self) -> int:
        """Returns the index of the device, -1 on the host."""
        return -1 if self.device.index is None else self.device.index

    @property
    def _version(self) -> int:
        if self.memory.inference:
            raise TensorError(
                "Inference tensors do not track version counter.", [site_fact(call_site())]
            )
        return self.memory.version

    def is_inference(self) -> bool:
        """Returns whether the tensor was made in `inference_mode`."""
        return self.memory.inference

    # Gradients
    backward = backward.backward
    register_hook = leaves.register_hook
    register_post_accumulate_grad_hook = leaves.register_post_accumulate_grad_hook
    retain_grad = leaves.retain_grad
    detach, detach_ = copies.detach, leaves.detach_

    @property
    def requires_grad(self) -> bool:
        """Whether operations on the tensor are recorded; may be set on leaves only."""
        return self.memory.tracked and nodes.needs_gradient(self)

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        nodes.require(self, requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad`, and returns the tensor.

        Raises:
            TensorError: If the tensor's type has no gradients, or the tensor is no leaf.
        """
        nodes.require(self, requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is not the result of a recorded operation."""
        return leaves.is_leaf(self)

    @property
    def grad(self) -> "Tensor | None":
        """Sum of the tensor's gradients, in the tensor's type; None before the first gradient.

        Gradients of 16-bit tensors add up in float32 and are rounded once; PyTorch rounds after
        each.
        """
        return leaves.get_grad(self)

    @grad.setter
    def grad(self, grad: "Tensor | None") -> None:
        leaves.set_grad(self, grad)

    @grad.deleter
    def grad(self) -> None:
        leaves.set_grad(self, None)

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this tensor, which is no leaf."""
        return leaves.retains_grad(self)

    @property
    def grad_fn(self) -> "nodes.Node | None":
        """The recorded operation whose result the tensor is; None for a leaf."""
        graph = nodes.history(self)
        return graph.node if isinstance(graph, nodes.Output) else None

    # Reading on the host: see `_HOST_READ_BARRIERS`
    numpy, item, tolist = host_reads.numpy, host_reads.item, host_reads.tolist
    equal, allclose = host_reads.equal, host_reads.allclose
    is_nonzero, nonzero, unique = host_reads.is_nonzero, host_reads.nonzero, host_reads.unique
    __array__ = host_reads.as_array
    __bool__ = host_reads.as_bool
    __float__ = host_reads.as_float
    __int__ = host_reads.as_int
    __index__ = host_reads.as_index
    __contains__ = host_reads.contains
    __complex__ = host_reads.as_complex
    __repr__ = __str__ = printing.text
    __format__ = printing.formatted

    # Views and indexing
    view, view_as, reshape = views.view, views.view_as, views.reshape
    flatten, unflatten = views.flatten, views.unflatten
    squeeze, unsqueeze = views.squeeze, views.unsqueeze
    transpose, swapaxes, permute, movedim = (
        views.transpose,
        views.swapaxes,
        views.permute,
        views.movedim,
    )
    t = views.t
    expand, expand_as, broadcast_to = views.expand, views.expand_as, views.broadcast_to
    narrow, select, unbind = views.narrow, views.select, views.unbind
    chunk, diagonal = views.chunk, views.diagonal
    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    @property
    def T(self) -> "Tensor":  # noqa: N802 - PyTorch's name
        """A view with the dimensions in reverse order."""
        return views.turned(self)

    @property
    def mT(self) -> "Tensor":  # noqa: N802 - PyTorch's name
        """A view with the last two dimensions exchanged."""
        return views.matrix_transpose(self)

    @property
    def data(self) -> "Tensor":
        """A view of all elements; setting it makes this tensor show another tensor's elements."""
        return copies.detach(self)

    @data.setter
    def data(self, other: "Tensor") -> None:
        """Makes this tensor show another tensor's elements.

        Raises:
            TensorError: If the tensor needs a gradient, and the new elements are integers.
        """
        if self.requires_grad and not other.dtype.is_floating_point:
            raise TensorError(
                "data set to a tensor that requires gradients must be floating point or complex "
                "dtype",
                [site_fact(call_site()), f"got {other.dtype}"],
            )
        tracked = self.memory.tracked
        self.memory, self.window, self.device = other.memory, other.window, other.device
        self.memory.tracked = tracked or self.memory.tracked
        self.origin = None

    def split(
        self, split_size: "builtins.int | Sequence[builtins.int]", dim: "builtins.int" = 0
    ) -> "tuple[Tensor, ...]":
        """Returns views of the pieces of a dimension, as `torch.split`.

        Args:
            split_size: Extent of each piece, the last of which may be smaller; or a list of all
                extents.
            dim: The dimension to cut.
        """
        return views.split(self, split_size, dim)

    def reshape_as(self, other: "Tensor") -> "Tensor":
        """Returns the elements in the shape of another tensor."""
        return self.reshape(other.window.shape)

    def __len__(self) -> int:
        if not self.window.shape:
            raise OperandError("len() of a 0-d tensor", [site_fact(call_site())])
        return self.window.shape[0]

    def __iter__(self) -> "Iterator[Tensor]":
        if not self.window.shape:
            raise OperandError("iteration over a 0-d tensor", [site_fact(call_site())])
        return iter(views.unbind(self))

    # Complex numbers
    real = property(complex_numbers.real)
    imag = property(complex_numbers.imag)
    conj = complex_numbers.conj
    angle = complex_numbers.angle
    cfloat = copies.cfloat
    cdouble = copies.cdouble

    # Moving elements
    repeat = shaping.repeat
    repeat_interleave = shaping.repeat_interleave
    flip = shaping.flip
    roll = shaping.roll
    tril = shaping.tril
    triu = shaping.triu
    index_select = shaping.index_select
    gather = shaping.gather
    scatter = shaping.scatter
    scatter_ = shaping.scatter_
    scatter_add = shaping.scatter_add
    scatter_add_ = shaping.scatter_add_
    index_add = counting.index_add
    index_add_ = counting.index_add_
    bincount = counting.bincount
    histc = counting.histc

    # Copies and conversions
    to = copies.to
    cuda = copies.cuda
    cpu = copies.cpu
    clone = copies.clone
    contiguous = copies.contiguous
    copy_ = copies.copy_
    pin_memory = copies.pin_memory
    type_as = copies.type_as
    double = copies.double
    half = copies.half
    bfloat16 = copies.bfloat16
    long = copies.long
    short = copies.short
    char = copies.char
    byte = copies.byte

    # New tensors like this one
    new_empty = creation.new_empty
    new_zeros = creation.new_zeros
    new_ones = creation.new_ones
    new_full = creation.new_full

    # Filling
    fill_ = filling.fill_
    zero_ = filling.zero_
    normal_ = random.normal_
    uniform_ = random.uniform_
    bernoulli = random.bernoulli
    multinomial = sampling.multinomial

    # Arithmetic
    add = pointwise.add
    add_ = pointwise.add_
    sub = pointwise.sub
    sub_ = pointwise.sub_
    mul = pointwise.mul
    mul_ = pointwise.mul_
    div = pointwise.div
    div_ = pointwise.div_
    multiply = pointwise.multiply
    divide = pointwise.divide
    true_divide = pointwise.true_divide
    floor_divide = pointwise.floor_divide
    floor_divide_ = pointwise.floor_divide_
    remainder = pointwise.remainder
    remainder_ = pointwise.remainder_
    fmod = pointwise.fmod
    fmod_ = pointwise.fmod_
    pow = pointwise.pow
    pow_ = pointwise.pow_
    maximum = pointwise.maximum
    logaddexp = pointwise.logaddexp
    logaddexp2 = pointwise.logaddexp2
    minimum = pointwise.minimum
    clamp = pointwise.clamp
    clamp_ = pointwise.clamp_
    lerp = pointwise.lerp
    lerp_ = pointwise.lerp_
    addcmul = pointwise.addcmul
    addcmul_ = pointwise.addcmul_
    addcdiv = pointwise.addcdiv
    addcdiv_ = pointwise.addcdiv_

    # Comparison and choice
    eq = pointwise.eq
    ne = pointwise.ne
    lt = pointwise.lt
    le = pointwise.le
    gt = pointwise.gt
    ge = pointwise.ge
    isclose = pointwise.isclose
    isnan = unary.isnan
    isinf = unary.isinf
    isfinite = unary.isfinite
    masked_fill = filling.masked_fill
    masked_fill_ = filling.masked_fill_

    # Logic and bits
    logical_and = pointwise.logical_and
    logical_and_ = pointwise.logical_and_
    logical_or = pointwise.logical_or
    logical_or_ = pointwise.logical_or_
    logical_xor = pointwise.logical_xor
    logical_not = unary.logical_not
    bitwise_and = pointwise.bitwise_and
    bitwise_and_ = pointwise.bitwise_and_
    bitwise_or = pointwise.bitwise_or
    bitwise_or_ = pointwise.bitwise_or_
    bitwise_xor = pointwise.bitwise_xor
    bitwise_xor_ = pointwise.bitwise_xor_
    bitwise_not = unary.bitwise_not
    bitwise_left_shift = pointwise.bitwise_left_shift
    bitwise_right_shift = pointwise.bitwise_right_shift

    # Functions
    exp = unary.exp
    exp_ = unary.exp_
    expm1 = unary.expm1
    expm1_ = unary.expm1_
    log = unary.log
    log_ = unary.log_
    log1p = unary.log1p
    log1p_ = unary.log1p_
    log2 = unary.log2
    log2_ = unary.log2_
    log10 = unary.log10
    log10_ = unary.log10_
    sqrt = unary.sqrt
    sqrt_ = unary.sqrt_
    rsqrt = unary.rsqrt
    rsqrt_ = unary.rsqrt_
    reciprocal = unary.reciprocal
    reciprocal_ = unary.reciprocal_
    sin = unary.sin
    sin_ = unary.sin_
    cos = unary.cos
    cos_ = unary.cos_
    tan = unary.tan
    tan_ = unary.tan_
    tanh = unary.tanh
    tanh_ = unary.tanh_
    sigmoid = unary.sigmoid
    sigmoid_ = unary.sigmoid_
    erf = unary.erf
    erf_ = unary.erf_
    neg = unary.neg
    neg_ = unary.neg_
    abs = unary.abs
    abs_ = unary.abs_
    relu = unary.relu
    relu_ = unary.relu_
    sign = unary.sign
    sign_ = unary.sign_
    floor = unary.floor
    floor_ = unary.floor_
    ceil = unary.ceil
    ceil_ = unary.ceil_
    trunc = unary.trunc
    trunc_ = unary.trunc_
    round = unary.round
    round_ = unary.round_
    square = unary.square

    # Reductions
    sum = reductions.sum
    prod = reductions.prod
    mean = reductions.mean
    amax = reductions.amax
    amin = reductions.amin
    max = reductions.max
    min = reductions.min
    argmax = reductions.argmax
    argmin = reductions.argmin
    all = reductions.all
    any = reductions.any
    count_nonzero = reductions.count_nonzero
    var = reductions.var
    std = reductions.std
    logsumexp = reductions.logsumexp
    cumsum = reductions.cumsum
    softmax = reductions.softmax
    log_softmax = reductions.log_softmax
    sort = reductions.sort
    argsort = reductions.argsort
    topk = reductions.topk

    def norm(
        self,
        p: "builtins.float | Literal['fro']" = "fro",
        dim: "builtins.int | Sequence[builtins.int] | None" = None,
        keepdim: "builtins.bool" = False,
        dtype: "DType | None" = None,
    ) -> "Tensor":
        """Returns the p-norm of the elements over dimensions, as `torch.norm`.

        Args:
            p: Order of the norm; `fro` is the Euclidean norm of all the elements.
            dim: Dimensions to reduce; all by default.
            keepdim: Whether reduced dimensions stay, with extent 1.
            dtype: Type to which the elements are converted first; the tensor's own by default.
        """
        return reductions.norm(self, p, dim, keepdim, dtype=dtype)

    # Products
    matmul = linalg.matmul
    mm = linalg.mm
    bmm = linalg.bmm
    mv = linalg.mv
    dot = linalg.dot
    inner = linalg.inner
    outer = linalg.outer
    addmm = linalg.addmm
    baddbmm = linalg.baddbmm

    # Operators
    __add__ = pointwise.add
    __radd__ = pointwise.add
    __iadd__ = pointwise.add_
    __sub__ = pointwise.sub
    __rsub__ = pointwise.rsub
    __isub__ = pointwise.sub_
    __mul__ = pointwise.mul
    __rmul__ = pointwise.mul
    __imul__ = pointwise.mul_
    __truediv__ = pointwise.div
    __rtruediv__ = pointwise.rdiv
    __itruediv__ = pointwise.div_
    __floordiv__ = pointwise.floor_divide
    __rfloordiv__ = pointwise.rfloor_divide
    __ifloordiv__ = pointwise.floor_divide_
    __mod__ = pointwise.remainder
    __rmod__ = pointwise.rremainder
    __imod__ = pointwise.remainder_
    __pow__ = pointwise.pow
    __rpow__ = pointwise.rpow
    __ipow__ = pointwise.pow_
    __matmul__ = linalg.matmul
    __neg__ = unary.neg
    __abs__ = unary.abs
    __invert__ = unary.bitwise_not
    __lt__ = pointwise.lt
    __le__ = pointwise.le
    __gt__ = pointwise.gt
    __ge__ = pointwise.ge
    __rand__ = pointwise.bitwise_and
    __ror__ = pointwise.bitwise_or
    __rxor__ = pointwise.bitwise_xor
    __iand__ = pointwise.bitwise_and_
    __ior__ = pointwise.bitwise_or_
    __ixor__ = pointwise.bitwise_xor_
    __rlshift__ = pointwise.rlshift
    __rrshift__ = pointwise.rrshift
    __ilshift__ = pointwise.bitwise_left_shift_
    __irshift__ = pointwise.bitwise_right_shift_
    __lshift__ = pointwise.bitwise_left_shift
    __rshift__ = pointwise.bitwise_right_shift
    __and__ = pointwise.bitwise_and
    __or__ = pointwise.bitwise_or
    __xor__ = pointwise.bitwise_xor

    def __pos__(self) -> "Tensor":
        if self.window.dtype is dtypes.bool_:
            raise TensorError(
                "The `+` operator, on a bool tensor is not supported.", [site_fact(call_site())]
            )
        return self

    def __eq__(self, other: Any) -> "Tensor":  # type: ignore[override]
        if not isinstance(other, OPERANDS):
            return NotImplemented
        return pointwise.eq(self, cast("Operand", other))

    def __ne__(self, other: Any) -> "Tensor":  # type: ignore[override]
        if not isinstance(other, OPERANDS):
            return NotImplemented
        return pointwise.ne(self, cast("Operand", other))

    # Copies and pickles

    def __copy__(self) -> "Tensor":
        return copies.detach(self).requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        if not self.is_leaf:
            raise TensorError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment.",
                [site_fact(call_site())],
                hint="detach() it first",
            )
        copied = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedError(
            "tensors cannot be pickled",
            [site_fact(call_site())],
            hint="save the arrays: tensor.numpy()",
        )

    # Last, since they hide Python's types from the annotations of a class
    float, int, bool, type = copies.float_, copies.int_, copies.bool_, typed.type_


_OF_THE_CLASS: Final = frozenset(
    {"__annotations__", "__dict__", "__doc__", "__module__", "__qualname__", "__weakref__"}
)
"""Attributes that Python puts into every class."""


def attributes_of(methods: type) -> dict[str, Any]:
    """Returns the attributes that the body of a class defines, by name."""
    return {name: value for name, value in vars(methods).items() if name not in _OF_THE_CLASS}


def _put_in_place() -> None:
    """Gives `Tensor` its methods; all but operators name an argument of a wrong kind."""
    for name, value in attributes_of(TensorMethods).items():
        for function in (value, getattr(value, "fget", None), getattr(value, "fset", None)):
            if isinstance(function, FunctionType):
                own = function.__qualname__.removeprefix("TensorMethods.")
                if own != function.__qualname__:
                    function.__qualname__ = f"Tensor.{own}"
        method = value
        if name in MIRRORS:
            method = with_foreign(name, value)
        elif isinstance(value, FunctionType):
            # Operators check their operands themselves, and their time counts.
            method = value if name.startswith("__") else guarded_function(value)
        elif isinstance(value, property) and isinstance(value.fset, FunctionType):
            method = value.setter(guarded_function(value.fset))
        setattr(Tensor, name, method)


_put_in_place()
