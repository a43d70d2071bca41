"""Theorem 4 on inputs that are nearly parallel, through thirty layers: P2's Figure 3 where its bound is hard.

Run: ``farfield reproduce p2.fig3_degenerate``
"""

from __future__ import annotations

from dataclasses import replace

from farfield.papers.p2 import fig3

EXPERIMENT = replace(
    fig3.EXPERIMENT,
    name="p2.fig3_degenerate",
    description=(
        "Figure 3 on Gaussian inputs with one singular value a hundred times as large, and three times as deep: the "
        "gap starts at 3.8 instead of 0.9, and shows which readings of Eq. 11 are bounds."
    ),
    settings={**fig3.EXPERIMENT.settings, "images": None, "depth": 30, "degeneracy": 100.0},
    paper_size={"n": 100, "width": 5000, "runs": 10},
    data=(),
)
