"""
Repair: bounded without retraining
==================================

A network has learned a function of two inputs on a square. Outside the square it grows without limit.
:func:`farfield.repair` puts small modules into it that do nothing inside, and bound it outside.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import farfield as ff

torch.manual_seed(0)
rows = 2 * torch.rand(1000, 2) - 1
target = torch.sin(3 * rows[:, :1]) * torch.cos(2 * rows[:, 1:])

model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(rows), target).backward()
    optimizer.step()

# %%
# The repair needs rows, and no labels
# ------------------------------------

fixed = ff.repair(model, rows)
print(fixed)

# %%
# Before and after
# ----------------
#
# The square is where the data are: both pictures agree there. Outside, the repaired network keeps what it knows at
# the edge, and returns to the middle of its data where a reading is far too large to be true.

side = torch.linspace(-6, 6, 121)
grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(-1, 2)
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained", sharey=True)
for axes, (name, net) in zip(panels, (("as trained", model), ("repaired", fixed.model)), strict=True):
    with torch.no_grad():
        values = net(grid).reshape(121, 121)
    image = axes.pcolormesh(side, side, values, cmap="RdBu_r", vmin=-8, vmax=8, rasterized=True)
    axes.plot([-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1], color="black", linewidth=1.2)
    axes.set(
        title=f"{name}: {values.min():.1f} to {values.max():.1f} here", xlabel="first input", aspect="equal"
    )
panels[0].set_ylabel("second input")
figure.colorbar(image, ax=panels, label="output", extend="both")

# %%
# What changed near the data
# --------------------------

with torch.no_grad():
    same = (model(rows) == fixed.model(rows)).double().mean().item()
print(f"{same:.1%} of the rows have the same output to the last bit")
