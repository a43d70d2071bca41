"""``farfield reproduce``: the papers' figures and tables, run and checked."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farfield.cli._session import check_folder, saying_what_is_kept

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from farfield.papers._experiment import Experiment

__all__ = ["reproduce"]


def _show(record: dict[str, Any]) -> None:
    from farfield.papers._sizes import differing, size_words

    typer.echo(f"{record['name']}: {record['description']}")
    if other := differing(record):
        theirs, ours = ({name: pair[k] for name, pair in other.items()} for k in (0, 1))
        typer.echo(f"   not at the paper's size: {size_words(ours, absent='all')}")
        typer.echo(f"   the paper's: {size_words(theirs, absent='not stated')}")
    if record["table"]:
        from rich.console import Console
        from rich.table import Table

        table = Table(*record["table"]["columns"])
        for row in record["table"]["rows"]:
            table.add_row(*(f"{v:.10g}" if isinstance(v, float) else str(v) for v in row))
        Console().print(table)
    for verdict in record["verdicts"]:
        word = "holds" if verdict["holds"] else "does not hold"
        note = "" if verdict["expected"] else " (as expected)"
        mark = "!" if verdict["surprising"] else " "
        typer.echo(f" {mark} {word}{note if not verdict['holds'] else ''}: {verdict['claim']}")
        typer.echo(f"       measured: {verdict['measured']}")


def _advance(bars: Progress, task: TaskID, done: int, total: int) -> None:
    bars.update(task, completed=done, total=total)


def _changed(experiment: Experiment, changes: list[str]) -> Experiment:
    """The experiment with other settings, quick or not."""
    from dataclasses import replace

    from farfield.errors import InvalidValueError, UnknownNameError

    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InvalidValueError(f"--set takes name=value, got {change!r}.")
        if name not in experiment.settings:
            raise UnknownNameError(f"setting of {experiment.name}", name, experiment.settings)
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return (
        replace(experiment, settings=experiment.settings | found, quick=experiment.quick | found)
        if found
        else experiment
    )


def _many(
    names: list[str], out: Path, seeds: range, quick: bool, force: bool, engine: str, as_json: bool
) -> None:
    """Several seeds: every claim with the number of seeds in which it holds."""
    from farfield.engine import bar
    from farfield.papers import run_seeds
    from farfield.papers._experiment import result_folder

    with bar("experiments") as progress:
        found = run_seeds(names, out, seeds=seeds, quick=quick, force=force, engine=engine, progress=progress)
    path = found.save(result_folder(out, quick=quick) / "seeds.json")
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        for line in found.summary():
            if line["error"] is not None:
                typer.echo(f"! {line['experiment']}: {line['seeds']} failed, the first with {line['error']}")
                continue
            usual = line["holds"] == (line["seeds"] if line["expected"] else 0)
            note = "" if line["expected"] else " (expected: none)"
            mark = " " if usual else "!"
            typer.echo(
                f"{mark} {line['holds']} of {line['seeds']}{note}: {line['experiment']}: {line['claim']}"
            )
        typer.echo(f"written to {path}", err=True)
    if any(row.surprising for row in found.rows):
        raise typer.Exit(1)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments or papers: p2.fig3, p2. Without any, they are listed."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for JSON, PNG and SVG; quick runs and other seeds in folders below it."),
    ] = Path("reproductions"),
    quick: Annotated[
        bool, typer.Option(help="Small sizes: a check that it runs, not the paper's result.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Run again even where a result is stored.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds, starting at --seed; every claim is counted over them.")
    ] = 1,
    engine: Annotated[str, typer.Option(help="Where several seeds run: auto, local or ray.")] = "auto",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the experiment: name=value, JSON or text."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run figures and tables of the papers, write their pictures and numbers, and check every claim.

    Finished experiments are kept and skipped, so an interrupted run goes on where it stopped. Numbers and verdicts
    are written before figures are drawn: without matplotlib they are all there. Exit code 1 if a claim turned out
    other than theory says.
    """
    from farfield.errors import InvalidValueError
    from farfield.papers import experiment, experiment_names, experiment_titles, run_experiment
    from farfield.papers._experiment import missing, result_folder

    if not names:
        for name, title in experiment_titles().items():
            typer.echo(f"{name:21} {title}")
        return
    check_folder(out)
    # An unknown name or setting fails before anything runs, with near matches.
    chosen = [
        _changed(experiment(n), changes or [])
        for name in names
        for n in (experiment_names(name) or (experiment(name).name,))
    ]
    # One that was asked for by name says itself what it needs; as part of a paper it does not stop the others.
    skipped = {e.name: reason for e in chosen if e.name not in names and (reason := missing(e))}
    for name, reason in skipped.items():
        typer.echo(f"{name}: skipped, {reason}", err=True)
    if seeds != 1:
        if changes:
            raise InvalidValueError(
                "--set and --seeds do not go together: run it for one seed after the other."
            )
        _many(
            [e.name for e in chosen if e.name not in skipped],
            out,
            range(seed, seed + seeds),
            quick,
            force,
            engine,
            as_json,
        )
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    records: list[dict[str, Any]] = []
    unfinished: list[str] = []
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    kept = saying_what_is_kept(f"finished experiments are in {out}; run the same command again to go on")
    with kept, Progress(*columns, console=Console(stderr=True)) as bars:
        for item in chosen:
            if item.name in skipped:
                continue
            task = bars.add_task(item.name, total=None)
            record = run_experiment(
                item,
                out,
                quick=quick,
                seed=seed,
                force=force,
                progress=functools.partial(_advance, bars, task),
                warn=unfinished.append,
            )
            bars.update(task, completed=1, total=1)
            records.append(record)
    for line in unfinished:
        typer.echo(line, err=True)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
    else:
        for record in records:
            _show(record)
        typer.echo(f"written to {result_folder(out, quick=quick, seed=seed)}", err=True)
    if any(verdict["surprising"] for record in records for verdict in record["verdicts"]):
        raise typer.Exit(1)
