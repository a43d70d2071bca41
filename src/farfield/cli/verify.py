"""``farfield verify``: does this certificate hold for this model? Checked without what made it."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.cli._options import (
    Arguments,
    Builder,
    Target,
    Trust,
    Weights,
    draws_weights,
    load_model,
    model_words,
)

__all__ = ["verify"]


def _read(path: Path) -> dict[str, Any]:
    """The file as plain data; what it claims is the checker's business."""
    from farfield._regular_file import read_json
    from farfield.errors import InvalidValueError

    data = read_json(path)
    if not isinstance(data, dict) or not str(data.get("format", "")).startswith("farfield-certificate/"):
        raise InvalidValueError(f"{str(path)!r} is not a certificate that farfield certify wrote.")
    return data


def verify(
    certificate: Annotated[Path, typer.Argument(help="What farfield certify --out wrote.")],
    target: Target = None,
    builder: Builder = None,
    weights: Weights = None,
    arguments: Arguments = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Shape of an input, as for certify; by default the certificate's. Repeat for several.",
        ),
    ] = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Check a certificate against a model: the digest, and every proof, without the search that found them.

    Exit code 0: accepted; 1: refused, with the reason; 2: the file, the target or an option is wrong; 3: a bug in
    farfield.
    """
    from farfield._target import example_input
    from farfield._text import clean
    from farfield.errors import FarfieldError

    data = _read(certificate)
    examples = tuple(example_input(spec) for spec in inputs) if inputs else None
    words = model_words(target, builder, weights, arguments)
    model, target = load_model(target, builder, weights, arguments, trust=trust)
    if hasattr(model, "eval"):
        model.eval()

    from farfield.graph import CaptureError

    check: Any = importlib.import_module("farfield.certify").verify_certificate
    reason, found = "", None
    try:
        found = check(model, certificate, inputs=examples)
        if not found:
            reason = "the checker gives no reason"
    except CaptureError:  # the example does not fit the model: nothing was checked
        raise
    except FarfieldError as error:
        reason = str(error)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # What a certificate holds is anybody's: whatever the checker stumbles over is not what certify writes.
        said = " ".join(str(error).split())[:200]
        reason = f"it can't be read as a certificate: {type(error).__name__}: {said}"
    accepted = not reason
    hint = None
    if not accepted and draws_weights(model, target, weights, arguments):
        hint = (
            f"{target} makes other random weights each time it is called, and a certificate holds for one set of "
            "weights: give the trained ones with --weights, or check the .pt2 or .onnx file."
        )
    if as_json:
        outcome = {
            "accepted": accepted,
            "reason": reason or None,
            "unchecked": list(getattr(found, "unchecked", ())),
            **({} if hint is None else {"hint": hint}),
            "certificate": str(certificate),
            "target": target,
            "model_hash": data.get("model_hash"),
        }
        typer.echo(json.dumps(clean(outcome), ensure_ascii=False))
    elif accepted:
        from farfield.report import print_certificate

        typer.echo(f"accepted: {certificate} holds for {target}")
        print_certificate(data, name=target, file=shlex.quote(str(certificate)), target=words)
        for text in getattr(found, "unchecked", ()):
            typer.echo(f"not checked: {clean(text)}")
    else:
        typer.echo(f"refused: {clean(reason)}")
        if hint is not None:
            typer.echo(clean(hint))
    if not accepted:
        raise typer.Exit(1)
