"""
LayerNorm in two parts
======================

LayerNorm first centers its input, then projects it to a sphere. The two parts have different guarantees, so
farfield keeps them apart: :class:`~farfield.nn.Center` and :class:`~farfield.nn.Project`.
"""

# %%
# The two parts make the whole
# ----------------------------

import matplotlib.pyplot as plt
import torch

from farfield.geometry import gram, isometry, isometry_gap, normalization_gain
from farfield.nn import MLP, Center, LayerNorm, Project

draw = torch.Generator().manual_seed(0)
x = torch.randn(5, 12, generator=draw)
theirs = torch.nn.LayerNorm(12, elementwise_affine=False)(x)
print("largest difference from torch's LayerNorm:", float((LayerNorm()(x) - theirs).abs().max()))

# %%
# Projection never lowers isometry
# --------------------------------
#
# Scaling every sample to the same length raises the isometry of the batch by exactly the ratio of the
# arithmetic to the geometric mean of the squared lengths. That is an identity, not a bound;
# :func:`~farfield.geometry.normalization_gain` is its logarithm.

lengths = torch.tensor([0.2, 0.5, 1.0, 2.0, 5.0])[:, None]
batch = (lengths * x).double()
before, after = isometry_gap(gram(batch)), isometry_gap(gram(Project()(batch)))
print(f"gap {before:.4f} → {after:.4f}, a gain of {before - after:.12f}")
print(f"predicted gain            {normalization_gain(gram(batch)):.12f}")

# %%
# Centering can
# -------------
#
# Two orthogonal samples in three dimensions have isometry 1. Centered, they are no longer orthogonal. In two
# dimensions they even become antipodal, and isometry falls to 0.

for d in (2, 3, 10, 100):
    pair = torch.eye(2, d, dtype=torch.float64)
    print(f"d = {d:3}:  isometry {isometry(gram(pair)):.3f} → {isometry(gram(Center()(pair))):.3f}")

# %%
# How often does it happen? Projection puts every random batch above the diagonal: isometry rose. LayerNorm,
# which centers first, puts many below it.

samples = [torch.randn(6, 8, generator=draw, dtype=torch.float64) for _ in range(400)]
start = torch.stack([isometry(gram(s)) for s in samples])
fig, panels = plt.subplots(1, 2, figsize=(8, 3.8), sharex=True, sharey=True, layout="constrained")
for axes, norm, title in zip(
    panels, (Project(), LayerNorm(norm_eps=0.0)), ("Project", "LayerNorm"), strict=True
):
    end = torch.stack([isometry(gram(norm(s))) for s in samples])
    lower = end < start
    axes.plot([0, 1], [0, 1], color="#7F7F7F", linewidth=1)
    axes.plot(start[~lower], end[~lower], "o", color="#0072B2", markersize=3)
    axes.plot(start[lower], end[lower], "o", color="#D55E00", markersize=3)
    axes.set(
        title=f"{title}: {int(lower.sum())} of 400 lower",
        xlabel="isometry before",
        xlim=(0, 0.8),
        ylim=(0, 0.8),
    )
panels[0].set_ylabel("isometry after")

# %%
# Projection is also what bounds the far field
# --------------------------------------------
#
# After the projection a vector of d features has length at most √d, whatever came in. If every path from
# input to output runs through it, the output is bounded for every input. One norm is enough. Without one, a
# ReLU network goes on along a straight line.

width = 128
settings = {"width": width, "depth": 2, "bias_var": 1.0, "dtype": torch.float64}
plain = MLP(1, 1, **settings, generator=torch.Generator().manual_seed(3))
normed = MLP(1, 1, **settings, norm="layer", placement="first", generator=torch.Generator().manual_seed(3))
line = torch.linspace(-50.0, 50.0, 1001, dtype=torch.float64)[:, None]
with torch.no_grad():
    fig, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    axes.plot(line, plain(line), color="#D55E00", label="no norm")
    axes.plot(line, normed(line), color="#0072B2", label="one LayerNorm, after the first layer")
    axes.axvspan(-1, 1, color="#7F7F7F", alpha=0.2, linewidth=0)
    axes.set(xlabel="input", ylabel="output")
    axes.legend(frameon=False)
    for scale in (1e2, 1e4, 1e8):
        far = torch.tensor([[scale]], dtype=torch.float64)
        print(f"x = {scale:g}: no norm {float(plain(far)):14.4g}   one LayerNorm {float(normed(far)):8.4f}")

# %%
# A bound is not a claim of accuracy: the flat line is a limit on how wrong the network can be, not a claim that it is
# right out there.
