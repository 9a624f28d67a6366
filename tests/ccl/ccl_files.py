"""Collectives as MSCCL XML, written step by step, for tests; and an oracle that only runs them."""

import random
import xml.etree.ElementTree as ET
from collections import deque
from typing import Any

_NEEDS_SOURCE = {"s", "rrs", "rrc", "rrcs", "cpy", "re"}
_STORES = {"r", "rcs", "rrc", "rrcs", "cpy", "re"}
SENDS = {"s", "rcs", "rrs", "rrcs"}
RECEIVES = {"r", "rcs", "rrs", "rrc", "rrcs"}


class Xml:
    """Writes one file: blocks, and steps in them."""

    def __init__(
        self, coll: str, ranks: int, chunks: int, *, inside: bool = True, proto: str = "Simple"
    ) -> None:
        share = chunks if coll == "allreduce" else chunks // ranks
        extents = {
            "i_chunks": share if coll == "allgather" else chunks,
            "o_chunks": share if coll == "reducescatter" else chunks,
            "s_chunks": 0,
        }
        self.root = ET.Element(
            "algo",
            {
                "name": f"{coll}_test",
                "proto": proto,
                "nchannels": "1",
                "nchunksperloop": str(chunks),
                "ngpus": str(ranks),
                "coll": coll,
                "inplace": str(int(inside)),
                "outofplace": str(int(not inside)),
                "minBytes": "0",
                "maxBytes": str(1 << 40),
            },
        )
        self.gpus = [
            ET.SubElement(
                self.root, "gpu", {"id": str(r), **{k: str(v) for k, v in extents.items()}}
            )
            for r in range(ranks)
        ]

    def scratch(self, chunks: int) -> None:
        for gpu in self.gpus:
            gpu.set("s_chunks", str(chunks))

    def block(self, rank: int, send: int = -1, recv: int = -1, chan: int = 0) -> ET.Element:
        gpu = self.gpus[rank]
        self.root.set("nchannels", str(max(chan + 1, int(self.root.attrib["nchannels"]))))
        given = {"id": len(gpu), "send": send, "recv": recv, "chan": chan}
        return ET.SubElement(gpu, "tb", {k: str(v) for k, v in given.items()})

    @staticmethod
    def step(
        block: ET.Element,
        kind: str,
        source: tuple[str, int] = ("i", 0),
        target: tuple[str, int] = ("o", 0),
        count: int = 1,
        after: tuple[ET.Element, int] | None = None,
    ) -> int:
        if after is not None:
            after[0][after[1]].set("hasdep", "1")
        given = {
            "s": len(block),
            "type": kind,
            "srcbuf": source[0],
            "srcoff": source[1],
            "dstbuf": target[0],
            "dstoff": target[1],
            "cnt": count,
            "depid": -1 if after is None else int(after[0].get("id", "")),
            "deps": -1 if after is None else after[1],
            "hasdep": 0,
        }
        ET.SubElement(block, "step", {k: str(v) for k, v in given.items()})
        return len(block) - 1

    @property
    def text(self) -> str:
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode")


def ring_all_reduce(
    ranks: int, rings: int = 1, *, inside: bool = True, each: int = 1, proto: str = "Simple"
) -> Xml:
    """Rings of one block a rank, every second one the other way; `each` chunks a message."""
    xml = Xml("allreduce", ranks, ranks * rings * each, inside=inside, proto=proto)
    for ring in range(rings):
        on = -1 if ring % 2 else 1
        for rank in range(ranks):
            block = xml.block(rank, (rank + on) % ranks, (rank - on) % ranks, ring)

            def at(turn: int, rank: int = rank, on: int = on, ring: int = ring) -> int:
                return (ring * ranks + (rank - on * turn) % ranks) * each

            xml.step(block, "s", ("i", at(0)), ("o", at(0)), each)
            for turn in range(1, ranks - 1):
                xml.step(block, "rrs", ("i", at(turn)), ("o", at(turn)), each)
            last = at(ranks - 1)
            xml.step(block, "rrcs", ("i", last), ("o", last), each)
            for turn in range(ranks - 2):
                xml.step(block, "rcs", ("i", at(turn)), ("o", at(turn)), each)
            xml.step(block, "r", ("i", at(ranks - 2)), ("o", at(ranks - 2)), each)
    return xml


def ring_all_gather(ranks: int, *, inside: bool = True) -> Xml:
    xml = Xml("allgather", ranks, ranks, inside=inside)
    for rank in range(ranks):
        block = xml.block(rank, (rank + 1) % ranks, (rank - 1) % ranks)
        if not inside:
            xml.step(block, "cpy", ("i", 0), ("o", rank))
        xml.step(block, "s", ("i", 0), ("o", rank))
        for turn in range(1, ranks):
            kind = "rcs" if turn < ranks - 1 else "r"
            xml.step(block, kind, ("i", 0), ("o", (rank - turn) % ranks))
    return xml


def ring_reduce_scatter(ranks: int, *, inside: bool = True) -> Xml:
    xml = Xml("reducescatter", ranks, ranks, inside=inside)
    for rank in range(ranks):
        block = xml.block(rank, (rank + 1) % ranks, (rank - 1) % ranks)
        xml.step(block, "s", ("i", (rank - 1) % ranks))
        for turn in range(2, ranks):
            xml.step(block, "rrs", ("i", (rank - turn) % ranks))
        xml.step(block, "rrc", ("i", rank), ("o", 0))
    return xml


def tree_all_reduce(ranks: int, chunks: int = 1) -> Xml:
    """A binary tree: up with sums in the order of children, down with copies."""
    xml = Xml("allreduce", ranks, chunks)
    for rank in range(ranks):
        children = [c for c in (2 * rank + 1, 2 * rank + 2) if c < ranks]
        parent = (rank - 1) // 2 if rank else -1
        last: tuple[ET.Element, int] | None = None
        for child in children:
            block = xml.block(rank, -1, child)
            for chunk in range(chunks):
                # The children's sums are ordered: each waits for all of the one before.
                done = xml.step(block, "rrc", ("i", chunk), ("i", chunk), 1, last)
            last = (block, done)
        if rank:
            block = xml.block(rank, parent, parent)
            for chunk in range(chunks):
                xml.step(block, "s", ("i", chunk), ("i", chunk), 1, last)
            for chunk in range(chunks):
                done = xml.step(block, "r", ("i", chunk), ("i", chunk))
            last = (block, done)
        for child in children:
            block = xml.block(rank, child)
            for chunk in range(chunks):
                xml.step(block, "s", ("i", chunk), ("i", chunk), 1, last)
    return xml


def all_pairs_all_reduce(ranks: int, proto: str = "LL", share: int = 1) -> Xml:
    """Everybody's share to its owner's scratch, sums there, and the sum to everybody.

    Of several chunks of a share, which go together, each is added in an order of its own.
    """
    xml = Xml("allreduce", ranks, ranks * share, proto=proto)
    xml.scratch(ranks * share)
    for rank in range(ranks):
        own, peers = rank * share, [p for p in range(ranks) if p != rank]
        blocks = {}
        for peer in peers:
            blocks[peer] = block = xml.block(rank, peer, peer)
            xml.step(block, "s", ("i", peer * share), ("i", peer * share), share)
            xml.step(block, "r", ("i", 0), ("s", peer * share), share)
        adder = xml.block(rank)
        for chunk in range(share):
            for peer in (*peers[chunk:], *peers[:chunk]):
                there, after = ("s", peer * share + chunk), (blocks[peer], 1)
                done = xml.step(adder, "re", there, ("i", own + chunk), 1, after)
        for peer in peers:
            block = blocks[peer]
            xml.step(block, "s", ("i", own), ("i", own), share, (adder, done))
            xml.step(block, "r", ("i", peer * share), ("i", peer * share), share)
    return xml


def all_pairs_all_to_all(ranks: int, share: int = 1) -> Xml:
    xml = Xml("alltoall", ranks, ranks * share, inside=False)
    for rank in range(ranks):
        own = xml.block(rank)
        xml.step(own, "cpy", ("i", rank * share), ("o", rank * share), share)
        for peer in range(ranks):
            if peer != rank:
                block = xml.block(rank, peer, peer)
                xml.step(block, "s", ("i", peer * share), ("o", 0), share)
                xml.step(block, "r", ("i", 0), ("o", peer * share), share)
    return xml


def hierarchical_all_reduce(nodes: int, size: int) -> Xml:
    """A reduce-scatter by pairs inside nodes, an exchange across them, an all-gather inside."""
    xml = Xml("allreduce", nodes * size, size)
    xml.scratch(size + nodes)
    for rank in range(nodes * size):
        node, own = divmod(rank, size)
        inside = [p for p in range(size) if p != own]
        across = [m for m in range(nodes) if m != node]
        blocks = {}
        for place in inside:
            peer = node * size + place
            blocks[place] = block = xml.block(rank, peer, peer)
            xml.step(block, "s", ("i", place))
            xml.step(block, "r", ("i", 0), ("s", place))
        adder = xml.block(rank)
        for place in inside:
            done = xml.step(adder, "re", ("s", place), ("i", own), 1, (blocks[place], 1))
        for other in across:
            peer = other * size + own
            block = xml.block(rank, peer, peer)
            xml.step(block, "s", ("i", own), ("i", own), 1, (adder, done))
            got = xml.step(block, "r", ("i", 0), ("s", size + other))
            blocks[size + other] = block
        # Sums wait for all sends of what they overwrite.
        for other in across:
            xml.step(adder, "nop", after=(blocks[size + other], 0))
        for other in across:
            done = xml.step(
                adder, "re", ("s", size + other), ("i", own), 1, (blocks[size + other], got)
            )
        for place in inside:
            xml.step(blocks[place], "s", ("i", own), ("i", own), 1, (adder, done))
            xml.step(blocks[place], "r", ("i", place), ("i", place))
    return xml


FILES: dict[str, Any] = {
    "ring 2": lambda: ring_all_reduce(2),
    "ring 4": lambda: ring_all_reduce(4),
    "ring 4 out of place": lambda: ring_all_reduce(4, inside=False),
    "ring 4 of 3 chunks": lambda: ring_all_reduce(4, each=3),
    "two rings 4": lambda: ring_all_reduce(4, 2, proto="LL128"),
    "gather 3": lambda: ring_all_gather(3),
    "gather 4 out of place": lambda: ring_all_gather(4, inside=False),
    "scatter 4": lambda: ring_reduce_scatter(4),
    "scatter 3 out of place": lambda: ring_reduce_scatter(3, inside=False),
    "tree 5": lambda: tree_all_reduce(5),
    "tree 4 of 2 chunks": lambda: tree_all_reduce(4, 2),
    "all pairs 4": lambda: all_pairs_all_reduce(4),
    "all to all 4": lambda: all_pairs_all_to_all(4),
    "all to all 3 of 2 chunks": lambda: all_pairs_all_to_all(3, 2),
    "hierarchical 2 x 2": lambda: hierarchical_all_reduce(2, 2),
    "hierarchical 2 x 3": lambda: hierarchical_all_reduce(2, 3),
}


class WrongEndError(Exception):
    """A schedule ended wrong."""


def run_once(root: ET.Element, slots: int, rng: random.Random) -> None:
    """Runs a file in one random order of blocks, on random numbers; raises if the end is wrong."""
    n, loop = int(root.attrib["ngpus"]), int(root.attrib["nchunksperloop"])
    coll = root.attrib["coll"]
    per = loop if coll == "allreduce" else loop // n
    given = per if coll == "allgather" else loop
    inputs = [[rng.getrandbits(80) for _ in range(given)] for _ in range(n)]
    for g, outputs in enumerate(outputs_of(root, slots, rng, inputs)):
        for k, has in enumerate(outputs):
            if coll == "allreduce":
                want = sum(each[k] for each in inputs)
            elif coll == "allgather":
                want = inputs[k // per][k % per]
            elif coll == "alltoall":
                want = inputs[k // per][g * per + k % per]
            else:
                want = sum(each[g * per + k] for each in inputs)
            if has != want:
                raise WrongEndError


def outputs_of(
    root: ET.Element, slots: int, rng: random.Random, inputs: list[list[Any]]
) -> list[list[Any]]:
    """Returns each rank's chunks at the end of one random order of blocks; None for unwritten ones.

    It shares nothing with the proof: values are added as they are, no clock is kept.
    """
    n, loop = int(root.attrib["ngpus"]), int(root.attrib["nchunksperloop"])
    coll, inside = root.attrib["coll"], root.attrib["inplace"] == "1"
    per = loop if coll == "allreduce" else loop // n
    given = per if coll == "allgather" else loop

    def place(gpu: int, buffer: str, chunk: int) -> Any:
        if buffer == "s" or not inside:
            return buffer, chunk
        if coll == "allgather" and buffer == "i":
            return "io", chunk + gpu * per
        if coll == "reducescatter" and buffer == "o":
            return "io", chunk + gpu * per
        return "io", chunk

    memory = [{place(g, "i", k): inputs[g][k] for k in range(given)} for g in range(n)]
    tbs = {(g, int(tb.attrib["id"])): tb for g, gpu in enumerate(root) for tb in gpu}
    at = dict.fromkeys(tbs, 0)
    queues: dict[Any, deque[Any]] = {}

    def step_of(key: tuple[int, int]) -> bool:
        g, tb = key[0], tbs[key]
        if at[key] == len(tb):
            return False
        a = tb[at[key]].attrib
        kind, count = a["type"], int(a["cnt"])
        if int(a["depid"]) >= 0:
            other = g, int(a["depid"])
            flags = [s for s, each in enumerate(tbs[other]) if each.attrib["hasdep"] == "1"]
            if not any(int(a["deps"]) <= s < at[other] for s in flags):
                return False
        incoming = queues.setdefault((int(tb.attrib["recv"]), g, tb.attrib["chan"]), deque())
        outgoing = queues.setdefault((g, int(tb.attrib["send"]), tb.attrib["chan"]), deque())
        if (kind in RECEIVES and not incoming) or (kind in SENDS and len(outgoing) >= slots):
            return False
        values = incoming.popleft() if kind in RECEIVES else [0] * count
        for k in range(count):
            if kind in _NEEDS_SOURCE:
                here = place(g, a["srcbuf"], int(a["srcoff"]) + k)
                if here not in memory[g]:
                    raise WrongEndError
                values[k] = values[k] + memory[g][here]
            there = place(g, a["dstbuf"], int(a["dstoff"]) + k)
            if kind == "re":
                if there not in memory[g]:
                    raise WrongEndError
                values[k] = values[k] + memory[g][there]
        for k in range(count) if kind in _STORES else ():
            memory[g][place(g, a["dstbuf"], int(a["dstoff"]) + k)] = values[k]
        if kind in SENDS:
            outgoing.append(list(values))
        at[key] += 1
        return True

    keys = list(tbs)
    while True:
        rng.shuffle(keys)
        # Some blocks run far ahead, others hardly.
        turns = [key for key in keys for _ in range(rng.choice((1, 1, 9)))]
        if not sum(map(step_of, turns)):
            break
    if any(at[key] < len(tb) for key, tb in tbs.items()) or any(queues.values()):
        raise WrongEndError
    last = per if coll == "reducescatter" else loop
    return [[memory[g].get(place(g, "o", k)) for k in range(last)] for g in range(n)]
