"""What type checkers are told of `Tensor` is what it has."""

import tensor_stub


def test_the_stub_lists_every_method_with_its_arguments() -> None:
    written = tensor_stub.STUB.read_text()
    assert _plain(written) == _plain(tensor_stub.stub())


def _plain(text: str) -> str:
    """Returns a stub without what a formatter may change: lines, quotes, last commas."""
    return "".join(text.split()).replace(",)", ")").replace("'", '"')
