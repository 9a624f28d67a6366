"""Execution plans of MSCCL++, written operation by operation."""

import json
from collections.abc import Callable
from typing import Any

Buffer = tuple[str, int]
Block = dict[str, Any]

EXTENTS = ("input_chunks", "output_chunks", "scratch_chunks")


class Plan:
    """Writes one plan: blocks, and operations in them; channels and buffers as they are named."""

    def __init__(
        self, coll: str, ranks: int, chunks: tuple[int, int, int], *, inside: bool = True
    ) -> None:
        self.root: dict[str, Any] = {
            "name": f"{coll}_test",
            "collective": coll,
            "protocol": "Simple",
            "inplace": inside,
            "gpus": [
                {
                    "id": rank,
                    **dict(zip(EXTENTS, chunks, strict=True)),
                    "threadblocks": [],
                    "channels": [],
                    "remote_buffers": [],
                    "semaphores": [],
                }
                for rank in range(ranks)
            ],
            "min_message_size": 0,
            "max_message_size": 1 << 40,
        }
        self.gpus: list[dict[str, Any]] = self.root["gpus"]

    @property
    def text(self) -> str:
        return json.dumps(self.root, indent=1)

    def block(self, rank: int) -> Block:
        blocks: list[Block] = self.gpus[rank]["threadblocks"]
        lists: Block = {"id": len(blocks), "ops": [], "channels": [], "remote_buffer_refs": []}
        blocks.append({**lists, "rank": rank})  # `done` takes the rank out
        return blocks[-1]

    def done(self) -> "Plan":
        for gpu in self.gpus:
            for block in gpu["threadblocks"]:
                block.pop("rank", None)
        return self

    def _gpu(self, block: Block) -> dict[str, Any]:
        return self.gpus[block["rank"]]

    def channel(self, block: Block, peer: int, kind: str = "memory") -> int:
        """Opens a channel to a rank, of the block alone; returns its place in the block's list."""
        every = self._gpu(block)["channels"]
        own = next((each for each in every if each["channel_type"] == kind), None)
        if own is None:
            own = {"channel_type": kind, "connected_to": []}
            every.append(own)
        own["connected_to"].append(peer)
        mine = next((each for each in block["channels"] if each["channel_type"] == kind), None)
        if mine is None:
            mine = {"channel_type": kind, "channel_ids": []}
            block["channels"].append(mine)
        mine["channel_ids"].append(len(own["connected_to"]) - 1)
        return len(mine["channel_ids"]) - 1

    def far(
        self, block: Block, peer: int, place: Buffer, size: int = 1, kind: str = "memory"
    ) -> dict[str, int]:
        """Names chunks of another rank."""
        buffers = self._gpu(block)["remote_buffers"]
        buffers.append({"rank": peer, "type": place[0], "access_channel_types": [kind]})
        refs = block["remote_buffer_refs"]
        mine = next((each for each in refs if each["access_channel_type"] == kind), None)
        if mine is None:
            mine = {"access_channel_type": kind, "remote_buffer_ids": []}
            refs.append(mine)
        mine["remote_buffer_ids"].append(len(buffers) - 1)
        number = len(mine["remote_buffer_ids"]) - 1
        return {"buffer_id": number, "index": place[1], "size": size}


def near(place: Buffer, size: int = 1) -> dict[str, Any]:
    return {"type": place[0], "index": place[1], "size": size}


def op(block: Block, name: str, sources: Any = (), targets: Any = (), **more: Any) -> None:
    given = {"src_buff": list(sources), "dst_buff": list(targets)} if sources else {}
    kind = {} if name in {"copy", "re", "upkt", "cpkt", "nop"} else {"channel_type": "memory"}
    block["ops"].append({"name": name, **given, **kind, **more})


def nop(block: Block) -> None:
    block["ops"].append({"name": "nop"})


def meet(block: Block, channels: list[int], *, relaxed: bool = False) -> None:
    """Signals to all channels of a block, and waits for all."""
    prefix = "rlx" if relaxed else ""
    nop(block)
    op(block, f"{prefix}signal", channel_ids=channels)
    op(block, f"{prefix}wait", channel_ids=channels)
    nop(block)


def put_all_gather(ranks: int) -> Plan:
    """Each rank writes its block to all others, between two meetings."""
    plan = Plan("allgather", ranks, (1, ranks, 0))
    for rank in range(ranks):
        block = plan.block(rank)
        peers = [peer for peer in range(ranks) if peer != rank]
        channels = [plan.channel(block, peer) for peer in peers]
        meet(block, channels, relaxed=True)
        for peer in peers:
            op(block, "put", [near(("o", rank))], [plan.far(block, peer, ("o", rank))])
        meet(block, channels)
    return plan.done()


def get_all_gather(ranks: int, *, inside: bool = False) -> Plan:
    """Two blocks of a rank read the others' inputs, half each, and meet at a barrier."""
    plan = Plan("allgather", ranks, (2, 2 * ranks, 0), inside=inside)
    for rank in range(ranks):
        blocks = [plan.block(rank), plan.block(rank)]
        peers = [peer for peer in range(ranks) if peer != rank]
        channels = [plan.channel(blocks[0], peer) for peer in peers]
        meet(blocks[0], channels, relaxed=True)
        for half, block in enumerate(blocks):
            barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
            block["ops"].append(barrier)
            for peer in peers:
                source = plan.far(block, peer, ("i", half))
                op(block, "get", [source], [near(("o", 2 * peer + half))])
            if not inside:
                op(block, "copy", [near(("i", half))], [near(("o", 2 * rank + half))])
            block["ops"].append(barrier)
        meet(blocks[0], channels)
    return plan.done()


def read_all_reduce(ranks: int) -> Plan:
    """Each rank adds the others' chunks to its own, and writes the sum to all."""
    plan = Plan("allreduce", ranks, (ranks, ranks, 0))
    for rank in range(ranks):
        block = plan.block(rank)
        peers = [(rank + turn) % ranks for turn in range(1, ranks)]
        channels = [plan.channel(block, peer) for peer in peers]
        meet(block, channels, relaxed=True)
        sources = [near(("i", rank)), *(plan.far(block, peer, ("i", rank)) for peer in peers)]
        targets = [near(("i", rank)), *(plan.far(block, peer, ("i", rank)) for peer in peers)]
        op(block, "rres", sources, targets, reduce_op="sum")
        meet(block, channels)
    return plan.done()


def packet_all_reduce(ranks: int) -> Plan:
    """All pairs by packets, without a signal: shares to their owners, sums to all."""
    plan = Plan("allreduce", ranks, (ranks, ranks, 2 * ranks))
    plan.root["protocol"] = "LL"
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        sender, adder, taker = (plan.block(rank) for _ in range(3))
        for peer in peers:
            op(sender, "ppkt", [near(("i", peer))], [plan.far(sender, peer, ("s", rank))])
        sources = [near(("i", rank)), *(near(("s", peer)) for peer in peers)]
        targets = [plan.far(adder, peer, ("s", ranks + rank)) for peer in peers]
        op(adder, "respkt", sources, [near(("i", rank)), *targets], reduce_op="sum")
        for peer in peers:
            op(taker, "upkt", [near(("s", ranks + peer))], [near(("i", peer))])
    return plan.done()


def port_reduce_scatter(ranks: int) -> Plan:
    """Each rank puts its shares into the others' scratch through ports, and adds what comes."""
    plan = Plan("reducescatter", ranks, (ranks, 1, ranks), inside=False)
    for rank in range(ranks):
        block = plan.block(rank)
        peers = [peer for peer in range(ranks) if peer != rank]
        channels = [plan.channel(block, peer, "port") for peer in peers]
        for channel, peer in zip(channels, peers, strict=True):
            target = plan.far(block, peer, ("s", rank), kind="port")
            given = {"channel_ids": [channel], "channel_type": "port"}
            op(block, "pws", [near(("i", peer))], [target], **given)
        nop(block)
        op(block, "flush", channel_ids=channels, channel_type="port")
        op(block, "wait", channel_ids=channels, channel_type="port")
        nop(block)
        sources = [near(("i", rank)), *(near(("s", peer)) for peer in peers)]
        op(block, "re", sources, [near(("o", 0))], reduce_op="sum")
    return plan.done()


def piped_all_to_all(ranks: int) -> Plan:
    """A block copies to scratch, another puts on; a semaphore counts the turns of a pipeline."""
    plan = Plan("alltoall", ranks, (ranks, ranks, ranks), inside=False)
    for rank in range(ranks):
        gpu = plan.gpus[rank]
        copier, putter = plan.block(rank), plan.block(rank)
        peers = [peer for peer in range(ranks) if peer != rank]
        channels = [plan.channel(putter, peer) for peer in peers]
        op(copier, "copy", [near(("i", rank))], [near(("o", rank))])
        meet(putter, channels, relaxed=True)
        for number, peer in enumerate(peers):
            gpu["semaphores"].append({"init_value": 0})
            context = {"unit_size": 1 << 20, "num_chunks": 1}
            first: Block = {"ops": [], "rank": rank}
            op(first, "copy", [near(("i", peer))], [near(("s", peer))])
            nop(first)
            first["ops"].append({"name": "sem_release", "semaphore_ids": [number]})
            second: Block = {"ops": [{"name": "sem_acquire", "semaphore_ids": [number]}]}
            nop(second)
            target = plan.far(putter, peer, ("o", rank))
            op(second, "put", [near(("s", peer))], [target])
            for block, inner in ((copier, first), (putter, second)):
                pipeline = {"name": "pipeline", "iter_context": context, "ops": inner["ops"]}
                block["ops"].append(pipeline)
        meet(putter, channels)
    return plan.done()


def grouped_all_gather(ranks: int) -> Plan:
    """As `put_all_gather`, by groups of two blocks that put half of a chunk each."""
    plan = Plan("allgather", ranks, (1, ranks, 0))
    for rank in range(ranks):
        for half in range(2):
            block = plan.block(rank)
            peers = [peer for peer in range(ranks) if peer != rank]
            channels = [plan.channel(block, peer) for peer in peers]
            meet(block, channels, relaxed=True)
            for peer in peers:
                source, target = near(("o", rank)), plan.far(block, peer, ("o", rank))
                group = {"tb_id": half, "tbg_size": 2}
                op(block, "put", [source], [target], tbg_info=group)
            meet(block, channels)
    return plan.done()


def switched_all_reduce(ranks: int, *, relaxed: bool = False) -> Plan:
    """A switch adds a chunk of all ranks and stores the sum to all."""
    plan = Plan("allreduce", ranks, (ranks, ranks, 0))
    everyone = {"size": ranks, "ranks": list(range(ranks))}
    for rank in range(ranks):
        block = plan.block(rank)
        channels = [plan.channel(block, peer) for peer in range(ranks) if peer != rank]
        switch = {"channel_type": "switch", "buffer_type": "i", "rank_groups": [everyone]}
        plan.gpus[rank]["channels"].append(switch)
        block["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        meet(block, channels, relaxed=True)
        end = {"switch_channel_id": 0, "index": rank, "size": 1}
        op(block, "glres", [end], [end], channel_type="switch", reduce_op="sum")
        meet(block, channels, relaxed=relaxed)
    return plan.done()


PLANS: dict[str, Callable[[], Plan]] = {
    "put 2": lambda: put_all_gather(2),
    "put 4": lambda: put_all_gather(4),
    "get 3": lambda: get_all_gather(3),
    "get 2 in place": lambda: get_all_gather(2, inside=True),
    "read 3": lambda: read_all_reduce(3),
    "packets 2": lambda: packet_all_reduce(2),
    "packets 4": lambda: packet_all_reduce(4),
    "ports 3": lambda: port_reduce_scatter(3),
    "pipeline 3": lambda: piped_all_to_all(3),
    "groups 2": lambda: grouped_all_gather(2),
    "switch 3": lambda: switched_all_reduce(3),
}
