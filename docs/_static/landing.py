"""The picture on the landing page: P1's sinusoid, learned on [−5, 5] and followed out to ±25, three ways.

Five networks as trained, the same five after ``farfield.repair``, and five that were trained with one LayerNorm. The
shaded band is what ``farfield.certify`` proves for every input. Writes ``landing-{wide,tall}-{light,dark}.png``.

    python docs/_static/landing.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import farfield as ff
from farfield.data import load
from farfield.learn import Training, train
from farfield.nn import MLP

mpl.use("Agg")
HERE = Path(__file__).parent
INK = {"light": "#1f2328", "dark": "#d5dae0"}
# Okabe and Ito's palette, as in every figure of the project: one color for a network, one for what is proved.
LINE = {"light": "#0072B2", "dark": "#56B4E9"}
PROVED = {"light": "#009E73", "dark": "#3fc79a"}
SEEN = {"light": "#1f2328", "dark": "#d5dae0"}


def trained(norm: str | None) -> list[nn.Module]:
    """Five networks of two hidden layers of 128, one for each seed."""
    toy = load("sinusoid")
    nets = [
        MLP(1, 1, width=128, depth=2, norm=norm, placement="first", bias_var=0.01, norm_affine=True,
            generator=torch.Generator().manual_seed(seed))
        for seed in range(5)
    ]  # fmt: skip
    x, y = torch.as_tensor(toy.train.x).float(), torch.as_tensor(toy.train.y).float().reshape(-1, 1)
    return list(train(nets, x, y, training=Training(epochs=3000, lr=1e-3)).models)


def proved(models: list[nn.Module]) -> tuple[float, float]:
    """The widest of the certified ranges."""
    found = [
        ff.certify(
            m.double().eval(), torch.zeros(1, 1, dtype=torch.float64), time_budget=ff.Budget(steps=200)
        )
        for m in models
    ]
    return min(float(c.lower.min()) for c in found), max(float(c.upper.max()) for c in found)


def curves(models: list[nn.Module], x: Tensor) -> Tensor:
    """(networks, points)."""
    with torch.no_grad():
        return torch.stack([m.float().eval()(x[:, None].float())[:, 0] for m in models])


def draw(panels: list[tuple[str, str, Tensor, tuple[float, float] | None]], x: Tensor) -> None:
    """All four pictures."""
    toy = load("sinusoid")
    for theme, ink in INK.items():
        for shape, size in (("wide", (9.6, 3.0)), ("tall", (4.2, 7.4))):
            colored = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
            style = dict.fromkeys(colored, ink)
            with plt.rc_context(style | {"font.size": 10, "axes.titlesize": 10.5}):
                grid = (1, 3) if shape == "wide" else (3, 1)
                figure, axes = plt.subplots(
                    *grid, figsize=size, sharex=True, sharey=True, layout="constrained"
                )
                for axis, (title, note, lines, band) in zip(axes, panels, strict=True):
                    axis.axvspan(-5, 5, color=ink, alpha=0.08, linewidth=0)
                    if band is not None:
                        axis.axhspan(*band, color=PROVED[theme], alpha=0.16, linewidth=0)
                        for edge in band:
                            axis.axhline(edge, color=PROVED[theme], linewidth=1.0)
                    for line in lines:
                        axis.plot(x, line, color=LINE[theme], linewidth=1.3, alpha=0.85)
                    axis.plot(
                        toy.train.x[:, 0], np.ravel(toy.train.y), ".", color=SEEN[theme], markersize=2.5
                    )
                    axis.set_title(title, loc="left", fontweight="bold")
                    axis.text(0.02, 0.03, note, transform=axis.transAxes, fontsize=9)
                    axis.set_ylim(-13, 13)
                    axis.set_xlim(-25, 25)
                    axis.grid(visible=True, alpha=0.18, linewidth=0.6)
                    for side in ("top", "right"):
                        axis.spines[side].set_visible(False)
                last = axes[-1]
                axes[0].text(0, 11.2, "data", ha="center", fontsize=9)
                last.set_xlabel("input")
                axes[0].set_ylabel("output")
                figure.savefig(HERE / f"landing-{shape}-{theme}.png", dpi=150, transparent=True)
                plt.close(figure)


def main() -> None:
    """Train, repair, certify, draw."""
    x = torch.linspace(-25, 25, 801)
    toy = load("sinusoid")
    rows = torch.as_tensor(toy.train.x).float()
    plain, normed = trained(None), trained("layer")
    repaired = [ff.repair(m, rows).model for m in plain]
    lines = [curves(m, x) for m in (plain, repaired, normed)]
    bands = [None, proved(repaired), proved(normed)]
    print(bands, [float(line.abs().max()) for line in lines])

    def said(band: tuple[float, float]) -> str:
        return f"proved for every input: {band[0]:.1f} to {band[1]:.1f}".replace("-", "−")

    draw(
        [
            ("As trained", "grows without limit", lines[0], None),
            ("The same, after ff.repair", said(bands[1]), lines[1], bands[1]),
            ("Trained with one LayerNorm", said(bands[2]), lines[2], bands[2]),
        ],
        x,
    )


if __name__ == "__main__":
    main()
