"""`kernbench doctor`: what is installed here, and what each part of it enables."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from kernbench import __version__
from kernbench.errors import UsageError
from kernbench.runtime_api.pytorch_versions import check_version
from kernbench.units import format_bytes


class Part(NamedTuple):
    """Something that need not be installed.

    Attributes:
        package: Its name on a package index.
        enables: What it is good for.
        install: How it is installed.
    """

    package: str
    enables: str
    install: str


_CPU: Final = "pip install torch --index-url https://download.pytorch.org/whl/cpu"

PARTS: Final[Sequence[Part]] = (
    Part("torch", "kernbench torchrun: programs of the real PyTorch", _CPU),
    Part("triton", "kernels of Triton inside of these programs", "pip install triton"),
    Part("pytest", "the fixture kernbench, kernbench test", "pip install pytest"),
    Part("matplotlib", "kernbench sweep --plot", "pip install matplotlib"),
    Part("ray", "kernbench sweep on the machines of a cluster", "pip install ray"),
    Part("scipy", "kernbench calibrate", "pip install scipy"),
    Part(
        "mkdocs-material",
        "the documents as a site: mkdocs serve",
        "pip install mkdocs-material 'mkdocstrings[python]'",
    ),
)


def version_of(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def lines() -> list[str]:
    """Returns what is known of this installation, line by line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = [
        f"kernbench {__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}",
        f"{os.cpu_count()} cores, {format_bytes(memory)} of memory",
        "  a run takes one core; kernbench sweep and pytest -n take all",
        "",
    ]
    width = max(len(part.package) for part in PARTS)
    for part in PARTS:
        version = version_of(part.package)
        told.append(f"{part.package.ljust(width)}  {version or 'not installed'}: {part.enables}")
        if version is None:
            told.append(f"{' ' * width}    {part.install}")
        elif part.package == "torch":
            told += [f"{' ' * width}    {line}" for line in _mistakes_of_torch(version)]
    if shutil.which("kernbench") is None:
        told += [
            "",
            f"the command kernbench is not in the path; {sys.executable} -m kernbench is it",
        ]
    return told


def _mistakes_of_torch(version: str) -> list[str]:
    try:
        check_version(version)
    except UsageError as error:
        return str(error).splitlines()
    return []


def print_doctor() -> int:
    """Prints what is installed and what it enables, and returns the exit code: 0."""
    print("\n".join(lines()))
    return 0
