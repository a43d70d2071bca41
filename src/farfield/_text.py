"""Names from strangers, as text that shows what it is."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

__all__ = ["clean"]

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode: controls, formats (zero width, direction), lone surrogates, separators of lines."""
_BLANK = set("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Shown as nothing, though of other categories."""


def clean(value: Any, *, lines: bool = False) -> Any:
    r"""The same data with control, invisible and direction-changing characters spelled out.

    Names of modules and files come from whoever made them: they may hold terminal escapes, characters that reorder
    the text around them, or such as make two different names look alike. Every output of names goes through here:
    terminal, HTML, JSON, SARIF, model cards. Markup is the renderers' own business. Ends of lines become spaces, or
    stay with ``lines``, where the output spells them out itself, as JSON does.

    Examples
    --------
    >>> clean({"name": "a\x1b[31mb\u202ec\u200b"})
    {'name': 'a\\x1b[31mb\\u202ec\\u200b'}
    """
    if isinstance(value, str):
        if value.isascii() and value.isprintable():
            return value
        return "".join(_visible(character, lines) for character in value)
    if isinstance(value, Mapping):
        return {str(clean(k, lines=lines)): clean(v, lines=lines) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v, lines=lines) for v in value]
    return value


def _visible(character: str, lines: bool) -> str:
    if character in "\n\r\t":
        return character if lines else " "
    if character in _BLANK or unicodedata.category(character) in _HIDDEN:
        return ascii(character)[1:-1]
    return character
