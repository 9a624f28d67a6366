"""Operations of `torch.ops.symm_mem` that are no kernels of `shots`: PyTorch's own, and refused."""

from collections.abc import Mapping
from typing import Final

WRITTEN_IN_PYTHON: Final[Mapping[str, str]] = {
    "fused_all_gather_matmul": "_fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul": "_fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "_fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "_fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather": "_low_contention_all_gather",
    "_low_contention_reduce_scatter": "_low_contention_reduce_scatter",
    "get_remote_tensors": "_get_remote_tensors_default",
}
"""What PyTorch makes of handles, copies and products, and its function."""

WRITES: Final = ("memset32_", "stream_write_value32_")
"""What writes words."""

_HANDLE: Final = "use get_buffer() and barrier() of the handle"

_WAYS: Final[Mapping[str, str]] = {
    "multimem_all_gather_out": "no switch adds up or copies; use _low_contention_all_gather",
    "multimem_": "no switch adds up or copies; use one_shot_all_reduce or two_shot_all_reduce_",
    "nvshmem_all_to_all": "use torch.distributed.all_to_all_single()",
    "nvshmem_broadcast": "use torch.distributed.broadcast()",
    "nvshmem_wait": "use wait_signal() of the handle",
    "nccl_wait": "use wait_signal() of the handle",
    "nccl_put_signal": "use get_buffer(peer).copy_() and put_signal() of the handle",
    "nccl_reduce_scatter": "use reduce_scatter_out",
    "nvshmem_": f"{_HANDLE}: copy_() puts and gets",
    "nccl_": f"{_HANDLE}: copy_() puts and gets",
    "all_to_all_vdev": "use torch.distributed.all_to_all_single()",
    "_async_input_mm": "use fused_all_gather_matmul",
    "": f"{_HANDLE}, or collectives of torch.distributed",
}
"""What to do instead, by how a name begins; the first one counts."""


def way_out(name: str) -> str:
    """Returns what to do instead of an operation that is refused."""
    return next(way for begin, way in _WAYS.items() if name.startswith(begin))
