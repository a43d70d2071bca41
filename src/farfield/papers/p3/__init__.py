"""P3: LayerNorm as a nonlinearity: what it separates, what it fits, and what groups add.

Holds: one module per figure, and the networks that they train.
May import: data, engine, errors, learn, lnnet, nn, papers, report, _intervals.
Never: chooses settings after looking at a result.
"""

from __future__ import annotations

__all__: list[str] = []
