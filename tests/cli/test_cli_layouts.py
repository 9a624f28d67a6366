"""The GPT of the benches in random layouts: losses and all gradients are those of one rank."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from benches.models import gpt
from benches.models.gpt import GPTConfig, GPTModel
from benches.models.measure import model_parallel
from benches.models.training import Trainer
from kernbench.cp import get_batch_on_this_cp_rank
from kernbench.parallel import parallel_state
from kernbench.parallel.evaluation import average_loss
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.pp.schedules import ScheduleName
from kernbench.testing import Kernbench
from kernbench.torch.utils.checkpoint import checkpoint

VOCAB, HIDDEN, HEAD = 32, 24, 4

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Layout:
    """A model, and how ranks share it."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    virtual: int = 1
    comm: str = "p2p"
    a2a: int = 1
    order: str = "tp-cp-ep-dp-pp"
    schedule: ScheduleName | None = None
    microbatches: int = 1
    sequence_parallel: bool = False
    free: bool = False
    reentrant: bool | None = None
    fused: bool = False

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True)
class Model:
    """What is computed, whatever the layout."""

    layers: int
    groups: int
    sequence: int
    batch: int
    qk_norm: bool
    tied: bool


def drawn(seed: int) -> tuple[Model, Layout]:
    """Returns a model and a layout that fit each other."""
    pick = random.Random(seed)
    while True:
        tp, cp, pp, dp = (
            pick.choice(each) for each in ((1, 2, 4), (1, 2, 3, 4), (1, 2, 4), (1, 2))
        )
        comm = pick.choice(("p2p", "all_gather", "a2a", "a2a+p2p")) if cp > 1 else "p2p"
        a2a = {"a2a": cp, "a2a+p2p": 2 if cp == 4 else cp}.get(comm, 1)
        groups = 12 if cp == 3 else 8
        if 2 <= tp * cp * pp * dp <= 8 and groups % (tp * a2a) == 0:
            break
    virtual = pick.choice((1, 2)) if pp > 1 else 1
    schedules: tuple[ScheduleName, ScheduleName] = "gpipe", "1f1b"
    schedule = pick.choice(schedules) if pp > 1 and virtual == 1 else None
    microbatches = pick.choice((1, 3)) if virtual == 1 else pp
    inner = ["tp", "cp", "ep", "dp"]
    pick.shuffle(inner)
    model = Model(
        pp * virtual, groups, 2 * cp * tp, 2 * microbatches * dp, *pick.choices((False, True), k=2)
    )
    layout = Layout(
        tp, cp, pp, dp, virtual, comm, a2a, "-".join((*inner, "pp")), schedule, microbatches,
        tp > 1 and pick.random() < 0.4, pick.random() < 0.3, pick.choice((None, False, True)),
        pick.random() < 0.5,
    )  # fmt: skip
    return model, layout


def computed(
    kernbench: Kernbench, model: Model, layout: Layout
) -> tuple[set[float], dict[str, Array]]:
    """Returns the losses of all ranks, and the whole gradients of a step by name."""
    losses: list[float] = []
    parts: dict[str, dict[int, tuple[Array, Any]]] = {}

    def worker(rank: int) -> None:
        sizes: dict[str, Any] = {
            "context_parallel_size": layout.cp,
            "pipeline_model_parallel_size": layout.pp,
            "virtual_pipeline_model_parallel_size": layout.virtual if layout.virtual > 1 else None,
        }
        levels = [layout.a2a, layout.cp // layout.a2a] if layout.comm == "a2a+p2p" else None
        more = {"order": layout.order, "hierarchical_context_parallel_sizes": levels}
        with model_parallel(layout.tp, **sizes, **more):
            config = GPTConfig(
                num_layers=model.layers,
                hidden_size=HIDDEN,
                ffn_hidden_size=16,
                num_attention_heads=2 * model.groups,
                num_query_groups=model.groups,
                kv_channels=HEAD,
                vocab_size=VOCAB,
                seq_length=model.sequence,
                qk_layernorm=model.qk_norm,
                share_embeddings_and_output_weights=model.tied,
                cp_comm_type=layout.comm,
                init_method_std=0.2,
                tensor_model_parallel_size=layout.tp,
                sequence_parallel=layout.sequence_parallel,
                deallocate_pipeline_outputs=layout.free,
                pipeline_dtype=torch.float64,
                params_dtype=torch.float64,
                gradient_accumulation_fusion=layout.fused,
                kernel="library",
                **sizes,
            )
            groups = ProcessGroupCollection.use_mpu_process_groups()
            pieces = [n if layout.virtual > 1 else None for n in range(layout.virtual)]
            chunks = [GPTModel(config, groups, piece) for piece in pieces]
            parameters = [each for chunk in chunks for each in chunk.parameters()]
            still = torch.optim.SGD(parameters, lr=0.0)
            trainer = Trainer(chunks, still, 1e30, layout.schedule)
            ids = np.random.default_rng(1).integers(0, VOCAB, (model.batch, model.sequence + 1))
            mine = np.split(ids, layout.dp)[parallel_state.get_data_parallel_rank()]
            batch = get_batch_on_this_cp_rank(
                {
                    "tokens": torch.from_numpy(mine[:, :-1].copy()),
                    "labels": torch.from_numpy(mine[:, 1:].copy()),
                },
                groups.cp,
            )
            cut = [batch[name].cuda().chunk(layout.microbatches) for name in ("tokens", "labels")]
            report = trainer.step([*zip(*cut, strict=True)])
            losses.append(average_loss(report, groups).item())
            for number, chunk in enumerate(chunks):
                first = number * layout.pp + groups.pp.rank()
                for name, value in chunk.named_parameters():
                    words = name.split(".")
                    if words[0] == "layers":
                        words[1] = str(first * len(chunk.layers) + int(words[1]))
                    if name == "output.weight" and model.tied:
                        words[0] = "embedding"
                    found = parts.setdefault(".".join(words), {})
                    any_value: Any = value
                    grad = any_value.main_grad.cpu().numpy().copy()
                    known = found.setdefault(groups.tp.rank(), (grad, any_value))
                    assert np.array_equal(known[0], grad), f"copies of {name} differ"

    kernbench.spawn(worker, nprocs=layout.ranks)
    return set(losses), {name: _whole(found) for name, found in parts.items()}


def _whole(parts: dict[int, tuple[Array, Any]]) -> Array:
    grads = [parts[rank][0] for rank in sorted(parts)]
    parameter = parts[0][1]
    if not parameter.tensor_model_parallel:
        assert all(np.array_equal(grads[0], grad) for grad in grads)
        return grads[0]
    dim, stride = parameter.partition_dim, parameter.partition_stride
    pieces = [np.split(grad, stride, dim) for grad in grads]
    return np.concatenate([piece[n] for n in range(stride) for piece in pieces], dim)


_FAST = {3, 12, 26, 34, 36}
"""Of the seeds below, those that the default suite runs: together they have all ways to share."""


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(
            n, marks=() if n in _FAST else pytest.mark.slow if n < 10 else pytest.mark.at_length
        )
        for n in range(40)
    ],
)
def test_a_random_layout_has_the_gradients_of_one_rank(
    seed: int, kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layout = drawn(seed)
    (loss,), expected = computed(kernbench, model, Layout())
    if layout.reentrant is not None:
        forward = gpt.Layer.forward

        def again(self: gpt.Layer, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
            return checkpoint(forward, self, x, angles, use_reentrant=layout.reentrant)

        monkeypatch.setattr(gpt.Layer, "forward", again)
    (found,), grads = computed(kernbench, model, layout)
    assert found == pytest.approx(loss, rel=1e-12, abs=0), layout
    assert grads.keys() == expected.keys()
    for name, grad in expected.items():
        np.testing.assert_allclose(
            grads[name], grad, rtol=0, atol=1e-12 * np.abs(grad).max(), err_msg=f"{name}, {layout}"
        )
