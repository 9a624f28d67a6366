"""Whether a model evaluates to the same in two layouts, and trains as if nobody evaluated it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models.evaluation import Batch, evaluate
from benches.models.gpt import GPTConfig, GPTModel
from benches.models.groups import lay_out
from benches.models.training import Trainer
from kernbench.cp import get_batch_on_this_cp_rank
from kernbench.parallel.evaluation import average_loss, microbatches
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.rebinding import eval_cp_context

TIMED: Final = "evaluation, cp {}"
"""Name of the range around a timed evaluation."""

_REBOUND: Final = ("pg_collection", "cp_group", "cp_global_ranks", "cp_stream", "cp_comm_type")
_LR, _CLIP = 6e-3, 1.0


@dataclass(frozen=True)
class Found:
    """What one rank has found.

    Attributes:
        same_batch: Loss of one batch in the layout of training, and in the other one.
        plain: Losses of training.
        interleaved: Losses of the same training with an evaluation after each step.
        evaluations: Losses of these.
        restored: Whether the model had its groups back afterwards, also after an error.
    """

    same_batch: tuple[float, float]
    plain: tuple[float, ...]
    interleaved: tuple[float, ...]
    evaluations: tuple[float, ...]
    restored: bool


class Check:
    """What one rank does.

    Args:
        config: Of the model, in the layout of training.
        cp_eval: Ranks that share a sequence while it is evaluated.
        batch: Sequences of a training step.
        eval_batch: Sequences of an evaluation.
        micro_batch: Sequences at once.
        wrong_rotary: Whether positions stay those of the layout of training.
    """

    def __init__(
        self,
        config: GPTConfig,
        cp_eval: int,
        batch: int,
        eval_batch: int,
        micro_batch: int,
        *,
        wrong_rotary: bool,
    ) -> None:
        self._config, self._wrong_rotary = config, wrong_rotary
        self._batch, self._eval_batch, self._micro_batch = batch, eval_batch, micro_batch
        tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
        cp_train = config.context_parallel_size
        self._train, self._other = (
            lay_out(tp or 1, cp, pp or 1) for cp in (cp_train or 1, cp_eval)
        )

    def run(self, steps: int) -> Found:
        """Does everything.

        Args:
            steps: Of training.
        """
        _, trainer = self._model()
        plain = [self._trained(trainer, step) for step in range(steps)]
        model, trainer = self._model()
        before = _groups_of(model)
        same_batch = self._in_both(model)
        interleaved, evaluations = [], []
        for step in range(steps):
            interleaved.append(self._trained(trainer, step))
            with self._evaluating(model):
                batches = self._batches(self._other, self._eval_batch, steps + step)
                evaluations.append(evaluate(model, batches, self._other))
        restored = _groups_of(model) == before
        try:
            with self._evaluating(model):
                raise _StoppedError
        except _StoppedError:
            restored = restored and _groups_of(model) == before
        return Found(
            same_batch, _values(plain), _values(interleaved), _values(evaluations), restored
        )

    def _model(self) -> tuple[GPTModel, Trainer]:
        model = GPTModel(self._config, self._train)
        return model, Trainer([model], torch.optim.AdamW(model.parameters(), lr=_LR), _CLIP)

    def _trained(self, trainer: Trainer, step: int) -> torch.Tensor:
        report = trainer.step(self._batches(self._train, self._batch, step))
        return average_loss(report, self._train)

    def _in_both(self, model: GPTModel) -> tuple[float, float]:
        """Returns the loss of one batch, which all ranks have, in both layouts; times them."""
        found = [self._timed(model, self._train)]
        with self._evaluating(model):
            found.append(self._timed(model, self._other))
        first, second = _values(found)
        return first, second

    def _timed(self, model: GPTModel, groups: ProcessGroupCollection) -> torch.Tensor:
        batches = self._batches(groups, self._micro_batch, 0, alike=True)
        evaluate(model, batches, groups)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        with torch.profiler.record_function(TIMED.format(groups.cp.size())):
            loss = evaluate(model, batches, groups)
            torch.cuda.synchronize()
        return loss

    @contextmanager
    def _evaluating(self, model: GPTModel) -> Iterator[None]:
        with eval_cp_context(model, self._other, self._train):
            if self._wrong_rotary:
                self._config.context_parallel_size = self._train.cp.size()
                model.rotary.cp_group = self._train.cp
            yield

    def _batches(
        self, groups: ProcessGroupCollection, batch: int, number: int, *, alike: bool = False
    ) -> list[Batch]:
        """Returns the rank's microbatches; sequences count upwards, each in steps of its own.

        Args:
            groups: The layout.
            batch: Sequences of all ranks together.
            number: Which batch.
            alike: Whether all ranks have all sequences.
        """
        config = self._config
        numbers = np.random.default_rng([config.init_seed, number])
        starts, steps = numbers.integers(1, config.vocab_size, (2, batch, 1))
        ranks, rank = (1, 0) if alike else (groups.dp.size(), groups.dp.rank())
        count = microbatches(batch, self._micro_batch, ranks)
        starts, steps = (np.split(each, ranks)[rank] for each in (starts, steps))
        tokens = (starts + steps * np.arange((config.seq_length or 0) + 1)) % config.vocab_size
        mine = get_batch_on_this_cp_rank(
            {
                "tokens": torch.from_numpy(tokens[:, :-1].copy()),
                "labels": torch.from_numpy(tokens[:, 1:].copy()),
            },
            groups.cp,
        )
        ids, labels = (mine[name].cuda().chunk(count) for name in ("tokens", "labels"))
        return [*zip(ids, labels, strict=True)]


class _StoppedError(Exception):
    """Leaves an evaluation before its end."""


def _groups_of(model: GPTModel) -> list[Any]:
    """Returns what evaluation in another layout changes of a model."""
    found: list[Any] = [model.config.context_parallel_size, model.training]
    for module in model.modules():
        found += [getattr(module, name) for name in _REBOUND if hasattr(module, name)]
    return found


def _values(losses: list[torch.Tensor]) -> tuple[float, ...]:
    return tuple(torch.stack(losses).double().tolist())
