"""
Watching a Gram matrix become the identity
==========================================

Ten samples that look almost alike go through a random network, ReLU followed by LayerNorm, twenty times
over. Layer by layer their correlations vanish. A network of infinite width does this in a way that can be
computed exactly; a finite one follows it until its own chance correlations take over.
"""

# %%
# Samples that look alike
# -----------------------
#
# A common offset gives all pairs a correlation of about 0.9.

import matplotlib.pyplot as plt
import torch

from farfield.gaussian import isometry_strength
from farfield.geometry import (
    feature_isometry_gap,
    gram,
    isometry_gap,
    mean_field_gaps,
    mean_field_step,
    normalized_gram,
)
from farfield.geometry.bounds import predict_gap
from farfield.nn import MLP, Project

draw = torch.Generator().manual_seed(0)
n, dimension, depth = 10, 200, 20
x = Project()(torch.randn(n, dimension, generator=draw, dtype=torch.float64) + 3.0)
print(f"isometry gap of the inputs: {isometry_gap(gram(x)):.3f}")

# %%
# The mean field, layer by layer
# ------------------------------
#
# :func:`~farfield.geometry.mean_field_step` is one layer of infinite width, G ← σ̄(G)/σ̄(1).

shown = (0, 2, 5, 10, 20)
current, states = normalized_gram(gram(x)), []
for layer in range(depth + 1):
    if layer in shown:
        states.append(current)
    current = mean_field_step(current, "relu")

fig, panels = plt.subplots(1, len(shown), figsize=(9, 2.3), layout="constrained")
for axes, layer, state in zip(panels, shown, states, strict=True):
    image = axes.imshow(state.numpy(), vmin=0, vmax=1, cmap="Blues")
    axes.set(title=f"layer {layer}", xticks=[], yticks=[])
fig.colorbar(image, ax=panels, shrink=0.8, label="correlation")

# %%
# Beside it, networks of finite width
# -----------------------------------
#
# :class:`~farfield.nn.MLP` with ``order="post"`` puts the norm after the activation, and ``norm_eps=0`` is
# the norm of the theory. Random vectors in d dimensions are never quite orthogonal: every layer adds chance
# correlations of variance 1/d and shrinks those it inherits by 2 − β. So a network of width d ends near
# (n−1)/2d · 1/(1 − (2−β)²), the dotted lines.


def gaps_through(width, seed):
    net = MLP(
        dimension,
        None,
        width=width,
        depth=depth,
        activation="relu",
        norm="layer",
        order="post",
        parametrization="mean_field",
        norm_eps=0.0,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )
    gaps, state = [feature_isometry_gap(x)], x
    with torch.no_grad():
        for module in net:
            state = module(state)
            if isinstance(module, torch.nn.LayerNorm):
                gaps.append(feature_isometry_gap(state))
    return torch.stack(gaps)


theory = mean_field_gaps(gram(x), "relu", depth)
layers = torch.arange(depth + 1)
fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for width, color in ((100, "#E69F00"), (500, "#0072B2")):
    runs = torch.stack([gaps_through(width, seed) for seed in range(3)])
    axes.semilogy(layers, runs.T, color=color, linewidth=1, alpha=0.5)
    axes.semilogy(layers, runs.log().mean(0).exp(), color=color, linewidth=2, label=f"width {width}, 3 runs")
    chance = (n - 1) / (2 * width) / (1 - (2 - isometry_strength("relu")) ** 2)
    axes.axhline(chance, color=color, linestyle=":", linewidth=1)
axes.semilogy(layers, theory, "k--", label="infinite width, exact")
axes.set(xlabel="layer", ylabel="isometry gap", ylim=(1e-5, 10), xticks=range(0, depth + 1, 4))
axes.legend(frameon=False)

# %%
# Two rates
# ---------
#
# P2 proves that in the end the gap falls at least by a factor of 1/β a layer. Small correlations shrink by 2 − β and
# the gap is quadratic in them, so the true rate is (2−β)². :func:`~farfield.geometry.bounds.predict_gap` returns
# both beside the exact curve.

prediction = predict_gap(gram(x), "relu", 40)
beta = prediction.strength
late = prediction.mean_field[40] / prediction.mean_field[39]
print(f"proved rate 1/β    {1 / beta:.4f}")
print(f"true rate (2−β)²   {(2 - beta) ** 2:.4f}")
print(f"at layer 40        {late:.4f}")

fig, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
deep = torch.arange(41)
axes.semilogy(deep, prediction.mean_field, "k", label="infinite width, exact")
axes.semilogy(deep, prediction.sharp_rate, color="#CC79A7", linestyle=":", label="rate (2−β)²")
axes.semilogy(deep, prediction.paper_rate, color="#E69F00", linestyle=":", label="rate 1/β")
axes.set(xlabel="layer", ylabel="isometry gap", ylim=(1e-10, 10))
axes.legend(frameon=False)
