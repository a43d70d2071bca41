"""The command line: one file per command.

Holds: parsing and printing.
May import: atlas, audit, calibration, certify, data, engine, errors, gaussian, graph, kernels, lnnet, monitor, ntk,
papers, repair, report, _budget, _provenance, _regular_file, _target, _text, _weights; each import stands inside its
command, so that ``--help`` is quick.
Never: computes; stdout is data, stderr is talk; exit 0 fine, 1 findings, 2 usage, 3 internal error.
"""

from __future__ import annotations

from farfield.cli._app import main

__all__ = ["main"]
