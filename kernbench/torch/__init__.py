"""PyTorch's names for simulated machines: `import kernbench.torch as torch`.

Nothing but names. Each function finds the running context and rank when it is called, so modules
and classes may be imported and defined before any context exists.
"""

from kernbench.torch import _rooms  # noqa: F401 - first: the collector rests meanwhile

# isort: split
from kernbench.autograd.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from kernbench.memory import DType as dtype  # noqa: N813 - PyTorch's name
from kernbench.memory import OutOfMemoryError
from kernbench.memory.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from kernbench.memory.dtypes import bool_ as bool
from kernbench.nn.serialization import *  # noqa: F403 - names only
from kernbench.operations.complex_numbers import *  # noqa: F403
from kernbench.operations.copies import *  # noqa: F403
from kernbench.operations.counting import *  # noqa: F403
from kernbench.operations.creation import *  # noqa: F403
from kernbench.operations.devices import *  # noqa: F403
from kernbench.operations.from_values import *  # noqa: F403
from kernbench.operations.linalg import *  # noqa: F403
from kernbench.operations.pointwise import *  # noqa: F403
from kernbench.operations.random import *  # noqa: F403
from kernbench.operations.reductions import *  # noqa: F403
from kernbench.operations.rng import get_rng_state, seed, set_rng_state
from kernbench.operations.sampling import *  # noqa: F403
from kernbench.operations.shaping import *  # noqa: F403
from kernbench.operations.switches import *  # noqa: F403
from kernbench.operations.type_info import *  # noqa: F403
from kernbench.operations.typed import *  # noqa: F403
from kernbench.process.types import Device as device  # noqa: N813
from kernbench.process.types import Size
from kernbench.runtime_api.namespace import VERSION
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.runtime_api.tensor_methods import Tensor
from kernbench.tensors.operands import guard as _guard
from kernbench.torch import (
    accelerator,
    autograd,
    backends,
    cuda,
    distributed,
    multiprocessing,
    nn,
    ops,
    optim,
    profiler,
    random,
    testing,
    utils,
)

__version__ = VERSION

double = float64
float = float32
half = float16
long = int64
int = int32
short = int16
cfloat = complex64
cdouble = complex128

__all__ = [
    "OutOfMemoryError",
    "Size",
    "Tensor",
    "accelerator",
    "autograd",
    "backends",
    "bfloat16",
    "bool",
    "cdouble",
    "cfloat",
    "complex64",
    "complex128",
    "cuda",
    "device",
    "distributed",
    "double",
    "dtype",
    "enable_grad",
    "float",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "get_rng_state",
    "half",
    "inference_mode",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "long",
    "multiprocessing",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "profiler",
    "random",
    "seed",
    "set_grad_enabled",
    "set_rng_state",
    "short",
    "testing",
    "uint8",
    "utils",
]


__getattr__ = _not_simulated("torch")
_guard(globals(), imported=True)
