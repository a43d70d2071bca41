"""``farfield certify``: a lower and an upper bound of the output, for every input."""

from __future__ import annotations

import importlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farfield.cli._help import in_flags
from farfield.cli._options import (
    Arguments,
    Builder,
    Inputs,
    Target,
    Trust,
    Weights,
    draws_weights,
    load_model,
    model_words,
)
from farfield.cli._session import check_files, saying_what_is_kept, stopping_at_interrupt, write_text

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["certify"]


def _box(text: str, examples: tuple[Tensor, ...], flag: str = "--box") -> dict[str, Any]:
    """``LO,HI`` for every entry of every real input."""
    from farfield.errors import InvalidValueError

    try:
        low, high = (float(end) for end in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise InvalidValueError(f"{flag} takes LO,HI with LO ≤ HI, such as {flag}=-1,1; got {text!r}.")
    size = sum(t.numel() for t in examples if t.is_floating_point())
    if not size:
        raise InvalidValueError(f"{flag} needs the input's shape: add --input, with a real-valued input.")
    return {"kind": "box", "lower": [low] * size, "upper": [high] * size}


def certify(
    target: Target = None,
    builder: Builder = None,
    weights: Weights = None,
    arguments: Arguments = None,
    inputs: Inputs = None,
    seconds: Annotated[float, typer.Option("--time", help="Seconds to spend; more is tighter.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="Write the certificate, with its proofs, as JSON.")] = None,
    output: Annotated[
        str | None, typer.Option(help="Name of the output; needed only where the model has several.")
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            help="Bounds for inputs whose entries all lie in LO,HI only: --box=-1,1. By default for every input."
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(help="A box LO,HI whose bounds stand beside those for every input: --within=-5,5."),
    ] = None,
    arithmetic: Annotated[
        str,
        typer.Option(
            help="real, or the format the model computes in, rounding included: float32, bfloat16, float64."
        ),
    ] = "real",
    magnitude: Annotated[
        float | None,
        typer.Option(help="Largest size of an input's entries for which --arithmetic bounds the rounding."),
    ] = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole certificate as JSON.")] = False,
    card: Annotated[Path | None, typer.Option(help="Write a section for a model card, in Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a single-file HTML report.")] = None,
) -> None:
    """Prove bounds of the output that hold for every input there can be; say how tight they are and what they assume.

    A bound is not a claim of accuracy. Exit code 0: every output has finite bounds; 1: some output has none; 2: the
    target or an option is wrong; 3: a bug in farfield; 130: interrupted, with the best bounds found by then.
    """
    from farfield._budget import Budget
    from farfield._target import example_input
    from farfield.errors import InvalidValueError

    check_files(out, card, html)
    if not seconds > 0:
        raise InvalidValueError(f"--time is a positive number of seconds, got {seconds:g}.")
    examples = tuple(example_input(spec) for spec in inputs or ())
    domain = None if box is None else _box(box, examples)
    words = model_words(target, builder, weights, arguments)
    model, target = load_model(target, builder, weights, arguments, trust=trust)
    if out is not None and draws_weights(model, target, weights, arguments):
        typer.echo(
            f"warning: {target} makes other random weights each time it is called. The certificate holds for those "
            "of this call only, and nobody can check it again: give trained weights with --weights",
            err=True,
        )
    if hasattr(model, "eval"):
        model.eval()

    options: dict[str, Any] = {} if output is None else {"output": output}
    options |= {"arithmetic": arithmetic, "magnitude": magnitude}
    if within is not None:
        options["within"] = _box(within, examples, "--within")
    run: Any = importlib.import_module("farfield.certify").certify
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from farfield.certify import UnboundedError

    columns = (TextColumn("{task.description:22}"), BarColumn(), TimeElapsedColumn())
    clock = Budget(seconds=seconds).start()
    kept = saying_what_is_kept("nothing is kept")  # a second time
    with (
        kept,
        stopping_at_interrupt(clock) as interrupted,
        Progress(*columns, console=Console(stderr=True), transient=True) as bars,
    ):
        task = bars.add_task("certify", total=1.0)

        def advance(share: float, stage: str) -> None:
            bars.update(task, completed=share, description=stage[:22])

        try:
            result = run(model, examples, time_budget=clock, domain=domain, progress=advance, **options)
        except UnboundedError as error:
            bars.stop()
            typer.echo(in_flags(str(error)), err=True)
            raise typer.Exit(1) from None
    if interrupted:
        result = replace(result, advice=(*result.advice, *interrupted))
    data: dict[str, Any] = result.to_dict()
    file = "" if out is None else shlex.quote(str(out))
    if out is not None:
        result.save(out)
        typer.echo(f"wrote {out}", err=True)
    if card is not None:
        write_text(card, result.model_card(file=file or "cert.json", target=words))
    if html is not None:
        from farfield.report import render_certificate

        write_text(html, render_certificate(data, name=target, file=file, target=words))
    if as_json:
        # Spelled out by JSON itself: a certificate is read back, and its names are part of it.
        typer.echo(json.dumps(data, allow_nan=False))
    else:
        from farfield.report import print_certificate

        print_certificate(data, name=target, file=file, target=words)
    if interrupted:
        typer.echo(f"{interrupted[0][0].lower()}{interrupted[0][1:]}", err=True)
        raise typer.Exit(130)
    if not data["bounded"]:
        raise typer.Exit(1)
