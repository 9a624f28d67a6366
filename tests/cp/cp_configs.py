"""The configurations that TransformerEngine tests context parallelism with, and small twins."""

from dataclasses import dataclass, fields, replace
from typing import Final, get_origin

BATCH: Final = 2


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration.

    Attributes:
        name: As upstream names it, behind the backend; twins end in `_s`.
        s: Tokens of a sequence.
        heads: Of the query.
        groups: Heads of key and value.
        width: Of query and key.
        value_width: Of the value.
        mask: "causal" or "no_mask".
        window: Keys before and behind a query; (-1, -1): no window given.
        bias: Which of the dimensions [b, h, s, s] a bias has; "" for none.
        softmax: The type of softmax.
        max_logit: Whether the largest score is wanted.
        backward: Whether gradients are compared.
    """

    name: str
    s: int
    heads: int
    groups: int
    width: int
    value_width: int
    mask: str
    window: tuple[int, int] = (-1, -1)
    bias: str = ""
    softmax: str = "vanilla"
    max_logit: bool = False
    backward: bool = True

    def __post_init__(self) -> None:
        """Refuses a value of another type: a string "True" must not be taken for True."""
        for field in fields(self):
            value, wanted = getattr(self, field.name), get_origin(field.type) or field.type
            if type(value) is not wanted:
                raise TypeError(f"{field.name} of {self.name} is {value!r}, expected {wanted}")

    @property
    def sees(self) -> tuple[int, int]:
        """The window that is computed: a causal mask sees nothing behind a query."""
        return (self.window[0], 0) if self.mask == "causal" else self.window

    def twin(self) -> "Config":
        """Returns what numpy computes fast: 1/16 of the tokens, 1/8 of the widths."""
        return replace(
            self,
            name=f"{self.name}_s",
            s=self.s // 16,
            heads=32 if self.heads == 128 else self.heads,
            groups=32 if self.groups == 128 else self.groups,
            width=self.width // 8,
            value_width=self.value_width // 8,
            window=(_sixteenth(self.window[0]), _sixteenth(self.window[1])),
        )


def _sixteenth(size: int) -> int:
    return size // 16 if size > 0 else size


def _flash(name: str, heads: int, groups: int, widths: int | tuple[int, int], mask: str,
           window: tuple[int, int] = (-1, -1)) -> Config:  # fmt: skip
    return _config(f"flash_{name}", 4096, heads, groups, widths, mask, window)


def _fused(
    name: str,
    heads: int,
    groups: int,
    widths: int | tuple[int, int],
    mask: str,
    window: tuple[int, int] = (-1, -1),
    *,
    s: int = 4096,
    bias: str = "",
    softmax: str = "vanilla",
    max_logit: bool = False,
    backward: bool = True,
) -> Config:
    found = _config(f"fused_{name}", s, heads, groups, widths, mask, window)
    return replace(found, bias=bias, softmax=softmax, max_logit=max_logit, backward=backward)


def _config(
    name: str,
    s: int,
    heads: int,
    groups: int,
    widths: int | tuple[int, int],
    mask: str,
    window: tuple[int, int],
) -> Config:
    width, value_width = (widths, widths) if isinstance(widths, int) else widths
    return Config(name, s, heads, groups, width, value_width, mask, window)


FLASH: Final = (
    _flash("cp_1_0", 12, 12, 128, "causal"),
    _flash("cp_1_1", 12, 12, 128, "no_mask"),
    _flash("cp_1_2", 12, 12, 128, "causal", (512, 0)),
    _flash("cp_1_3", 12, 12, 128, "no_mask", (512, 512)),
    _flash("cp_2_0", 32, 4, 128, "causal"),
    _flash("cp_2_1", 12, 2, 128, "no_mask"),
    _flash("cp_2_2", 32, 32, 128, "causal", (128, 0)),
    _flash("cp_2_3", 12, 2, 128, "no_mask", (512, 512)),
    _flash("cp_3_0", 128, 128, (192, 128), "causal"),
    _flash("cp_3_1", 12, 12, (192, 128), "no_mask"),
    _flash("cp_3_2", 12, 12, (192, 128), "causal", (512, 0)),
    _flash("cp_3_3", 12, 12, (192, 128), "no_mask", (512, 512)),
)
FUSED: Final = (
    _fused("cp_1_0", 12, 12, 128, "causal", max_logit=True),
    _fused("cp_1_1", 12, 12, 128, "no_mask", max_logit=True),
    _fused("cp_1_2", 12, 12, 128, "causal", bias="1hss"),
    _fused("cp_1_3", 12, 12, 128, "no_mask", bias="1hss"),
    _fused("cp_1_4", 12, 12, 128, "no_mask", bias="bhss"),
    _fused("cp_1_5", 12, 12, 128, "causal", (512, 512)),
    _fused("cp_2_0", 32, 4, 128, "causal"),
    _fused("cp_2_1", 32, 32, 128, "causal", (128, 0)),
    _fused("cp_2_2", 12, 2, 128, "causal", bias="1hss"),
    _fused("cp_2_3", 12, 2, 128, "causal", bias="11ss"),
    _fused("cp_2_4", 12, 2, 128, "causal", bias="111s", backward=False, max_logit=True),
    _fused("cp_2_5", 12, 2, 128, "no_mask", bias="1hss"),
    _fused("cp_2_6", 12, 2, 128, "causal", (512, 512)),
    _fused("cp_3_0", 12, 12, (128, 64), "causal"),
    _fused("cp_3_1", 128, 128, (192, 128), "causal"),
    _fused("cp_3_2", 12, 12, (128, 64), "causal", bias="1hss"),
    _fused("cp_3_3", 12, 12, (128, 64), "no_mask", bias="1hss"),
    _fused("cp_3_4", 12, 12, (128, 64), "no_mask", bias="b1ss"),
    _fused("cp_4_0", 64, 8, 64, "causal"),
    _fused("cp_4_1", 64, 8, 64, "causal", softmax="off-by-one"),
    _fused("cp_4_2", 64, 8, 64, "causal", softmax="learnable"),
    _fused("cp_4_3", 64, 64, 64, "causal", (128, 0), softmax="learnable"),
    _fused("cp_5_0", 16, 16, 256, "causal", s=1024),
    _fused("cp_5_1", 16, 16, 256, "causal", (128, 0), s=1024),
)
FULL: Final = {each.name: each for each in (*FLASH, *FUSED)}
TWINS: Final = {each.name: each for each in (config.twin() for config in FULL.values())}
