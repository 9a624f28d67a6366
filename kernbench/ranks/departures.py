"""How reports tell that a rank has left: where it returned, and where it destroyed its group."""

from kernbench.errors import CallSite, site_fact


def departure(returned: CallSite | None, destroyed: CallSite | None) -> str:
    """Returns what a report says of a rank that has left, such as `returned at a.py:3:9: return`.

    Args:
        returned: Where the rank's function returned; None if nobody knows.
        destroyed: Where the rank destroyed the group that waits for it; None if it did not.
    """
    if destroyed is None:
        return "returned" if returned is None else f"returned {site_fact(returned)}"
    if returned is None or (returned.file, returned.line) == (destroyed.file, destroyed.line):
        return f"destroyed the group {site_fact(destroyed)}"
    where = f"at line {destroyed.line}" if returned.file == destroyed.file else site_fact(destroyed)
    return f"returned {site_fact(returned)}, and destroyed the group {where}"
