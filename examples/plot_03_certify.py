"""
Certify: a range for every input
================================

A network with a LayerNorm on every path is bounded. :func:`farfield.certify` says by what numbers, for every input
there is, and :func:`~farfield.certify.verify_certificate` checks the proof without the code that found it.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import farfield as ff

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1)).double().eval()
example = torch.zeros(1, 2, dtype=torch.float64)

# %%
# More steps, a tighter range
# ---------------------------
#
# Whatever the search has found when it stops is proved. A budget in steps gives the same numbers on every machine; a
# plain number is a budget in seconds.

budgets = (1, 20, 100, 400)
found = [ff.certify(model, example, time_budget=ff.Budget(steps=steps)) for steps in budgets]
for steps, certificate in zip(budgets, found, strict=True):
    low, high = certificate.lower.item(), certificate.upper.item()
    print(f"{steps:4d} steps: [{low:.4f}, {high:.4f}], tightness {certificate.tightness.max():.3f}")
best = found[-1]

# %%
# What the network really does
# ----------------------------
#
# A thousand rays, from the origin out to a distance of 10⁶. None leaves the range; the best of them come close.

angle = torch.linspace(0, 2 * torch.pi, 1000, dtype=torch.float64)
directions = torch.stack([angle.cos(), angle.sin()], 1)
distance = torch.logspace(-2, 6, 200, dtype=torch.float64)
with torch.no_grad():
    along = torch.stack([model(r * directions)[:, 0] for r in distance])
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
low, high = along.min(1).values, along.max(1).values
axes.fill_between(distance, low, high, color="#0072B2", alpha=0.3, linewidth=0, label="met on 1,000 rays")
for bound, label in ((best.lower.item(), "proved for every input"), (best.upper.item(), None)):
    axes.axhline(bound, color="#009E73", label=label)
axes.set(xscale="log", xlabel="distance from the origin", ylabel="output")
axes.grid(visible=True, alpha=0.25)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="center right")
print("left the range:", bool((along < best.lower.item()).any() or (along > best.upper.item()).any()))

# %%
# Somebody else checks it
# -----------------------

print("accepted:", ff.verify_certificate(model, best))
