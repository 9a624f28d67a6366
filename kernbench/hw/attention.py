"""How long a device takes for attention: tiles of scores over its PEs."""

from typing import Literal, NamedTuple, TypeAlias

Direction: TypeAlias = Literal["forward", "backward"]


class Shape(NamedTuple):
    """Extents of attention but for its rows.

    Attributes:
        batch: Batch elements.
        heads: Of queries.
        groups: Of keys and values.
        width: Of queries and keys.
        value_width: Of values.
    """

    batch: int
    heads: int
    groups: int
    width: int
    value_width: int
