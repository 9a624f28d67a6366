"""Names that traces of PyTorch and NCCL give to collectives, their kernels, and their types."""

from typing import Final

from kernbench.sim_engine.op_log import Record, TogetherArgs

_ARGUMENTS: Final = "(ncclDevKernelArgsStorage<4096ul>)"

_GATHERING: Final = {"all_gather": "AllGather", "broadcast": "Broadcast"}
_REDUCING: Final = {
    "all_reduce": "AllReduce",
    "reduce": "Reduce",
    "reduce_scatter": "ReduceScatter",
}

_COLLECTIVES: Final = {
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "barrier": "barrier",
}
"""PyTorch's names of collectives by the function that the user called."""

_OPERATIONS: Final = {"all_reduce": "allreduce"}
"""The same by operation, for all other functions; an operation that is not here keeps its name."""

_TYPES: Final = {
    "bool": ("Bool", "u8"),
    "uint8": ("Byte", "u8"),
    "uint16": ("UInt16", "u16"),
    "uint32": ("UInt32", "u32"),
    "uint64": ("UInt64", "u64"),
    "int8": ("Char", "u8"),
    "int16": ("Short", "i16"),
    "int32": ("Int", "u32"),
    "int64": ("Long", "u64"),
    "float16": ("Half", "f16"),
    "bfloat16": ("BFloat16", "bf16"),
    "float32": ("Float", "f32"),
    "float64": ("Double", "f64"),
    "complex64": ("ComplexFloat", "f32"),
    "complex128": ("ComplexDouble", "f64"),
    "float8_e4m3fn": ("Float8_e4m3fn", "f8e4m3"),
    "float8_e5m2": ("Float8_e5m2", "f8e5m2"),
}
"""PyTorch's `ScalarType` and the type of NCCL's kernel, which adds signed as unsigned integers."""


def torch_dtype(name: str) -> str:
    """Returns PyTorch's `ScalarType` for a dtype's name, such as `BFloat16` for `bfloat16`."""
    return _TYPES[name][0] if name in _TYPES else name


def collective_name(called: str, operation: str) -> str:
    """Returns what PyTorch calls a collective in traces, such as `_allgather_base`.

    Args:
        called: Name of the function that the user called.
        operation: What the algorithms call the operation.
    """
    return _COLLECTIVES.get(called) or _OPERATIONS.get(operation, operation)


def kernel_name(record: Record) -> str:
    """Returns the name of NCCL's kernel for a collective or a message.

    NCCL builds one kernel for each operation, type and kind of algorithm, and names it after sums
    and the protocol LL, whichever it then uses: `best_kernel` in its `src/device/generate.py`.

    Args:
        record: The collective or message.
    """
    args = record.args
    operation = args.together.operation if isinstance(args, TogetherArgs) else record.name
    if operation in _GATHERING:
        return f"ncclDevKernel_{_GATHERING[operation]}_RING_LL{_ARGUMENTS}"
    if operation not in _REDUCING:
        return f"ncclDevKernel_SendRecv{_ARGUMENTS}"
    name = str(args.get("dtype"))
    number = _TYPES[name][1] if name in _TYPES else name
    shape = "TREE" if "tree" in str(args.get("algorithm", "")) else "RING"
    return f"ncclDevKernel_{_REDUCING[operation]}_Sum_{number}_{shape}_LL{_ARGUMENTS}"
