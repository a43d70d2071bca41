"""The empirical tangent kernels of Figure 2 at eight times the width.

Run: ``farfield reproduce p1.fig2_wide``
"""

from __future__ import annotations

from farfield.papers._experiment import Experiment
from farfield.papers.p1.fig2_finite import EXPERIMENT as NARROW
from farfield.papers.p1.fig2_finite import run

EXPERIMENT = Experiment(
    name="p1.fig2_wide",
    description=(
        "Empirical tangent kernels of ReLU networks of width 1024 on [−25, 25]², averaged over five draws: nearer "
        "the kernel of infinite width than those of width 128 (p1.fig2_finite), and bounded by the same LayerNorms."
    ),
    settings={**NARROW.settings, "width": 1024},
    quick={"points": 11, "width": 256},
    paper_size=NARROW.paper_size,
    run=run,
)
