"""Makes the pictures of pages: `python docs/screenshots.py` writes them to `docs/img`.

Needs PyTorch, and Chromium in the path. The page is that of `docs/pytorch/train.py` on eight ranks.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = (
    ("report.png", 1280, 1090, False),
    ("report_dark.png", 1280, 1090, True),
    ("report_narrow.png", 390, 1000, True),
)
"""File, width and height in pixels, and whether it is dark."""


def main() -> None:
    """Writes the pictures."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("screenshots: no chromium in the path")
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.html"
        command = ["-m", "kernbench", "torchrun", "--nproc-per-node", "8", "--report"]
        program = "docs/pytorch/train.py"
        subprocess.run([sys.executable, *command, str(page), program], cwd=ROOT, check=True)
        for file, width, height, dark in PICTURES:
            # A window is never narrower than 500 pixels; a frame is.
            frame = Path(name) / "frame.html"
            style = f"border:0;width:{width}px;height:{height}px"
            back = "#14181c" if dark else "#ffffff"
            body = f'<body style="margin:0;background:{back}">'
            frame.write_text(f'{body}<iframe src="page.html" style="{style}">')
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
            shot = f"--screenshot={ROOT / 'docs' / 'img' / file}"
            size = f"--window-size={max(width, 500)},{height}"
            budget = "--virtual-time-budget=4000"
            subprocess.run(
                [browser, *options, scheme, f"--user-data-dir={name}/me", shot, size, budget,
                 frame.as_uri()],
                check=True, capture_output=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
