"""``farfield audit-all``: many checkpoints, one row each, a page to find those that matter."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farfield.cli._options import fail_conditions
from farfield.cli._session import check_folder

if TYPE_CHECKING:
    from farfield.audit import AuditTable, Census

__all__ = ["audit_all"]


def _fails(table: AuditTable, conditions: set[str]) -> bool:
    return any(
        row.outcome.lower() in conditions
        or (row.error is not None and "error" in conditions)
        or bool(conditions & set((row.findings or "").split()))
        for row in table.rows
    )


def _page(out: Path) -> Callable[[str], str | None]:
    """A page per model, from what was kept of its audit: of the file of the audit the page, seen from the index."""
    from farfield.report import render_html

    def made(details: str) -> str | None:
        file = out / "details" / details
        if not details or not file.is_file():
            return None
        target = out / "pages" / f"{file.stem}.html"
        target.parent.mkdir(exist_ok=True)
        target.write_text(render_html(json.loads(file.read_text(encoding="utf-8"))), encoding="utf-8")
        return f"pages/{target.name}"

    return made


def audit_all(
    registry: Annotated[
        Path, typer.Argument(help="A folder of checkpoints, or a .parquet, .csv or .jsonl table of them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the table, the page and finished rows.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Shape of an input, for models that name none: 1x8, 1x16:int64. Repeat for several.",
        ),
    ] = None,
    builder: Annotated[
        str | None,
        typer.Option(help="pkg.mod:callable that makes the module for weights, where a row names none."),
    ] = None,
    certify: Annotated[
        float | None, typer.Option(help="Seconds to search for bounds of every bounded model.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds one model may take, beside --certify.")] = 300.0,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit 1 on: unbounded and error (default), unknown, a code such as FF002, or none. Repeat, or "
            "separate by commas."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Where the work runs: auto, local, ray.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Models at once, on the local engine; one per processor unless given.")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory for one model, such as 4GB; by default the machine's, divided by the models at once."
        ),
    ] = None,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="Linux only: no network, and a file system that is read-only except for --out."
        ),
    ] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Write a report per model, linked from the index.")
    ] = False,
    repair: Annotated[
        Path | None,
        typer.Option(
            help="Repair every unbounded .pt2 or .onnx: a file of calibration rows, or a folder of files named as "
            "the models."
        ),
    ] = None,
    structure_only: Annotated[
        bool,
        typer.Option(
            "--structure-only",
            help="Read no weights: a verdict for every architecture, from config.json and safetensors headers.",
        ),
    ] = False,
    spot_check: Annotated[
        int,
        typer.Option(
            help="With --structure-only: compute one model in so many for itself; 0 for none.", min=0
        ),
    ] = 50_000,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute finished rows again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows, one JSON object a line.")] = False,
) -> None:
    """Audit every checkpoint of a folder or table; a broken one gets a row with the reason and stops nothing.

    Writes audits.jsonl (a row as soon as a model is done), audits.parquet (with pyarrow), run.json and index.html,
    which has several pages for more than a thousand models. A run that was stopped goes on where it was. Exit code 0:
    nothing that --fail-on names was found; 1: it was; 2: the registry or an option is wrong; 3: a bug in farfield;
    130: interrupted.
    """
    conditions = fail_conditions(fail_on or ["unbounded", "error"], "error")

    check_folder(out)
    if structure_only:
        for name, given in {
            "--certify": certify,
            "--pages": pages,
            "--repair": repair,
            "--sandbox": sandbox,
        }.items():
            if given:
                raise typer.BadParameter(f"{name} needs weights, and --structure-only reads none.")
        from farfield.audit import census
        from farfield.engine import bar

        with bar("census") as progress:
            found = census(
                registry,
                out=out,
                inputs=inputs or (),
                builder=builder,
                spot_check=spot_check,
                time_limit=time_limit,
                memory_limit=memory_limit,
                engine=engine,
                workers=workers,
                fresh=fresh,
                progress=progress,
            )
        _print_census(found, as_json)
        if any(count and name.lower() in conditions for name, count in found.counts.items()):
            raise typer.Exit(1)
        return
    from farfield.audit import audit_all as run
    from farfield.engine import bar
    from farfield.report import write_index

    with bar("audit") as progress, _resumable(out):
        table = run(
            registry,
            out=out,
            inputs=inputs or (),
            builder=builder,
            certify=certify,
            time_limit=time_limit,
            memory_limit=memory_limit,
            sandbox=sandbox,
            engine=engine,
            workers=workers,
            details=pages,
            fresh=fresh,
            progress=progress,
        )
    files = write_index(
        out,
        (r.to_dict() for r in table.rows),
        table.run(),
        name=str(registry),
        page_of=_page(out) if pages else None,
    )
    if as_json:
        for row in table.rows:
            typer.echo(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        from farfield.report import print_index

        print_index(row.to_dict() for row in table.rows)
    if repair is not None:
        _repair(table, registry, repair, out, workers, time_limit)
    if table.reused:
        typer.echo(f"{table.reused} rows had been finished before", err=True)
    typer.echo(f"wrote {files[0]} and the table beside it", err=True)
    if _fails(table, conditions):
        raise typer.Exit(1)


def _print_census(found: Census, as_json: bool) -> None:
    if as_json:
        for record in found.architectures:
            typer.echo(json.dumps(dict(record), ensure_ascii=False, allow_nan=False))
    else:
        for record in found.architectures[:20]:
            said = record["verdict"] or f"ERROR {record['error']}"
            typer.echo(
                f"{record['models']:>9,}  {said:9}  {record['architecture']}: {record['reason'] or record['message']}"
            )
        typer.echo(str(found))
    typer.echo(f"wrote {found.folder / 'audits'} and {found.folder / 'architectures.jsonl'}", err=True)


def _repair(
    table: AuditTable, registry: Path, rows: Path, out: Path, workers: int | None, time_limit: float
) -> None:
    from farfield.cli._repair_all import repair_all

    root = registry if registry.is_dir() else registry.parent
    lines = repair_all(table.rows, root, rows, out, workers=workers or 1, time_limit=time_limit)
    mended = sum(line["error"] is None for line in lines)
    typer.echo(f"repaired {mended} of {len(lines)} unbounded models: {out / 'repairs.jsonl'}", err=True)
    for line in [line for line in lines if line["error"]][:10]:
        typer.echo(f"  {line['path']}: {line['error']}", err=True)


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Say what is kept if the run is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        rows = out / "audits.jsonl"
        count = sum(1 for _ in rows.open("rb")) if rows.is_file() else 0
        typer.echo(
            f"interrupted: {count} rows are in {rows}, and those without an error are kept; run the same command "
            "again to go on",
            err=True,
        )
        raise
