"""Arguments that are no tensors, to every public function that takes tensors."""

import inspect
import pickle
import re
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError, OperandError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import guarded_function
from kernbench.tp import cross_entropy, gradients, mappings

FACES = (
    torch,
    torch.autograd,
    torch.nn.functional,
    torch.nn.init,
    torch.nn.utils,
    torch.testing,
    mappings,
    cross_entropy,
    gradients,
)

WRONG = {
    "numpy.ndarray": np.ones((3, 4), np.float32),
    "list": [[1.0] * 4] * 3,
    "NoneType": None,
    "str": "a",
}


def _text(kind: Any) -> str:
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return kind.__name__
    return re.sub(r"\b(\w+\.)+", "", str(kind))


def _is_tensor(kind: str) -> bool:
    return kind.replace(" | None", "") in {"Tensor"}


def _filled(parameter: inspect.Parameter) -> Any:
    """Returns something of the right kind for a parameter."""
    kind = _text(parameter.annotation)
    if _is_tensor(kind) or "Scalar" in kind or "Tensor | int" in kind:
        return torch.ones(3, 4)
    if "equence[Tensor]" in kind or "Iterable[Tensor]" in kind:
        value = torch.ones(3, 4)
        value.grad = torch.ones(3, 4)
        return [value]
    if "str" in kind:
        return "ij->ij"
    if kind.startswith("Sequence[int]") or "int | Sequence" in kind:
        return (4,)
    return 1


def _cases() -> list[Any]:
    """Returns each parameter that is a tensor of each public function, with what it must not be."""
    cases = []
    for face in FACES:
        place = face.__name__.removeprefix("kernbench.")
        public = getattr(face, "__all__", vars(face))
        for name, function in sorted(vars(face).items()):
            if not isinstance(function, FunctionType) or name.startswith("_"):
                continue
            if name not in public:
                continue
            for parameter in inspect.signature(function).parameters.values():
                kind = _text(parameter.annotation)
                if _is_tensor(kind):
                    wrong = [each for each in WRONG if each != "NoneType" or "None" not in kind]
                    label = f"{place}.{name}-{parameter.name}"
                    cases.append(pytest.param(function, parameter.name, wrong, id=label))
    return cases


def _call(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Calls a function with values, and with some for all other parameters that need one."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args += [values.get(name, _filled(parameter))]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        elif name in values or parameter.default is inspect.Parameter.empty:
            value = values.get(name, _filled(parameter) if name not in values else None)
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                kwargs[name] = value
    if args:
        args = [kwargs.pop(name) for name in list(kwargs)] + args
    return function(*args, **kwargs)


@pytest.mark.parametrize(("function", "name", "kinds"), _cases())
def test_an_argument_that_is_no_tensor_is_named(
    ctx: RuntimeContext, function: Callable[..., Any], name: str, kinds: list[str]
) -> None:
    for kind in kinds:
        with pytest.raises(OperandError) as caught:
            _call(function, {name: WRONG[kind]})
        error = caught.value
        assert f"argument {name!r} must be " in error.summary
        assert error.summary.endswith(f", not {kind}")
        assert "test_operands.py" in error.facts[0]
        assert ("torch.from_numpy" in error.hint) == (kind == "numpy.ndarray")


# The rest of a signature


def test_of_several_the_one_that_is_no_tensor_is_named(ctx: RuntimeContext) -> None:
    x = torch.ones(2)
    wrong: Any
    for wrong, text in (
        ([x, None], "argument 'tensors[1]' must be Tensor, not NoneType"),
        (np.ones(2), "argument 'tensors' must be sequence of Tensors, not numpy.ndarray"),
        (None, "argument 'tensors' must be sequence of Tensors, not NoneType"),
        ((v for v in (x, 1)), "argument 'tensors' must be sequence of Tensors, not generator"),
    ):
        with pytest.raises(OperandError) as caught:
            torch.cat(wrong)
        assert caught.value.summary == f"cat(): {text}"


def test_methods_and_setters_name_their_operands(ctx: RuntimeContext) -> None:
    x: Any = torch.ones(2, 2)
    array = np.ones((2, 2))
    with pytest.raises(OperandError, match=r"^matmul\(\): argument 'other' must be Tensor"):
        x @ array
    with pytest.raises(OperandError, match=r"argument 'index' must be Tensor"):
        x.gather(0, array)
    with pytest.raises(OperandError, match=r"argument 'gradient' must be Tensor"):
        x.requires_grad_().sum().backward(array)
    with pytest.raises(OperandError, match=r"^Tensor.data\(\): argument 'other' must be Tensor"):
        x.data = array
    with pytest.raises(OperandError, match=r"takes tensors and numbers; got numpy.ndarray") as sum_:
        x + array
    assert "torch.from_numpy" in sum_.value.hint


def test_what_was_called_is_named_and_not_what_that_calls(ctx: RuntimeContext) -> None:
    array: Any = np.ones((2, 3))
    with pytest.raises(OperandError, match=r"^Linear.forward\(\): argument 'input' must be "):
        torch.nn.Linear(3, 4)(array)
    with pytest.raises(OperandError, match=r"^Linear.forward\(\): argument 'input' must be "):
        torch.nn.Sequential(torch.nn.Linear(3, 4))(array)
    with pytest.raises(OperandError, match=r"^reduce_from_tensor_model_parallel_region\(\): "):
        mappings.reduce_from_tensor_model_parallel_region(array)
    x = torch.ones(2, 3)
    with pytest.raises(OperandError, match=r"^scaled_dot_product_attention\(\): argument 'key' "):
        F.scaled_dot_product_attention(x, array, x)
    ctx_functional: Any = ctx
    with pytest.raises(OperandError, match=r"^relu\(\): argument 'input' must be Tensor"):
        ctx_functional.nn.functional.relu(array)


# What is not translated


def _broken(input: "torch.Tensor", other: "torch.Tensor | None" = None) -> "torch.Tensor":
    missing: Any = input.no_such_thing  # type: ignore[attr-defined]
    return missing  # type: ignore[no-any-return]


def test_a_failure_with_right_arguments_stays_what_it_was(ctx: RuntimeContext) -> None:
    assert isinstance(_broken, FunctionType)
    guarded = guarded_function(_broken)
    x = torch.ones(2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        guarded(x, other=None)
    with pytest.raises(OperandError, match="argument 'other'"):
        guarded(x, other=3)
    with pytest.raises(TypeError, match="missing a required argument: 'input'"):
        guarded()
    with pytest.raises(TensorError, match="the last dimensions of query and key differ"):
        F.scaled_dot_product_attention(x[None], torch.ones(1, 3), torch.ones(1, 3))


def test_attention_shows_its_shapes(ctx: RuntimeContext) -> None:
    x = torch.ones(2, 3, 4, 5)
    with pytest.raises(TensorError) as caught:
        F.scaled_dot_product_attention(x, torch.ones(2, 3, 4, 6), x)
    assert caught.value.facts[1] == "query [2, 3, 4, 5], key [2, 3, 4, 6], value [2, 3, 4, 5]"


def test_a_module_of_the_user_fails_as_it_does(ctx: RuntimeContext) -> None:
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.no_such_thing  # type: ignore[attr-defined, no-any-return]

    array: Any = np.ones(2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        Own()(array)


def test_operators_are_left_alone() -> None:
    assert not hasattr(torch.Tensor.__neg__, "__wrapped__")
    assert torch.Tensor.__len__.__closure__ is None


@pytest.mark.parametrize("function", [torch.exp, F.gelu, F.linear, torch.nn.init.normal_])
def test_a_public_function_can_be_pickled(function: Callable[..., Any]) -> None:
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("module", FACES[:-3])
def test_the_tree_of_a_context_has_the_same_functions(
    ctx: RuntimeContext, module: ModuleType
) -> None:
    place: Any = ctx
    for part in module.__name__.split(".")[2:]:
        place = getattr(place, part)
    for name, value in vars(module).items():
        if hasattr(value, "__wrapped__") and not name.startswith("_"):
            assert inspect.unwrap(getattr(place, name)) is inspect.unwrap(value)


# Modules and state


def test_what_modules_do_not_take(ctx: RuntimeContext) -> None:
    nn = torch.nn
    array: Any = np.ones(3)
    with pytest.raises(TypeError, match=r"numpy.ndarray is not a Module subclass"):
        nn.Sequential(array)
    with pytest.raises(TypeError, match="give an instance of a Module, not its class"):
        nn.ModuleList([nn.ReLU])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"'b' must be Tensor or None, not numpy.ndarray"):
        nn.Module().register_buffer("b", array)
    with pytest.raises(TypeError, match=r"'p' must be Parameter or None, not numpy.ndarray"):
        nn.Module().register_parameter("p", array)
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        nn.Dropout(1.5)
    nn.Module().register_buffer("b", None)


def test_a_state_dict_of_something_else(ctx: RuntimeContext) -> None:
    layer = torch.nn.Linear(2, 1)
    before = layer.weight.tolist()
    wrong: Any
    for kind, wrong in WRONG.items():
        with pytest.raises(RuntimeError) as caught:
            layer.load_state_dict({"weight": wrong, "bias": torch.ones(1)})
        assert f"weight must be Tensor, not {kind}" in str(caught.value)
        assert ("torch.from_numpy" in str(caught.value)) == (kind == "numpy.ndarray")
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like, got list"):
        layer.load_state_dict([])  # type: ignore[arg-type]
    assert layer.weight.tolist() == before


def test_errors_have_the_classes_of_pytorch(ctx: RuntimeContext) -> None:
    with pytest.raises(RuntimeError, match="'float33' is no device"):
        torch.ones(2).to("float33")
    with pytest.raises(NotImplementedError):
        F.dropout(torch.ones(2), inplace=True)


def test_targets_of_losses(ctx: RuntimeContext) -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    classes = torch.tensor([1, 0])
    assert torch.equal(
        F.cross_entropy(logits, classes.to(torch.uint8)), F.cross_entropy(logits, classes)
    )
    column, row = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 5.0])
    with pytest.warns(UserWarning, match=r"a target of shape \[2\] is broadcast") as caught:
        loss = F.mse_loss(column, row)
    assert caught[0].filename == __file__
    assert loss.item() == (2**2 + 4**2 + 1**2 + 3**2) / 4


# Arguments that are no tensors

USAGE = "hint: the call is sum(input, dim=None, keepdim=False, *, dtype=None)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.sum(1.5), "sum(): argument 'dim' must be int or sequence of ints or None"),
        (lambda x: x.sum([0, "a"]), "a dimension is an int, not str"),
        (lambda x: x.sum(0, keepdim=1), "sum(): argument 'keepdim' must be bool, not int"),
        (lambda x: x.sum(True), "sum(): argument 'dim' must be int or sequence of ints or None"),
        (lambda x: x.sum(0, unknown=1), "sum(): got an unexpected keyword argument 'unknown'"),
        (lambda x: x.exp(1), "exp(): too many positional arguments"),
        (lambda x: x.dim(1), "Tensor.dim(): too many positional arguments"),
        (lambda x: torch.sum(), "sum(): missing a required argument: 'input'"),  # type: ignore[call-arg]
        (lambda x: x.split(1.5), "Tensor.split(): argument 'split_size' must be int or"),
        (lambda x: F.dropout(x, p=None), "dropout(): argument 'p' must be float, not NoneType"),  # type: ignore[arg-type]
        (lambda x: torch.nn.Linear("a", 3), "Linear(): argument 'in_features' must be int"),  # type: ignore[arg-type]
        (lambda x: torch.zeros(2, dtype=[]), "zeros(): argument 'dtype' must be torch.dtype"),  # type: ignore[arg-type]
        (lambda x: torch.ones(2, dtype=float), "ones(): argument 'dtype' must be torch.dtype or"),  # type: ignore[arg-type]
        (lambda x: x.sum(dtype=np.float32), "sum(): argument 'dtype' must be torch.dtype or"),
        (lambda x: x.to(torch.int32, *[1] * 9), "to() takes at most 4 positional arguments"),
        (lambda x: x @ 1.5, "matmul(): argument 'other' must be Tensor, not float"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(
    ctx: RuntimeContext, call: Callable[[Any], Any], text: str
) -> None:
    x = torch.ones(2, 3)
    # The second call finds what the first one remembered.
    for _ in range(2):
        with pytest.raises(OperandError) as caught:
            call(x)
        assert caught.value.summary.startswith(text)
        assert "test_operands.py" in caught.value.facts[0]


def test_the_accepted_call_is_shown(ctx: RuntimeContext) -> None:
    with pytest.raises(TypeError) as caught:
        torch.ones(2).sum(1.5)  # type: ignore[arg-type]
    assert "got 1.5" in str(caught.value)
    assert str(caught.value).endswith(f"  {USAGE}")


def test_a_type_in_place_of_a_dtype_is_shown(ctx: RuntimeContext) -> None:
    with pytest.raises(TypeError) as caught:
        torch.ones(2, dtype=np.float32)  # type: ignore[arg-type]
    assert "\n  got numpy.float32\n" in str(caught.value)


def test_what_a_callback_of_the_user_raises_is_passed_on(ctx: RuntimeContext) -> None:
    def hook(grad: torch.Tensor) -> None:
        raise KeyError("of the user")

    def broken(grad: torch.Tensor) -> None:
        raise ValueError("of the user")

    for each, kind in ((hook, KeyError), (broken, ValueError)):
        x = torch.ones(2, requires_grad=True)
        x.register_hook(each)
        with pytest.raises(kind) as caught:
            x.sum().backward()
        assert not isinstance(caught.value, KernbenchError)


def test_the_types_that_pytorch_takes_are_taken(ctx: RuntimeContext) -> None:
    x: Any = torch.ones(2, 3)
    assert x.sum(np.int64(0), keepdim=np.bool_(True)).shape == (1, 3)
    zero: Any = np.int64(0)
    for wide in (x.any(np.int64(0)), x.all(dim=np.int32(0)), torch.amax(x, zero)):
        assert wide.shape == (3,)
    assert x.max(zero)[0].shape == (3,)
    assert x.transpose(np.int64(0), np.int64(1)).shape == (3, 2)
    assert torch.nn.LayerNorm(zero + 3)(x).shape == (2, 3)
    assert x.narrow(0, torch.tensor(1), 1).shape == (1, 3)
    assert x.view(torch.Size([3, 2])).shape == (3, 2)
    assert torch.add(1, x).tolist() == [[2.0] * 3] * 2  # type: ignore[arg-type]
    assert torch.ones(2, requires_grad=None).tolist() == [1, 1]  # type: ignore[arg-type]
