"""Sizes of published models, from their configurations, and what a step of them computes."""

from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Experts of a model; tokens pass `topk` of them, and one that is shared.

    Attributes:
        count: Of a layer.
        topk: Of a token.
        ffn: Width inside of one, and of the shared one.
        dense_layers: First layers, which have an MLP instead.
    """

    count: int
    topk: int
    ffn: int
    dense_layers: int


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Attention whose queries, keys and values come from narrow products.

    Attributes:
        query: Width from which queries are made.
        key_value: Width from which keys and values are made.
        plain: Width of the part of a head that is not turned.
        turned: Width of the part that the rotary embedding turns; one for all heads of keys.
        value: Width of a head of values.
    """

    query: int
    key_value: int
    plain: int
    turned: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Published:
    """Sizes of a model.

    Attributes:
        layers: How many.
        hidden: Width of activations.
        ffn: Width inside of an MLP.
        heads: Of queries.
        kv_heads: Of keys and of values.
        vocab: Ids.
        sequence: Tokens of a sequence in its training.
        experts: Of most layers; None for none.
        latent: Of its attention; None for queries, keys and values of whole width.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    sequence: int
    experts: Experts | None = field(default=None)
    latent: Latent | None = field(default=None)

    def cut(self, layers: int | None, sequence: int | None) -> "Published":
        """Returns the model with other numbers; None keeps one."""
        return replace(self, layers=layers or self.layers, sequence=sequence or self.sequence)

    def has_experts(self, number: int) -> bool:
        """Returns whether a layer has experts."""
        return self.experts is not None and number >= self.experts.dense_layers

    @property
    def _attention(self) -> tuple[int, int]:
        """Weights of attention, and width of its scores and outputs, over all heads."""
        latent = self.latent
        if latent is None:
            head = self.hidden // self.heads
            weights = 2 * self.hidden * head * (self.heads + self.kv_heads)
            return weights, 2 * self.heads * head
        key = latent.plain + latent.turned
        weights = self.hidden * (latent.query + latent.key_value + latent.turned)
        weights += latent.query * self.heads * key
        weights += latent.key_value * self.heads * (latent.plain + latent.value)
        weights += self.heads * latent.value * self.hidden
        return weights, self.heads * (key + latent.value)

    def _mlp(self, number: int, *, active: bool) -> int:
        """Returns the weights of a layer's MLP, or of its experts, all or those a token meets."""
        experts = self.experts
        if experts is None or not self.has_experts(number):
            return 3 * self.hidden * self.ffn
        met = experts.topk if active else experts.count
        return 3 * self.hidden * experts.ffn * (met + 1) + self.hidden * experts.count

    def parameters(self, *, active: bool = False) -> int:
        """Returns how many weights of products the model has, with the output's, without norms.

        Args:
            active: Whether to count those alone that a token meets; then without the embedding.
        """
        each = self._attention[0]
        layers = sum(each + self._mlp(number, active=active) for number in range(self.layers))
        return layers + self.vocab * self.hidden * (1 if active else 2)

    def step_flop(self, tokens: int) -> int:
        """Returns the operations of products in a step, without those that are done again.

        Each weight that a token meets takes 2 forward and 4 backward; so does each score, of which
        causal attention has half (arXiv 2104.04473, appendix).

        Args:
            tokens: Of the whole batch.
        """
        scores = self.layers * self._attention[1] * self.sequence // 2
        return 6 * tokens * (self.parameters(active=True) + scores)


MODELS: Final = {
    # huggingface.co/meta-llama/Meta-Llama-3-70B, config.json
    "llama3-70b": Published(
        layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=128256, sequence=8192
    ),
    # huggingface.co/meta-llama/Llama-3.1-405B, config.json; sequences: arXiv 2407.21783, table 4
    "llama3-405b": Published(
        layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, vocab=128256, sequence=8192
    ),
    # huggingface.co/deepseek-ai/DeepSeek-V3, config.json; sequences: arXiv 2412.19437, 4.2
    "deepseek-v3": Published(
        layers=61,
        hidden=7168,
        ffn=18432,
        heads=128,
        kv_heads=128,
        vocab=129280,
        sequence=4096,
        experts=Experts(count=256, topk=8, ffn=2048, dense_layers=3),
        latent=Latent(query=1536, key_value=512, plain=128, turned=64, value=128),
    ),
}
"""Published models by name."""
