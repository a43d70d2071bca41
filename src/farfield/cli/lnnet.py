"""``farfield lnnet``: networks of linear maps and LayerNorm that fit any labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from farfield.cli._help import WholeHelp
from farfield.cli._session import check_files, print_json

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["lnnet"]

_Rule: TypeAlias = Annotated[
    Literal["fold", "paper"], typer.Option(help="Shallow, or one pair a layer as in P3.")
]
_Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of every random draw.")]
_Plot: TypeAlias = Annotated[
    Path | None, typer.Option(help="Draw the points through the layers to this .png or .svg file.")
]
_Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]

lnnet = typer.Typer(
    help="LayerNorm as a nonlinearity: networks without an activation function.",
    no_args_is_help=True,
    cls=WholeHelp,
    rich_markup_mode=None,
)


@lnnet.callback()
def _group() -> None:
    """LayerNorm as a nonlinearity: networks without an activation function."""


@lnnet.command("demo")
def demo(
    points: Annotated[int, typer.Option(help="Random points; 0 for XOR.")] = 0,
    classes: Annotated[int, typer.Option(help="Random labels.")] = 2,
    dimensions: Annotated[int, typer.Option(help="Dimensions of the random points.")] = 2,
    rule: _Rule = "fold",
    seed: _Seed = 0,
    plot: _Plot = None,
    as_json: _Json = False,
) -> None:
    """Build a network of width three for XOR, or for random points with random labels, and say what it took."""
    check_files(plot)
    _build(*_problem(points, classes, dimensions, seed), rule, seed, plot, None, as_json)


@lnnet.command("build")
def build(
    file: Annotated[
        Path, typer.Argument(help="Points, one a row, the label last: .csv, .npy, .npz, .parquet or .pt.")
    ],
    label: Annotated[str | None, typer.Option(help="Name of the column that holds the labels.")] = None,
    rule: _Rule = "fold",
    seed: _Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the network to this .pt2 or .onnx file, which every command reads."),
    ] = None,
    plot: _Plot = None,
    as_json: _Json = False,
) -> None:
    """Build a network of width three that gives your points your labels, and say what it took."""
    from farfield.errors import InvalidValueError

    check_files(plot, save)
    if save is not None and save.suffix not in (".pt2", ".onnx"):
        raise InvalidValueError(f"A network is written to .pt2 or .onnx; got --save {save}.")
    _build(*_points(file, label), rule, seed, plot, save, as_json)


def _points(file: Path, label: str | None) -> tuple[Tensor, Tensor]:
    from farfield.calibration import NamedRows, read_rows
    from farfield.errors import InvalidValueError, UnknownNameError

    found = read_rows(file)
    names = found.names if isinstance(found, NamedRows) else ()
    rows = found.values if isinstance(found, NamedRows) else found
    if isinstance(rows, dict | tuple) or rows.ndim != 2 or rows.shape[1] < 2:
        raise InvalidValueError(
            f"{str(file)!r} is no table of two columns or more: coordinates, and a label."
        )
    if label is not None and label not in names:
        raise UnknownNameError("column", label, names)
    at = rows.shape[1] - 1 if label is None else names.index(label)
    x, y = rows[:, [k for k in range(rows.shape[1]) if k != at]].double(), rows[:, at]
    whole = (y == y.round()) & y.isfinite()
    if not bool(whole.all()):
        raise InvalidValueError(
            f"Labels are whole numbers, one for each class; column {at + 1} has {float(y[~whole][0]):g}. Name "
            "the right column with --label."
        )
    return x, y.long()


def _build(
    x: Tensor,
    y: Tensor,
    rule: Literal["fold", "paper"],
    seed: int,
    plot: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    import torch

    from farfield.lnnet import construct, lssr, smallest_digits

    net = construct(x, y, rule=rule, generator=torch.Generator().manual_seed(seed))
    facts: dict[str, Any] = {
        "points": len(x),
        "dimensions": x.shape[1],
        "classes": len(net.labels),
        "rule": rule,
        "depth": net.depth,
        "right": int((net.predict(x) == y).sum()),
        "margin": net.margin,
        "dtype": str(net.readout.weight.dtype).removeprefix("torch."),
        "digits_estimated": net.precision,
        "digits_needed": smallest_digits(net, x, y),
        "lssr_before": float(lssr(x, y)),
        "lssr_after": [float(lssr(c, y)) for c in net.circles(x)],
    }
    if plot is not None:
        from farfield.report import lnnet_figure, save_figure

        save_figure(lnnet_figure(net, x, y), [plot])
        typer.echo(f"wrote {plot}", err=True)
    if save is not None:
        from farfield.graph import export_for_any_rows, write_program

        write_program(
            export_for_any_rows(net, (x[:1].to(net.readout.weight.dtype),), {}), save, names=["scores"]
        )
        columns = ", ".join(map(str, net.labels.tolist()[:12]))
        typer.echo(f"wrote {save}, with a score for each of the labels {columns}", err=True)
        typer.echo(f"next: farfield audit {save}", err=True)
    if as_json:
        print_json(facts)
        return
    _show(facts)


def _problem(points: int, classes: int, dimensions: int, seed: int) -> tuple[Tensor, Tensor]:
    import torch

    from farfield.errors import InvalidValueError

    if points == 0:
        x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        return x, torch.tensor([0, 1, 1, 0])
    if points < 2 or classes < 2 or dimensions < 1:
        raise InvalidValueError(
            "A random problem has 2 points or more, 2 classes or more and 1 dimension or more; got "
            f"{points}, {classes} and {dimensions}."
        )
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(points, dimensions, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, classes, (points,), generator=draw)


def _show(facts: dict[str, Any]) -> None:
    typer.echo(
        f"{facts['points']} points in {facts['dimensions']} dimension(s), {facts['classes']} labels: "
        f"{facts['right']} right"
    )
    typer.echo(f"depth       {facts['depth']} LayerNorm of width 3, rule {facts['rule']!r}")
    typer.echo(f"margin      {facts['margin']:.3g} on a line of length 2")
    typer.echo(
        f"precision   {facts['dtype']}; digits needed: {facts['digits_needed']}, estimated to first order: "
        f"{facts['digits_estimated']}"
    )
    after = facts["lssr_after"]
    path = [facts["lssr_before"], *(after if len(after) <= 6 else (*after[:3], after[-1]))]
    words = [f"{v:.3g}" for v in path]
    if len(after) > 6:
        words.insert(-1, "…")
    typer.echo(f"LSSR        {' → '.join(words)}, before and after each layer")
