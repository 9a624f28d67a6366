"""What programs call of CUDA's runtime by way of `torch.cuda`."""

from typing import Any

from kernbench.errors import not_simulated


class Runtime:
    """`torch.cuda.cudart()`: profilers may be started and stopped; nothing else is there."""

    @staticmethod
    def cudaProfilerStart() -> int:  # noqa: N802 - CUDA's name
        """Does nothing: --trace records the whole run."""
        return 0

    @staticmethod
    def cudaProfilerStop() -> int:  # noqa: N802 - CUDA's name
        """Does nothing: --trace records the whole run."""
        return 0

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(f"torch.cuda.cudart().{name}", "use the functions of torch.cuda")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Accepts the mode `default`, which reports nothing.

    Raises:
        UnsupportedError: For a mode that reports waits.
    """
    if debug_mode not in {0, "default"}:
        raise not_simulated(
            f"torch.cuda.set_sync_debug_mode({debug_mode!r})",
            "--breakdown shows how long each rank waits for its device",
        )
