"""What a layer of a large model keeps between forward and backward."""

import pytest

import kernbench.torch as torch
from benches.models.gpt import GPTConfig, Layer
from benches.models.measure import model_parallel
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.rotary import RotaryEmbedding
from kernbench.testing import Kernbench

TP = 8


def _kept(kernbench: Kernbench, sequence: int) -> int:
    """Returns the bytes that a layer of Llama 70B keeps on each of eight ranks, batch 1."""
    found = []

    def worker(rank: int) -> None:
        config = GPTConfig(
            num_layers=1,
            hidden_size=8192,
            ffn_hidden_size=28672,
            num_attention_heads=64,
            num_query_groups=8,
            vocab_size=256,
            tensor_model_parallel_size=TP,
            params_dtype=torch.bfloat16,
            kernel="library",
        )
        with model_parallel(TP):
            layer = Layer(config, 0, ProcessGroupCollection.use_mpu_process_groups())
            angles = RotaryEmbedding(config.head)(sequence)
            x = torch.empty(sequence, 1, config.hidden_size, dtype=torch.bfloat16, device="cuda")
            x.requires_grad_()
            begin = torch.cuda.memory_allocated()
            out = layer(x, angles)
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
