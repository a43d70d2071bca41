"""``farfield isometry``: how close to orthogonal the rows of your data are behind every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from farfield.cli._options import Arguments, Builder, Target, Trust, Weights, load_model
from farfield.cli._session import check_files, print_json

__all__ = ["isometry"]


def isometry(
    target: Target = None,
    builder: Builder = None,
    weights: Weights = None,
    arguments: Arguments = None,
    data: Annotated[
        Path | None, typer.Option(help="Rows to send through: .npy, .npz, .csv, .parquet or .pt.")
    ] = None,
    axis: Annotated[
        Literal["sample", "token", "feature"],
        typer.Option(
            help="What is compared: samples, tokens of a sequence, or features (channels of images)."
        ),
    ] = "sample",
    most_rows: Annotated[
        int | None, typer.Option(help="How many rows are taken, the first ones; 64, or 4096 for features.")
    ] = None,
    trust: Trust = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it to this .png or .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print isometry gap, effective rank and mean cosine of your rows behind every layer of a model.

    A gap of 0: all rows at right angles and of one length. Infinite: they depend on each other, as more rows than
    features always do. A mean cosine near 1: the layer hardly tells the rows apart.
    """
    from farfield import monitor
    from farfield.errors import InvalidValueError

    check_files(plot)
    if data is None:
        raise InvalidValueError("Give rows to send through the model: --data rows.npy.")
    model, _ = load_model(target, builder, weights, arguments, trust=trust)
    if hasattr(model, "eval"):
        model.eval()
    rows = most_rows if most_rows is not None or axis == "feature" else 64
    record = monitor.record_isometry(model, data, axis=axis, most_rows=rows)
    if plot is not None:
        from farfield.report import isometry_figure, save_figure

        save_figure(isometry_figure(record), [plot])
        typer.echo(f"wrote {plot}", err=True)
    if as_json:
        columns = {"gaps": record.gaps, "ranks": record.ranks, "cosines": record.cosines}
        print_json(
            {"names": record.names, "kinds": record.kinds, "rows": record.rows}
            | {
                name: [v if abs(v) < float("inf") else str(v) for v in c.tolist()]
                for name, c in columns.items()
            }
        )
        return
    typer.echo(str(record))
