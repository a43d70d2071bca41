"""Norms and activations that were written by hand or taken apart, found again.

Holds: one file per kind of pattern, and the pass that applies them.
May import: graph.
Never: replaces anything whose algebra differs from the pattern in real arithmetic.
"""

from __future__ import annotations

from farfield.graph.recognition._pass import recognize

__all__ = ["recognize"]
