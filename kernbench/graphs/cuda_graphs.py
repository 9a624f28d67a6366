"""`torch.cuda.CUDAGraph` and what captures into one; the bridge makes its own of these classes."""

from typing import Any, Final

from kernbench.errors import (
    UnsupportedError,
    call_site,
    not_simulated,
    site_fact,
    warn_at_call,
)
from kernbench.graphs.capture import Capture, CaptureError, Pool, Recording, capturing
from kernbench.graphs.replay import replay
from kernbench.operations.cuda import Stream
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.sim_engine import command

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"]

_TRACE: Final = "--trace shows the commands of a replay"


class CUDAGraph:
    """`torch.cuda.CUDAGraph`: what one stream was given, to be launched again by one call.

    Args:
        keep_graph: Whether `instantiate` may be called, which does nothing here.
    """

    _error: type[CaptureError] = CaptureError

    def __init__(self, keep_graph: bool = False) -> None:
        self._keeps = keep_graph
        self._capture: Capture | None = None
        self._recording: Recording | None = None
        self._pool: Pool | None = None
        self._generators: list[Any] = []

    def _wrong(self, text: str, way: str) -> CaptureError:
        return self._error(text, [site_fact(call_site())], hint=way)

    def capture_begin(
        self,
        pool: Pool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begins to note what the current stream is given; nothing of it runs.

        Args:
            pool: Memory that the graph shares with another one; see `pool`.
            capture_error_mode: `relaxed` allows waits for what was issued before.
            check_input_liveness: Has no effect: a replay always finds out whether a tensor is gone.

        Raises:
            CaptureError: If the graph has been captured, or the current stream is the default one.
        """
        del check_input_liveness
        if self._recording is not None or self._capture is not None:
            raise self._wrong(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance.",
                "or call reset() first",
            )
        self._pool = pool or Pool()
        process = current_process()
        self._capture = Capture(
            process, self._pool, self._generators, capture_error_mode, self._error
        )
        self._began(process, self._capture)

    def capture_end(self) -> None:
        """Ends the capture.

        Raises:
            CaptureError: If none is under way, something in it was refused, or a stream that left
                the one that captures was not waited for.
        """
        capture = self._capture
        if capture is None:
            raise self._wrong(
                "Called CUDAGraph::capture_end without a capture under way",
                "call capture_begin() first",
            )
        recording = self._end(capture)
        if capture.broken:
            raise self._wrong(
                "The capture of a CUDA graph failed before its end "
                "(cudaErrorStreamCaptureInvalidated)",
                "look at the first error",
            )
        self._recording = recording
        if not recording.nodes:
            warn_at_call(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream."
            )

    def _end(self, capture: Capture) -> Recording:
        self._capture = None
        self._ending(current_process(), capture)
        return capture.end()

    def _given_up(self) -> None:
        """Ends a capture, if one is under way, inside of which an error was raised."""
        if self._capture is not None:
            self._capture.broken = True
            self._end(self._capture)

    def _began(self, process: Process, capture: Capture) -> None:
        """Is called when a capture has begun."""

    def _ending(self, process: Process, capture: Capture) -> None:
        """Is called when a capture is about to end."""

    def _captured(self, call: str) -> Recording:
        if self._recording is None:
            raise self._wrong(
                f"Called CUDAGraph::{call} without a preceding successful capture.",
                "capture with `with torch.cuda.graph(g):` first",
            )
        return self._recording

    def replay(self) -> None:
        """Issues the captured work again, behind what the current stream holds; does not wait."""
        self._play(current_process(), self._captured("replay"))

    def _play(self, process: Process, recording: Recording) -> None:
        replay(process, recording)

    def instantiate(self) -> None:
        """Does nothing: what CUDA prepares is not simulated.

        Raises:
            CaptureError: Unless the graph was made with `keep_graph=True`.
        """
        self._captured("instantiate")
        if not self._keeps:
            raise self._wrong(
                "instantiate() is intended to be called by the user only when keep_graph=true",
                "leave it out: capture_end() does it",
            )

    def reset(self) -> None:
        """Forgets what was captured, and gives back the memory that no other graph shares."""
        self._recording = self._pool = None

    def pool(self) -> Pool:
        """Returns what another graph shares memory by: `capture_begin(pool=)`."""
        self._captured("pool()")
        assert self._pool is not None
        return self._pool

    def register_generator_state(self, generator: Any) -> None:
        """Notes a generator from which operations of the capture may draw."""
        self._generators.append(generator)

    def enable_debug_mode(self) -> None:
        """Refuses: nothing can be dumped.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated("CUDAGraph.enable_debug_mode", _TRACE)

    def debug_dump(self, debug_path: str) -> None:
        """Refuses, as `enable_debug_mode`.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated(f"CUDAGraph.debug_dump({debug_path!r})", _TRACE)

    def raw_cuda_graph(self) -> int:
        """Refuses: there is no graph of CUDA's.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated("CUDAGraph.raw_cuda_graph", _TRACE)

    def raw_cuda_graph_exec(self) -> int:
        """Refuses, as `raw_cuda_graph`.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated("CUDAGraph.raw_cuda_graph_exec", _TRACE)

    def get_graph_data(self) -> dict[str, Any]:
        """Refuses, as `raw_cuda_graph`.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated("CUDAGraph.get_graph_data", _TRACE)


_STREAMS: Final[RankLocal[dict[int, command.Stream]]] = RankLocal("capture streams", lambda _: {})
"""The stream on which a rank captures unless the program names one, by device."""


class graph:  # noqa: N801 - PyTorch's name
    """`torch.cuda.graph`: a block whose commands are captured into a graph.

    Args:
        cuda_graph: The graph.
        pool: Memory that it shares with another one.
        stream: Stream that captures; None for one that all graphs of the rank share.
        capture_error_mode: See `CUDAGraph.capture_begin`.
        enable_annotations: Must be False.
        check_input_liveness: See `CUDAGraph.capture_begin`.

    Raises:
        UnsupportedError: For `enable_annotations`.
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Pool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if enable_annotations:
            raise UnsupportedError(
                "torch.cuda.graph(enable_annotations=True) is not simulated",
                [site_fact(call_site())],
                hint=_TRACE,
            )
        del check_input_liveness
        process = current_process()
        if stream is None:
            streams, sip = _STREAMS.of(process), process.device_index
            if sip not in streams:
                streams[sip] = process.new_stream(sip)
            stream = Stream._of(streams[sip])
        self.capture_stream = stream
        self.cuda_graph = cuda_graph
        self._given = pool, capture_error_mode

    def __enter__(self) -> None:
        process = current_process()
        if capturing(process) is None:
            process.synchronize(process.device_index)
        Stream.__enter__(self.capture_stream)
        try:
            self.cuda_graph.capture_begin(*self._given)
        except BaseException:
            Stream.__exit__(self.capture_stream)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph._given_up()
        finally:
            Stream.__exit__(self.capture_stream)


def graph_pool_handle() -> Pool:
    """Returns memory for graphs to share, as `torch.cuda.graph_pool_handle`."""
    return Pool()


def is_current_stream_capturing() -> bool:
    """Returns whether commands of the current stream are captured now."""
    process = current_process()
    capture = capturing(process)
    return capture is not None and capture.holds(process.current_stream(process.device_index))
