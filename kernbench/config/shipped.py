"""Where the files that come with kernbench lie."""

from pathlib import Path

from kernbench.caches import cached


@cached("config.shipped")
def shipped(name: str) -> Path:
    """Returns the path of a file or folder that comes with kernbench.

    A wheel carries it inside the package; in a checkout it lies beside the package. The wheel's
    place is tried first, because a `configs` in site-packages would belong to another project.

    Args:
        name: `configs`, `benches`, `validation`, `README.md` or `docs/errors.md`.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_installed" / name
    return installed if installed.exists() else package.parent / name
