"""Where kernbench differs from PyTorch on purpose, each with its reason."""

import re
from typing import Final, NamedTuple

from differential_cases import Case

from kernbench.runtime_api.pytorch_versions import OLDEST


class Listed(NamedTuple):
    """A kind of difference.

    Attributes:
        met: An operation whose calls meet it.
        names: Names of the operations, a regular expression.
        difference: What is found, see `differential_compare.compare`, a regular expression.
        reason: Why it is so.
        mixed: Whether the operands must be of several types.
        special: Whether an operand must hold nan or infinities.
        since: The first version of PyTorch that differs so. kernbench.torch is the oldest.
        until: The first version that no longer does; None: all differ.
    """

    met: str
    names: str
    difference: str
    reason: str
    mixed: bool = False
    special: bool = False
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] | None = None

    def is_of(self, version: tuple[int, int]) -> bool:
        """Returns whether a version of PyTorch differs so."""
        return self.since <= version and (self.until is None or version < self.until)

    def explains(self, case: Case, difference: str) -> bool:
        """Returns whether this is a difference of that kind."""
        if self.mixed and len(case.dtypes()) < 2:
            return False
        if self.special and not case.is_special():
            return False
        return bool(re.search(self.names, case.name) and re.search(self.difference, difference))


LISTED: Final = (
    Listed(
        "torch.nn.functional.logsigmoid",
        "(?i)logsigmoid",
        "strides",
        "PyTorch's result lies row by row on the CPU only",
    ),
    Listed(
        "Tensor.__rtruediv__",
        "",
        r"gradients of (complex numbers|torch\.complex\d+) are not simulated",
        "not simulated",
    ),
    Listed("Tensor.__matmul__", "", r"of torch\.complex\d+ is not simulated", "not simulated"),
    Listed(
        "torch.ne", "", r"complex numbers of torch\.float16 .* are not simulated", "not simulated"
    ),
    Listed(
        "Tensor.norm",
        "sigmoid|silu|std|var|norm|logaddexp",
        r'ComplexError: "\w+" not implemented for torch\.complex',
        "not simulated",
    ),
    Listed(
        "Tensor.logical_and_",
        "__i|_$",
        "backward: raises UnsupportedError: derivative for aten::(logical_|floor_divide)",
        "PyTorch drops the history of what is overwritten",
    ),
    Listed(
        "Tensor.logical_and_",
        r"Tensor\.logical_(and|or)_",
        "needs_gradient True, expected False",
        "PyTorch drops the history of what is overwritten",
    ),
    Listed(
        "Tensor.__matmul__",
        "mm|mv|dot|inner|matmul|linear|einsum",
        "is not defined for torch.bool",
        "GPUs have no product of bools; PyTorch has one on the CPU",
    ),
    Listed(
        "Tensor.__matmul__",
        "mm|matmul|mv",
        "expected the operands to have the same dtype",
        "PyTorch does not look at the types of products over nothing",
    ),
    Listed(
        "Tensor.log_softmax",
        "softmax",
        "could not infer output dtype",
        "PyTorch does not look at the type of an empty tensor",
    ),
    Listed(
        "torch.prod",
        "norm|mod|remainder|pow|std|var|prod|max|min",
        "gradient",
        "at infinities the formulas differ",
        special=True,
    ),
    Listed("Tensor.mT", "mT", "only supported on matrices", "deprecated in PyTorch"),
    Listed(
        "torch.topk",
        "topk",
        "topk of no element of a 0-d tensor",
        "PyTorch's result has one element",
    ),
    Listed(
        "Tensor.clamp", "clamp", "not one of each", "a 0-d tensor that PyTorch reads as a number"
    ),
    Listed(
        "Tensor.lerp", "lerp", "for `weight` but got", "a 0-d tensor that PyTorch reads as a number"
    ),
    Listed("torch.prod", "mean|prod|sum", "the imaginary part is lost", "PyTorch warns"),
    Listed(
        "torch.gather",
        "gather|scatter",
        "does not fit input of shape|expected an index tensor",
        "PyTorch does not look at an empty index",
    ),
    Listed(
        "torch.linspace",
        "linspace",
        "not implemented for torch.bool",
        "PyTorch takes it if empty only",
    ),
    Listed(
        "torch.nn.functional.linear",
        "functional.linear",
        "does not fit a weight",
        "undocumented in PyTorch",
    ),
    Listed(
        "Tensor.bernoulli",
        "normal_|bernoulli|rand",
        "is not implemented for torch.",
        "no random numbers of integer types",
    ),
    Listed(
        "Tensor.masked_fill_",
        "masked_fill_",
        "raises .*single memory location",
        "deprecated in PyTorch",
    ),
    Listed(
        "torch.einsum",
        "einsum",
        "is not simulated where one operand names a subscript twice",
        "not simulated",
    ),
    Listed("Tensor.round", "round", "round_vml_cpu", "GPUs round integers"),
    Listed("torch.randint", "randint|randperm", "accepted; ", "numbers are made of any type"),
    Listed(
        "Tensor.repeat_interleave",
        "repeat_interleave",
        "Dimension out of range",
        "no repeats of nothing",
    ),
    Listed(
        "Tensor.prod",
        "",
        "accepted; PyTorch raises RuntimeError: Autograd not support dtype",
        "PyTorch refuses it since the result has no gradient",
    ),
    Listed(
        "Tensor.__setitem__",
        "__setitem__",
        "accepted; .*single memory location",
        "x[()] fills, as x[...] does; and as PyTorch does since 2.15",
        until=(2, 15),
    ),
    Listed(
        "Tensor.min",
        "",
        "result.*strides",
        "the CPU converts operands first, a GPU does not",
        mixed=True,
    ),
    Listed(
        "torch.nn.functional.scaled_dot_product_attention",
        "scaled_dot_product_attention",
        "strides",
        "on a GPU flash attention pads rows to 8 elements: the result is a part of what it writes",
    ),
    Listed("Tensor.conj", "einsum|conj", "strides", "PyTorch gives a view, or a permuted product"),
    Listed(
        "Tensor.__rpow__",
        "angle|div|masked_fill|rpow|__getitem__|where|lerp|addc|clamp",
        "strides",
        "PyTorch's order follows intermediate tensors",
    ),
    Listed(
        "Tensor.bernoulli",
        "unique|bernoulli",
        "needs_gradient False, expected True",
        "has no gradient in PyTorch either",
    ),
    Listed(
        "torch.cat",
        "cat|stack",
        "(?s)needs_gradient False, expected True|gradient.*: None, expected",
        "an empty vector is left out",
    ),
    Listed("Tensor.std", r"\.(std|var)$", "gradient", "PyTorch counts no elements for dim=()"),
    Listed("Tensor.scatter", "scatter", "returned an invalid gradient", "PyTorch's own fault"),
    Listed(
        "torch.baddbmm",
        "addmm|baddbmm",
        "accepted; PyTorch raises .*can't be cast",
        "PyTorch's own fault",
    ),
    Listed(
        "Tensor.__rmod__",
        "mod",
        "backward: accepted; .*derivative for aten::remainder",
        "it is simulated",
    ),
    Listed(
        "torch.nn.functional.layer_norm",
        "layer_norm|softmax|attention",
        "gradient",
        "PyTorch rounds more often in 16 bits",
    ),
    Listed(
        "torch.clamp",
        "clamp",
        "gradient",
        "a value that is a bound has its gradient in PyTorch 2.13, half of it or none since 2.14",
        since=(2, 14),
    ),
    Listed(
        "Tensor.clamp",
        "clamp",
        "cannot be converted to type|outside the representable range",
        "PyTorch 2.13 refuses a bound that the type cannot hold, 2.15 one that leaves no value",
        since=(2, 15),
    ),
    Listed(
        "torch.arange",
        "arange",
        "step must be nonzero",
        "PyTorch 2.13 converts a step to the result's type first, 2.14 computes with it as it is",
        since=(2, 14),
    ),
)
"""Differences that are meant."""

UNCOMPARED: Final = {
    **dict.fromkeys(
        [
            "torch.are_deterministic_algorithms_enabled",
            "torch.get_default_dtype",
            "torch.get_float32_matmul_precision",
            "torch.get_num_threads",
            "torch.is_deterministic_algorithms_warn_only_enabled",
            "torch.load",
            "torch.manual_seed",
            "torch.save",
            "torch.set_default_dtype",
            "torch.set_float32_matmul_precision",
            "torch.set_num_threads",
            "torch.typename",
            "torch.use_deterministic_algorithms",
            "torch.initial_seed",
            "torch.is_grad_enabled",
            "torch.is_inference_mode_enabled",
        ],
        "a state, no operation",
    ),
    **dict.fromkeys(
        [
            "Tensor.backward",
            "Tensor.register_hook",
            "Tensor.register_post_accumulate_grad_hook",
            "Tensor.retain_grad",
            "Tensor.detach_",
            "Tensor.requires_grad_",
            "Tensor.grad",
            "Tensor.grad_fn",
            "Tensor._version",
        ],
        "a part of the pass back, which every row takes",
    ),
    **dict.fromkeys(
        [
            "Tensor.data_ptr",
            "Tensor.untyped_storage",
            "Tensor.storage_offset",
            "Tensor.stride",
            "Tensor.is_pinned",
            "Tensor.pin_memory",
            "Tensor.record_stream",
            "Tensor.cuda",
        ],
        "a fact of the memory; strides are compared in every row",
    ),
    **dict.fromkeys(
        ["Tensor.__repr__", "Tensor.__str__", "Tensor.__format__"],
        "compared with PyTorch's texts where printing is tested",
    ),
    **dict.fromkeys(
        [
            "Tensor.__hash__",
            "Tensor.__init__",
            "Tensor.__iter__",
            "Tensor.__copy__",
            "Tensor.__deepcopy__",
            "Tensor.__reduce_ex__",
            "Tensor.type",
        ],
        "a protocol of Python, or about classes",
    ),
    **dict.fromkeys(
        ["torch.from_numpy", "Tensor.numpy", "Tensor.__array__"],
        "used to make and to read every operand",
    ),
    **dict.fromkeys(
        [
            "torch.seed",
            "torch.get_rng_state",
            "torch.set_rng_state",
            "torch.multinomial",
            "Tensor.multinomial",
        ],
        "random: the numbers are not PyTorch's",
    ),
    **dict.fromkeys(
        ["torch.get_default_device", "torch.set_default_device"],
        "compared with PyTorch's rules where devices are tested",
    ),
    **dict.fromkeys(
        ["Tensor.is_inference", "Tensor.retains_grad"],
        "compared with PyTorch where autograd is tested",
    ),
    "torch.nn.functional.swiglu": "not in PyTorch",
    "torch.nn.Module": "a base class",
    "torch.nn.Parameter": "a tensor",
    "torch.nn.ModuleDict": "a container",
    "torch.nn.ModuleList": "a container",
    "torch.nn.ParameterDict": "a container",
    "torch.nn.ParameterList": "a container",
    "torch.nn.Sequential": "a container",
}
"""Operations without a row, each with its reason."""
