"""How modules load: without searches for garbage.

Imports make a million objects where PyTorch is among them, and hardly any garbage. What they make
stays to the end of the process; without `settle`, Python goes through all of it three times there.
"""

import gc

_paused = False
"""Whether the search is off because of `begin`."""


def begin() -> None:
    """Switches the search for garbage off until `end` or `settle`, if it is on."""
    global _paused  # noqa: PLW0603 - a process has one collector
    if gc.isenabled():
        gc.disable()
        _paused = True


def settle() -> None:
    """Ends what `begin` began, and leaves what there is by now out of every later search.

    To be called before code of the user runs: what that makes must be found when it is garbage.
    Without a `begin` before, as in a process that is not the command's own, nothing happens.
    """
    if _paused:
        gc.freeze()
    end()


def end() -> None:
    """Switches the search on again, if `begin` has switched it off."""
    global _paused  # noqa: PLW0603
    if _paused:
        gc.enable()
        _paused = False
