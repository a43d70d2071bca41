"""``farfield lnnet``: networks of linear maps and LayerNorm that fit any labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farfield.cli._help import WholeHelp
from farfield.cli._session import check_files, print_json

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["lnnet"]

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
    rule: Annotated[
        Literal["fold", "paper"], typer.Option(help="Shallow, or one pair a layer as in P3.")
    ] = "fold",
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the points through the layers to this .png or .svg file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a network of width three for XOR, or for random points with random labels, and say what it took."""
    import torch

    from farfield.lnnet import construct, lssr, smallest_digits

    check_files(plot)
    x, y = _problem(points, classes, dimensions, seed)
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
