"""Whether the command owns the process, and so may end it when nothing else stops it."""

_owned = False


def take() -> None:
    """Says that this process is the command's: it was started as `kernbench`, or by it."""
    global _owned  # noqa: PLW0603 - one process has one command
    _owned = True


def owned() -> bool:
    """Returns whether the process is the command's; False where a program calls the command."""
    return _owned
