"""``farfield audit``: is this model bounded, and if not, where does it escape?"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farfield.cli._options import (
    Arguments,
    Builder,
    Inputs,
    Target,
    Trust,
    Weights,
    fail_conditions,
    load_model,
    model_words,
)
from farfield.cli._session import check_files, write_text

if TYPE_CHECKING:
    from farfield.audit import Audit

__all__ = ["audit"]


def _fails(result: Audit, conditions: set[str]) -> bool:
    return bool(conditions & {result.verdict.name.lower(), *(f.code for f in result.findings)})


def _kinds(words: list[str]) -> dict[str, Any]:
    from farfield.errors import InvalidValueError

    for word in words:
        if "=" not in word:
            raise InvalidValueError(f"--kind is name=kind, such as attention_mask=boolean; got {word!r}.")
    return dict(word.split("=", 1) for word in words)


def _file_of(target: str) -> str | None:
    """The file of source code that a target names, if it names one."""
    file = target.rpartition(":")[0]
    return file if file.endswith(".py") else None


def audit(
    target: Target = None,
    builder: Builder = None,
    weights: Weights = None,
    arguments: Arguments = None,
    inputs: Inputs = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help="What you know of an input: name=bounded, name=boolean (a mask of zeros and ones), name=integer "
            "(ids) or name=real. Repeat for several.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Rows the model was made for, instead of --input: the audit also says what it gives on them and ten "
            "standard deviations away. .npy, .npz, .csv, .parquet or .pt."
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit 1 on: unbounded (default), unknown, a code such as FF002, or none. Repeat, or separate by "
            "commas."
        ),
    ] = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole audit as JSON.")] = False,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF for code scanning to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a single-file HTML report.")] = None,
) -> None:
    """Say whether a model can blow up, for any input at all: verdict, escape path, slope and fix.

    The verdict is BOUNDED, UNBOUNDED or UNKNOWN. Exit code 0: nothing that --fail-on names was found; 1: it was;
    2: the target or an option is wrong; 3: a bug in farfield.
    """
    check_files(sarif, html)
    conditions = fail_conditions(fail_on or ["unbounded"])

    from farfield._target import example_input
    from farfield._text import clean
    from farfield.audit import audit as run
    from farfield.engine import bar
    from farfield.errors import InvalidValueError

    if data is not None and inputs:
        raise InvalidValueError("--data gives the inputs: leave --input out.")
    words = model_words(target, builder, weights, arguments)
    model, target = load_model(target, builder, weights, arguments, trust=trust)
    if hasattr(model, "eval"):
        model.eval()
    examples = tuple(example_input(spec) for spec in inputs or ()) if data is None else data
    # Rays are drawn on a page and listed in JSON; nobody else waits for them.
    with bar("audit") as progress:
        result = run(
            model, examples, name=target, rays=6 if as_json or html is not None else 0, kinds=_kinds(kinds or []),
            progress=progress,
        )  # fmt: skip
    found: dict[str, Any] = result.to_dict()
    found["subject"] |= {
        "target": words,
        "file": found["subject"]["file"] or _file_of(target),
        "data": None if data is None else shlex.quote(str(data)),
        "input_options": [word for spec in inputs or () for word in ("--input", spec)],
    }
    if sarif is not None:
        from farfield.report import render_sarif

        write_text(sarif, json.dumps(render_sarif(found), indent=1) + "\n")
    if html is not None:
        from farfield.report import render_html

        write_text(html, render_html(found))
    if as_json:
        typer.echo(json.dumps(clean(found, lines=True), ensure_ascii=False))
    else:
        from farfield.report import print_audit

        print_audit(found)
    if _fails(result, conditions):
        raise typer.Exit(1)
    if result.verdict.name == "UNKNOWN":
        typer.echo("exit code 0 although the verdict is UNKNOWN; --fail-on unknown makes it 1", err=True)
