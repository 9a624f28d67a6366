"""What a process is made of."""

from kernbench.runtime_api.context import RuntimeContext


def test_processes_and_hosts_have_slots_only(ctx: RuntimeContext) -> None:
    # An object with more than 30 attributes and no slots has a dict of its own, which costs more to
    # make than all the rest of a rank.
    for thing in (ctx.main, ctx.main.host):
        assert not hasattr(thing, "__dict__")
