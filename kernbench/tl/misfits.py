"""Calls of the language that its functions do not take, in the words of reports."""

import inspect
import re
from types import TracebackType

from kernbench.errors import CallSite, is_ours, site_fact
from kernbench.tl import language
from kernbench.tl.operands import TileOperandError


def told(error: BaseException) -> BaseException:
    """Returns the error of a kernel as it is reported.

    Python's own error about a call such as `tl.recv()` says nothing of how the call is written.

    Args:
        error: What came out of a kernel.
    """
    found = re.match(r"(\w+)\(\) ", str(error)) if type(error) is TypeError else None
    last = _last(error.__traceback__)
    if found is None or last is None or found[1] not in language.__all__ or is_ours(last.tb_frame):
        return error
    function = getattr(language, found[1])
    plain = inspect.Parameter.empty
    taken = inspect.signature(function).parameters.values()
    signature = inspect.Signature([each.replace(annotation=plain) for each in taken])
    refused = TileOperandError(
        f"tl.{error}",
        [site_fact(CallSite(last.tb_frame.f_code, last.tb_lasti))],
        hint=f"the call is tl.{found[1]}{signature}",
        code="K2",
    )
    return refused.with_traceback(error.__traceback__)


def _last(entry: TracebackType | None) -> TracebackType | None:
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return entry
