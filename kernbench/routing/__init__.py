"""Which experts tokens choose: by name, from a file, and how uneven it is."""

from kernbench.routing.choices import Asked, Choices, Routing, RoutingError, counts_of
from kernbench.routing.load import Load, coefficient_of_variation, overload
from kernbench.routing.named import NAMES, routing_of

__all__ = [
    "NAMES",
    "Asked",
    "Choices",
    "Load",
    "Routing",
    "RoutingError",
    "coefficient_of_variation",
    "counts_of",
    "overload",
    "routing_of",
]
