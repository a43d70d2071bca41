"""``farfield atlas``: a verdict for every architecture of the model libraries that are installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farfield.cli._session import check_folder, saying_what_is_kept

if TYPE_CHECKING:
    from farfield.atlas import Architecture

__all__ = ["atlas"]

_OUTCOMES = ("bounded", "unbounded", "unknown", "error")


def _outcomes(words: list[str]) -> set[str]:
    from farfield.errors import UnknownNameError

    found = {w.strip().lower() for word in words for w in word.split(",") if w.strip()}
    for word in sorted(found):
        if word not in _OUTCOMES:
            raise UnknownNameError("outcome for --again", word, list(_OUTCOMES))
    return {word.upper() for word in found}


def _fits(words: list[str] | None, *texts: str) -> bool:
    return not words or any(word.lower() in text.lower() for word in words for text in texts)


def atlas(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the record; a run goes on where it was.")
    ] = None,
    library: Annotated[
        list[str] | None, typer.Option(help="Only this library; all that are installed unless given. Repeat.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="Only names or families that contain this text. Repeat.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only tasks that contain this text. Repeat.")] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="Compute these rows of the record again: bounded, unbounded, unknown, error."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Architectures of this run at most.", min=1)] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds one architecture may take.")] = 120.0,
    memory_limit: Annotated[str, typer.Option(help="Memory for one architecture.")] = "6GB",
    workers: Annotated[int, typer.Option(help="Architectures at once.", min=1)] = 1,
    listed: Annotated[bool, typer.Option("--list", help="Print what would be audited, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows, one JSON object a line.")] = False,
) -> None:
    """Build every architecture small, with random weights, audit it, and check the verdict out to 10⁶.

    Writes atlas.jsonl, a row as soon as an architecture is done, atlas.parquet (with pyarrow) and run.json.
    Nothing is downloaded. Exit code 0: done; 1: an evaluation contradicts a verdict; 2: an option is wrong; 3: a bug
    here; 130: interrupted.
    """
    from farfield.errors import InvalidValueError

    def chosen(a: Architecture) -> bool:
        return _fits(name, a.name, a.family) and _fits(task, a.task)

    if listed:
        from farfield.atlas import architectures, installed_libraries

        for one in library or installed_libraries():
            for a in filter(chosen, architectures(one)):
                typer.echo(f"{a.library}\t{a.name}\t{a.family}\t{a.task}")
        return
    if out is None:
        raise InvalidValueError("The record needs a folder: give --out, such as --out atlas.")
    outcomes = _outcomes(again or [])
    check_folder(out)
    from farfield.atlas import atlas as run
    from farfield.engine import bar

    kept = f"the finished rows are in {out / 'atlas.jsonl'}; run the same command again to go on"
    with bar("atlas") as progress, saying_what_is_kept(kept):
        found = run(
            out,
            libraries=library,
            choose=chosen,
            again=outcomes,
            limit=limit,
            time_limit=time_limit,
            memory_limit=memory_limit,
            workers=workers,
            progress=progress,
        )
    if as_json:
        for row in found.rows:
            typer.echo(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        typer.echo(str(found))
    wrong = [row for row in found.rows if row.checked == "contradicted"]
    for row in wrong:
        typer.echo(f"{row.library} {row.name}: {row.verdict}, but {row.evidence}", err=True)
    typer.echo(f"wrote {out / 'atlas.jsonl'} and the table beside it", err=True)
    if wrong:
        raise typer.Exit(1)
