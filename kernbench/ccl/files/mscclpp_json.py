"""Reads execution plans of MSCCL++, the JSON of its DSL, as its executor does (1f5f065d).

A block names channels and buffers of other ranks by places in lists of its own, these lists by
places in lists of its rank (`execution_plan.cc`). The n-th channel from rank a to rank b has the
n-th one from b to a as its other end.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm
from typing import Any

from kernbench.ccl.files.blocks import Blocks, Extents
from kernbench.ccl.files.json_text import Item
from kernbench.ccl.files.msccl_xml import MOST_CHUNKS, OPERATIONS
from kernbench.ccl.files.mscclpp_ops import TURNS, Home, Lists, Operations
from kernbench.ccl.files.mscclpp_values import Values
from kernbench.ccl.files.one_sided import Deed, Group, OneSided, Semaphore
from kernbench.ccl.files.problems import Mark
from kernbench.config.problems import short
from kernbench.errors import UnsupportedError


class _Reader(Values):
    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)
        self.grain = 1
        self.ranks = 0
        self.initial: dict[Semaphore, int] = {}

    # The plan

    def read(self) -> tuple[Blocks, OneSided]:
        problems = self.problems
        self._refuse_older()
        plan = self.fields(self.root, "plan", "")
        problems.check()
        operation = OPERATIONS[self.one_of(plan["collective"], "collective", OPERATIONS)]
        protocol = self.one_of(plan["protocol"], "protocol", ("Simple", "LL"))
        inside = plan["inplace"].value
        if not isinstance(inside, bool):
            self.add(plan["inplace"], "inplace", "expected true or false", "F2")
        for key, why in (("reuse_resources", "scratch that grows smaller than its chunks"),):
            if key in plan and plan[key].value:
                raise UnsupportedError(
                    f"{problems.path}: {key} is not simulated: {why}",
                    hint="write the plan without it",
                )
        least = self.number(plan.get("min_message_size"), "min_message_size")
        most = 1 << 62
        if "max_message_size" in plan:
            most = self.number(plan["max_message_size"], "max_message_size")
        if least > most:
            text = f"expected at least min_message_size, {least}; got {most}"
            self.add(plan["max_message_size"], "max_message_size", text)
        items = self.items(plan, "gpus", "")
        self.ranks = len(items)
        if not items:
            self.add(plan["gpus"], "gpus", "expected a rank")
        gpus = [self.fields(item, "gpu", f"rank {rank}") for rank, item in enumerate(items)]
        problems.check()
        for rank, gpu in enumerate(gpus):
            if gpu["id"].value != rank:
                text = f"expected ranks in order, here {rank}; got {short(str(gpu['id'].value))}"
                self.add(gpu["id"], "id", text)
        self.grain = self._grain(gpus)
        extents = [self._extents(rank, gpu) for rank, gpu in enumerate(gpus)]
        chunks = self._chunks(plan, operation, extents)
        parts = sum(sum(one) for one in extents)
        if parts > MOST_CHUNKS:
            text = f"expected at most {MOST_CHUNKS} parts of chunks in all buffers; got {parts}"
            self.add(plan["gpus"], "gpus", text, "F3")
        problems.check()
        rank_lists = self._rank_lists(gpus)
        problems.check()
        operations = Operations(self, self.grain)
        groups = tuple(
            group
            for rank, gpu in enumerate(gpus)
            for group in self._groups(rank, gpu, rank_lists[rank], operations)
        )
        problems.check()
        self._check_waits(groups)
        scratch = max(one.s for one in extents)
        turns = TURNS if any(self._pipelines(gpu) for gpu in gpus) else 0
        blocks = Blocks(
            problems.path,
            str(plan["name"].value),
            operation,
            self.ranks,
            chunks,
            ("in place",) if inside else ("out of place",),
            (least, most),
            protocol,
            tuple(extents),
            (),
            (*self._notes(turns, operations.swapped), *self._limits(gpus)),
        )
        plan_of = OneSided(problems.path, self.grain, groups, self.initial, scratch, turns)
        self._check_offsets(blocks, plan_of)
        problems.check()
        return blocks, plan_of

    @staticmethod
    def _notes(turns: int, swapped: list[str]) -> list[str]:
        notes = [f"pipelines are unrolled to {turns} turns a chunk, whatever the size"]
        notes = notes if turns else []
        if swapped:
            many = len(swapped)
            text = f"{swapped[0]}: source and target have other chunks; MSCCL++'s executor"
            notes.append(f"{text} exchanges them ({many} such get{'s' * (many > 1)})")
        return notes

    def _limits(self, gpus: list[dict[str, Item]]) -> Iterable[str]:
        """Yields what MSCCL++'s executor has no room for (`execution_common.hpp`)."""
        blocks = [block.value for gpu in gpus for block in gpu["threadblocks"].value]
        channels = [
            sum(len(each.value["channel_ids"].value) for each in block["channels"].value)
            for block in blocks
        ]
        semaphores = [len(gpu["semaphores"].value) for gpu in gpus if "semaphores" in gpu]
        for what, limit, most in (
            ("operations of a block", 64, max((self._many(block) for block in blocks), default=0)),
            ("channels of a block", 16, max(channels, default=0)),
            ("semaphores of a rank", 16, max(semaphores, default=0)),
        ):
            if most > limit:
                yield f"MSCCL++'s executor has room for {limit} {what}; the file has {most}"

    def _many(self, block: dict[str, Item]) -> int:
        """Returns the operations of a block, with those of its pipelines."""
        ops = [op.value for op in block["ops"].value]
        return len(ops) + sum(self._many(op) for op in ops if "ops" in op)

    def _refuse_older(self) -> None:
        """Refuses forms of 2024, in which buffers were named at channels.

        Raises:
            UnsupportedError: If the plan has one of their keys.
        """
        found = self.root.value
        gpus = found.get("gpus") if isinstance(found, dict) else None
        listed = gpus.value if gpus and isinstance(gpus.value, list) else []
        if not (listed and isinstance(listed[0].value, dict)):
            return
        gpu = listed[0].value
        older = [key for key in ("inputChunks", "i_chunks", "chunkGroups") if key in gpu]
        channels = gpu.get("channels")
        for each in channels.value if channels and isinstance(channels.value, list) else ():
            if isinstance(each.value, dict):
                older += [key for key in ("buff", "srcbuff", "ctype") if key in each.value]
        if older:
            raise UnsupportedError(
                f"{self.problems.path} is an execution plan of an older MSCCL++: it has {older[0]}",
                hint="write it again with MSCCL++'s DSL of 2025 or later",
            )

    @staticmethod
    def _ops(gpu: dict[str, Item]) -> Iterable[dict[str, Item]]:
        """Yields what looks like an operation, also inside pipelines."""
        for block in (
            gpu["threadblocks"].value if isinstance(gpu["threadblocks"].value, list) else ()
        ):
            ops = block.value.get("ops") if isinstance(block.value, dict) else None
            stack = list(ops.value) if ops and isinstance(ops.value, list) else []
            while stack:
                op = stack.pop().value
                if isinstance(op, dict):
                    yield op
                    inner = op.get("ops")
                    stack += inner.value if inner and isinstance(inner.value, list) else []

    def _pipelines(self, gpu: dict[str, Item]) -> bool:
        return any(op["name"].value == "pipeline" for op in self._ops(gpu) if "name" in op)

    def _grain(self, gpus: list[dict[str, Item]]) -> int:
        found = 1
        for gpu in gpus:
            for op in self._ops(gpu):
                info = op.get("tbg_info")
                if info is not None:
                    group = self.fields(info, "", "tbg_info")
                    size = self.number(group.get("tbg_size"), "tbg_size", 1, 64)
                    found = lcm(found, size)
            if self._pipelines(gpu):
                found = lcm(found, TURNS)
        return found

    def _extents(self, rank: int, gpu: dict[str, Item]) -> Extents:
        most = (1 << 20) // max(self.ranks, 1)
        return Extents(
            *(
                self.number(gpu[key], f"rank {rank} {key}", 0, most) * self.grain
                for key in ("input_chunks", "output_chunks", "scratch_chunks")
            )
        )

    def _chunks(self, plan: dict[str, Item], operation: str, extents: list[Extents]) -> int:
        """Returns the parts of all blocks of the operation."""
        first = extents[0]
        gathers = operation == "all_gather"
        chunks = (first.o or first.i * self.ranks) if gathers else (first.i or first.o)
        for rank, one in enumerate(extents):
            if (one.i, one.o) != (first.i, first.o):
                text = f"expected as many chunks as rank 0 has; rank {rank} has others"
                self.add(plan["gpus"], "input_chunks", text)
        if not chunks or (operation != "all_reduce" and chunks % (self.ranks * self.grain)):
            text = f"expected a multiple of the {self.ranks} ranks; got {chunks // self.grain}"
            self.add(plan["gpus"], "input_chunks", text)
        return chunks

    # Channels, buffers, semaphores

    def _rank_lists(self, gpus: list[dict[str, Item]]) -> list[Lists]:
        found = []
        for rank, gpu in enumerate(gpus):
            own = Lists({"memory": [], "port": []}, [], [], 0)
            where = f"rank {rank}"
            met: dict[tuple[str, int], int] = {}
            for item in self.items(gpu, "channels", where):
                self._channel(item, rank, own, met)
            for item in self.items(gpu, "remote_buffers", where):
                each = self.fields(item, "", f"{where} remote_buffers")
                peer = self.number(each.get("rank"), f"{where} rank", 0, self.ranks - 1)
                if peer == rank:
                    self.add(item, where, "expected a buffer of another rank")
                kind = self.one_of(each.get("type"), f"{where} remote_buffers type", "ios")
                own.buffers.append((peer, kind))  # type: ignore[arg-type]
            for number, item in enumerate(self.items(gpu, "semaphores", where)):
                each = self.fields(item, "", f"{where} semaphores")
                count = self.number(each.get("init_value"), f"{where} init_value")
                if count:
                    self.initial[Semaphore(rank, rank, "device", number)] = count
                own.semaphores += 1
            found.append(own)
        return found

    def _channel(self, item: Item, rank: int, own: Lists, met: dict[tuple[str, int], int]) -> None:
        where = f"rank {rank} channels"
        given = self.fields(item, "", where)
        kind = self.one_of(given.get("channel_type"), where, ("memory", "port", "switch"))
        if kind == "switch":
            buffer: Any = self.one_of(given.get("buffer_type"), f"{where} buffer_type", "ios")
            for group in self.items(given, "rank_groups", where):
                members = self.items(self.fields(group, "", where), "ranks", where)
                ranks = [self.number(one, where, 0, self.ranks - 1) for one in members]
                if len(set(ranks)) < len(ranks):
                    self.add(group, where, "a rank stands twice")
                own.switches.append((buffer, tuple(ranks)))
            return
        for peer_item in self.items(given, "connected_to", where):
            peer = self.number(peer_item, where, 0, self.ranks - 1)
            if peer == rank:
                self.add(peer_item, where, "expected another rank")
            number = met.get((kind, peer), 0)
            met[kind, peer] = number + 1
            # What this rank waits on; its signals go to the one with the ranks exchanged.
            own.channels[kind].append(Semaphore(rank, peer, kind, number))

    def _groups(
        self, rank: int, gpu: dict[str, Item], own: Lists, operations: Operations
    ) -> Iterable[Group]:
        seen: set[int] = set()
        for item in self.items(gpu, "threadblocks", f"rank {rank}"):
            block = self.fields(item, "threadblock", f"rank {rank}")
            if not block:
                continue
            number = self.number(block["id"], f"rank {rank} threadblock id")
            if number in seen:
                self.add(block["id"], f"rank {rank}", f"block {number} stands twice", "F6")
            seen.add(number)
            where = f"rank {rank} block {number}"
            home = Home(rank, where, {"memory": [], "port": []}, [], {"memory": [], "port": []})
            for each in self.items(block, "channels", where):
                self._own_channels(each, own, home)
            for each in self.items(block, "remote_buffer_refs", where):
                given = self.fields(each, "", where)
                kind = self.one_of(given.get("access_channel_type"), where, ("memory", "port"))
                for one in self.items(given, "remote_buffer_ids", where):
                    picked = self.pick(one, own.buffers, f"{where} remote_buffer_ids", "buffers")
                    home.buffers[kind] += picked
            deeds: list[Deed] = []
            for step, op in enumerate(self.items(block, "ops", where)):
                deeds += operations.of(op, replace(home, where=f"{where} step {step}"), own)
            yield Group(rank, number, tuple(deeds))

    def _own_channels(self, item: Item, own: Lists, home: Home) -> None:
        given = self.fields(item, "", home.where)
        kind = self.one_of(given.get("channel_type"), home.where, ("memory", "port", "switch"))
        for one in self.items(given, "channel_ids", home.where):
            if kind == "switch":
                home.switches += self.pick(one, own.switches, home.where, "rank's switch channels")
            else:
                known = own.channels[kind]
                home.channels[kind] += self.pick(one, known, home.where, f"rank's {kind} channels")

    # Across blocks

    def _check_waits(self, groups: tuple[Group, ...]) -> None:
        """Adds semaphores on which several blocks wait, and barriers of other blocks than named."""
        waiters: dict[Semaphore, Group] = {}
        met: dict[tuple[int, int, int], dict[int, Deed]] = {}
        for group in groups:
            for deed in group.deeds:
                mark = Mark(deed.line, deed.column)
                for one in deed.awaits:
                    if waiters.setdefault(one, group) is not group:
                        text = f"{waiters[one]} waits on {one}, too; which one goes on is chance"
                        self.problems.add(mark, "F13", str(group), text, "give each its own")
                if deed.barrier is not None:
                    met.setdefault((group.rank, *deed.barrier), {})[group.number] = deed
        for (rank, number, many), deeds in met.items():
            if len(deeds) != many:
                deed = next(iter(deeds.values()))
                text = f"expected {many} blocks at barrier {number}; {len(deeds)} meet there"
                self.problems.add(Mark(deed.line, deed.column), "F12", f"rank {rank}", text)

    def _check_offsets(self, blocks: Blocks, plan: OneSided) -> None:
        extents = [
            {
                "i": max(one.i, blocks.share if blocks.operation == "all_gather" else 0),
                "o": max(one.o, 0 if blocks.operation == "reduce_scatter" else blocks.chunks),
                "s": one.s,
            }
            for one in blocks.buffers
        ]
        if blocks.modes == ("in place",) and blocks.operation == "all_reduce":
            for one in extents:
                one["i"] = one["o"] = blocks.chunks
        for group in plan.groups:
            for number, deed in enumerate(group.deeds):
                for span in (s for move in deed.moves for s in (*move.reads, *move.writes)):
                    last, most = span.first + span.parts, extents[span.rank][span.buffer]
                    if last > most:
                        text = f"expected chunks of {span.buffer} up to {most // self.grain - 1};"
                        text += f" got {-(-last // self.grain) - 1}"
                        mark = Mark(deed.line, deed.column)
                        self.problems.add(mark, "F4", f"{group} step {number}", text)


def read(path: str, text: str) -> tuple[Blocks, OneSided]:
    """Returns the collective of a plan: without blocks, and the program of its blocks.

    Args:
        path: The file, for places in reports.
        text: What is in it.

    Raises:
        ConfigError: Everything that is wrong with it.
        UnsupportedError: If it is of an older form, or needs what is not simulated.
    """
    return _Reader(path, text).read()
