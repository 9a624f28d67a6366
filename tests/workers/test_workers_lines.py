"""The lines of the protocol, wherever reads end, and what a worker answers to each."""

import json
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.workers.failing import Message, ProtocolError
from kernbench.workers.lines import LineBuffer, decode, encode
from kernbench.workers.serving import Handler, respond


def test_a_message_comes_back_as_it_was() -> None:
    message = {"id": 1, "text": "two\nlines, \u00fc \ud800", "flag": True, "none": None}
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message
    assert json.loads(line)["v"] == 1


def test_a_message_cannot_change_the_version() -> None:
    assert json.loads(encode({"v": 7}))["v"] == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"hello", "expected a line of JSON, got 'hello'"),
        (b"", "expected a line of JSON, got ''"),
        (b"\xff{}", "expected a line of JSON"),
        (b"[" * 100_000, "expected a line of JSON"),
        (b"[1]", "expected a JSON object, got '[1]'"),
        (b'{"id": 1}', "expected protocol version 1"),
        (b'{"v": 2, "id": 1}', "expected protocol version 1"),
        (b'{"v": true}', "expected protocol version 1"),
    ],
)
def test_another_line_is_refused_and_shown(line: bytes, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(max_examples=examples(30))
@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"n"))), st.data())
def test_reads_may_end_anywhere(lines: list[bytes], data: st.DataObject) -> None:
    stream, buffer, got = b"".join(line + b"\n" for line in lines) + b"end", LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += buffer.feed(stream[:size])
        stream = stream[size:]
    assert got == lines
    assert buffer.partial == b"end"
    assert buffer.rest() == [b"end"]
    assert buffer.rest() == []


def test_a_line_without_end_can_be_cut() -> None:
    buffer = LineBuffer(longest=4)
    assert buffer.feed(b"abcd") == []
    assert buffer.feed(b"ef") == [b"abcdef"]
    assert buffer.feed(b"g\nhijkl") == [b"g", b"hijkl"]
    assert buffer.feed(b"\n\nm") == [b""]
    assert buffer.rest() == [b"m"]


def fail(request: Message) -> Message:
    raise KeyError(request["what"])


def leave(request: Message) -> Message:
    raise SystemExit(3)


def nothing(request: Message) -> Any:
    return None


HANDLERS: dict[str, Handler] = {
    "echo": lambda request: request,
    "verdict": lambda request: {"ok": False, "error": "no", "id": 77, "v": 77},
    "fail": fail,
    "leave": leave,
    "nothing": nothing,
    "odd": lambda request: {"object": object()},
}


def answer(line: bytes) -> tuple[Message, bool]:
    response, more = respond(line, HANDLERS)
    return decode(response), more


def test_every_worker_can_be_pinged_and_shut_down() -> None:
    assert answer(encode({"id": 1, "op": "ping"})) == ({"id": 1, "ok": True}, True)
    assert answer(encode({"id": 2, "op": "shutdown"})) == ({"id": 2, "ok": True}, False)


def test_a_handler_gets_the_request_and_gives_the_response() -> None:
    request = {"id": 1, "op": "echo", "deep": [1, {"two": None}]}
    assert answer(encode(request)) == ({**request, "ok": True}, True)


def test_a_handler_may_say_no_but_not_change_what_it_answers() -> None:
    assert answer(encode({"id": 1, "op": "verdict"})) == (
        {"id": 1, "ok": False, "error": "no"},
        True,
    )


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("fail", "KeyError: 'reason'"),
        ("leave", "SystemExit: 3"),
        ("nothing", "TypeError"),
        ("odd", "TypeError: Object of type object is not JSON serializable"),
        (
            "fly",
            "expected an op of ping, shutdown, echo, fail, leave, nothing, odd, verdict, got fly",
        ),
        (None, "got None"),
        (["fail"], "got ['fail']"),
    ],
)
def test_whatever_goes_wrong_is_an_answer(op: object, said: str) -> None:
    response, more = answer(encode({"id": 4, "op": op, "what": "reason"}))
    assert (response["id"], response["ok"], more) == (4, False, True)
    assert said in response["error"]


@pytest.mark.parametrize("line", [b"what?", b"", b'{"v": 3, "id": 4}', b"[]", b"\xff"])
def test_a_malformed_request_is_answered(line: bytes) -> None:
    response, more = answer(line)
    assert (response["id"], response["ok"], more) == (None, False, True)
    assert response["error"].startswith("expected")
