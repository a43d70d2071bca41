"""``farfield activations``: what every registered activation does to Gaussian inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from farfield.gaussian import Activation, Tail

__all__ = ["activations"]


def _tail(tail: Tail) -> str:
    if tail.kind == "linear":
        return f"slope {tail.slope:.4g}"
    if tail.kind == "bounded" and tail.offset == tail.offset:
        return f"→ {tail.offset:.4g}"
    return tail.kind


def _row(sigma: Activation, gain: float) -> dict[str, Any]:
    from farfield.gaussian import isometry_strength, mean_field_constants
    from farfield.report._data import plain

    offset, scale = mean_field_constants(sigma, variance=gain**2)
    row: dict[str, Any] = {
        "name": sigma.name,
        "formula": sigma.formula,
        "beta": isometry_strength(sigma, gain=gain),
        "offset": offset,
        "scale": scale,
        "growth": plain(sigma.growth),
        "lipschitz": plain(sigma.lipschitz),
        "range": plain(sigma.range),
        "kinks": list(sigma.kinks),
        "closed_form": sigma.closed_form is not None,
    }
    return row


def activations(
    gain: Annotated[float, typer.Option(help="α in σ(αx).")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of β to this .png or .svg file.")] = None,
) -> None:
    """Print isometry strength β, mean-field offset and scale, growth and Lipschitz constant of every activation."""
    from farfield.gaussian import activation, activation_names

    sigmas = sorted((activation(n) for n in activation_names()), key=lambda s: s.name)
    rows = sorted((_row(s, gain) for s in sigmas), key=lambda r: (r["beta"], r["name"]))
    if plot is not None:
        from farfield.report import Figure, Panel, Series, save_figure

        points = tuple(float(i) for i in range(len(rows)))
        heights = tuple(r["beta"] for r in rows)
        panel = Panel(
            "1: leaves correlations alone · 2: removes their linear part",
            "", "isometry strength β", (Series("", points, heights, style="bars"),),
            y_range=(1.0, 2.05), ticks=tuple(r["name"] for r in rows),
        )  # fmt: skip
        save_figure(Figure(f"Isometry strength of σ({gain:g}·x)", (panel,), columns=1), [plot])
        typer.echo(f"wrote {plot}", err=True)
    if as_json:
        typer.echo(json.dumps({"gain": gain, "activations": rows}, ensure_ascii=False, indent=1))
        return

    from rich import box
    from rich.console import Console
    from rich.table import Table

    by_name = {s.name: s for s in sigmas}
    console = Console()
    wide = console.width >= 130  # the formula needs the room; --json always has it
    title = f"Activations under a Gaussian: σ({gain:g}·x), x ~ N(0, 1)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in ("name", "β", "c₀", "scale", "at −∞", "at +∞", "Lip."):
        table.add_column(
            column, justify="left" if column in ("name", "at −∞", "at +∞") else "right", no_wrap=True
        )
    if wide:
        table.add_column("formula", no_wrap=True)
    for row in rows:
        sigma = by_name[row["name"]]
        growth, constant = sigma.growth, sigma.lipschitz
        table.add_row(
            row["name"], f"{row['beta']:.5f}", f"{row['offset']:.4f}", f"{row['scale']:.4f}",
            _tail(growth.left) if growth else "?", _tail(growth.right) if growth else "?",
            "?" if constant is None else "none" if constant == float("inf") else f"{constant:.4g}",
            *([sigma.formula] if wide else []),
        )  # fmt: skip
    console.print(table)
