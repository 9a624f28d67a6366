"""Lines of the user's own are named, not lines of the libraries between them and kernbench."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from kernbench import errors
from kernbench.des import EventLoop, ThreadPool, current_task
from kernbench.errors import (
    CallSite,
    call_site,
    call_site_of,
    is_of_python,
    is_passed_over,
    libraries_passed_over,
    passed_over,
    site_in,
)
from kernbench.process.last_frame import last_frame
from kernbench.ranks.watchdog import users_code_runs

Call = Callable[[Callable[[], Any]], Any]


def module(name: str) -> Call:
    """Returns a function of a module that calls what it is given."""
    content: dict[str, Any] = {"__name__": name}
    exec("def call(function):\n    return function()", content)
    call: Call = content["call"]
    return call


LAYER = module("library.nn.layer")
ALIKE = module("libraryalike")


def place(site: CallSite | None) -> str:
    assert site is not None
    return site.code.co_filename


def test_a_library_is_passed_over_inside_of_the_block_only() -> None:
    def find() -> CallSite | None:
        site: CallSite | None = LAYER(call_site)
        return site

    assert place(find()) == "<string>"  # and is remembered
    for _ in range(2):
        with passed_over("library"):
            assert place(find()) == __file__
            assert place(find()) == __file__
        assert place(find()) == "<string>"


def test_libraries_of_an_environment_below_this_one_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("dist-packages", "sources"):
        (tmp_path / folder / f"of_{folder[:4]}").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    with libraries_passed_over():
        assert place(module("of_dist.nn")(call_site)) == __file__
        assert place(module("of_sour.nn")(call_site)) == "<string>"


def test_what_only_begins_like_a_library_is_the_users() -> None:
    with passed_over("library"):
        assert place(ALIKE(call_site)) == "<string>"
    with passed_over("library.nn"):
        assert place(LAYER(call_site)) == __file__
    with passed_over("library.optim"):
        assert place(LAYER(call_site)) == "<string>"


def test_blocks_may_be_nested() -> None:
    with passed_over("library"):
        with passed_over("library", "libraryalike"):
            assert place(LAYER(lambda: ALIKE(call_site))) == __file__
        assert place(LAYER(call_site)) == __file__
        assert place(ALIKE(call_site)) == "<string>"
    assert not errors._libraries


def test_what_is_known_of_frames_stays_as_it_was() -> None:
    before = call_site()
    with passed_over("library"):
        LAYER(call_site)
    assert call_site() is not before
    assert errors._skipped <= errors._known


def test_where_only_libraries_called_the_outermost_line_of_theirs_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, own = EventLoop(), globals()
    with ThreadPool() as pool:
        loop.carriers = pool
        task = loop.start(module("library.run"), lambda: None, owner=loop.owner(0), name="rank 0")
        loop.run()
        assert task.error is None
        monkeypatch.setitem(own, "__name__", "kernbench.as_if")
        found: list[Any] = []

        def look() -> None:
            task = current_task()
            assert task is not None
            found.extend([call_site(), last_frame(None)])

        start = module("library.run")
        with passed_over("library"):
            loop.start(start, lambda: LAYER(look), owner=loop.owner(0), name="rank 0")
            loop.run()
        site, frame = found
        assert site.code is start.__code__
        assert frame.f_code is start.__code__


def test_of_a_stack_and_of_an_error() -> None:
    frames: list[FrameType | None] = []
    caught: list[BaseException] = []

    def fail() -> None:
        raise ArithmeticError

    def user() -> None:
        LAYER(lambda: None)
        LAYER(fail)

    try:
        user()
    except ArithmeticError as error:
        caught.append(error)
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
    in_library = frames[-2]
    assert place(site_in(in_library)) == "<string>"
    site = call_site_of(caught[0])
    assert site is not None
    assert site.code.co_name == "fail"
    with passed_over("library"):
        assert is_passed_over(in_library)  # type: ignore[arg-type]
        site = site_in(in_library)
        assert site is not None
        assert site.code.co_name == "user"
        with passed_over(__name__):
            assert place(site_in(in_library)) != "<string>"  # pytest's, which is nobody's library


def test_of_an_error_that_left_no_line_of_the_user() -> None:
    def fail() -> None:
        raise ArithmeticError

    outer = module("library.outer")
    with pytest.raises(ArithmeticError) as caught:
        outer(lambda: LAYER(fail))
    with passed_over("library", __name__):
        error = caught.value.with_traceback(caught.tb)
        site = call_site_of(error)
    assert site is not None
    assert site.code.co_name == "test_of_an_error_that_left_no_line_of_the_user"


def test_of_an_error_in_the_standard_library() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("x")
    site = call_site_of(caught.value)
    assert site is not None
    assert site.source == 'json.loads("x")'
    innermost = caught.traceback[-1].frame.raw
    assert is_of_python(innermost)
    assert not is_of_python(sys._getframe())


@pytest.mark.parametrize(
    ("modules", "users"),
    [
        (["library.nn", "train", "kernbench.ranks.spawning"], True),
        (["library.nn", "kernbench.bridge", "library.nn", "train"], False),
        (["library.nn", "kernbench.ranks.spawning"], False),
    ],
)
def test_the_watchdog_counts_a_library_for_whoever_called_it(
    modules: list[str], users: bool
) -> None:
    frame: Any = None
    for name in reversed(modules):
        frame = SimpleNamespace(f_globals={"__name__": name}, f_back=frame)
    with passed_over("library"):
        assert users_code_runs(frame) is users
