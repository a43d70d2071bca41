"""``farfield repair``: make a trained model bounded, the same where its data are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.cli._help import in_flags
from farfield.cli._options import Arguments, Builder, Target, Weights, load_model
from farfield.cli._session import check_files, write_text

__all__ = ["repair"]


def repair(
    data: Annotated[Path, typer.Option(help="Calibration rows: .npy, .npz, .csv, .parquet or .pt.")],
    target: Target = None,
    builder: Builder = None,
    weights: Weights = None,
    arguments: Arguments = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the repaired model: .pt2 or .onnx, or its weights with the protections: .safetensors or .pt."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, features, cap, range, soft or norm.")] = "auto",
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="Submodule, or operation of a file, behind which the cap goes. Repeat for several."
        ),
    ] = None,
    keep: Annotated[
        float, typer.Option(help="Share of the rows whose outputs must stay the same to the last bit.")
    ] = 0.99,
    rollout: Annotated[
        bool, typer.Option(help="For a step whose output is its next input: protect the state.")
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(help="Of a step with several arguments, the one that is fed back; means --rollout."),
    ] = None,
    even_if_bounded: Annotated[
        bool,
        typer.Option(
            "--even-if-bounded", help="Repair a bounded model too, such as an actor that ends in tanh."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with both models side by side.")
    ] = None,
    patch: Annotated[
        bool, typer.Option("--patch", help="Print the code to add to your source instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Put protections into a trained model so that no input can make it blow up; nothing is retrained.

    Exit code 0: the model is bounded now (or was already); 1: it can't be repaired as asked, with the numbers; 2: the
    target, the data or an option is wrong; 3: a bug in farfield.
    """
    from farfield.errors import InvalidValueError
    from farfield.graph import as_module
    from farfield.repair import RepairError
    from farfield.repair import repair as run

    check_files(out, html)
    if out is not None and out.suffix not in (".pt2", ".onnx", ".safetensors", ".pt", ".pth"):
        raise InvalidValueError(f"--out is a .pt2, .onnx, .safetensors or .pt file, got {str(out)!r}.")
    loaded, target = load_model(target, builder, weights, arguments)
    model = as_module(loaded)
    chosen: Any = method
    try:
        done = run(
            model, data, method=chosen, at=at or "auto", keep=keep, rollout=rollout, state=state,
            even_if_bounded=even_if_bounded,
        )  # fmt: skip
    except RepairError as error:
        typer.echo(in_flags(str(error)), err=True)
        raise typer.Exit(1) from None
    if out is not None:
        done.save(out)
        typer.echo(f"wrote {out}", err=True)
    if html is not None:
        write_text(html, done.to_html(name=target))
    if patch:
        typer.echo(done.patch())
    elif as_json:
        typer.echo(json.dumps(done.to_dict(), ensure_ascii=False))
    else:
        typer.echo(in_flags(str(done)))
        if out is not None and out.suffix in (".pt2", ".onnx"):
            typer.echo(f"Next: farfield certify {shlex.quote(str(out))} --out cert.json")
