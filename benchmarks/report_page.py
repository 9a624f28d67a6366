"""What the page of a large run takes: its size, its frames while it is panned; who can read it.

The run is two steps of a small Llama-like model under FSDP2 on 64 ranks; `--page FILE` takes a page
that is there. Frames are those that the page itself writes down in headless Chromium, which is to
be in the path: moments at which it drew, and how long it drew. `--axe FILE` runs axe-core on the
page (`npm install axe-core`, then `node_modules/axe-core/axe.min.js`), at 1280 and 390 pixels,
light and dark, and prints what it finds; the exit code is 1 if a finding is serious.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import _measure

PROGRAM = Path(__file__).parent / "programs" / "llama_fsdp2.py"
RANKS, NODE, STEPS = 64, 8, 2
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "kv-heads": 2, "ffn": 256}
MODEL |= {"vocabulary": 1024, "sequence": 64}
LIMIT_BYTES = 3e6
LIMIT_MS = 1000 / 30
WAIT_S = 120

PAN = """
const line = document.querySelector(".timeline").timeline;
const gaps = (some) => some.slice(1).map((each, n) => each[0] - some[n][0]);
const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const found = { slices: line.lanes.reduce((sum, lane) => sum + lane.slices, 0) };
for (const [name, open] of [["folded", false], ["unfolded", true]]) {
  if (open) line.foldAll();
  line.whole();
  line.zoom(0.5);
  await frame();
  line.frames.length = 0;
  for (let count = 0; count < 300; count += 1) {
    line.pan(count % 100 < 50 ? 0.01 : -0.01);
    await new Promise((done) => requestAnimationFrame(done));
  }
  await frame();
  found[name] = { gaps: gaps(line.frames), drawn: line.frames.map((each) => each[1]) };
}
const took = [];
const whole = line.data.end - line.data.start;
for (let count = 0; count < 20; count += 1) {
  const begin = performance.now();
  line.brush([line.data.start + whole * count / 40, line.data.start + whole * (count + 20) / 40]);
  took.push(performance.now() - begin);
}
found.brush = took;
return found;
"""
"""Pans a page, folded and unfolded, and brushes ranges."""

AXE = """
const found = await axe.run(document, { resultTypes: ["violations"] });
return found.violations.map((each) => [each.impact, each.id, each.help, each.nodes.length,
  each.nodes[0].html.slice(0, 120)]);
"""

WAITING = """<script>
(async () => {
  const root = document.querySelector(".timeline");
  while (root && !root.timeline) await new Promise((done) => setTimeout(done, 20));
  let found;
  try { found = await (async () => { %s })(); } catch (error) { found = { error: String(error) }; }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
})();
</script></body>"""


def asked(page: str, script: str, width: int = 1280, dark: bool = False, library: str = "") -> Any:
    """Returns what a script returns in a page that a browser shows.

    Args:
        page: The page; its policy is left out, since it refuses scripts that are not its own.
        script: Body of an asynchronous function.
        width: Of the window, in pixels.
        dark: Whether the browser prefers dark pages.
        library: A script that is loaded before.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("report_page: no chromium in the path")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n?', "", page)
    content = text.replace("</body>", f"<script>{library}</script>" * bool(library) + "</body>")
    content = content.replace("</body>", WAITING % script)
    # A window is never narrower than 500 pixels; a frame is.
    frame = (
        f'<body style="margin:0"><iframe src="/page" style="border:0;width:{width}px;height:900px">'
    )
    sent = {"/": frame if width < 500 else content, "/page": content}
    found: list[Any] = []
    come = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = sent.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            come.set()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/me"]
        options += ["--remote-debugging-port=0", f"--window-size={max(width, 500)},900"]
        options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        child = subprocess.Popen(
            [browser, *options, f"http://127.0.0.1:{server.server_port}/"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if not come.wait(WAIT_S):
                sys.exit(f"report_page: no answer of the browser in {WAIT_S} s")
        finally:
            child.terminate()
            child.wait()
            server.shutdown()
    if isinstance(found[0], dict) and "error" in found[0]:
        sys.exit(f"report_page: {found[0]['error']}")
    return found[0]


def made(folder: str) -> Path:
    """Runs the program; returns its page."""
    page = Path(folder) / "page.html"
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", str(NODE)]
    command += ["--nnodes", str(RANKS // NODE), "--topology", "h200x8_x4_nodes", "--quiet"]
    command += ["--set", f"system.sips.count={RANKS}", "--report", str(page), str(PROGRAM)]
    command += ["--steps", str(STEPS)]
    for name, value in MODEL.items():
        command += [f"--{name}", str(value)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return page


def at(values: list[float], share: float) -> float:
    """Returns the value that a share of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--axe", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.page or made(folder)
        size, text = path.stat().st_size, path.read_text(encoding="utf-8")
    serious = 0
    if options.axe is not None:
        library = options.axe.read_text(encoding="utf-8")
        for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
            found = asked(text, AXE, width, dark, library)
            serious += sum(each[0] in {"serious", "critical"} for each in found)
            print(f"axe-core, {width} pixels, {'dark' if dark else 'light'}: {len(found)} findings")
            for impact, name, help_, nodes, html in found:
                print(f"  {impact}: {name}, {nodes} places: {help_}: {html}")
    found = asked(text, PAN)
    rows: list[tuple[object, ...]] = [
        ("page", f"{size / 1e3:.0f} KB", "", f"{LIMIT_BYTES / 1e3:.0f} KB"),
    ]
    for name in ("folded", "unfolded"):
        for what, limit in (("gaps", LIMIT_MS), ("drawn", LIMIT_MS)):
            values = found[name][what]
            rows.append(
                (f"{name}, {'between frames' if what == 'gaps' else 'drawing'}",
                 f"{at(values, 0.5):.1f} ms", f"{at(values, 0.95):.1f} ms", f"{limit:.1f} ms")
            )  # fmt: skip
    brush = found["brush"]
    rows.append(
        ("a range is broken down", f"{at(brush, 0.5):.1f} ms", f"{at(brush, 0.95):.1f} ms", "")
    )
    title = f"{found['slices']} slices; frames of 300 steps while the page is panned"
    _measure.show(title, ("", "median", "95 of 100", "limit"), rows)
    return int(serious > 0)


if __name__ == "__main__":
    sys.exit(main())
