"""The paper's sizes beside ours: what is compared, what differs, and how a page says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farfield._typing import JSON

__all__ = ["PaperSize", "differing", "size_words", "sizes"]

PaperSize = Mapping[str, Any]
"""Setting → the paper's value, or None where its text gives none."""


def sizes(paper_size: PaperSize, settings: Mapping[str, Any]) -> dict[str, JSON]:
    """The settings that the paper's sizes are compared with: "all" where one is None, None where the run had none.

    Examples
    --------
    >>> sizes({"n": 100, "runs": None}, {"n": 10, "runs": 5, "depth": 30})
    {'n': 10, 'runs': 5}
    """
    return {name: "all" if settings.get(name, "") is None else settings.get(name) for name in paper_size}


def differing(record: Mapping[str, Any]) -> dict[str, tuple[JSON, JSON]]:
    """Setting → (the paper's, ours) for every size of a record that is not the one the paper gives.

    Examples
    --------
    >>> differing({"paper_size": {"n": 100, "depth": None, "runs": 10}, "size": {"n": 10, "depth": 30, "runs": 10}})
    {'n': (100, 10)}
    """
    own: Mapping[str, Any] = record.get("size") or {}
    paper: Mapping[str, Any] = record.get("paper_size") or {}
    return {
        name: (value, own.get(name))
        for name, value in paper.items()
        if value is not None and value != own.get(name)
    }


def size_words(sizes_: Mapping[str, Any], *, absent: str) -> str:
    """Sizes in one line; ``absent`` stands for a value that is None.

    Examples
    --------
    >>> size_words({"n": 10, "batch_size": None, "activations": ["relu", "tanh"]}, absent="not stated")
    'n 10; batch size not stated; activations relu, tanh'
    """
    return "; ".join(f"{name.replace('_', ' ')} {_word(value, absent)}" for name, value in sizes_.items())


def _word(value: Any, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, Mapping):
        return ", ".join(str(key) for key in value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_word(v, absent) for v in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
