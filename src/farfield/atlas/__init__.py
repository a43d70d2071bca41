"""Verdicts for the architectures of public libraries, each at small size with random weights.

Holds: which architectures there are, how each is built small, the run over all of them, the check of each verdict.
May import: audit, data, engine, errors, graph, growth, _callable_module, _provenance, _text.
Never: downloads anything; holds no list of verdicts.
"""

from __future__ import annotations

from farfield._callable_module import make_callable
from farfield.atlas._architecture import Architecture
from farfield.atlas._libraries import architectures, installed_libraries
from farfield.atlas._row import AtlasRow
from farfield.atlas._run import Atlas, atlas, read_atlas

__all__ = ["Architecture", "Atlas", "AtlasRow", "architectures", "atlas", "installed_libraries", "read_atlas"]

make_callable(__name__)
