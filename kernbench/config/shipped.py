"""Where the files that come with kernbench lie."""

from pathlib import Path


def shipped(folder: str) -> Path:
    """Returns a folder that comes with kernbench, `configs` or `benches`.

    A wheel carries it inside the package; in a checkout it lies beside the package. The wheel's
    place is asked first, because a `configs` in site-packages would be somebody else's.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_installed" / folder
    return installed if installed.is_dir() else package.parent / folder
