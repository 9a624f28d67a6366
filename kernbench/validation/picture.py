"""The picture of a validation, by matplotlib, which is an extra: `kernbench[plot]`."""

from pathlib import Path
from typing import Any, Final

from kernbench.report.files import replacing_bytes
from kernbench.sweeps.drawing import COLOURS, MARKERS, SETTINGS, content_of
from kernbench.validation.summary import parts
from kernbench.validation.validating import Validation

_TITLES: Final = {"own": "kernbench.torch", "pytorch": "PyTorch"}


def write_picture(path: Path, validation: Validation) -> None:
    """Draws predicted over measured values, a point a cell, a panel a torch.

    Args:
        path: The file, for which `sweeps.drawing.check_picture` has found nothing wrong.
        validation: What is drawn.

    Raises:
        UsageError: If the file cannot be written (F15).
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    shown = [torch for torch in validation.torches if _points(validation, torch)]
    with style.context(["default", {**SETTINGS, "figure.figsize": (6.0 * len(shown) + 2, 6.0)}]):
        figure = Figure(layout="constrained")
        panels = figure.subplots(1, max(len(shown), 1), squeeze=False, sharey=True)[0]
        for axes, torch in zip(panels, shown, strict=False):
            _panel(axes, _points(validation, torch), _TITLES[torch])
        if shown:
            panels[0].set_ylabel("predicted / measured")
            handles, labels = panels[-1].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right upper", fontsize=8)
        figure.suptitle(f"Cells on {validation.machine}", x=0.01, ha="left", fontweight="bold")
        content = content_of(figure, path.suffix.lower())
    with replacing_bytes(path) as file:
        file.write(content)


def _points(validation: Validation, torch: str) -> dict[str, tuple[list[float], list[float]]]:
    """Returns measured values and ratios of cells in microseconds, by table."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for part, cells in parts(validation.results).items():
        for result, column in cells:
            error = result.error(torch, column)
            if error is None or not column.endswith(("us", "_ms")):
                continue
            factor = 1e3 if column.endswith("_ms") else 1.0
            xs, ys = found.setdefault(part.partition(" ")[0], ([], []))
            xs.append(factor * result.line.measured[column])
            ys.append(1 + error)
    return found


def _panel(axes: Any, points: dict[str, tuple[list[float], list[float]]], title: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.axhspan(0.9, 1.1, color="#DDDDDD", linewidth=0)
    axes.axhline(1, color="#666666", linewidth=1)
    for number, (name, (xs, ys)) in enumerate(points.items()):
        axes.plot(
            xs,
            ys,
            linestyle="",
            label=name,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number // len(COLOURS) % len(MARKERS)],
            markersize=4,
            alpha=0.7,
        )
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator([0.125, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 8]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.set_xlabel("measured (us)")
    axes.set_title(title, loc="left")
