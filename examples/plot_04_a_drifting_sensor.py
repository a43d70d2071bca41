"""
A surrogate in service, and a sensor that drifts
================================================

A network has learned the pressure drop of a pipe from flow, diameter, roughness and temperature. In service one of
the four sensors begins to drift. :func:`~farfield.monitor.guard` says when, says which, and keeps the answer in
bounds.
"""

# %%
# The surrogate
# -------------
#
# The truth is a formula here, so that every answer can be checked: Darcy and Weisbach's law with Haaland's friction
# factor, for water between 5 and 60 °C.

import matplotlib.pyplot as plt
import torch
from torch import nn

import farfield as ff

draw = torch.Generator().manual_seed(0)
LOW = torch.tensor([0.5, 0.05, 0.01, 5.0])  # speed in m/s, diameter in m, roughness in mm, temperature in °C
HIGH = torch.tensor([3.0, 0.20, 0.20, 60.0])


def pressure_drop(x):
    """kPa over 100 m."""
    speed, diameter, roughness, temperature = x.double().unbind(-1)
    viscosity = 1.78e-6 / (1 + 0.0337 * temperature + 0.000221 * temperature**2)
    reynolds = speed * diameter / viscosity
    friction = (-1.8 * torch.log10((roughness / 1000 / diameter / 3.7) ** 1.11 + 6.9 / reynolds)) ** -2
    return (friction * 100 / diameter * 1000 * speed**2 / 2 / 1000).float()


rows = LOW + (HIGH - LOW) * torch.rand(4000, 4, generator=draw)
target = torch.log(pressure_drop(rows))[:, None]
middle, spread = rows.mean(0), rows.std(0)


class Surrogate(nn.Module):
    """Standardize, two hidden layers, the logarithm of the pressure drop."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net((x - middle) / spread)


torch.manual_seed(0)
model = Surrogate()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(800):
    chosen = torch.randint(4000, (256,), generator=draw)
    optimizer.zero_grad()
    (model(rows[chosen]) - target[chosen]).square().mean().backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(f"error on the rows: {float((model(rows) - target).square().mean().sqrt()):.3f} in log(kPa)")

# %%
# Can it blow up? It can: the audit names the path, and a broken sensor is enough.

print(ff.audit(model, rows[:1]).verdict)

# %%
# A guard
# -------
#
# It is calibrated on rows without targets, and is a module like any other: `torch.export` and ONNX take it.

guarded = ff.guard(model, rows, on_outside="cap")

# %%
# Six hundred hours in service. From hour 200 on the temperature sensor gains half a degree an hour; at hour 480 its
# wire breaks, and it reads −3,000.

hours = torch.arange(600)
true = LOW + (HIGH - LOW) * (0.5 + 0.3 * torch.sin(hours[:, None] / torch.tensor([17.0, 41.0, 97.0, 29.0])))
read = true.clone()
read[200:, 3] += 0.5 * (hours[200:] - 200)
read[480:, 3] = -3000.0

with torch.no_grad():
    bare = model(read)[:, 0].exp()
    answer, score = guarded(read)
    capped = answer[:, 0].exp()
truth = pressure_drop(true)
first = int((score > 1).nonzero()[0])
print(f"the drift begins at hour 200; the guard's score passes 1 at hour {first}")
print(guarded.explain(read[first : first + 1])[0])
print(guarded.explain(read[590:591])[0])
print(guarded.summary())

# %%
# What the operator sees. Inside, the guarded model is the model to the last bit. Outside, it answers as for the
# nearest reading that was seen, and once the reading is absurd, as if the sensor were missing.

fig, panels = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
panels[0].plot(hours, true[:, 3], color="#7F7F7F", label="true")
panels[0].plot(hours, read[:, 3].clamp(-40, 220), color="#D55E00", label="read (cut at −40)")
panels[0].set(ylabel="temperature, °C")
panels[1].plot(hours, score.clamp(max=100), color="#CC79A7", label="score")
panels[1].axhline(1, color="#7F7F7F", linewidth=1)
panels[1].set(ylabel="score", yscale="log")
panels[2].plot(hours, truth, color="#7F7F7F", label="true")
panels[2].plot(hours, bare.clamp(1e-3, 1e5), color="#D55E00", label="model")
panels[2].plot(hours, capped, color="#0072B2", label="guarded")
panels[2].set(ylabel="pressure drop, kPa", xlabel="hour", yscale="log")
for axes in panels:
    axes.axvline(200, color="#7F7F7F", linewidth=0.8, linestyle=":")
    axes.axvline(480, color="#7F7F7F", linewidth=0.8, linestyle=":")
    axes.legend(frameon=False, loc="upper left")

for name, begin, end in (("sound", 0, 200), ("drifting", 200, 480), ("broken", 480, 600)):
    part = slice(begin, end)
    off = [float((p[part] / truth[part]).log().abs().max().exp()) for p in (bare, capped)]
    print(f"{name:9} worst factor off: model {off[0]:.3g}, guarded {off[1]:.3g}")

# %%
# A drift within the seen range is not noticed: the guard knows ranges and sizes, not what a reading should be.
# Statistics of drift belong beside it.
