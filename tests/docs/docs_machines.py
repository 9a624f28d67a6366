"""Makes the tables of docs/machines.md: every key of a machine file, from the spec's docstrings.

`python tests/docs/docs_machines.py` writes the tables, and what the blocks print, anew.
"""

import dataclasses
import os
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernbench.config import Changes  # noqa: E402 - the path says which package
from kernbench.config.load import without_limits  # noqa: E402
from kernbench.config.schema import QUANTITIES  # noqa: E402
from kernbench.config.write import flow  # noqa: E402
from kernbench.topology.spec import FOLLOWS, LinkSpec, MachineSpec, SipSpec  # noqa: E402

PAGE: Final = ROOT / "docs" / "machines.md"

_TABLES: Final = re.compile(
    r"(?<=<!-- every key -->\n).*(?=<!-- that was every key -->)", re.DOTALL
)

USERS: Final = {
    "system": {
        "name": "tables, traces, reports",
        "description": "`kernbench list`",
        "host": "",
        "sips": "",
        "sip": "",
        "algorithms": "the choice of an algorithm (`auto`)",
        "queue": "collectives, messages",
    },
    "system.host": {
        "dispatch": "every call of a program",
        "launch_queue": "programs that issue faster than the device works",
        "pcie": "copies between host and device",
        "gloo": "collectives and messages of CPU tensors",
        "dispatch_of": "every call of a program",
        "eager": "issuing, views, autograd",
        "loop": "`kernbench calibrate`",
    },
    "system.host.eager": dict.fromkeys(
        ("among", "loop", "library", "tensor"), "operations on tensors"
    )
    | dict.fromkeys(
        (
            *("view", "autograd", "backward", "step", "zero_grad", "zeroed", "hook", "shard"),
            *("dtensor", "beside_percent", "workspace"),
        ),
        "programs of PyTorch",
    ),
    "system.host.eager.library": dict.fromkeys(
        (
            *("product", "sum_product", "convolution", "convolution_backward", "attention"),
            *("attention_backward", "norm", "sorting", "bag_backward"),
        ),
        "operations on tensors",
    ),
    "system.host.dispatch_of": {
        "compute": "operations on tensors",
        "kernel": "`tl` kernels",
        "copy": "copies",
        "collective": "collectives",
        "message": "`send`, `recv` and their like",
        "batch": "`batch_isend_irecv`",
        "event": "events",
        "graph": "`torch.cuda.CUDAGraph.replay`",
    },
    "system.sips": {
        "count": "`spawn`, collectives of all ranks",
        "network": "",
        "changed": "",
    },
    "system.sips.network": {
        "kind": "routes, the choice of an algorithm",
        "bandwidth": "collectives, messages, copies between devices",
        "latency": "collectives, messages, copies between devices",
        "chunk": "flows that share a link of a ring, a torus or a graph",
        "shape": "a torus",
        "edges": "a graph",
        "node": "nodes",
        "leaf": "a fat tree",
        "spine": "nodes, a fat tree",
    },
    "system.sips.network.edges[]": {
        "ends": "routes",
        "bandwidth": "as the network's",
        "latency": "as the network's, and routes",
    },
    "system.sips.network.node": {
        "size": "routes, algorithms for nodes",
        "bandwidth": "as the network's, inside a node",
        "latency": "as the network's, inside a node",
    },
    "system.sips.network.leaf": {"size": "routes, algorithms for nodes"},
    "system.sips.network.spine": {
        "count": "routes",
        "latency": "ways between leaves",
        "oversubscription": "ways between leaves",
    },
    "system.sips.changed[]": {"which": "", "sip": "", "link": ""},
    "system.sips.changed[].link": {
        "bandwidth": "as the network's",
        "latency": "as the network's",
        "node": "as the network's, inside a node",
    },
    "system.sip.overlap": {
        "notice": "collectives and messages, and no kernel",
        "kernel": "kernels beside collectives",
        "message": "kernels beside messages",
        "collective": "collectives and messages beside kernels",
    },
    "system.sip.peers": {
        "atomic": "barriers, signals, kernels that poll",
        "fence": "barriers, signals, kernels that poll",
        "copy": "copies between devices",
    },
    "system.sip.warm": {"kept": "kernels of CUDA graphs", "bandwidth": "kernels of CUDA graphs"},
    "system.sip": {
        "launch": "every kernel",
        "collective_launch": "collectives whose queues have no `launch` of their own",
        "event": "events with `enable_timing`",
        "clock": "`torch.cuda._sleep`",
        "overlap": "",
        "warm": "",
        "peers": "",
        "cubes": "",
        "cube": "",
        "pe": "",
        "kernels": "",
    },
    "system.sip.kernels.NAME": dict.fromkeys(
        ("share", "element", "row", "beyond", "launches", "alone", "few"), "operations of PyTorch"
    ),
    "system.sip.cubes": {
        "shape": "which PE works where, the bandwidth of all HBM",
        "link": "ways between cubes",
    },
    "system.sip.cube": {
        "pes": "products, elementwise operations, programs of a `tl` kernel",
        "hbm": "",
        "sram": "",
    },
    "system.sip.cube.hbm": {
        "capacity": "how much tensors may take",
        "bandwidth": "operations, loads and stores of tiles and of collectives",
        "latency": "loads and stores of tiles and of collectives",
    },
    "system.sip.cube.sram": {
        "capacity": "slots; `L2_cache_size` of a device",
        "bandwidth": "slots; products whose sum is split",
        "latency": "slots",
    },
    "system.sip.pe": {
        "tcm": "",
        "issue": "`tl` kernels, collectives",
        "poll_interval": "collectives, with `backpressure: poll` in `ccl.yaml`",
        "dma": "`tl` kernels, collectives, messages",
        "gemm": "",
        "math": "elementwise operations, reductions of collectives, `tl` kernels",
        "attention": "",
        "programs": "",
    },
    "system.sip.pe.programs": dict.fromkeys(
        (
            *("warps", "programs", "registers", "shared", "reserved"),
            *("issue", "latency", "step", "traffic", "atomic", "sector", "slices"),
        ),
        "kernels of Triton",
    ),
    "system.sip.pe.attention[]": {
        "backend": "attention",
        "direction": "attention",
        "start": "attention",
        "program": "attention",
        "tile": "attention",
        "share": "attention",
        "scores": "attention",
        "adding": "attention",
        "fp32": "attention",
    },
    "system.sip.pe.tcm": {
        "capacity": "the largest tile of a `tl` kernel; slots",
        "bandwidth": "slots",
        "latency": "slots",
    },
    "system.sip.pe.gemm": {
        "rate": "products, `tl.dot`",
        "tile": "products of types that `library` does not have",
        "library": "products",
    },
    "system.sip.pe.gemm.library": {
        "start": "products",
        "write_back": "products, attention",
        "split_k": "products",
        "kernels": "",
    },
    "system.sip.pe.gemm.library.kernels[]": {
        "rate": "products",
        "edge": "products",
        "tiles": "products",
    },
    "a link": {"bandwidth": "what has the link", "latency": "what has the link"},
}
"""What uses each key, by section; empty for a section of its own."""

_LINK: Final = "a link"


def sections() -> Iterator[tuple[str, Any]]:
    """Yields each mapping of a machine file, as a path and a dataclass."""
    for path, kind in _inside("", MachineSpec):
        if path:
            yield path, kind
    yield _LINK, LinkSpec


def _inside(path: str, kind: Any) -> Iterator[tuple[str, Any]]:
    yield path, kind
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        part, each = _part(hint)
        if part is not None:
            yield from _inside(f"{path}.{name}{each}".removeprefix("."), part)


def _part(hint: Any) -> tuple[Any, str]:
    """Returns the dataclass of a key that has a section of its own, and what is one of many."""
    kind, each = without_limits(hint), ""
    if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        kind, each = without_limits(get_args(kind)[0]), "[]"
    if get_origin(kind) is dict:
        kind, each = get_args(kind)[1], ".NAME"
    if get_origin(kind) is Changes:
        kind = get_args(kind)[0]
        if kind is SipSpec:
            return None, ""
    if kind in QUANTITIES or kind is LinkSpec or not dataclasses.is_dataclass(kind):
        return None, ""
    return kind, each


def tables() -> str:
    """Returns the tables of all keys."""
    return "".join(_table(path, kind) for path, kind in sections())


def _table(path: str, kind: Any) -> str:
    first = (kind.__doc__ or "").splitlines()[0]
    lines = [
        f"\n### `{path}`\n" if path != _LINK else f"\n### {path}\n",
        f"{first}\n",
        "| key | meaning | written | default | used by |",
        "|---|---|---|---|---|",
    ]
    told = _attributes(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        meaning, _, reason = told[field.name].partition(" Default: ")
        default = _default(field, hints[field.name], path, reason)
        written = _written(hints[field.name], path, field.name)
        users = USERS[path][field.name]
        cells = (f"`{field.name}`", _linked(meaning), written, _linked(default), users)
        lines.append("| " + " | ".join(cell.removesuffix(".") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _linked(text: str) -> str:
    """Returns a text with the names of dataclasses as the sections that they are."""
    names = {kind.__name__: path for path, kind in sections()}
    return re.sub(r"`(\w+Spec)(\.\w+)?`", lambda m: f"`{names[m[1]]}{m[2] or ''}`", text)


def _attributes(kind: Any) -> dict[str, str]:
    """Returns what the docstring of a dataclass says of each attribute."""
    _, _, attributes = (kind.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w|\Z)", attributes, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _default(field: Any, hint: Any, path: str, reason: str) -> str:
    if path == "system.sips.changed[].link":
        return "as the network's"
    if field.default is dataclasses.MISSING and field.default_factory is dict:
        return reason
    if field.default is dataclasses.MISSING:
        return "**required**"
    optional = NoneType in get_args(hint)
    if field.default is FOLLOWS and not optional:
        return f"follows: {reason}"
    if field.default is None and path == "system.host.dispatch_of" and not reason:
        return "`dispatch`"
    if _part(hint)[0] is not None and dataclasses.is_dataclass(field.default):
        return reason or "those of its keys"
    empty = field.default in (None, (), "") or get_origin(hint) is Changes
    shown = "" if empty else f"`{flow(hint, field.default)}`"
    return ": ".join(filter(None, (shown, reason))) or "none"


def _written(hint: Any, path: str, name: str) -> str:
    here = f"{path}.{name}"
    part, each = _part(hint)
    if part is not None:
        return f"list of `{here}[]`" if each == "[]" else f"`{here}{each}`"
    kind = without_limits(hint)
    if quantity := QUANTITIES.get(kind):
        return f"{quantity.what}, such as `{quantity.example}`"
    if kind is LinkSpec:
        return f"[{_LINK}](#a-link)"
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(kind))
    if origin is dict:
        return "a rate each, such as `6.2 TFLOP/s`"
    if origin is tuple:
        inner = without_limits(get_args(kind)[0])
        return "list of " + (
            "texts" if inner is str else "pairs" if get_origin(inner) else "numbers"
        )
    if kind in {int, str}:
        return {int: "a number", str: "a text"}[kind]
    return "any keys of `system.sip`"


def with_tables(text: str) -> str:
    """Returns a page with the tables of now."""
    return _TABLES.sub(lambda _: tables() + "\n", text)


def main() -> None:
    """Writes tables and outputs into the page anew."""
    import docs_readme

    text = with_tables(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(docs_readme.with_outputs(text), encoding="utf-8")


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    main()
