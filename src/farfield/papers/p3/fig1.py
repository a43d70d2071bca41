"""XOR through one LayerNorm: no linear map separates it, a linear map and one norm do.

Run: ``farfield reproduce p3.fig1``
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from farfield.lnnet import construct, lssr, ssr
from farfield.papers._curves import digits
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Panel, Series


def xor() -> tuple[Tensor, Tensor]:
    """The four corners of the unit square, and the parity of each."""
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return corners, torch.tensor([0, 1, 1, 0])


def by_hand() -> nn.Sequential:
    """One linear map and one LayerNorm for XOR: t = x₁ + x₂ becomes the direction of (t − 1, 1).

    The two points of label 1 meet already on the line, those of label 0 at one height of the circle.
    """
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, 2, 3, dtype=torch.float64)
    along_line, across = _plane().unbind(1)
    with torch.no_grad():
        linear.weight.copy_(along_line[:, None].expand(3, 2))
        linear.bias.copy_(across - along_line)
    return nn.Sequential(linear, nn.LayerNorm(3, elementwise_affine=False))


def _plane() -> Tensor:
    """An orthonormal basis of the vectors without a mean, as columns, (3, 2)."""
    columns = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -2.0]], dtype=torch.float64)
    unit: Tensor = columns / columns.norm(dim=0)
    return unit


def along(points: Tensor, y: Tensor, angles: Tensor) -> Tensor:
    """SSR of points of the plane read along each direction, NaN where they all fall together; shape of angles."""
    found = []
    for angle in angles.tolist():
        direction = points.new_tensor([math.cos(angle), math.sin(angle)])
        t = points @ direction
        flat = float(t.max() - t.min()) < 1e-9
        found.append(math.nan if flat else float(ssr(t[:, None], y)))
    return torch.tensor(found, dtype=torch.float64)


def run(*, progress: Progress, seed: int, maps: int, problems: int, angles: int) -> ExperimentResult:
    """LSSR before and after, random linear maps that try to lower it, SSR along every direction of the plane."""
    draw = torch.Generator().manual_seed(seed)
    x, y = xor()
    with torch.no_grad():
        hidden = by_hand()(x)
    circle = hidden @ _plane() / math.sqrt(3.0)
    before, after = float(lssr(x, y)), float(lssr(hidden, y))
    net = construct(x, y, rule="paper", dtype=torch.float64, generator=draw)
    right = int((net.predict(x) == y).sum())

    lowest = math.inf
    for _ in range(maps):
        width = int(torch.randint(1, 6, (1,), generator=draw))
        mapped = x @ torch.randn(2, width, generator=draw, dtype=torch.float64)
        lowest = min(lowest, float(lssr(mapped, y)))
    progress(1, 3)

    fallen, attained = -math.inf, -math.inf
    for _ in range(problems):
        points, labels = _problem(draw)
        own = float(lssr(points, labels))
        width = int(torch.randint(1, 9, (1,), generator=draw))
        mapped = points @ torch.randn(points.shape[1], width, generator=draw, dtype=torch.float64)
        fallen = max(fallen, own - float(lssr(mapped, labels)))
        attained = max(attained, abs(_descend(points, labels) - own))
    progress(2, 3)

    turn = torch.linspace(0.0, math.pi, angles, dtype=torch.float64)
    flat, dipping = along(x, y, turn), along(circle, y, turn)
    verdicts = (
        ClaimVerdict(
            "XOR: the LSSR of the four points is 1 (to 1e-12)", abs(before - 1) < 1e-12, f"1 − {1 - before:.1e}"
        ),
        ClaimVerdict(
            f"XOR: none of {maps} random linear maps to 1 to 5 dimensions lowers it (by more than 1e-9)",
            lowest > 1 - 1e-9,
            f"lowest LSSR behind a map: 1 − {max(0.0, 1 - lowest):.1e}",
        ),
        ClaimVerdict(
            "XOR: behind one linear map and one LayerNorm of width 3 it is 0 (below 1e-12)",
            after < 1e-12,
            f"t = x₁ + x₂, the circle around (1, 0): LSSR {after:.1e}",
        ),
        ClaimVerdict(
            "XOR: the general construction needs one LayerNorm, too, and is right on all four points",
            net.depth == 1 and right == 4,
            f"depth {net.depth}, {right} of 4 right; from a random projection, LSSR "
            f"{float(lssr(net.circles(x)[0], y)):.2g}",
        ),
        ClaimVerdict(
            f"Proposition 1 on {problems} random problems (8 to 30 points, 2 to 6 dimensions, 2 or 3 labels): no "
            "random linear map lowers LSSR (by more than 1e-10)",
            fallen < 1e-10,
            f"largest fall {max(0.0, fallen):.1e}",
        ),
        ClaimVerdict(
            "there the closed form of LSSR is the infimum that a descent over directions finds, to 1e-8",
            attained < 1e-8,
            f"largest difference {attained:.1e}",
        ),
    )  # fmt: skip
    t, height = x.sum(1), circle[:, 1]
    ring = 2 * math.pi * torch.arange(91, dtype=torch.float64) / 90
    arc = Series("", digits(ring.cos()), digits(ring.sin()), style="dotted", color=7)
    panels = (
        Panel("XOR", "x₁", "x₂", _scatter(x[:, 0], x[:, 1], y)),
        Panel("projected", "t = x₁ + x₂", "label", _scatter(t, y.double(), y), y_range=(-0.5, 1.5)),
        Panel("behind LayerNorm", "along", "across", (arc, *_scatter(circle[:, 0], height, y)), y_range=(-1.1, 1.1)),
        Panel("read across", "t", "label", _scatter(height, y.double(), y), y_range=(-0.5, 1.5)),
    )  # fmt: skip
    directions = Panel(
        "SSR by direction", "direction (radian)", "SSR",
        (
            Series("XOR", digits(turn), digits(flat), style="dashed", color=6),
            Series("behind the LayerNorm", digits(turn), digits(dipping), color=2),
        ),
        y_range=(-0.05, 1.1),
    )  # fmt: skip
    caption = (
        "The four points, their projection, the circle behind LayerNorm and what is read from it; on a line the "
        "labels stand one above the other. Last: the part of the sum of squares within the labels, for points read "
        "along each direction of the plane."
    )
    figure = Figure("XOR through one LayerNorm", (*panels, directions), caption, columns=3)
    numbers = {
        "lssr_before": before,
        "lssr_after": after,
        "lowest_behind_a_linear_map": lowest,
        "ssr_before": float(ssr(x, y)),
        "ssr_after": float(ssr(circle, y)),
    }
    progress(3, 3)
    return ExperimentResult(verdicts, numbers, figure)


def _scatter(a: Tensor, b: Tensor, y: Tensor) -> tuple[Series, ...]:
    return tuple(
        Series(f"label {c}", digits(a[y == c]), digits(b[y == c]), style="points", color=c) for c in (0, 1)
    )


def _problem(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    m, d, classes = (
        int(torch.randint(low, high, (1,), generator=draw)) for low, high in ((8, 31), (2, 7), (2, 4))
    )
    points = torch.randn(m, d, generator=draw, dtype=torch.float64)
    labels = torch.cat([torch.arange(classes), torch.randint(0, classes, (m - classes,), generator=draw)])
    return points + 0.5 * labels[:, None], labels


def _descend(points: Tensor, labels: Tensor) -> float:
    """The least SSR over directions, by L-BFGS from several starts: knows nothing of eigenvalues."""
    best = math.inf
    for start in torch.eye(points.shape[1], dtype=torch.float64):
        direction = (start + 0.1).requires_grad_()
        search = torch.optim.LBFGS(
            [direction], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
        )  # fmt: skip

        def loss(direction: Tensor = direction, search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            value = ssr((points @ direction)[:, None], labels)
            value.backward()
            return value

        search.step(loss)
        best = min(best, float(ssr((points @ direction.detach())[:, None], labels)))
    return best


EXPERIMENT = Experiment(
    name="p3.fig1",
    description=(
        "XOR: the sum of squares within its labels is the whole sum of squares, whatever linear map the points go "
        "through; one LayerNorm with the right map before it brings the points of a label together."
    ),
    settings={"maps": 1000, "problems": 100, "angles": 181},
    quick={"maps": 50, "problems": 4, "angles": 37},
    paper_size={},
    run=run,
)
