"""
LayerNorm bends
===============

Between linear maps LayerNorm is the only thing that is not linear, and it is enough: such a network, three neurons
wide, gives any points any labels. In groups it bends more.
"""

# %%
# XOR through one LayerNorm
# -------------------------
#
# No linear map separates the four corners of a square by parity. :func:`~farfield.lnnet.lssr` says by how much it
# fails: 1, as badly as can be. Behind one LayerNorm it is nearly 0.

import matplotlib.pyplot as plt
import torch
from torch import nn

from farfield.lnnet import construct, curvature, lssr, trainable
from farfield.nn import GroupedLayerNorm, to_grouped

x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
y = torch.tensor([0, 1, 1, 0])
net = construct(x, y)
print("labels:", net.predict(x).tolist(), "with", net.depth, "LayerNorm")
print(f"part of the spread that stays within the labels: {lssr(x, y):.3f} → {lssr(net.circles(x)[0], y):.1e}")

# %%
# Sixty points, three labels
# --------------------------
#
# Layer after layer the line is laid on a circle and read along another direction, until each label is one run.

draw = torch.Generator().manual_seed(1)
points = torch.randn(60, 2, generator=draw, dtype=torch.float64)
labels = torch.randint(0, 3, (60,), generator=draw)
net = construct(points, labels)
lines = net.lines(points)
print(
    f"{int((net.predict(points) == labels).sum())} of 60 right, {net.depth} layers, {net.precision} digits needed"
)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.scatter(*points.T, c=labels, cmap="viridis")
left.set(title="the points", xlabel="x₁", ylabel="x₂")
for k in range(0, len(lines), max(1, len(lines) // 8)):
    z = lines[k] - lines[k].min()
    right.scatter(z / z.max(), torch.full_like(z, k), c=labels, cmap="viridis", s=12)
right.set(title="read behind each layer", xlabel="place on the line", ylabel="layer")
plt.show()

# %%
# In groups it bends more
# -----------------------
#
# :func:`~farfield.lnnet.curvature` is the size of all second derivatives. LN-G in groups of four bends most; groups
# of two keep only a sign and do not bend at all.

z = torch.randn(200, 32, generator=draw, dtype=torch.float64)
for groups in (1, 2, 4, 8, 16):
    norm = GroupedLayerNorm(32, groups, elementwise_affine=False, norm_eps=0.0)
    print(f"{groups:2} groups: H = {float(curvature(norm, z).median()):.4g}")

# %%
# A network to be trained
# -----------------------
#
# The same kind, wider, on a circle within a ring. ``groups=0`` leaves the norms out: a deep linear network, which
# can't.

angle, ring = 6.2832 * torch.rand(400, generator=draw), (torch.arange(400) % 2).float()
inputs = torch.stack([angle.cos(), angle.sin()], -1) * (1.0 + ring)[:, None]
inputs += 0.1 * torch.randn(400, 2, generator=draw)
fig, panels = plt.subplots(1, 3, figsize=(9.5, 3.3), layout="constrained")
grid = torch.stack(torch.meshgrid(*[torch.linspace(-3, 3, 80)] * 2, indexing="xy"), -1)
for axes, groups in zip(panels, (0, 1, 4), strict=True):
    model = trainable(2, 1, width=16, depth=2, groups=groups, seed=0)
    search = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        search.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], ring)
        loss.backward()
        search.step()
    right_share = float(((model(inputs)[:, 0] > 0) == (ring > 0)).double().mean())
    axes.imshow((model(grid)[..., 0] > 0).double(), extent=(-3, 3, -3, 3), origin="lower", alpha=0.3)
    axes.scatter(*inputs.T, c=ring, s=6)
    title = {0: "no norm", 1: "LayerNorm", 4: "LN-G, 4 groups"}[groups]
    axes.set_title(f"{title}: {right_share:.0%}")
plt.show()

# %%
# In a network of your own
# ------------------------
#
# :func:`~farfield.nn.to_grouped` puts LN-G in place of every LayerNorm of a model, on a copy and with the same
# weights.

encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
print(
    sum(isinstance(m, GroupedLayerNorm) for m in to_grouped(encoder, groups=4).modules()), "norms exchanged"
)
