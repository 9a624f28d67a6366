"""Every form of arguments of PyTorch's old classes of tensors, and what comes of each."""

import numpy as np
import torch

KINDS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


def _sizes():
    yield (), {}
    yield (3,), {}
    yield (2, 3), {}
    yield (np.int64(2), 3), {}
    yield (np.array(3),), {}
    yield (torch.Size([2, 3]),), {}
    yield (torch.Size([]),), {}
    yield (), {"size": (2, 3)}
    yield (), {"size": [2, 3]}
    yield (), {"size": torch.Size([2, 3])}
    yield (2,), {"device": None}


def _others(own, other):
    yield (-1,), {}
    yield (True,), {}
    yield (True, 2), {}
    yield (2.0,), {}
    yield (), {"size": 2}
    yield (), {"shape": (2, 3)}
    yield (2,), {"size": (2,)}
    yield ([1], [2]), {}
    yield ([1], 2), {}
    yield ("12",), {}
    yield (None,), {}
    yield ({},), {}
    yield ((i for i in [1]),), {}
    yield ([[1, 2], [3]],), {}
    yield (other,), {}
    yield (own, 2), {}
    yield ([1, 2],), {}
    yield ((1, 2),), {}
    yield ([1.5, 0.0],), {}
    yield ([[1, 2], [3, 4]],), {}
    yield ([],), {}
    yield ((),), {}
    yield ([True, False],), {}
    yield (np.array([1, 2]),), {}
    yield (np.array([[1.5, 2.5]]),), {}
    yield (range(3),), {}
    yield (), {"data": [1, 2]}
    yield ([torch.tensor(1), torch.tensor(2)],), {}
    yield (), {"other": own}
    yield (own,), {}
    yield (own.untyped_storage(),), {}


def outcomes(owner, device, *, values):
    """Returns what comes of each form.

    Args:
        owner: What has the classes: `torch`, or `torch.cuda`.
        device: Where they make tensors.
        values: Whether there are numbers.
    """
    found = {}
    for kind, dtype in KINDS.items():
        own = torch.ones(2, 2, dtype=dtype, device=device)
        another = torch.float32 if dtype == torch.float64 else torch.float64
        forms = list(_sizes())
        blank = len(forms)
        forms += _others(own, torch.ones(2, dtype=another, device=device))
        for way in (getattr(owner, kind), own.new):
            for number, (args, options) in enumerate(forms):
                name = f"{kind} {'new' if way is not getattr(owner, kind) else ''} {number}"
                try:
                    made = way(*args, **options)
                except Exception as error:
                    text = str(error).splitlines()[0]
                    # An error with the type and place of tensors, which differ.
                    found[name] = type(error).__name__, text[:8] if "expected" in text else text
                    continue
                assert made.device.type == device
                shares = number >= len(forms) - 3
                assert made.numel() == 0 or (made.data_ptr() == own.data_ptr()) == shares
                known = values and number >= blank
                found[name] = tuple(made.shape), made.dtype, made.tolist() if known else None
    return found
