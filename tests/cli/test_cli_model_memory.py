"""What a layer of a large model keeps between forward and backward."""

import pytest

import kernbench.torch as torch
from benches.models.llama import Layer, Rotary, Shape
from benches.models.measure import tensor_parallel
from kernbench.testing import Kernbench
from kernbench.tp.config import ModelParallelConfig

SEVENTY_B = {"hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8}
TP = 8


def _kept(kernbench: Kernbench, sequence: int) -> int:
    """Returns the bytes that a layer of Llama 70B keeps on each of eight ranks, batch 1."""
    shape = Shape(layers=1, sequence=sequence, vocab=256, **SEVENTY_B)
    found = []

    def worker(rank: int) -> None:
        with tensor_parallel(TP):
            config = ModelParallelConfig(
                tensor_model_parallel_size=TP, params_dtype=torch.bfloat16, kernel="library"
            )
            rotary = Rotary(sequence, shape.head, torch.bfloat16)
            layer = Layer(shape, config, rotary)
            x = torch.empty(sequence, 1, shape.hidden, dtype=torch.bfloat16, device="cuda")
            x.requires_grad_()
            begin = torch.cuda.memory_allocated()
            out = layer(x)
            found.append(torch.cuda.memory_allocated() - begin)
            del out

    kernbench.spawn(worker, nprocs=TP, machine="h200x8", data=False)
    assert len(set(found)) == 1
    return found[0]


def test_activations_grow_with_the_length_and_not_its_square(kernbench: Kernbench) -> None:
    kept = _kept(kernbench, 8192)
    assert kept <= 0.9 * (1 << 30)
    # Without attention's scores, 16 GiB at 32 768 tokens, all of it grows with the length.
    assert _kept(kernbench, 32768) == pytest.approx(4 * kept, rel=1e-3)
