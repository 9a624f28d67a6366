"""What `torch.cuda.nvtx` has under PyTorch, beside what `kernbench.torch.cuda.nvtx` has."""

from typing import Any, Final

from kernbench.runtime_api import nvtx
from kernbench.runtime_api.profiler import record_function


class ExternalRanges:
    """`torch.cuda.nvtx`: ranges, which traces and breakdowns show."""

    @staticmethod
    def mark(msg: str) -> None:
        """Marks a moment: a range that ends at once."""
        with nvtx.range("{}", msg):
            pass

    @staticmethod
    def range_start(msg: str) -> Any:
        """Begins a range, and returns what `range_end` ends it with."""
        named = record_function(msg)
        named.__enter__()
        return named

    @staticmethod
    def range_end(range_id: Any) -> None:
        """Ends a range."""
        range_id.__exit__(None, None, None)


NVTX: Final[dict[str, Any]] = {
    "range_push": nvtx.range_push,
    "range_pop": nvtx.range_pop,
    "range": nvtx.range,
    "mark": ExternalRanges.mark,
    "range_start": ExternalRanges.range_start,
    "range_end": ExternalRanges.range_end,
}
"""What `torch.cuda.nvtx` has while ranks run, by name."""
