"""``farfield kernel``: NNGP and NTK values of a network of infinite width."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farfield.cli._session import check_files, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from farfield.kernels import NetworkKernel

__all__ = ["kernel"]

_SHOWN = 12
"""Rows up to which the matrix is printed as a table."""
_DRAWN = 1000
"""Rows up to which a heat map is worth drawing."""


def kernel(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Inputs, one a row: .csv, .npy, .parquet or .pt. Without it, a grid in one dimension."
        ),
    ] = None,
    kind: Annotated[Literal["ntk", "nngp"], typer.Option(help="Which kernel.")] = "ntk",
    depth: Annotated[int, typer.Option(help="Hidden layers.")] = 2,
    activation: Annotated[str, typer.Option(help="A name; see farfield activations.")] = "relu",
    layer_norm: Annotated[
        str, typer.Option(help="first, second, last, every, none, or hidden layers from 0: 0,2.")
    ] = "first",
    order: Annotated[
        Literal["pre", "post"], typer.Option(help="Norm before or after the activation.")
    ] = "pre",
    norm: Annotated[Literal["layer", "rms"], typer.Option(help="LayerNorm or RMSNorm.")] = "layer",
    weight_var: Annotated[
        float, typer.Option(help="σ_w² of every layer, on activations of unit mean square.")
    ] = 1.0,
    bias_var: Annotated[float, typer.Option(help="σ_b² of every layer.")] = 0.1,
    grid: Annotated[str, typer.Option(help="Ends of the grid: --grid=-25,25.")] = "-25,25",
    points: Annotated[int | None, typer.Option(help="Points of the grid; 11, or 101 with --plot.")] = None,
    engine: Annotated[
        Literal["auto", "local", "ray"], typer.Option(help="Where tiles run; the result is the same.")
    ] = "auto",
    plot: Annotated[Path | None, typer.Option(help="Write a heat map to this .png or .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: inputs, matrix and bounds.")] = False,
) -> None:
    """Compute the NNGP or NTK of a fully connected network of infinite width, and the supremum of its diagonal."""
    from farfield.engine import bar
    from farfield.kernels import mlp

    check_files(plot)
    network = mlp(
        depth=depth,
        activation=activation,
        layer_norm=_layers(layer_norm),
        order=order,
        norm=norm,
        weight_var=weight_var,
        bias_var=bias_var,
    )
    x = _grid(grid, points or (101 if plot else 11)) if data is None else _read(data)
    with bar("kernel") as progress:
        matrix = network.function(kind)(x, engine=engine, progress=progress)
    facts = {
        "kind": kind,
        "network": {
            "depth": depth,
            "activation": activation,
            "layer_norm": layer_norm,
            "order": order,
            "norm": norm,
            "weight_var": weight_var,
            "bias_var": bias_var,
        },
        "sup_diagonal": network.sup_diagonal(kind),
        "table": _table(network, kind),
    }
    if plot is not None:
        _draw(plot, x, matrix, facts, gridded=data is None)
        typer.echo(f"wrote {plot}", err=True)
    if as_json:
        print_json({**facts, "x": x, "values": matrix})
        return
    _show(x, matrix, facts)


# ------------------------------------------------------------------ in


def _layers(text: str) -> Any:
    """The option as :func:`farfield.kernels.mlp` takes it, which refuses unknown words by itself."""
    if text == "none":
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return text


def _grid(ends: str, points: int) -> Tensor:
    import torch

    from farfield.errors import InvalidValueError

    try:
        low, high = (float(part) for part in ends.split(","))
    except ValueError:
        low = high = 0.0
    if not low < high or points < 2:
        raise InvalidValueError(
            f"A grid has two ends, the lower first (--grid=-25,25), and 2 points or more; got {ends!r} and {points}."
        )
    return torch.linspace(low, high, points, dtype=torch.float64)[:, None]


def _read(path: Path) -> Tensor:
    """A table of finite numbers in float64, one row each."""
    import torch

    from farfield.cli._rows import read_tensors
    from farfield.errors import InvalidValueError

    found = read_tensors(path)
    if not isinstance(found, torch.Tensor) or found.ndim > 2 or not found.numel() or found.is_complex():
        what = tuple(found.shape) if isinstance(found, torch.Tensor) else f"{len(found)} tensors"
        raise InvalidValueError(f"Inputs are one table of numbers, one row each; {path} holds {what}.")
    x = found.double().reshape(len(found), -1) if found.ndim else found.double().reshape(1, 1)
    if not bool(torch.isfinite(x).all()):
        raise InvalidValueError(f"Inputs are finite numbers; {path} has entries that are not.")
    return x


# ------------------------------------------------------------------ out


def _table(network: NetworkKernel, kind: Literal["ntk", "nngp"]) -> dict[str, Any] | None:
    if not network.parts.compressible:
        return None
    table = network.table(kind)
    return {"degree": table.degree, "error": table.error}


def _draw(path: Path, x: Tensor, matrix: Tensor, facts: dict[str, Any], *, gridded: bool) -> None:
    from farfield.errors import InvalidValueError
    from farfield.report import Figure, Heatmap, save_figure

    if len(x) > _DRAWN:
        raise InvalidValueError(
            f"A heat map shows {_DRAWN} inputs or fewer, got {len(x)}. Draw some of the rows."
        )
    symbol = "Θ" if facts["kind"] == "ntk" else "K"
    net, top = facts["network"], facts["sup_diagonal"]
    norm = {"layer": "LayerNorm", "rms": "RMSNorm"}[net["norm"]]
    where = "no norm" if net["layer_norm"] == "none" else f"{norm} {net['layer_norm']} ({net['order']})"
    axis = tuple(x[:, 0].tolist()) if gridded else tuple(float(k) for k in range(len(x)))
    label = "x" if gridded else "row"
    panel = Heatmap(
        f"{net['depth']} hidden layers, {net['activation']}, {where}",
        label, f"{label}′",
        axis, axis, tuple(tuple(row) for row in matrix.tolist()),
        value_label=f"{symbol}(x, x′)",
    )  # fmt: skip
    ceiling = f"sup {symbol}(x, x) = {top:.6g}" if top != float("inf") else f"{symbol}(x, x) is unbounded"
    name = {"ntk": "NTK", "nngp": "NNGP"}[facts["kind"]]
    save_figure(Figure(f"{name} of infinite width: {ceiling}", (panel,), columns=1), [path])


def _show(x: Tensor, matrix: Tensor, facts: dict[str, Any]) -> None:
    symbol = "Θ" if facts["kind"] == "ntk" else "K"
    if len(x) <= _SHOWN:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        narrow = x.shape[1] == 1
        names = [f"{v:.4g}" for v in x[:, 0].tolist()] if narrow else [f"row {k}" for k in range(len(x))]
        table = Table(f"{symbol}", *names, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for column in table.columns[1:]:
            column.justify = "right"
        for name, row in zip(names, matrix.tolist(), strict=True):
            table.add_row(name, *(f"{v:.5g}" for v in row))
        # As wide as it needs: a pipe has no width, and numbers cut short are no numbers.
        Console(width=max(80, 12 * (len(names) + 1))).print(table)
    else:
        for name, values in (("x, x′", matrix), ("x, x", matrix.diagonal())):
            typer.echo(f"{symbol}({name}) from {float(values.min()):.6g} to {float(values.max()):.6g}")
        typer.echo(f"{len(x)} inputs are too many for a table; --json prints the matrix", err=True)
    top = facts["sup_diagonal"]
    typer.echo(f"sup {symbol}(x, x) over all inputs: {'∞' if top == float('inf') else f'{top:.12g}'}")
    if facts["table"] is None:
        typer.echo("computed layer by layer: it is not a function of one angle")
    else:
        typer.echo(
            f"computed from a polynomial in the angle: degree {facts['table']['degree']}, error "
            f"{facts['table']['error']:.1e} of the largest value"
        )
