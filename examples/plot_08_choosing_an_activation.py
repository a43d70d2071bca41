"""
Choosing an activation by isometry strength
===========================================

A layer with an activation and a norm pulls the samples of a batch apart. How fast is decided by one number
of the activation, its isometry strength β: 1 leaves every correlation as it is, 2 removes the linear part
at once.
"""

# %%
# One number per activation
# -------------------------
#
# β = 2 − (E xσ(x))² / Var σ(x), with x a standard normal. :func:`~farfield.gaussian.isometry_strength`
# takes a name, a torch module or any elementwise function.

import matplotlib.pyplot as plt
import torch
from torch import nn

from farfield.gaussian import activation, isometry_strength, mean_reduced_dual, moments

names = ["sigmoid", "selu", "tanh", "softplus", "sin", "silu", "relu", "gelu", "step", "exp", "abs"]
strength = {name: isometry_strength(name) for name in names}

fig, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.bar(strength.keys(), strength.values(), color="#0072B2")
axes.set(ylim=(1.0, 2.12), ylabel="isometry strength β")
for position, value in enumerate(strength.values()):
    axes.text(position, value + 0.02, f"{value:.3f}", ha="center", fontsize=8)

# %%
# What it means for a pair of samples
# -----------------------------------
#
# One normalized layer of infinite width maps the correlation ρ of two samples to σ̄(ρ)/σ̄(1), with σ̄ the
# mean-reduced dual. The further this curve lies below the diagonal, the faster the pair becomes orthogonal.
# Its slope at the origin is 2 − β: that is the factor by which small correlations shrink in every layer.

rho = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)
colors = {"tanh": "#D55E00", "relu": "#0072B2", "step": "#009E73", "abs": "#CC79A7"}
fig, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
axes.plot(rho, rho, color="#7F7F7F", linestyle=":", label="identity, β = 1")
for name, color in colors.items():
    after = mean_reduced_dual(name, rho) / moments(name).variance
    axes.plot(rho, after, color=color, label=f"{name}, β = {strength[name]:.3f}")
axes.set(xlabel="correlation before the layer", ylabel="correlation after the layer")
axes.legend(frameon=False)

# %%
# The gain matters too
# --------------------
#
# Scaling the pre-activations by α changes β, except for a positively homogeneous activation such as ReLU. A
# small gain makes tanh nearly linear; a large one turns it into a step.

gains = torch.logspace(-1, 1.5, 40).tolist()
fig, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, color in {"tanh": "#D55E00", "relu": "#0072B2", "sin": "#009E73", "gelu": "#CC79A7"}.items():
    axes.semilogx(gains, [isometry_strength(name, gain=a) for a in gains], color=color, label=name)
axes.set(xlabel="gain α", ylabel="isometry strength of σ(αx)", ylim=(0.98, 2.02))
axes.legend(frameon=False)

# %%
# Your own activation
# -------------------
#
# Modules that torch ships are recognized. Anything else elementwise is wrapped: its kinks are located
# first, because the integrals are split there.


def shifted_leaky(x):
    return torch.where(x > 0.5, x, 0.1 * x + 0.45)


for sigma in (nn.GELU(approximate="tanh"), nn.LeakyReLU(0.2), shifted_leaky):
    known = activation(sigma)
    print(f"{known.name:14} β = {isometry_strength(sigma):.6f}   kinks at {known.kinks}")

# %%
# How to read the result: a larger β means that a deep normalized network starts from features that are
# closer to orthogonal. It says nothing about how well the network fits after training.
