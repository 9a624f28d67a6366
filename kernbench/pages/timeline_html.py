"""The frame of a timeline, which the script of the page fills, and what a page says first."""

from collections.abc import Iterator
from typing import Final

from kernbench.pages.escaping import escaped
from kernbench.pages.page import Timeline, Verdict

_BUTTONS: Final = (
    ("in", "Zoom in", "+"),
    ("out", "Zoom out", "\u2212"),
    ("earlier", "Earlier", "\u2190"),
    ("later", "Later", "\u2192"),
    ("whole", "All of the run", "All"),
    ("fold", "Fold or unfold ranks that did the same", "Fold"),
    ("brush", "Break down what is shown", "Break down"),
)

_ENGINES: Final = (
    '<button type="button" data-act="engines" aria-pressed="false" '
    'title="Lanes of engines: the parts of commands">Engines</button>'
)

_HELP: Final = (
    "Drag to move, Ctrl and the wheel to zoom, click for a command's line. Drag on the scale, or "
    "with Shift, to break down a part. Keys: w s zoom, a d move, arrows choose a command, b breaks "
    "down what is shown, f folds ranks, e shows engines, 0 shows all, / searches, n p go to what "
    "was found, Esc clears."
)

_KINDS: Final = (
    ("k0", "compute"),
    ("k1", "communication"),
    ("k2", "copy"),
    ("kr", "wait"),
    ("kh", "host"),
    ("k6", "range of the program"),
)

_HEADS: Final = ("compute", "exposed communication", "copy", "idle", "(host)")


def timeline_html(part: Timeline) -> Iterator[str]:
    """Yields the HTML of a timeline."""
    yield '<div class="timeline">\n<p class="legend">'
    for name, text in _KINDS:
        yield f'<span><i class="{name}"></i>{text}</span>'
    yield '</p>\n<div class="tools" role="toolbar" aria-label="Timeline">'
    for act, label, text in _BUTTONS:
        yield (
            f'<button type="button" data-act="{act}" aria-label="{label}" title="{label}">'
            f"{text}</button>"
        )
    if part.engines:
        yield _ENGINES
    yield (
        '<label>Search <input type="search" placeholder="name or line" autocomplete="off">'
        '</label><button type="button" data-act="next">Next</button>'
        '<output class="hits"></output></div>\n'
    )
    yield (
        '<div class="lanes"><canvas tabindex="0" role="application" '
        'aria-label="Timeline of hosts and streams. Arrow keys choose commands; what is chosen is '
        'said below."></canvas><div class="spacer"></div></div>\n'
        '<p class="chosen" aria-live="polite">Nothing is chosen.</p>\n'
    )
    yield f"<details><summary>Mouse and keys</summary><p>{_HELP}</p></details>\n"
    yield (
        '<div class="range"><div class="wide"><table><caption>'
        '<span class="title" aria-live="polite"></span> '
        '<button type="button" class="clear" data-act="clear" disabled>Whole run</button>'
        '</caption><thead><tr class="heads"><th scope="col">ranks</th>'
    )
    for head in _HEADS:
        yield f'<th scope="col" class="n">{head}</th>'
    yield "<td></td></tr></thead><tbody></tbody></table></div></div>\n"
    yield f'<script type="application/octet-stream">{part.data}</script></div>\n'


def verdict_html(part: Verdict) -> Iterator[str]:
    """Yields the HTML of a verdict."""
    yield f'<p class="verdict">{escaped(part.sentence)}</p>\n<dl class="figures">'
    for figure in part.figures:
        yield (
            f"<div><dt>{escaped(figure.label)}</dt><dd>{escaped(figure.value)}</dd>"
            f'<dd class="said">{escaped(figure.said)}</dd></div>'
        )
    yield "</dl>\n"
