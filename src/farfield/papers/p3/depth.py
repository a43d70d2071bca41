"""How deep a network of linear maps and LayerNorm must be for m points: two rules beside P3's count.

Run: ``farfield reproduce p3.depth``
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from farfield.engine import Checkpoint, fingerprint
from farfield.errors import PrecisionError
from farfield.lnnet import construct, smallest_digits
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Panel, Series, Table

FoldRule = Literal["paper", "fold"]


@dataclass(frozen=True)
class Built:
    """One problem and what its network took; ``failed`` says why there is none."""

    rule: str
    classes: int
    m: int
    right: bool
    depth: int = 0
    margin: float = 0.0
    suffice: int = 0
    """Digits estimated to suffice, by a first-order bound of all roundings."""
    needed: int = 0
    """Digits needed, measured by rounding the network to fewer."""
    failed: str = ""


def build(rule: FoldRule, classes: int, m: int, dimensions: int, seed: int) -> Built:
    """Random points in so many dimensions, random labels, and the network of a rule for them in float64."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(m, dimensions, generator=draw, dtype=torch.float64)
    y = torch.randint(0, classes, (m,), generator=draw)
    try:
        net = construct(x, y, rule=rule, dtype=torch.float64, generator=draw)
    except PrecisionError as error:
        return Built(rule, classes, m, False, failed=str(error))
    right = bool((net.predict(x) == y).all())
    return Built(rule, classes, m, right, net.depth, net.margin, net.precision, smallest_digits(net, x, y))


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    sizes: Mapping[str, Mapping[str, Sequence[int]]],
    labelings: int,
    dimensions: int,
) -> ExperimentResult:
    """Build for every rule, number of labels and m, several random labelings each."""
    todo = [
        (rule, int(classes), m, k)
        for rule, of_rule in sizes.items()
        for classes, ms in of_rule.items()
        for m in ms
        for k in range(labelings)
    ]
    store = Checkpoint(scratch, fingerprint("depth", seed, sizes, labelings, dimensions))
    kept: list[dict[str, Any]] = (store.load("built") or {}).get("rows", [])
    saved = time.monotonic()
    for rule, classes, m, k in todo[len(kept) :]:
        # The same points for every rule and number of labels.
        own = 1_000_000 * seed + 1000 * m + k
        kept.append(asdict(build("paper" if rule == "paper" else "fold", classes, m, dimensions, own)))
        if time.monotonic() - saved > 20:
            store.save("built", {"rows": kept})
            saved = time.monotonic()
        progress(len(kept), len(todo))
    built = [Built(**row) for row in kept]
    progress(len(todo), len(todo))
    return ExperimentResult(
        tuple(_verdicts(built)), {"problems": kept}, _figure(built, labelings, dimensions), _table(built)
    )


# ------------------------------------------------------------------ claims


def _verdicts(built: Sequence[Built]) -> list[ClaimVerdict]:
    claims = Claims()
    paper = [b for b in built if b.rule == "paper" and b.m <= 100]
    claims.add(
        "the paper's rule: every labeling tried up to m = 100 is classified perfectly in float64",
        all(b.right for b in paper),
        f"{sum(b.right for b in paper)} of {len(paper)} problems, {_words({b.classes for b in paper})} labels; "
        f"most digits needed {max(b.needed for b in paper)}",
    )
    claims.add(
        "the paper's rule: depth at most m − 2",
        all(b.depth <= b.m - 2 for b in paper if b.right),
        f"largest depth/(m − 2): {max(b.depth / (b.m - 2) for b in paper if b.right):.2f}",
    )
    fold = [b for b in built if b.rule == "fold" and b.classes == 2 and b.m <= 200]
    claims.add(
        f"the fold rule, two labels: every labeling tried up to m = {max(b.m for b in fold)} is classified "
        "perfectly in float64",
        all(b.right for b in fold),
        f"{sum(b.right for b in fold)} of {len(fold)} problems; most digits needed {max(b.needed for b in fold)}",
    )
    large = [b for b in fold if b.m >= 10 and b.right]
    deepest = max(large, key=lambda b: b.depth / b.m)
    claims.add(
        "the fold rule, two labels, m ≥ 10: depth below m/3",
        deepest.depth < deepest.m / 3,
        f"largest depth/m {deepest.depth / deepest.m:.3f} (m = {deepest.m}, depth {deepest.depth})",
    )
    many = [b for b in built if b.rule == "fold" and b.classes > 2]
    claims.add(
        "the fold rule, more labels: every labeling tried up to "
        f"m = {max(b.m for b in many)} is classified perfectly in float64, with depth at most m − 2",
        all(b.right and b.depth <= b.m - 2 for b in many),
        f"{sum(b.right for b in many)} of {len(many)} problems, {_words({b.classes for b in many})} labels; "
        f"largest depth/(m − 2) {max(b.depth / (b.m - 2) for b in many):.2f}; most digits needed "
        f"{max(b.needed for b in many)}",
    )
    right = [b for b in built if b.right]
    short = [b for b in right if b.needed > b.suffice]
    claims.add(
        "for every network, the digits that a first-order bound of all roundings says suffice are no fewer than "
        "those measured to be needed",
        not short,
        f"fewer for {len(short)} of {len(right)} networks"
        + (
            f", by up to {max(b.needed - b.suffice for b in short)} digits, the smallest of them with "
            f"m = {min(b.m for b in short)}"
            if short
            else ""
        ),
    )
    return claims


def _words(values: set[int]) -> str:
    first = [str(v) for v in sorted(values)]
    return " and ".join([", ".join(first[:-1]), first[-1]] if len(first) > 1 else first)


# ------------------------------------------------------------------ what is shown


def _grouped(built: Sequence[Built]) -> dict[tuple[str, int], dict[int, list[Built]]]:
    groups: dict[tuple[str, int], dict[int, list[Built]]] = {}
    for b in built:
        if b.right:
            groups.setdefault((b.rule, b.classes), {}).setdefault(b.m, []).append(b)
    return groups


def _figure(built: Sequence[Built], labelings: int, dimensions: int) -> Figure:
    groups = _grouped(built)
    few = min(b.classes for b in built)
    panels = []
    count = tuple(float(m) for m in sorted({b.m for b in built}))
    bound = Series("m − 2, P3's count", count, tuple(m - 2 for m in count), style="dotted", color=6)
    for title, chosen in (
        ("two labels", [k for k in groups if k[1] == few]),
        ("more labels", [k for k in groups if k[1] != few]),
    ):
        lines = [_line(k, groups[k], "depth") for k in chosen]
        panels.append(Panel(title, "points m", "LayerNorms", (*lines, bound), y_scale="log", x_scale="log"))
    needed = [_line(k, of, "needed") for k, of in groups.items()]
    limits = [
        Series(name, (count[0], count[-1]), (d, d), style="dotted", color=7)
        for name, d in (("float64, 15.7 digits", 15.7),)
    ]
    panels.append(
        Panel("precision", "points m", "decimal digits needed", (*needed, *limits), y_range=(0.0, 17.0))
    )
    caption = (
        f"Random points in {dimensions} dimensions with random labels, {labelings} problems for every m: mean, "
        "with the smallest and the largest. Digits needed: measured by rounding weights and arithmetic to fewer."
    )
    return Figure("Depth of a network of width 3 without activation", tuple(panels), caption, columns=3)


def _line(key: tuple[str, int], of: Mapping[int, Sequence[Built]], what: str) -> Series:
    rule, classes = key
    values = {m: torch.tensor([float(getattr(b, what)) for b in some]) for m, some in sorted(of.items())}
    return Series(
        f"{rule}, {classes} labels",
        tuple(float(m) for m in values),
        digits(float(v.mean()) for v in values.values()),
        digits(float(v.min()) for v in values.values()),
        digits(float(v.max()) for v in values.values()),
        style="line" if rule == "fold" else "dashed",
        color={2: 0, 3: 1}.get(classes, 2),
    )


def _table(built: Sequence[Built]) -> Table:
    rows = []
    for (rule, classes), of in _grouped(built).items():
        for m, some in sorted(of.items()):
            every = sum(b.rule == rule and b.classes == classes and b.m == m for b in built)
            depth = sum(b.depth for b in some) / len(some)
            rows.append(
                (
                    rule, classes, m, f"{len(some)}/{every}", m - 2, round(depth, 2), max(b.depth for b in some),
                    *digits([min(b.margin for b in some)]), max(b.needed for b in some), max(b.suffice for b in some),
                )
            )  # fmt: skip
    columns = ("rule", "labels", "m", "perfect", "m − 2", "mean depth", "largest", "least margin")
    return Table((*columns, "digits needed", "digits estimated"), tuple(rows))


EXPERIMENT = Experiment(
    name="p3.depth",
    description=(
        "Theorem 2: a network of linear maps and LayerNorm, three neurons wide and O(m) layers deep, gives m "
        "points any labels. Here the depth that networks really built took, by the paper's rule and by one that "
        "folds more at once, beside m − 2, and how many decimal digits of arithmetic they need."
    ),
    settings={
        "sizes": {
            "paper": {
                "2": [5, 10, 20, 30, 50, 70, 100], "3": [5, 10, 20, 30, 50, 70, 100],
                "10": [12, 20, 30, 50, 70, 100],
            },
            "fold": {
                "2": [5, 10, 20, 30, 50, 70, 100, 150, 200], "3": [5, 10, 20, 30, 50, 70, 100],
                "10": [12, 20, 30, 50, 70, 100],
            },
        },
        "labelings": 5, "dimensions": 3,
    },
    quick={
        "sizes": {"paper": {"2": [5, 12], "3": [8]}, "fold": {"2": [5, 12], "3": [8]}}, "labelings": 1,
    },
    paper_size={},
    run=run,
    resumable=True,
)  # fmt: skip
