"""The application: its commands, and how errors become exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from farfield import __version__
from farfield._text import clean
from farfield.cli import (
    activations,
    atlas,
    audit,
    audit_all,
    certify,
    data,
    env,
    isometry,
    kernel,
    lnnet,
    ntk,
    repair,
    reproduce,
    verify,
)
from farfield.cli._help import WholeHelp, in_flags
from farfield.errors import FarfieldError

__all__ = ["app", "main"]

app = typer.Typer(
    name="farfield",
    cls=WholeHelp,
    help="Know, prove and fix what a neural network does far from its training data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("audit")(audit.audit)
app.command("audit-all")(audit_all.audit_all)
app.command("atlas")(atlas.atlas)
app.command("repair")(repair.repair)
app.command("certify")(certify.certify)
app.command("verify")(verify.verify)
app.command("isometry")(isometry.isometry)
app.command("activations")(activations.activations)
app.command("kernel")(kernel.kernel)
app.command("ntk")(ntk.ntk)
app.add_typer(lnnet.lnnet, name="lnnet")
app.add_typer(data.data, name="data")
app.command("env")(env.env)
app.command("reproduce")(reproduce.reproduce)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {clean(message)}", err=True)
    sys.exit(2)


def _is_about_memory(error: Exception) -> bool:
    """Torch says so by a RuntimeError."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in words)
    )


def _is_about_a_file(error: Exception) -> bool:
    """A disk that is full or read-only, which torch's and safetensors' writers say by errors of their own."""
    words = ("PytorchStreamWriter failed", "No space left", "Read-only file system", "Permission denied", "I/O error",
             "iostream error",
             "File too large")  # fmt: skip
    return any(w in str(error) for w in words)


def main() -> None:
    """Run the command line: a refusal of farfield's, or of the system's, exits 2 with one line; a bug 3 with its
    traceback.
    """
    try:
        app()
    except FarfieldError as error:
        _refuse(in_flags(str(error)))
    except OSError as error:
        # A file that is not there, a place that is read-only, a disk that is full: the system's own words.
        said = error.strerror or str(error) or type(error).__name__
        _refuse(f"{said}: {error.filename!r}." if error.filename else f"{said}.")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if _is_about_memory(error):
            _refuse(f"There is not enough memory. {str(error).partition(chr(10))[0][:300]}".strip())
        if _is_about_a_file(error):
            said = str(error).partition(chr(10))[0][:300]
            _refuse(f"A file could not be written; is the disk full or read-only? {said}")
        import traceback

        traceback.print_exc()
        typer.echo("This is a bug in farfield; please report it with the lines above.", err=True)
        sys.exit(3)
