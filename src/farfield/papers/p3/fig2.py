"""The construction step by step: project to a line, bend it to a circle, merge two points of a label.

Run: ``farfield reproduce p3.fig2``
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from farfield.lnnet import LNNet, construct, lssr
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Table, lnnet_figure


def runs(t: Tensor, y: Tensor, *, together: float = 1e-9) -> int:
    """Stretches of one label along a line; points nearer than ``together`` are one, if their labels agree.

    Examples
    --------
    >>> runs(torch.tensor([0.0, 3.0, 1.0, 2.0]), torch.tensor([0, 0, 1, 1]))
    3
    """
    label = y[t.argsort()]
    return 1 + int((label[1:] != label[:-1]).sum()) if _apart(t, y, together) else len(t)


def places(t: Tensor, *, together: float = 1e-9) -> int:
    """Distinct positions on a line."""
    ordered = t.sort().values
    return 1 + int((ordered.diff() > together).sum())


def _apart(t: Tensor, y: Tensor, together: float) -> bool:
    near = (t[:, None] - t).abs() <= together
    return not bool((near & (y[:, None] != y)).any())


def printed_fold(t: Tensor, y: Tensor) -> Tensor:
    """One layer as P3 prints it: the leftmost point and the next of its label meet at the top of the circle.

    t ↦ h/√((t − c)² + h²) with c half-way between the two and h half their distance; points mirrored about c meet,
    too, whatever their labels.

    Examples
    --------
    >>> line = torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)
    >>> [round(v, 4) for v in printed_fold(line, torch.tensor([0, 1, 2, 0])).tolist()]
    [0.7071, 0.8944, 0.8944, 0.7071]
    """
    order = t.argsort()
    for k, i in enumerate(order.tolist()):
        later = [j for j in order[k + 1 :].tolist() if y[j] == y[i] and t[j] > t[i]]
        if later:
            c, h = (t[i] + t[later[0]]) / 2, (t[later[0]] - t[i]) / 2
            return h / torch.hypot(t - c, h)
    return t


def run(*, progress: Progress, seed: int, problems: int) -> ExperimentResult:
    """Points on an integer line with two labels, where P3's fold works; with three, where it does not; then many."""
    draw = torch.Generator().manual_seed(seed)
    line = torch.arange(8.0, dtype=torch.float64)[:, None]
    alternating = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0])
    three = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    net = construct(line, alternating, rule="paper", dtype=torch.float64, generator=draw)
    rows = _followed(net, line, alternating)
    progress(1, 3)

    merged, right, shallow = 0, 0, 0
    for _ in range(problems):
        m = int(torch.randint(4, 13, (1,), generator=draw))
        x = torch.randn(m, 2, generator=draw, dtype=torch.float64)
        y = torch.randint(0, int(torch.randint(2, 5, (1,), generator=draw)), (m,), generator=draw)
        built = construct(x, y, rule="paper", dtype=torch.float64, generator=draw)
        counts = [places(t, together=1e-7) for t in built.lines(x)]
        # A projection may put every label in one run at once; the one layer then has nothing to merge.
        sorted_at_once = runs(built.lines(x)[0], y) == len(y.unique())
        merged += sorted_at_once or all(b < a for a, b in itertools.pairwise(counts))
        right += bool((built.predict(x) == y).all())
        shallow += built.depth <= max(m - 2, 1)
    progress(2, 3)

    wrong = printed_fold(three[0][:, 0], three[1])
    mended = construct(*three, rule="paper", generator=draw)
    verdicts = (
        ClaimVerdict(
            "eight points with two labels: perfect, with depth at most m − 2 = 6",
            bool((net.predict(line) == alternating).all()) and net.depth <= 6,
            f"depth {net.depth}; runs of a label on the line {' → '.join(str(r[1]) for r in rows)}; LSSR "
            f"{' → '.join(f'{r[3]:.2g}' for r in rows)}",
        ),
        ClaimVerdict(
            f"{problems} random problems (4 to 12 points, 2 to 4 labels): all perfect with depth at most m − 2",
            right == shallow == problems,
            f"{right} perfect, {shallow} within m − 2",
        ),
        ClaimVerdict(
            "there every layer merges two points or more, unless the projection alone puts each label in one run: "
            "distinct places on the line (1e-7 apart) fall from layer to layer",
            merged == problems,
            f"in {merged} of {problems}",
        ),
        ClaimVerdict(
            "as printed, reading the circle at its top keeps points of different labels apart with any number of "
            "labels",
            _apart(wrong, three[1], 1e-9),
            "−2, −1, 1, 2 with labels 0, 1, 2, 0 fall on "
            + ", ".join(f"{v:.4g}" for v in wrong.tolist())
            + ": labels 1 and 2 are one point",
            expected=False,
        ),
        ClaimVerdict(
            "those four points, with the circle read along another direction: perfect within depth 2",
            bool((mended.predict(three[0]) == three[1]).all()) and mended.depth <= 2,
            f"depth {mended.depth}, margin {mended.margin:.3g}",
        ),
    )
    drawn = lnnet_figure(net, line, alternating)
    caption = (
        "Eight points with two labels through the layers of P3's rule: the points, their projection, and for each "
        "layer the circle behind LayerNorm and the line that is read from it."
    )
    figure = Figure(f"Project, bend, merge: {drawn.title}", drawn.panels, caption, columns=4)
    table = Table(("line", "runs of a label", "distinct places", "LSSR of the line"), tuple(rows))
    numbers = {"depth": net.depth, "margin": net.margin, "printed_fold_of_three_labels": wrong.tolist()}
    progress(3, 3)
    return ExperimentResult(verdicts, numbers, figure, table)


def _followed(net: LNNet, x: Tensor, y: Tensor) -> list[tuple[str, int, int, float]]:
    lines = net.lines(x)
    names = ["projected", *(f"behind LayerNorm {k + 1}" for k in range(net.depth))]
    found = []
    for name, t in zip(names, lines, strict=True):
        left = float(lssr(t[:, None], y)) if places(t) > 1 else math.nan
        found.append((name, runs(t, y), places(t), float(f"{left:.3g}")))
    return found


EXPERIMENT = Experiment(
    name="p3.fig2",
    description=(
        "The proof's construction: points are projected to a line, a linear map and LayerNorm bend it to a circle, "
        "and reading the circle along a direction brings two points of one label together, layer after layer."
    ),
    settings={"problems": 200},
    quick={"problems": 10},
    paper_size={},
    run=run,
)
