"""
Audit: where does a network escape?
===================================

Four small networks, all with a LayerNorm somewhere. Two of them are bounded for every input, two are not:
:func:`farfield.audit` says which, and names the path that goes around the norm.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import farfield as ff

torch.manual_seed(0)
WIDTH = 64


class Residual(nn.Module):
    """A residual block with its norm inside: the skip connection goes around it."""

    def __init__(self, final_norm: bool):
        super().__init__()
        self.embed = nn.Linear(3, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.LayerNorm(WIDTH) if final_norm else nn.Identity()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = self.embed(x)
        return self.head(self.last(h + self.block(self.norm(h))))


models = {
    "norm on every path": nn.Sequential(
        nn.Linear(3, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    ),
    "BatchNorm instead": nn.Sequential(
        nn.Linear(3, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    ),
    "residual, no final norm": Residual(final_norm=False),
    "residual, final norm": Residual(final_norm=True),
}

# %%
# One call for each
# -----------------

example = torch.zeros(1, 3)
audits = {name: ff.audit(model.eval(), example) for name, model in models.items()}
for name, found in audits.items():
    print(f"{name}: {found.verdict.name}", *(f"[{f.code}]" for f in found.findings))

# %%
# What the verdicts mean along a ray
# ----------------------------------
#
# The same four networks at growing distance from the origin. An unbounded one follows the straight line of its slope;
# a bounded one levels off.

distance = torch.logspace(-1, 4, 120)
direction = torch.tensor([1.0, -2.0, 0.5])
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for color, (name, model) in zip(("#0072B2", "#D55E00", "#E69F00", "#009E73"), models.items(), strict=True):
    with torch.no_grad():
        size = model(distance[:, None] * direction).abs()[:, 0]
    verdict = audits[name].verdict.name
    line = "-" if verdict == "BOUNDED" else "--"
    axes.loglog(distance, size, line, color=color, label=f"{name}: {verdict}")
axes.set(xlabel="distance from the origin", ylabel="|output|")
axes.grid(visible=True, alpha=0.25)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(fontsize=8)

# %%
# In a test suite
# ---------------
#
# ``assert_bounded`` passes, or fails with the path:

ff.assert_bounded(models["residual, final norm"], example)
try:
    ff.assert_bounded(models["residual, no final norm"], example)
except AssertionError as error:
    print(str(error)[:400])
