"""A stretch of the past is repeated, and what lies ahead of it joins the queue."""

from kernbench.des import EventLoop


def test_a_stretch_is_repeated_up_to_the_event_that_asked_for_it() -> None:
    loop, seen = EventLoop(), list[tuple[str, int]]()
    mine, low, high = loop.owner(5), loop.owner(1), loop.owner(9)

    def note(name: str) -> None:
        seen.append((name, loop.now))

    def begin() -> None:
        for time in (10, 20, 30, 40):
            loop.at(time, low, note, f"low {time}")
        loop.at(30, high, note, "high 30")

    def ask() -> None:
        loop.relive(10, begin)
        seen.append(("back", loop.now))

    loop.at(30, mine, ask)
    loop.at(35, mine, note, "another's")
    loop.run()
    assert seen == [
        ("low 10", 10),
        ("low 20", 20),
        ("low 30", 30),  # before this event, in the order of owners
        ("back", 30),
        ("high 30", 30),  # behind it
        ("another's", 35),
        ("low 40", 40),
    ]


def test_what_is_repeated_may_go_on_into_the_future() -> None:
    loop, seen = EventLoop(), list[int]()
    owner = loop.owner(2)

    def tick() -> None:
        seen.append(loop.now)
        if loop.now < 50:
            loop.at(loop.now + 10, owner, tick)

    loop.at(25, loop.owner(3), lambda: loop.relive(0, lambda: loop.at(0, owner, tick)))
    loop.run()
    assert seen == [0, 10, 20, 30, 40, 50]
    assert loop.now == 50


def test_turns_of_an_owner_come_in_their_order_whenever_they_were_queued() -> None:
    loop, seen = EventLoop(), list[str]()
    owner = loop.owner(4)
    first, second = owner.turn(1), owner.turn(2)
    loop.at(10, second, seen.append, "second")
    loop.at(10, loop.owner(5), seen.append, "another's")
    loop.at(10, first, seen.append, "first")
    loop.at(10, second, seen.append, "second again")
    loop.at(9, second, lambda: loop.at(10, first, seen.append, "first again"))
    loop.at(10, owner, seen.append, "the owner's own")
    loop.run()
    assert seen[:3] == ["the owner's own", "first", "first again"]
    assert seen[3:] == ["second", "second again", "another's"]
