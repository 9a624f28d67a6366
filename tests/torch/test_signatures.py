"""Parameters have PyTorch's names, order and defaults, so that no argument means another one."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kernbench.ccl.operations import Reduction
from kernbench.operations.typed import DTYPES as TYPED
from kernbench.runtime_api.namespace import root

TABLE: Final = Path(__file__).with_name("torch_2_13_signatures.txt")

LAYOUT: Final = {"layout", "memory_format", "names", "out", "implicit"}
"""By keyword only in PyTorch and not simulated: where we lack one, Python refuses it by name."""

OURS: Final = {
    "torch.Generator.restore",
    "torch.Generator.snapshot",
    "torch.distributed.functional_all_reduce",
    "torch.distributed.group_scope",
    "torch.distributed.live_groups",
    "torch.nn.functional.swiglu",
}
"""Names that PyTorch does not have."""

UNCOMPARED: Final = {
    "torch.Size": "made by tensors",
    "torch.Tensor": "made by functions",
    "torch.autograd.Function": "never called",
    "torch.autograd.function.Function": "never called",
    "torch.device": "compared where it is tested",
    "torch.distributed.Future": "made by works",
    "torch.distributed.ProcessGroup": "made by init_process_group and new_group",
    "torch.distributed.Work": "made by collectives",
    "torch.dtype": "there are no more of them",
    "torch.nn.attention.SDPBackend": "there are no more of them",
    "torch.profiler.ProfilerAction": "there are no more of them",
    "torch.profiler.ProfilerActivity": "there are no more of them",
    **{f"torch.{name}": "PyTorch has no signature of it" for name in TYPED},
    **{f"torch.cuda.{name}": "PyTorch has no signature of it" for name in TYPED},
}
"""Classes whose constructor is not for users, or is not of PyTorch's kind."""

EXTRA: Final = {
    "torch.Tensor.bmm": {"out"},
    "torch.Tensor.div": {"out"},
    "torch.Tensor.divide": {"out"},
    "torch.Tensor.logaddexp": {"out"},
    "torch.Tensor.logaddexp2": {"out"},
    "torch.Tensor.matmul": {"out"},
    "torch.Tensor.max": {"other"},
    "torch.Tensor.min": {"other"},
    "torch.Tensor.mm": {"out"},
    "torch.Tensor.multiply": {"out"},
    "torch.Tensor.true_divide": {"rounding_mode"},
    "torch.distributed.DeviceMesh": {"_groups", "_root"},
    "torch.distributed.device_mesh.DeviceMesh": {"_groups", "_root"},
    "torch.nn.utils.clip_grad_norm_": {"group"},
    "torch.nn.utils.get_total_norm": {"group"},
    "torch.true_divide": {"rounding_mode"},
}
"""Parameters that we add, all by keyword."""

RENAMED: Final = {
    ("torch.arange", "end"): "alone, `start` is the end",
    ("torch.randint", "high"): "without `low`, `low` is the bound",
    ("torch.randint", "size"): "without `low`, `high` is the size",
    ("torch.max", "other"): "`dim` may be the other tensor",
    ("torch.min", "other"): "`dim` may be the other tensor",
    ("torch.Tensor.max", "other"): "`dim` may be the other tensor",
    ("torch.Tensor.min", "other"): "`dim` may be the other tensor",
    ("torch.std", "unbiased"): "`dim` may be a bool",
    ("torch.var", "unbiased"): "`dim` may be a bool",
    ("torch.Tensor.std", "unbiased"): "`dim` may be a bool",
    ("torch.Tensor.var", "unbiased"): "`dim` may be a bool",
    ("torch.scatter", "value"): "`src` may be a number",
    ("torch.Tensor.scatter", "value"): "`src` may be a number",
    ("torch.Tensor.scatter_", "value"): "`src` may be a number",
    ("torch.Tensor.to", "other"): "by position, as in PyTorch",
}
"""Parameters of a further overload that stand where the first has one of another name."""

OTHER_DEFAULTS: Final = {
    ("torch.save", "pickle_module"): "the same module",
    ("torch.distributed.DeviceMesh", "mesh"): "PyTorch needs it too, or private arguments",
    ("torch.distributed.device_mesh.DeviceMesh", "mesh"): "PyTorch needs it too",
}

VARIADIC: Final = {
    "torch.Tensor.broadcast_to": "a sequence only",
    "torch.Tensor.count_nonzero": "a sequence only",
    "torch.Tensor.squeeze": "a sequence only",
    "torch.nn.Module.state_dict": "positions are deprecated",
}
"""Where PyTorch takes arguments one by one and we do not: Python refuses them."""

REQUIRED: Final = object()


class Signature(NamedTuple):
    """What can be given: by position in order, one by one, by keyword, and by any keyword."""

    positional: list[tuple[str, Any]]
    variadic: bool
    keywords: dict[str, Any]
    open: bool


def _parsed(parameters: str) -> Signature:
    definition = ast.parse(f"def f({parameters}): pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    defaults: list[Any] = [_value(node) for node in given.defaults]
    defaults = [REQUIRED] * (len(given.args) - len(defaults)) + defaults
    positional = [(arg.arg, value) for arg, value in zip(given.args, defaults, strict=True)]
    keywords = {
        arg.arg: REQUIRED if node is None else _value(node)
        for arg, node in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }
    return Signature(positional, given.vararg is not None, keywords, given.kwarg is not None)


def _value(node: ast.expr) -> Any:
    return float("inf") if isinstance(node, ast.Call) else ast.literal_eval(node)


def _theirs() -> dict[str, list[Signature]]:
    found: dict[str, list[Signature]] = {}
    for line in TABLE.read_text().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("(")
            found.setdefault(name, []).append(_parsed(rest.removesuffix(")")))
    return found


def _public(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yields all functions, classes and methods by their names; methods where they are defined."""
    for name, value in tree.items():
        place = f"{path}.{name}"
        if isinstance(value, Mapping):
            yield from _public(value, place)
        elif name.startswith("_"):
            continue
        elif inspect.isclass(value):
            yield place, value
            for method in {key for key in dir(value) if not key.startswith("_")}:
                found = inspect.getattr_static(value, method)
                above = [inspect.getattr_static(b, method, None) for b in _public_bases(value)]
                found = getattr(found, "__func__", found)
                if inspect.isfunction(found) and found not in above:
                    yield f"{place}.{method}", found
        elif callable(value):
            yield place, value


def _public_bases(kind: type) -> list[type]:
    names = {"Module", "Optimizer", "Tensor", "Adam", "LRScheduler"}
    return [base for base in kind.__mro__[1:] if base.__name__ in names]


def _ours() -> dict[str, Any]:
    skipped = (
        "torch.OutOfMemoryError",
        "torch.cuda.OutOfMemoryError",
        "torch.distributed.comm_debug.",
        "torch.multiprocessing.SpawnException",
        "torch.utils.checkpoint.CheckpointError",
    )
    return {name: value for name, value in _public(root(), "torch") if not name.startswith(skipped)}


MINE: Final = _ours()
THEIRS: Final = _theirs()


def _signature(value: Any) -> Signature:
    positional, keywords, variadic, any_keyword = [], {}, False, False
    for each in inspect.signature(value).parameters.values():
        default = REQUIRED if each.default is inspect.Parameter.empty else each.default
        if each.kind is each.VAR_POSITIONAL:
            variadic = True
        elif each.kind is each.VAR_KEYWORD:
            any_keyword = True
        elif each.kind is each.KEYWORD_ONLY:
            keywords[each.name] = default
        else:
            positional.append((each.name, default))
    return Signature(positional, variadic, keywords, any_keyword)


def _is_method(name: str) -> bool:
    return name.split(".")[-2][0].isupper()


def _same_default(name: str, parameter: str, ours: Any, theirs: Any, alone: bool) -> bool:
    if theirs is ... or (name, parameter) in OTHER_DEFAULTS:
        return True
    if theirs is REQUIRED:
        # With several overloads, one may be meant that lacks the parameter.
        return ours is REQUIRED or not alone
    if isinstance(ours, Reduction):
        return bool(ours.name == theirs)
    return bool(ours == theirs) and (type(ours) is bool) == (type(theirs) is bool)


def _differences(name: str, ours: Signature, overloads: list[Signature]) -> list[str]:
    """Returns what a call written for PyTorch would find different here."""
    problems = []
    alone = len(overloads) == 1
    everything = {**dict(ours.positional), **ours.keywords}
    known = set(EXTRA.get(name, ()))
    for theirs in overloads:
        for place, (parameter, default) in enumerate(theirs.positional):
            known.add(parameter)
            if (name, parameter) in RENAMED or (place == 0 and _is_method(name)):
                continue
            here = ours.positional[place] if place < len(ours.positional) else None
            if here is None and ours.variadic:
                here = (parameter, everything.get(parameter)) if parameter in everything else None
                same = here is not None and (default is REQUIRED or here[1] == default)
            elif here is None:
                same = parameter.startswith("_")
            else:
                same = here[0] == parameter and _same_default(
                    name, parameter, here[1], default, alone
                )
            if not same:
                problems.append(f"argument {place} is {here}, expected {parameter}={default}")
        if theirs.variadic and not ours.variadic and name not in VARIADIC:
            problems.append("takes no arguments one by one")
        for parameter, default in theirs.keywords.items():
            known.add(parameter)
            if parameter not in everything:
                if parameter not in LAYOUT and not parameter.startswith("_"):
                    problems.append(f"lacks {parameter}=")
            elif not _same_default(name, parameter, everything[parameter], default, alone):
                problems.append(f"{parameter}={everything[parameter]}, expected {default}")
    most = max(len(theirs.positional) for theirs in overloads)
    further = ours.positional[most:]
    if further and not any(theirs.variadic for theirs in overloads):
        problems.append(f"takes more by position: {further}")
    own = set(everything) - known
    if _is_method(name) and ours.positional:
        own.discard(ours.positional[0][0])
    if own and not any(theirs.open for theirs in overloads):
        problems.append(f"adds {sorted(own)}")
    return problems


@pytest.mark.parametrize("name", sorted(set(MINE) & set(THEIRS)))
def test_parameters_are_those_of_pytorch(name: str) -> None:
    assert _differences(name, _signature(MINE[name]), THEIRS[name]) == []


def test_every_name_is_compared_or_listed() -> None:
    missing = set(MINE) - set(THEIRS) - OURS - set(UNCOMPARED)
    # What these have besides PyTorch's methods is ours.
    kinds = ("torch.distributed.ProcessGroup.", "torch.optim.Optimizer.")
    assert {name for name in missing if not name.startswith(kinds)} == set()
    assert set(THEIRS) - set(MINE) == set()


def test_what_is_listed_is_needed() -> None:
    assert set(MINE) >= OURS
    assert not OURS & set(THEIRS)
    for name, _ in [*RENAMED, *OTHER_DEFAULTS]:
        assert name in THEIRS
    for name, extra in EXTRA.items():
        assert extra <= set(inspect.signature(MINE[name]).parameters)


@pytest.mark.parametrize(
    ("ours", "theirs", "problem"),
    [
        ("a, c", "a, b, c", "argument 1"),
        ("a, b=1", "a, b=2", "argument 1"),
        ("a, b=None", "a, b", "argument 1"),
        ("a", "a, *, b=1", "lacks b="),
        ("a, b=1", "a", "takes more by position"),
        ("a, *, b=1", "a", "adds ['b']"),
        ("a", "*a", "one by one"),
        ("a, b=0", "a, b=False", "argument 1"),
    ],
)
def test_the_comparison_finds(ours: str, theirs: str, problem: str) -> None:
    assert problem in "; ".join(_differences("torch.f", _parsed(ours), [_parsed(theirs)]))
