"""Age from frozen features of faces, a harder split than P1's: heads trained on one ethnicity label, tested on four.

Run: ``farfield reproduce p1.utkface_one_label``
"""

from __future__ import annotations

from farfield.papers._experiment import Experiment
from farfield.papers.p1.utkface import PAPER_SIZE, QUICK, SETTINGS, run

EXPERIMENT = Experiment(
    name="p1.utkface_one_label",
    description=(
        "Age from faces with a frozen backbone, heads of two layers of 128, but trained on one ethnicity label and "
        "tested on it and on the four others: not the paper's split, which trains on four labels (p1.utkface). "
        "Features enter as MobileNetV2 gives them, and ages less the near rows' mean over their standard deviation; "
        "two other scalings are run beside."
    ),
    settings={
        **SETTINGS, "held_out": [1, 2, 3, 4], "other_features": [], "seeds": 100, "other_seeds": 100, "group": 10,
        "other_scalings": (("standard", "standard"), ("none", "none")),
    },
    quick=QUICK,
    paper_size=PAPER_SIZE,
    run=run,
    resumable=True,
    data=("utkface", "mobilenet_v2"),
)  # fmt: skip
