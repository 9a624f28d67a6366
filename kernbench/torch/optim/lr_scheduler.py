"""`torch.optim.lr_scheduler`."""

from kernbench.optim.lr_cycles import *  # noqa: F403 - names only
from kernbench.optim.lr_plans import *  # noqa: F403
from kernbench.optim.lr_plateau import *  # noqa: F403
from kernbench.optim.lr_scheduler import *  # noqa: F403
from kernbench.optim.lr_sequences import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated as _not_simulated

__getattr__ = _not_simulated("torch.optim.lr_scheduler")
