"""Where the files that come with kernbench lie."""

from pathlib import Path


def shipped(name: str) -> Path:
    """Returns what comes with kernbench: `configs`, `benches`, `README.md` or `docs/errors.md`.

    A wheel carries it inside the package; in a checkout it lies beside the package. The wheel's
    place is asked first, because a `configs` in site-packages would be somebody else's.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_installed" / name
    return installed if installed.exists() else package.parent / name
