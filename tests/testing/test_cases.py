"""Cases: which functions may be one, which name finds which, and what arguments they take."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import KernbenchError, OperandError, UsageError
from kernbench.testing.arguments import check_world_size, plain_arguments
from kernbench.testing.cases import _CASES, CaseRequest, dist_case, find_case, spec_of_case


@pytest.fixture(autouse=True)
def _no_other_cases() -> Iterator[None]:
    before = dict(_CASES)
    _CASES.clear()
    modules = dict(sys.modules)
    yield
    _CASES.clear()
    _CASES.update(before)
    sys.modules.clear()
    sys.modules.update(modules)


def imported(source: str, file: str = "cases_of_a_user.py", name: str = "") -> ModuleType:
    """Returns the module of a source, as an import of its file makes it."""
    module = ModuleType(name or Path(file).stem)
    vars(module).update(__file__=file, __spec__=object())
    sys.modules[module.__name__] = module
    text = "from kernbench.testing import dist_case\n" + source
    exec(compile(text, file, "exec"), vars(module))
    return module


ONE = "@dist_case\ndef one(ctx, rank, n=1, *, flag=False): pass\n"


def test_a_case_is_found_by_its_name() -> None:
    module = imported(ONE + "@dist_case(name='other', data=False)\ndef two(ctx, rank): pass\n")
    case = find_case("one")
    assert case.body is module.one
    assert (case.module, case.fields) == ("cases_of_a_user", {})
    assert case.file == str(Path("cases_of_a_user.py").resolve())
    assert find_case("other").fields == {"data": False}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("dist_case(lambda ctx, rank: None)", "a lambda has no name"),
        ("def f():\n @dist_case\n def g(ctx, rank): pass\nf()", "f.<locals>.g is not at the top"),
        ("class C:\n @dist_case\n def g(ctx, rank): pass", "C.g is not at the top level"),
        ("dist_case(len)", "expected a function, got builtin_function_or_method"),
        ("class C:\n def __call__(self, c, r): pass\ndist_case(C())", "expected a function, got C"),
        (
            "import functools\ndist_case(functools.partial(print))",
            "expected a function, got partial",
        ),
        ("@dist_case\nasync def f(ctx, rank): pass", "f is a generator or a coroutine"),
        ("@dist_case\ndef f(ctx, rank): yield", "f is a generator or a coroutine"),
        ("@dist_case\ndef f(ctx): pass", "expected the parameters ctx, rank, ..., got (ctx)"),
        ("@dist_case\ndef f(ctx, rank, world_size): pass", "its parameter world_size is one of"),
        ("@dist_case(machne='sip8')\ndef f(ctx, rank): pass", "did you mean `machine`?"),
        ("@dist_case(seed=-1)\ndef f(ctx, rank): pass", "seed: expected an integer from 0"),
        (ONE + "@dist_case(name='one')\ndef g(ctx, rank): pass", "two cases are called 'one'"),
        (ONE + ONE, "two cases are called 'one'"),
    ],
)
def test_what_another_process_could_not_run_is_refused(source: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        imported(source)
    assert why in str(caught.value)


def test_a_case_is_registered_while_its_module_is_imported() -> None:
    late = imported("def one(ctx, rank): pass").one
    with pytest.raises(UsageError, match="after cases_of_a_user has been imported"):
        dist_case(late)


def test_a_wrapped_function_is_a_case_of_its_own_module() -> None:
    imported(
        "import functools\n"
        "def twice(f):\n"
        "    @functools.wraps(f)\n"
        "    def both(*args): f(*args); f(*args)\n"
        "    return both\n"
        "@dist_case\n@twice\ndef one(ctx, rank): pass\n"
    )
    assert find_case("one").place.endswith("cases_of_a_user.py:7")


def test_another_import_of_the_same_file_replaces_its_cases() -> None:
    imported(ONE)
    again = imported(ONE, name="package.cases_of_a_user")
    assert find_case("one").body is again.one
    moved = imported("\n\n" + ONE)  # the file was edited
    assert find_case("one").body is moved.one


def test_another_file_may_not_take_a_name() -> None:
    imported(ONE, "first.py")
    with pytest.raises(UsageError) as caught:
        imported(ONE, "second.py")
    assert "first.py:2" in str(caught.value)
    assert "second.py:2" in str(caught.value)
    assert "@dist_case(name=...)" in str(caught.value)


def test_a_case_of_a_module_that_is_gone_gives_way() -> None:
    imported(ONE, "first.py")
    del sys.modules["first"]
    imported(ONE, "second.py")
    assert find_case("one").module == "second"


def test_an_unknown_name_gets_the_nearest_one() -> None:
    imported(ONE)
    with pytest.raises(UsageError, match=r"did you mean `one`\?"):
        find_case("onne")
    with pytest.raises(UsageError, match="the cases are one"):
        find_case(1)  # type: ignore[arg-type]
    _CASES.clear()
    with pytest.raises(UsageError, match="decorate a function with @dist_case"):
        find_case("one")


def test_the_fields_of_a_case_win_over_the_session() -> None:
    imported("@dist_case(machine='sip8', seed=5)\ndef one(ctx, rank): pass")
    spec = spec_of_case(find_case("one"), "h200x8", 1234, 10, 2.0)
    assert (spec.topology, spec.seed, spec.max_time_ps, spec.watchdog_s) == ("sip8", 5, 10, 2.0)
    imported("@dist_case\ndef two(ctx, rank): pass")
    spec = spec_of_case(find_case("two"), "h200x8", 1234, 0, 2.0)
    assert (spec.topology, spec.seed) == ("h200x8", 1234)


# Arguments


def plain(**kwargs: Any) -> dict[str, Any]:
    imported("@dist_case\ndef any_of(ctx, rank, **kwargs): pass")
    return plain_arguments(find_case("any_of"), kwargs)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(math.isfinite),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=30)
def test_json_values_arrive_as_they_are(value: Any) -> None:
    arrived = plain(x=value)["x"]
    assert arrived == value
    assert repr(arrived) == repr(value)  # also the types: True is not 1, 1.0 is not 1
    assert json.loads(json.dumps(arrived)) == value


@pytest.mark.parametrize(
    ("value", "arrived"),
    [
        (Path("a/b"), "a/b"),
        (PurePosixPath("c"), "c"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        ((1, (2, np.int8(3))), [1, [2, 3]]),
    ],
)
def test_paths_and_scalars_are_made_plain(value: object, arrived: object) -> None:
    assert repr(plain(x={"deep": value})) == repr({"x": {"deep": arrived}})


def _holds_itself() -> list[Any]:
    items: list[Any] = [1]
    items.append({"again": items})
    return items


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {1, 2},
            "argument x of the case cannot go to another process: JSON has no values of type set",
        ),
        ([0, {"a": b""}], "argument x[1]['a'] of the case cannot"),
        ({1: 2}, "its key 1 is no text"),
        (float("nan"), "nan is no JSON value"),
        (np.float64("inf"), "inf is no JSON value"),
        (np.zeros(2), "JSON has no values of type ndarray"),
        (np.datetime64("2020-01-01"), "JSON has no values of type date"),
        (complex(1), "JSON has no values of type complex"),
        (object(), "JSON has no values of type object"),
        (
            [10**5000],
            "argument x[0] of the case cannot go to another process: an integer",
        ),
        (_holds_itself(), "argument x of the case cannot go to another process: it holds"),
    ],
)
def test_other_values_are_refused_by_key(value: object, why: str) -> None:
    with pytest.raises(OperandError) as caught:
        plain(x=value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"m": 1}, "got an unexpected keyword argument 'm'"),
        ({"rank": 1}, "multiple values for argument 'rank'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kwargs: dict[str, Any], why: str) -> None:
    imported(ONE)
    with pytest.raises(OperandError) as caught:
        plain_arguments(find_case("one"), kwargs)
    assert why in str(caught.value)
    assert "one(ctx, rank, n=1, *, flag=False)" in str(caught.value)


def test_an_unknown_argument_is_told_before_one_that_is_missing() -> None:
    imported(ONE.replace("(ctx, rank", "(ctx, rank, size, steps"))
    with pytest.raises(OperandError, match="unexpected keyword argument 'sizes'") as caught:
        plain_arguments(find_case("one"), {"sizes": 5})
    assert caught.value.hint == "did you mean `size`?"


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "2", None])
def test_a_world_has_a_positive_number_of_ranks(wrong: object) -> None:
    with pytest.raises(KernbenchError, match="expected a positive number of ranks"):
        check_world_size(wrong)


def test_a_number_of_ranks_may_be_one_of_numpy() -> None:
    assert repr(check_world_size(np.int64(3))) == "3"


def test_a_request_crosses_as_plain_values() -> None:
    request = CaseRequest(
        nodeid="t.py::test[a]#1", case="c", module="m", file="/f.py", world_size=8, seed=3,
        kwargs={"a": [1, None]}, env={"A": "1", "B": None}, machine="h200x8", leaks="warn",
    )  # fmt: skip
    document = json.loads(json.dumps(request.to_json()))
    assert CaseRequest.from_json({**document, "op": "run", "id": 3}) == request
