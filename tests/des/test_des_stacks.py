"""What all tasks do, as text, whoever asks; other tests may have left tasks of other names."""

import threading

from kernbench.des import Event, EventLoop, current_task, stacks

HERE = __file__


def wait(event: Event) -> None:
    task = current_task()
    assert task is not None
    task.wait(event)


def test_tasks_of_all_loops_are_told_and_those_that_run_come_last() -> None:
    told = []
    never, inner_never = Event("news"), Event("inner news")

    def inner_work() -> None:
        wait(inner_never)

    def work() -> None:
        inner = EventLoop()
        task = inner.start(inner_work, owner=inner.owner(0), name="told tile 0")
        inner.at(1, inner.owner(9), lambda: inner_never.settle(1))
        inner.at(0, inner.owner(9), lambda: told.append(stacks()))
        inner.run(until=task.done)

    outer = EventLoop()
    outer.start(lambda: wait(never), owner=outer.owner(1), name="told rank 1")
    outer.start(work, owner=outer.owner(2), name="told rank 2")
    outer.start(lambda: None, owner=outer.owner(3), name="told rank 3", clock=5)
    outer.at(4, outer.owner(0), lambda: never.settle(4))
    outer.run()

    first = work.__code__.co_firstlineno
    (text,) = told
    sections = {part.split("\n")[0].rstrip(":"): part for part in parts(text) if "told" in part}
    assert list(sections)[-2:] == ["the hub waits for told rank 2", "told rank 2 runs"]
    assert set(list(sections)[:-2]) == {
        "told rank 1 waits for news",
        "told rank 3 has not begun",
        "told tile 0 waits for inner news",
    }
    # `wait` of this file is the user's: `core.py` is left out where a task waits.
    assert sections["told tile 0 waits for inner news"].split("\n")[1:] == [
        f"  {HERE}:{first - 2} in inner_work",
        f"  {HERE}:{wait.__code__.co_firstlineno + 3} in wait",
    ]
    assert sections["told rank 3 has not begun"] == "told rank 3 has not begun"
    assert f"  {HERE}:{first + 5} in work" in sections["told rank 2 runs"]
    assert "core.py" in sections["told rank 2 runs"]
    assert stacks.__code__.co_filename not in text
    hub = sections["the hub waits for told rank 2"]
    assert "in test_tasks_of_all_loops_are_told_and_those_that_run_come_last" in hub
    assert "core.py" not in hub


def parts(text: str) -> list[str]:
    """Returns the sections of a text: a title, and what is indented below it."""
    sections: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            sections[-1] += f"\n{line}"
        else:
            sections.append(line)
    return sections


def test_another_thread_may_ask() -> None:
    runs, asked = threading.Event(), threading.Event()

    def work() -> None:
        runs.set()
        asked.wait()

    def drive() -> None:
        loop = EventLoop()
        loop.start(work, owner=loop.owner(0), name="lone rank")
        loop.run()

    thread = threading.Thread(target=drive)
    thread.start()
    runs.wait()
    text = stacks()
    asked.set()
    thread.join()
    assert "in work" in text
    assert "in drive" in text
    assert stacks().count("lone rank") == 0, "it has ended"


def test_where_a_task_of_kernbench_waits_is_told() -> None:
    loop, told = EventLoop(), list[str]()
    event = Event("news")
    # Its function is a method of kernbench, so that none of its calls is the user's.
    owner = loop.owner(0)
    task = loop.start(lambda: None, owner=owner, name="lone rank")
    task._function, task._args = task.wait, (event,)
    loop.at(1, owner, lambda: told.append(stacks()))
    loop.at(2, owner, lambda: event.settle(2))
    loop.run()
    (section,) = [part for part in parts(told[0]) if "lone rank" in part]
    title, *places = section.split("\n")
    assert title == "lone rank waits for news:"
    assert any("core.py" in place for place in places)
