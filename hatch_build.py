"""What the package page shows: README with links that lead somewhere, and the project's addresses.

A package page has no files beside it. If `KERNBENCH_REPOSITORY` says where the repository is, links
and pictures of README lead there, at the tag of this version; otherwise a link becomes its text,
and a picture its description.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_VERSION: Final = re.compile(r'__version__ = "([^"]+)"')


def on_a_package_page(text: str, repository: str, version: str) -> str:
    """Returns a text without links to files beside it.

    Args:
        text: README.
        repository: Address of the repository; empty if there is none.
        version: The version, whose tag is `v` and this.
    """

    def link(found: re.Match[str]) -> str:
        picture, name, target = found.groups()
        if target.startswith("#"):
            return found[0]
        if not repository:
            return name
        kind = "raw" if picture else "blob"
        return f"{picture}[{name}]({repository.rstrip('/')}/{kind}/v{version}/{target})"

    return _LINK.sub(link, text)


class CustomMetadataHook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Changes the metadata of the project.

        Args:
            metadata: The table `project` of `pyproject.toml`.
        """
        root = Path(self.root)
        text = (root / "kernbench" / "version.py").read_text(encoding="utf-8")
        (version,) = _VERSION.findall(text)
        repository = os.environ.get("KERNBENCH_REPOSITORY", "")
        readme = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": on_a_package_page(readme, repository, version),
        }
        if repository:
            base = repository.rstrip("/")
            metadata["urls"] = {
                "Repository": base,
                "Documentation": f"{base}/blob/v{version}/docs/own_torch.md",
                "Changelog": f"{base}/blob/v{version}/CHANGELOG.md",
            }
