"""``farfield ntk``: the empirical tangent kernel of a model, its spectrum, and which layers make it up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farfield.cli._session import check_files, check_folder, print_json, saying_what_is_kept

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ntk"]

_SOLVED = 3000
"""Rows up to which all eigenvalues are computed; beyond, the ends alone."""
_DRAWN = 1000
"""Rows up to which a heat map is worth drawing."""
_LISTED = 20
"""Parameters that are listed by name."""


def ntk(
    target: Annotated[str, typer.Argument(help="pkg.mod:callable, or hf:<local folder>.")],
    shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of a random batch: 64x8, 16x3x32x32, 32x16:int64."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A .npy file of inputs, batch first, instead of random ones.")
    ] = None,
    outputs: Annotated[
        str, typer.Option(help="trace, sum, full, or the index of one output: 3, or 0,2 for two axes.")
    ] = "trace",
    parameters: Annotated[
        list[str] | None, typer.Option(help="Only these parameters or modules. Repeat. All by default.")
    ] = None,
    method: Annotated[
        Literal["auto", "layerwise", "jacobian", "ntvp"], typer.Option(help="How it is computed.")
    ] = "auto",
    memory: Annotated[str, typer.Option(help="Memory budget, excluding the result.")] = "4GB",
    double: Annotated[bool, typer.Option("--double", help="Compute in double precision.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random batch.")] = 0,
    vocabulary: Annotated[int, typer.Option(help="Random integers are below this.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Write the kernel to this .npy file.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for finished tiles: run again to go on after a stop.")
    ] = None,
    engine: Annotated[
        Literal["auto", "local", "ray"], typer.Option(help="Where tiles run; the result is the same.")
    ] = "auto",
    plot: Annotated[
        Path | None, typer.Option(help="Draw spectrum and kernel to this .png or .svg file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the tangent kernel of a model in evaluation mode, its spectrum, and each parameter's share."""
    from farfield._target import load_target
    from farfield.engine import bar
    from farfield.errors import InvalidValueError
    from farfield.ntk import choose_method, empirical_ntk, layer_contributions

    if (shape is None) == (data is None):
        raise InvalidValueError(
            "Inputs come from --input (a shape) or --data (a .npy file): give one of them."
        )
    check_files(out, plot)
    check_folder(checkpoint)
    model = load_target(target)
    if isinstance(model, str):
        raise InvalidValueError(
            f"{target} is an exported program, whose parameters are constants. Give the module it was made from, as "
            "pkg.mod:callable."
        )
    model = model.double().eval() if double else model.eval()
    x = _inputs(shape, data, model, seed, vocabulary)
    chosen = _outputs(outputs)
    choice = choose_method(model, x, outputs=chosen, parameters=parameters, memory=memory)
    named, why = (choice.method, choice.reason) if method == "auto" else (method, "asked for")
    typer.echo(f"{named}: {why}", err=True)
    kept = (
        None
        if checkpoint is None
        else f"finished tiles are in {checkpoint}; run the same command again to go on"
    )
    with saying_what_is_kept(kept), bar("tangent kernel") as progress:
        kernel = empirical_ntk(
            model, x, outputs=chosen, parameters=parameters, method=method, memory=memory, out=out,
            checkpoint=checkpoint, engine=engine, progress=progress,
        )  # fmt: skip
    if out is not None:
        typer.echo(f"wrote {out}", err=True)
    parts = layer_contributions(model, x, parameters=parameters, memory=memory)
    facts = _facts(target, x, kernel, parts, {"method": named, "reason": why, "outputs": chosen})
    if plot is not None:
        _draw(plot, kernel, facts)
        typer.echo(f"wrote {plot}", err=True)
    if as_json:
        print_json(facts if out is not None else {**facts, "values": kernel})
        return
    _show(facts)


# ------------------------------------------------------------------ in


def _inputs(shape: str | None, data: Path | None, model: nn.Module, seed: int, vocabulary: int) -> Tensor:
    """A batch, real numbers in the model's own precision."""
    import torch

    from farfield._target import example_input
    from farfield.cli._rows import read_tensors
    from farfield.errors import InvalidValueError

    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if data is None:
        assert shape is not None
        example = example_input(shape)
        generator = torch.Generator().manual_seed(seed)
        if not example.is_floating_point():
            return torch.randint(0, vocabulary, example.shape, generator=generator, dtype=example.dtype)
        return torch.randn(example.shape, generator=generator, dtype=torch.float64).to(kind)
    x = read_tensors(data)
    if not isinstance(x, torch.Tensor) or x.ndim < 1 or not x.numel() or x.is_complex():
        what = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"{len(x)} tensors"
        raise InvalidValueError(f"Inputs are one array of numbers, batch first; {data} holds {what}.")
    return x.to(kind) if x.is_floating_point() else x.long()


def _outputs(text: str) -> str | int | tuple[int, ...]:
    """A word, which the library checks, or indices."""
    try:
        places = tuple(int(part) for part in text.split(","))
    except ValueError:
        return text
    return places[0] if len(places) == 1 else places


# ------------------------------------------------------------------ out


def _facts(
    target: str, x: Tensor, kernel: Tensor, parts: dict[str, Tensor], how: dict[str, Any]
) -> dict[str, Any]:
    from farfield.ntk import extreme_eigenvalues, spectrum

    rows = len(x) * (kernel.shape[-1] if kernel.dim() == 4 else 1)
    if rows <= _SOLVED:
        found = spectrum(kernel)
        values = found.eigenvalues.tolist()
        ends = {
            "largest": values[0],
            "smallest": values[-1],
            "condition": found.condition,
            "effective_rank": found.effective_rank,
            "eigenvalues": values,
        }
    else:
        both = extreme_eigenvalues(kernel)
        ends = {
            "largest": both.largest.value,
            "smallest": both.smallest.value,
            "largest_error": both.largest.error,
            "smallest_error": both.smallest.error,
            "condition": both.condition,
        }
    total = sum(float(part.diagonal().sum()) for part in parts.values())
    shares = {name: float(part.diagonal().sum()) / total if total else 0.0 for name, part in parts.items()}
    return {
        "target": target,
        "inputs": list(x.shape),
        **how,
        "dtype": str(kernel.dtype).removeprefix("torch."),
        "range": [float(kernel.min()), float(kernel.max())],
        "spectrum": ends,
        "shares": dict(sorted(shares.items(), key=lambda item: -item[1])),
    }


def _show(facts: dict[str, Any]) -> None:
    n, *rest = facts["inputs"]
    low, high = facts["range"]
    found = facts["spectrum"]
    typer.echo(
        f"{facts['target']}: {n} inputs of shape {tuple(rest)}, outputs {facts['outputs']}, {facts['dtype']}"
    )
    typer.echo(f"method     {facts['method']}: {facts['reason']}")
    typer.echo(f"Θ(x, x′)   from {low:.6g} to {high:.6g}")
    error = f" ± {found['smallest_error']:.1e}" if "smallest_error" in found else ""
    typer.echo(f"spectrum   λ_max {found['largest']:.6g}, λ_min {found['smallest']:.6g}{error}")
    condition = found["condition"]
    if condition == float("inf"):
        typer.echo("condition  ∞: singular, to the precision it was computed with")
    else:
        typer.echo(f"condition  {condition:.6g}")
    if "effective_rank" in found:
        typer.echo(f"effective rank {found['effective_rank']:.4g} of {len(found['eigenvalues'])}")
    typer.echo("share of the diagonal, summed over outputs:")
    shares = list(facts["shares"].items())
    width = max((len(name) for name, _ in shares[:_LISTED]), default=0)
    for name, share in shares[:_LISTED]:
        typer.echo(f"  {name:{width}}  {share:7.2%}")
    if len(shares) > _LISTED:
        typer.echo(
            f"  {len(shares) - _LISTED} more: {sum(s for _, s in shares[_LISTED:]):.2%}; --json has them all"
        )


def _draw(path: Path, kernel: Tensor, facts: dict[str, Any]) -> None:
    from farfield.errors import InvalidValueError
    from farfield.report import Figure, Heatmap, Panel, Series, save_figure

    matrix = (
        kernel
        if kernel.dim() == 2
        else kernel.permute(0, 2, 1, 3).reshape(kernel.shape[0] * kernel.shape[2], -1)
    )
    if len(matrix) > _DRAWN:
        raise InvalidValueError(
            f"A heat map shows {_DRAWN} rows or fewer, got {len(matrix)}. Draw some of the inputs."
        )
    values = tuple(facts["spectrum"]["eigenvalues"])
    places = tuple(float(k + 1) for k in range(len(values)))
    axis = tuple(float(k) for k in range(len(matrix)))
    panels = (
        Panel("spectrum", "k", "λ_k", (Series("", places, values, style="points"),), y_scale="log"),
        Heatmap(
            "kernel", "row", "row′", axis, axis, tuple(map(tuple, matrix.tolist())), value_label="Θ(x, x′)"
        ),
    )
    title = f"Empirical NTK of {facts['target']}, condition {facts['spectrum']['condition']:.3g}"
    save_figure(Figure(title, panels, columns=2), [path])
