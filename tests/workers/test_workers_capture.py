"""What workers print, where pytest captures what tests print."""

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

from kernbench.workers.worker import Worker


@pytest.fixture(scope="session")
def worker():
    with Worker("worker_handlers") as kept:
        yield kept


@pytest.mark.parametrize("number", range(12))
def test_it(worker, number):
    worker.call("execute", 60.0, code=CODE)
    assert number != 7
"""

FLOOD = """
import threading
def shout():
    while True: print("flood")
if threading.active_count() == 2:
    threading.Thread(target=shout, daemon=True).start()
"""


@pytest.mark.parametrize("capture", ["fd", "sys"])
def test_prints_belong_to_the_test_that_asked(pytester: pytest.Pytester, capture: str) -> None:
    pytester.makepyfile(SUITE.replace("CODE", "f\"print('case {number}')\""))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--capture={capture}")
    result.assert_outcomes(passed=11, failed=1)
    shown = result.stdout.str()
    assert "Captured stderr call" in shown
    assert "\ncase 7\n" in shown
    assert shown.count("\ncase ") == 1


@pytest.mark.parametrize("capture", ["fd", "sys", "tee-sys"])
def test_prints_at_any_moment_harm_nobody(pytester: pytest.Pytester, capture: str) -> None:
    pytester.makepyfile(SUITE.replace("CODE", repr(FLOOD)))
    options = ("-p", "no:cacheprovider", "-W", "error", f"--capture={capture}")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(passed=11, failed=1)
