"""``farfield repair``: make a trained model bounded, the same where its data are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farfield.cli._options import is_heading
from farfield.cli._session import check_files, write_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["repair"]


def repair(
    target: Annotated[
        str,
        typer.Argument(help="pkg.mod:callable, a .pt2 file or hf:<local folder>: a model with its weights."),
    ],
    data: Annotated[Path, typer.Option(help="Calibration rows: .npy, .npz, .csv, .parquet or .pt.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write the repaired model: .pt2, .safetensors or .pt (its state dict)."),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, features, cap, range, soft or norm.")] = "auto",
    at: Annotated[
        list[str] | None,
        typer.Option(help="Submodule, or operation of a .pt2 file, behind which the cap goes. Repeat."),
    ] = None,
    keep: Annotated[
        float, typer.Option(help="Share of the rows that must not change, to the last bit.")
    ] = 0.99,
    rollout: Annotated[bool, typer.Option(help="The output is the next input: protect the state.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: both models beside each other.")] = None,
    patch: Annotated[
        bool, typer.Option("--patch", help="Print the lines to write into the source instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Put protections into a trained model so that no input can make it blow up; nothing is retrained.

    Exit code 0: the model is bounded now (or was already); 1: it can't be repaired as asked, with the numbers; 2: the
    target, the data or an option is wrong; 3: a bug here.
    """
    from farfield._target import load_target
    from farfield.errors import InvalidValueError
    from farfield.repair import RepairError
    from farfield.repair import repair as run
    from farfield.repair._program import as_module

    check_files(out, html)
    if out is not None and out.suffix not in (".pt2", ".safetensors", ".pt", ".pth"):
        raise InvalidValueError(f"--out is a .pt2, .safetensors or .pt file, got {str(out)!r}.")
    model = as_module(load_target(target))
    rows = _rows(data, next((p.dtype for p in model.parameters() if p.is_floating_point()), None))
    chosen: Any = method
    try:
        done = run(model, rows, method=chosen, at=at or "auto", keep=keep, rollout=rollout)
    except RepairError as error:
        typer.echo(str(error), err=True)
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
        typer.echo(str(done))
        if out is not None and out.suffix == ".pt2":
            typer.echo(f"Next: farfield certify {out} --out cert.json")


def _rows(path: Path, dtype: torch.dtype | None) -> Any:
    """Rows from a file, as data: nothing in it runs."""
    import numpy as np
    import torch

    from farfield._regular_file import open_regular
    from farfield.errors import InvalidValueError

    with open_regular(path) as file:
        try:
            if path.suffix in (".npy", ".npz"):
                loaded = np.load(file, allow_pickle=False)
                arrays = {k: loaded[k] for k in loaded.files} if path.suffix == ".npz" else loaded
                found: Any = (
                    {k: torch.from_numpy(v) for k, v in arrays.items()}
                    if isinstance(arrays, dict)
                    else torch.from_numpy(arrays)
                )
            elif path.suffix in (".pt", ".pth"):
                found = torch.load(file, map_location="cpu", weights_only=True)
            elif path.suffix == ".parquet":
                from farfield.data._records import read_records

                records = read_records(path)
                found = torch.tensor([[float(v) for v in record.values()] for record in records])
            else:
                lines = file.read().decode("utf-8").splitlines()
                found = torch.from_numpy(
                    np.loadtxt(lines[1:] if lines and is_heading(lines[0]) else lines, delimiter=",", ndmin=2)
                )
        except (OSError, ValueError, TypeError, RuntimeError, UnicodeDecodeError) as error:
            first = str(error).partition("\n")[0][:200]
            raise InvalidValueError(f"The rows in {str(path)!r} can't be read: {first}.") from error

    def typed(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    if isinstance(found, torch.Tensor):
        return typed(found)
    if isinstance(found, dict) and all(isinstance(v, torch.Tensor) for v in found.values()):
        return {name: typed(value) for name, value in found.items()}
    if isinstance(found, tuple | list) and all(isinstance(v, torch.Tensor) for v in found):
        return tuple(typed(value) for value in found)
    raise InvalidValueError(f"{str(path)!r} holds a {type(found).__name__}, not a tensor or several.")
