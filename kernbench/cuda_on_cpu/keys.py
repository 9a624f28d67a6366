"""Which of PyTorch's dispatch keys see operations."""

from typing import Any

import torch


def with_autograd() -> Any:
    """Returns a block in which autograd sees operations, inside of one below autograd."""
    keys = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradFunctionality, keys.AutogradOther, keys.AutogradNestedTensor):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
