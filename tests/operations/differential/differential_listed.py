"""Where kernbench differs from PyTorch on purpose, each with its reason."""

import re
from typing import Final, NamedTuple


class Listed(NamedTuple):
    """A kind of difference.

    Attributes:
        names: Names of the operations, a regular expression.
        difference: What is found, see `differential_compare.compare`, a regular expression.
        reason: Why it is so.
    """

    names: str
    difference: str
    reason: str

    def explains(self, name: str, difference: str) -> bool:
        """Returns whether this is a difference of that kind."""
        return bool(re.search(self.names, name) and re.search(self.difference, difference))


_TORCH = "PyTorch's own fault"

LISTED: Final = (
    # Not simulated, and refused by name
    Listed(
        "", r"gradients of (complex numbers|torch\.complex\d+) are not simulated", "not simulated"
    ),
    Listed("", r"of torch\.complex\d+ is not simulated", "not simulated"),
    Listed("", r"complex numbers of torch\.float16 .* are not simulated", "not simulated"),
    Listed(
        "sigmoid|silu|std|var|norm",
        r'ComplexError: "\w+" not implemented for torch\.complex',
        "not simulated",
    ),
    Listed(
        "__i|_$",
        "backward: raises UnsupportedError: derivative for aten::logical_",
        "PyTorch drops the history of a tensor that is overwritten by bools",
    ),
    Listed(
        r"Tensor\.logical_(and|or)_",
        "needs_gradient True, expected False",
        "PyTorch drops the history of a tensor that is overwritten by bools",
    ),
    # Refused, since GPUs refuse it
    Listed(
        "mm|mv|dot|inner|matmul|linear|einsum",
        "is not defined for torch.bool",
        "GPUs have no product of bools; PyTorch has one on the CPU",
    ),
    Listed(
        "mm|matmul|mv",
        "expected the operands to have the same dtype",
        "PyTorch does not look at the types of products over nothing",
    ),
    Listed(
        "softmax",
        "could not infer output dtype",
        "PyTorch does not look at the type of an empty tensor",
    ),
    Listed("mse_loss", "Subtraction, the `-` operator, with a bool tensor", "PyTorch computes it"),
    # Refused, since it is hardly ever meant
    Listed("mT", "only supported on matrices", "deprecated in PyTorch"),
    Listed("topk", "topk of no element of a 0-d tensor", "PyTorch's result has one element"),
    Listed("clamp", "not one of each", "a 0-d tensor that PyTorch reads as a number"),
    Listed("lerp", "for `weight` but got", "a 0-d tensor that PyTorch reads as a number"),
    Listed("mean|prod|sum", "the imaginary part is lost", "PyTorch warns"),
    Listed(
        "roll", "Dimension out of range", "PyTorch does not look at dimensions of empty tensors"
    ),
    Listed(
        "gather|scatter",
        "does not fit input of shape|expected an index tensor",
        "PyTorch does not look at an empty index",
    ),
    Listed("index_select", "expected an index tensor", "PyTorch does not look at an empty index"),
    Listed(
        "full_like", "cannot be converted to type torch.float16", "PyTorch takes it if 0-d only"
    ),
    Listed("linspace", "not implemented for torch.bool", "PyTorch takes it if empty only"),
    Listed("functional.linear", "does not fit a weight", "undocumented in PyTorch"),
    Listed("pow", "pow is not defined for torch.bool", "PyTorch takes the exponents 0 and 1 only"),
    Listed(
        "normal_|bernoulli|rand_like|randn_like",
        "is not implemented for torch.",
        "no random numbers of integer types",
    ),
    Listed(r"Tensor\.__getitem__|__setitem__", r"indices must be long.*float", "hardly ever meant"),
    # Accepted here
    Listed("round", "round_vml_cpu", "GPUs round integers"),
    Listed("randint|randperm", "accepted; ", "numbers are made of any type"),
    Listed("repeat_interleave", "Dimension out of range", "no repeats of nothing"),
    Listed(
        "",
        "accepted; PyTorch raises RuntimeError: Autograd not support dtype",
        "PyTorch refuses it since the result has no gradient",
    ),
    Listed(
        "masked_fill_",
        "accepted; PyTorch raises RuntimeError: value cannot be converted",
        "the value is a tensor, which the host does not read",
    ),
    # Laid out otherwise
    Listed("einsum|conj", "strides", "PyTorch gives a view, or a permuted product"),
    Listed(
        r"angle|div|masked_fill|rpow|__getitem__|where|lerp|addc|clamp",
        "strides",
        "PyTorch's order follows intermediate tensors",
    ),
    Listed(
        "unique|bernoulli",
        "needs_gradient False, expected True",
        "has no gradient in PyTorch either",
    ),
    Listed(
        "cat|concat|stack", "needs_gradient False, expected True", "an empty vector is left out"
    ),
    # Gradients
    Listed("norm", "(?s)gradient.*expected None", "PyTorch gives None for a gradient of zeros"),
    Listed("norm|mod|pow|std|var", "gradient.*(nan|inf)", "at infinities the formulas differ"),
    Listed(r"\.(std|var)$", "gradient", "PyTorch counts no elements for dim=()"),
    Listed("scatter", "returned an invalid gradient", _TORCH),
    Listed("pow", "backward: accepted; PyTorch raises .*bool tensor", _TORCH),
    Listed("addcdiv", "backward: accepted; PyTorch raises .*can't be cast", _TORCH),
    Listed("addmm|baddbmm", "accepted; PyTorch raises .*can't be cast", _TORCH),
    Listed("addcdiv", "gradient.*values", "PyTorch negates unsigned integers"),
    Listed("mod", "backward: accepted; .*derivative for aten::remainder", "it is simulated"),
    Listed("layer_norm|softmax|attention", "gradient", "PyTorch rounds more often in 16 bits"),
    Listed("sub|add", r"values .*inf.*j", "infinities times complex numbers"),
)
"""Differences that are meant."""

UNCOMPARED: Final = {
    **dict.fromkeys(
        [
            "torch.Generator",
            "torch.manual_seed",
            "torch.initial_seed",
            "torch.no_grad",
            "torch.enable_grad",
            "torch.inference_mode",
            "torch.set_grad_enabled",
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
            "Tensor.cuda",
            "Tensor.get_device",
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
    "torch.nn.functional.swiglu": "not in PyTorch",
    "torch.nn.Module": "a base class",
    "torch.nn.Parameter": "a tensor",
    "torch.nn.ModuleDict": "a container",
    "torch.nn.ModuleList": "a container",
    "torch.nn.Sequential": "a container",
}
"""Operations without a row, each with its reason."""
