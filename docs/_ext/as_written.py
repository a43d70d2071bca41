r"""The API reference as the source has it: shapes in signatures, ``|x|`` for an absolute value.

Annotations such as ``Float[Tensor, "n n"]`` resolve to plain ``Tensor`` at run time; the pages show them as written.
Bars in docstrings would be substitutions in reStructuredText; they are escaped, so that docstrings stay readable in
``help()``. Formulas under ``.. math::``, literals and doctests are left alone.
"""

from __future__ import annotations

import inspect
import re

_LITERAL = re.compile(r"(``.*?``|:math:`.*?`)")


def escape_bars(lines: list[str]) -> list[str]:
    """The lines with every bar outside formulas, literals and doctests escaped."""
    out: list[str] = []
    block: int | None = None  # indentation of a math directive we are inside of
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if line.lstrip().startswith(".. math::"):
            block = indent
        if block is not None or "|" not in line or line.lstrip().startswith((">>>", "...")):
            out.append(line)
            continue
        parts = _LITERAL.split(line)
        out.append("".join(p if i % 2 else re.sub(r"(?<!\\)\|", r"\\|", p) for i, p in enumerate(parts)))
    return out


def without_house_rules(lines: list[str]) -> list[str]:
    """A package's docstring up to what it may import, which is for those who change it."""
    rules = next((i for i, line in enumerate(lines) if line.startswith("May import:")), len(lines))
    return lines[:rules]


def _process(app, what, name, obj, options, lines) -> None:
    lines[:] = escape_bars(without_house_rules(lines) if what == "module" else lines)


def _shown(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"""(["'])\s+""", r"\1", text)  # `" n"` is how a single axis is written


def signature_as_written(obj: object) -> tuple[str, str | None]:
    """Arguments and return annotation, with annotations as strings of the source."""
    found = inspect.signature(obj)  # type: ignore[arg-type]
    parts, star = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.annotation is not parameter.empty:
            text += f": {_shown(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            made = parameter.default.__class__.__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
            text += f" = {'...' if made else repr(parameter.default)}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parts.append("/")
    returned = found.return_annotation
    shown = None if returned in (found.empty, None, "None") else _shown(returned)
    return f"({', '.join(parts)})", shown


def _signature(app, what, name, obj, options, signature, return_annotation):
    if what not in ("function", "class", "method") or not getattr(obj, "__module__", "").startswith(
        "farfield"
    ):
        return None
    arguments, returned = signature_as_written(obj)
    if what == "method":
        arguments = re.sub(r"^\(self(, )?", "(", arguments)
    return arguments, None if what == "class" else returned


def setup(app):
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _process)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
