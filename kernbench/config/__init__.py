"""Files that users write, read into frozen dataclasses; every mistake is shown in its place."""

from kernbench.config.load import DeprecatedKeyWarning, Loaded, load, load_with_marks
from kernbench.config.near import did_you_mean, nearest
from kernbench.config.problems import ConfigError, Problem
from kernbench.config.schema import Bare, Changes, Formerly, Range, value_at
from kernbench.config.shipped import shipped

__all__ = [
    "Bare",
    "Changes",
    "ConfigError",
    "DeprecatedKeyWarning",
    "Formerly",
    "Loaded",
    "Problem",
    "Range",
    "did_you_mean",
    "load",
    "load_with_marks",
    "nearest",
    "shipped",
    "value_at",
]
