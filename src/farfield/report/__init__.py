"""Plain data to something a person reads.

Holds: figures and tables as data, and what renders them (matplotlib, the terminal). May import: everything
below it, and matplotlib in one place. Never: computes a result.
"""

from __future__ import annotations

from farfield.report._data import Figure, Panel, Series, Table
from farfield.report._plots import save_figure

__all__ = ["Figure", "Panel", "Series", "Table", "save_figure"]
