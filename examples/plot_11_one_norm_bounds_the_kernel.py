"""
One LayerNorm bounds the kernel
===============================

A network of infinite width trains as regression with its tangent kernel Θ. Without a norm Θ(x, x) grows with x, and
what is learned can run away; with one LayerNorm anywhere it has a largest value, and so has every prediction.
"""

# %%
# The diagonal far away
# ---------------------
#
# Two hidden layers of ReLU. :meth:`~farfield.kernels.NetworkKernel.sup_diagonal` is exact: no input, however large,
# has a larger Θ(x, x).

import matplotlib.pyplot as plt
import torch

from farfield import kernels
from farfield.gaussian import activation
from farfield.regression import fit

PLACES = {"no norm": None, "norm first": "first", "norm second": "second", "both": "every"}
networks = {name: kernels.mlp(depth=2, layer_norm=place, bias_var=0.1) for name, place in PLACES.items()}
for name, k in networks.items():
    print(f"{name:12} sup Θ(x, x) = {k.sup_diagonal():.4g}")

# %%
# Predictions far away
# --------------------
#
# Ten points of a sine. Near them all four kernels agree; beyond, the one without a norm follows a straight line for
# ever. :meth:`~farfield.regression.Posterior.output_bound` is a number that the others never reach.

x = torch.linspace(-2.0, 2.0, 10, dtype=torch.float64)[:, None]
y = torch.sin(2.0 * x[:, 0])
wide = torch.linspace(-30.0, 30.0, 400, dtype=torch.float64)[:, None]
sizes = torch.logspace(-1, 4, 120, dtype=torch.float64)[:, None]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for name, k in networks.items():
    left.loglog(sizes, k.diagonal(sizes), label=name)
    posterior = fit(k.function("ntk"), x, y)
    line = right.plot(wide, posterior.mean(wide), label=name)[0]
    bound = posterior.output_bound()
    print(
        f"{name:12} |E f(x)| ≤ {bound:.4g} for every x; at x = 30 it is {float(posterior.mean(wide[-1:])):.3f}"
    )
right.plot(x, y, "k.", label="data")
right.set(ylim=(-6, 6), xlabel="x", ylabel="E f(x)", title="what is learned")
left.set(xlabel="|x|", ylabel="Θ(x, x)", title="the kernel's diagonal")
right.legend()
plt.show()

# %%
# Activations of other degrees
# ----------------------------
#
# The theory is of activations with φ(ax) = aⁿφ(x), n > ½. The slope of a small power falls steeply at angle 0, and
# its largest value is n²/(2n − 1) times the second moment.

theta = torch.linspace(0.0, 3.14159, 300, dtype=torch.float64)
points = torch.stack([theta.cos(), theta.sin()], -1)
fig, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for n in (0.6, 0.75, 1.0, 1.5, 2.0):
    k = kernels.mlp(depth=1, activation=activation("power_relu", n=n))
    axes.plot(theta, k.ntk(points[:1], points)[0] / k.diagonal(points[:1]), label=f"n = {n:g}")
axes.set(xlabel="angle between two inputs", ylabel="Θ(x, x′) / Θ(x, x)")
axes.legend()
plt.show()
