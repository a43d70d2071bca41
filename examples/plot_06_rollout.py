"""
Rollout: a learned pendulum that stays in its box
=================================================

A network has learned one step of a damped pendulum: the state now, the change to the state 0.1 s later. Fed with its
own output it may leave the region it knows, and then nothing stops it. :func:`farfield.repair` with ``rollout=True``
protects the state itself, and :func:`~farfield.certify.certify_rollout` says for *every* start where the states end.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import farfield as ff

torch.manual_seed(0)


def pendulum(state, steps=10, dt=0.01):
    """The truth: angle and speed 0.1 s later."""
    angle, speed = state.unbind(-1)
    for _ in range(steps):
        speed = speed + dt * (-9.81 * torch.sin(angle) - 0.3 * speed)
        angle = angle + dt * speed
    return torch.stack([angle, speed], -1)


states = torch.randn(3000, 2, dtype=torch.float64) * torch.tensor([1.0, 2.5], dtype=torch.float64)


class Step(nn.Module):
    """The next state: the state, plus what a network says of the change."""

    def __init__(self):
        super().__init__()
        self.change = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def forward(self, x):
        return x + self.change(x)


step = Step().double()
optimizer = torch.optim.Adam(step.parameters(), 3e-3)
for _ in range(400):
    optimizer.zero_grad()
    nn.functional.mse_loss(step(states), pendulum(states)).backward()
    optimizer.step()

# %%
# One step is good. Three hundred from a bad start are not
# ---------------------------------------------------------

fixed = ff.repair(step, states, rollout=True)


def roll(model, start, steps=300):
    path = [torch.as_tensor(start, dtype=torch.float64)[None]]
    with torch.no_grad():
        for _ in range(steps):
            path.append(model(path[-1]))
    return torch.cat(path)


start = [6.0, 20.0]  # pushed harder than ever in the data
paths = {"as trained": roll(step, start), "repaired": roll(fixed.model, start)}
for name, path in paths.items():
    print(f"{name}: angle after 300 steps {path[-1, 0]:.3g}, largest speed {path[:, 1].abs().max():.3g}")

# %%
# For every start there is
# ------------------------

found = ff.certify_rollout(fixed.model, states[:1], time_budget=ff.Budget(steps=200))
print(found.verdict)
low, high = found.attractor_lower.flatten(), found.attractor_upper.flatten()
print(
    f"every state ends with an angle in [{low[0]:.2f}, {high[0]:.2f}] and a speed in [{low[1]:.2f}, {high[1]:.2f}]"
)

# %%
# Side by side
# ------------

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(*states.T, ".", color="black", alpha=0.15, markersize=2, label="states of training")
for color, (name, path) in zip(("#D55E00", "#0072B2"), paths.items(), strict=True):
    axes.plot(*path.T, color=color, linewidth=1.2, label=name)
axes.plot(
    [low[0], high[0], high[0], low[0], low[0]], [low[1], low[1], high[1], high[1], low[1]],
    color="#009E73", label="proved: every state ends in here",
)  # fmt: skip
axes.plot(*start, "o", color="black", markersize=5)
axes.annotate("start", start, xytext=(6, 4), textcoords="offset points")
axes.set(xlabel="angle", ylabel="speed", xlim=(-8, 16), ylim=(-12, 24))
axes.grid(visible=True, alpha=0.25)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(fontsize=8, loc="upper right")
