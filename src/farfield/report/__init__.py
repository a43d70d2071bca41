"""Plain data to something a person reads, or another program.

Holds: figures and tables as data, audits, repairs and certificates as HTML, SARIF and terminal text, and what renders
them (matplotlib, jinja2, rich).
May import: errors, lnnet, _text; matplotlib in one place.
Never: computes a result.
"""

from __future__ import annotations

from farfield.report._certificate import print_certificate, render_certificate
from farfield.report._data import Figure, Heatmap, Panel, Series, Table
from farfield.report._html import render_html
from farfield.report._index import print_index, render_index, write_index
from farfield.report._layers import lnnet_figure
from farfield.report._plots import save_figure
from farfield.report._repair import render_repair
from farfield.report._sarif import render_sarif
from farfield.report._terminal import print_audit

__all__ = [
    "Figure",
    "Heatmap",
    "Panel",
    "Series",
    "Table",
    "lnnet_figure",
    "print_audit",
    "print_certificate",
    "print_index",
    "render_certificate",
    "render_html",
    "render_index",
    "render_repair",
    "render_sarif",
    "save_figure",
    "write_index",
]
