"""Imports the rooms that `kernbench.torch` names, while the collector of cycles rests.

What modules define stays, so looking through it for garbage, ever more of it, would find none.
"""

import gc

_ENABLED = gc.isenabled()
gc.disable()
try:
    import kernbench.autograd.autograd
    import kernbench.data.loader
    import kernbench.nn.serialization
    import kernbench.runtime_api.distributed
    import kernbench.runtime_api.namespace
    import kernbench.runtime_api.tensor_methods  # noqa: F401 - for what it loads
finally:
    if not gc.get_freeze_count():
        # Together these make all that is there old, without a look at it.
        gc.freeze()
        gc.unfreeze()
    if _ENABLED:
        gc.enable()
