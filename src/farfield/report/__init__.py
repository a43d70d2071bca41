"""Plain data to something a person reads, or another program.

Holds: figures and tables as data, audits, repairs and certificates as HTML, SARIF and terminal text, and what renders
them (matplotlib, jinja2, rich).
May import: errors, geometry, lnnet, _text; matplotlib in one place.
Never: computes a result, or knows the class of one: results hand it plain data.
"""

from __future__ import annotations

from farfield.report._certificate import print_certificate, render_certificate
from farfield.report._data import Figure, Heatmap, Panel, Series, Table
from farfield.report._html import render_html
from farfield.report._index import print_index, render_index, write_index
from farfield.report._isometry import isometry_figure
from farfield.report._layers import lnnet_figure
from farfield.report._plots import save_figure
from farfield.report._repair import render_repair
from farfield.report._result_plots import plot_audit, plot_certificate, plot_repair, plot_rollout
from farfield.report._rollout import render_rollout
from farfield.report._sarif import render_sarif
from farfield.report._summary import audit_summary, certificate_summary, repair_summary, rollout_summary
from farfield.report._terminal import audit_text, print_audit

__all__ = [
    "Figure",
    "Heatmap",
    "Panel",
    "Series",
    "Table",
    "audit_summary",
    "audit_text",
    "certificate_summary",
    "isometry_figure",
    "lnnet_figure",
    "plot_audit",
    "plot_certificate",
    "plot_repair",
    "plot_rollout",
    "print_audit",
    "print_certificate",
    "print_index",
    "render_certificate",
    "render_html",
    "render_index",
    "render_repair",
    "render_rollout",
    "render_sarif",
    "repair_summary",
    "rollout_summary",
    "save_figure",
    "write_index",
]
