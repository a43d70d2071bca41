"""Lists of commands with whole descriptions, and messages that name flags instead of Python's arguments."""

from __future__ import annotations

import re
from typing import Any

import typer.core

__all__ = ["WholeHelp", "in_flags"]

FLAGS = {
    "at": "--at",
    "builder": "--builder",
    "certify": "--certify",
    "engine": "--engine",
    "even_if_bounded": "--even-if-bounded",
    "example_inputs": "--input",
    "inputs": "--input",
    "keep": "--keep",
    "memory": "--memory",
    "memory_limit": "--memory-limit",
    "method": "--method",
    "output": "--output",
    "rollout": "--rollout",
    "sandbox": "--sandbox",
    "state": "--state",
    "time_budget": "--time",
    "time_limit": "--time-limit",
    "workers": "--workers",
}
"""Argument of a Python function → the flag by which a command takes it."""
_ARGUMENT = re.compile(rf"(?<![\w.(])({'|'.join(FLAGS)})=('[^']*'|\"[^\"]*\"|[\w.+-]*\w)?")
_SUBJECT = re.compile(rf"(?:^|(?<=\. ))({'|'.join(FLAGS)})(?= (?:is|are|must|takes|names)\b)")
_BARE = re.compile(r"(?<![\w.`])example_inputs\b(?!=)")

_REPAIR = ("farfield.repair(model, rows)", "farfield repair MODEL --data rows.npy --out fixed.pt2")


def in_flags(message: str) -> str:
    """A message of the library as somebody at a terminal needs it: flags for arguments.

    Examples
    --------
    >>> in_flags("Ask for less with keep=, or use method='range', which changes no row.")
    'Ask for less with --keep, or use --method range, which changes no row.'
    >>> in_flags("The program takes 2 tensors and example_inputs holds 1; rollout=True is for a step.")
    'The program takes 2 tensors and --input holds 1; --rollout is for a step.'
    >>> in_flags("keep is a share of the rows, in (0, 1], got 1.5.")
    '--keep is a share of the rows, in (0, 1], got 1.5.'
    """

    def flag(found: re.Match[str]) -> str:
        value = (found[2] or "").strip("'\"")
        return FLAGS[found[1]] + (f" {value}" if value not in ("", "True") else "")

    message = message.replace(*_REPAIR)
    named = _SUBJECT.sub(lambda found: FLAGS[found[1]], _ARGUMENT.sub(flag, message))
    return _BARE.sub("--input", named)


class WholeHelp(typer.core.TyperGroup):
    """A group whose list of commands shows the first sentence of each, however long, instead of its beginning."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.short_help and command.help:
                paragraph = " ".join(command.help.split("\n\n")[0].split())
                command.short_help = re.split(r"(?<=[.?!])\s", paragraph)[0]
        super().format_commands(ctx, formatter)
