"""Work that goes on in a process of its own."""

import os
import threading
from collections.abc import Iterator

import pytest

from kernbench.triton.meanwhile import meanwhile

HERE = os.getpid()


def numbers() -> Iterator[int]:
    yield os.getpid()
    yield 7


def test_work_is_done_in_another_process_and_what_it_yields_comes_in_order() -> None:
    process, last = meanwhile(numbers)
    assert process != HERE
    assert last == 7
    with pytest.raises(ChildProcessError):  # nothing is left of it
        os.waitpid(process, os.WNOHANG)


def test_work_that_nobody_waits_for_any_more_has_ended_when_it_is_forgotten() -> None:
    answers = meanwhile(numbers)
    process = next(answers)
    del answers
    with pytest.raises(ChildProcessError):
        os.waitpid(process, os.WNOHANG)


def test_what_the_other_process_cannot_do_is_done_here() -> None:
    def failing() -> Iterator[int]:
        yield os.getpid()
        if os.getpid() != HERE:
            os._exit(1)  # as a compiler that ends its process
        yield 8
        raise ValueError("of the work")

    answers = meanwhile(failing)
    assert next(answers) != HERE
    assert next(answers) == 8
    with pytest.raises(ValueError, match="of the work"):
        next(answers)


def test_a_process_with_threads_of_others_is_not_forked() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert list(meanwhile(numbers)) == [HERE, 7]
    finally:
        done.set()
        thread.join()
