"""``farfield data``: what datasets there are, where their files lie, and how to get them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from farfield.cli._help import WholeHelp

__all__ = ["data"]

data = typer.Typer(
    help="Datasets by name: list them, fetch their files, show where they come from.",
    no_args_is_help=True,
    cls=WholeHelp,
    rich_markup_mode=None,
)


def _state(name: str) -> str:
    """``here``, ``can be fetched``, ``missing`` or ``made up``."""
    from farfield.data import info
    from farfield.data._files import DataError, find

    entry = info(name)
    if not entry.files:
        return "made up"
    try:
        for forms in entry.files:
            find(name, forms)
    except DataError:
        return "can be fetched" if all(any(f.url for f in forms) for forms in entry.files) else "missing"
    return "here"


@data.command("list")
def list_names(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List every dataset with its number of rows and whether its files are here, then weights of networks."""
    from farfield.data import dataset_names, info, weight_names

    rows = [
        {"name": n, "rows": info(n).rows, "state": _state(n), "title": info(n).title}
        for n in (*dataset_names(), *weight_names())
    ]
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        typer.echo(f"{row['name']:13} {row['rows']:>7,}  {row['state']:15} {row['title']}")


@data.command("info")
def show_info(
    name: Annotated[str, typer.Argument(help="A dataset, by the name that farfield data list shows.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show what a dataset is, whose it is, how it is split, and which files it needs."""
    from farfield.data import info

    entry = info(name)
    record: dict[str, Any] = {
        "name": entry.name, "title": entry.title, "rows": entry.rows, "license": entry.license,
        "citation": entry.citation, "note": entry.note, "state": _state(name),
        "files": [[{"path": f.path, "digest": f.digest, "url": f.url} for f in forms] for forms in entry.files],
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    for key in ("title", "rows", "license", "citation", "note", "state"):
        if record[key]:
            typer.echo(f"{key:9} {record[key]}")
    for forms in entry.files:
        typer.echo("file      " + " or ".join(f.path for f in forms))
        typer.echo("          " + next((f.url for f in forms if f.url), "no source to fetch from"))


@data.command("fetch")
def fetch_files(
    names: Annotated[list[str], typer.Argument(help="Datasets to fetch.")],
) -> None:
    """Download what is missing into the cache, checked by hash; the license is shown first."""
    from farfield.data import fetch, info

    for name in names:
        entry = info(name)
        typer.echo(f"{name}: {entry.license}. Cite: {entry.citation}.", err=True)
        for path in fetch(name):
            typer.echo(str(path))
