"""A critic that diverges, and what the monitors say before: without a norm, with one, with one on every hidden layer.

    python -m benchmarks.diverging_critic [--seeds 5] [--steps 6000]

A pendulum is kept upright by a controller that needs little torque: ten episodes of it are all the data there are.
An actor is cloned from them, and then critic and actor learn on as in DDPG, without new data. The critic has never
seen a large torque, so what it says of one is extrapolation, and the actor goes where it says most. Rewards are at
most 0, so no value above 0 is possible.

Every 50 steps: the return of the actor on the pendulum itself, the mean value over the data, what the far-field
monitor and the tangent monitor say. For each run, the first step of three looks in a row at which

* the *return* has collapsed: half of the way from the cloned actor's to the worst that was met;
* the *values* on the data are impossible: above 0 by a tenth of the largest size a value on them can have, which is
  the largest reward in the data over 1 − discount;
* the *far field* is impossible: at ten radii of the data it exceeds ten times that size, so that its slope alone
  carries a value out of what is possible within one radius;
* the *tangent* monitor says that errors grow: an eigenvalue above 0.05 of the kernel's largest.

Finished runs are lines of a file beside the record, and are not computed again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._records import save_record
from benchmarks.repair import kept_lines
from farfield._provenance import provenance
from farfield.monitor import FarFieldMonitor, TangentMonitor

OUT = Path("docs/reproductions/monitor")
EPISODES, LENGTH = 10, 200
DISCOUNT, BATCH, EVERY = 0.99, 128, 50
ALARM, LOOKS = 0.05, 3
NORMS = ("none", "first", "every")


@dataclass(frozen=True)
class Pendulum:
    """Many pendulums at once, begun near the top: Gymnasium's ``Pendulum-v1``, equation for equation."""

    angle: np.ndarray
    speed: np.ndarray

    @classmethod
    def near_the_top(cls, count: int, rng: np.random.Generator) -> Pendulum:
        """So many, at most 20° off."""
        return cls(rng.uniform(-0.35, 0.35, count), rng.uniform(-0.35, 0.35, count))

    def observed(self) -> np.ndarray:
        """Cosine, sine, and the speed in eighths."""
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed / 8], -1).astype(np.float32)

    def moved(self, torque: np.ndarray) -> tuple[Pendulum, np.ndarray]:
        """0.05 s on, and the reward."""
        torque = np.clip(torque, -2, 2)
        off = (self.angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(off**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        speed = np.clip(self.speed + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8)
        return Pendulum(self.angle + speed * 0.05, speed), reward


def controller(seen: np.ndarray) -> np.ndarray:
    """Proportional and derivative."""
    return np.clip(-(8 * np.arctan2(seen[:, 1], seen[:, 0]) + 16 * seen[:, 2]), -2, 2)


def episodes(
    policy: Callable[[np.ndarray], np.ndarray], count: int, seed: int
) -> tuple[float, tuple[Tensor, ...]]:
    """The mean return, and (state, action, reward, next state)."""
    pendulum, total, rows = Pendulum.near_the_top(count, np.random.default_rng(seed)), 0.0, []
    for _ in range(LENGTH):
        seen = pendulum.observed()
        torque = policy(seen)
        pendulum, reward = pendulum.moved(torque)
        total += float(reward.mean())
        rows.append((seen, torque[:, None], reward[:, None], pendulum.observed()))
    return total, tuple(
        torch.tensor(np.concatenate(part), dtype=torch.float32) for part in zip(*rows, strict=True)
    )


class Critic(nn.Module):
    """(state, action) → value; a LayerNorm behind the first hidden layer, behind both, or none."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        first = [nn.LayerNorm(256)] if norm != "none" else []
        second = [nn.LayerNorm(256)] if norm == "every" else []
        self.net = nn.Sequential(
            nn.Linear(4, 256), *first, nn.ReLU(), nn.Linear(256, 256), *second, nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:  # noqa: D102
        value: Tensor = self.net(torch.cat([state, action], 1))
        return value


class Actor(nn.Module):
    """State → torque in [−2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh()
        )

    def forward(self, state: Tensor) -> Tensor:  # noqa: D102
        torque: Tensor = 2 * self.net(state)
        return torque

    @torch.no_grad()
    def drive(self, seen: np.ndarray) -> np.ndarray:
        """Its torques, for numbers outside torch."""
        return self(torch.from_numpy(seen))[:, 0].double().numpy()


def cloned(state: Tensor, action: Tensor, draws: torch.Generator, steps: int = 3000) -> Actor:
    """An actor that does what the data do."""
    actor = Actor()
    optimiser = torch.optim.Adam(actor.parameters(), 3e-4)
    for _ in range(steps):
        rows = torch.randint(len(state), (BATCH,), generator=draws)
        optimiser.zero_grad()
        (actor(state[rows]) - action[rows]).square().mean().backward()
        optimiser.step()
    return actor


def run(seed: int, norm: str, steps: int) -> dict[str, Any]:
    """One training run, looked at every 50 steps."""
    _, (state, action, reward, after) = episodes(controller, EPISODES, seed)
    torch.manual_seed(seed)
    draws = torch.Generator().manual_seed(seed)
    critic, target = Critic(norm), Critic(norm)
    target.load_state_dict(critic.state_dict())
    actor = cloned(state, action, draws)
    learn_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    learn_actor = torch.optim.Adam(actor.parameters(), 1e-5)
    shown = torch.randint(len(state), (64,), generator=draws)
    far = FarFieldMonitor(critic, (state[shown], action[shown]), every=EVERY)
    tangent = TangentMonitor(
        critic,
        (state[shown], action[shown]),
        lambda: (after[shown], actor(after[shown]).detach()),
        discount=DISCOUNT,
        every=EVERY,
    )
    looks = []
    for step in range(steps + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                value = float(critic(state, action).mean())
            look = {"step": step, "return": episodes(actor.drive, 20, 99)[0], "value": value}
            looks.append(look | far.step(step) | tangent.step(step))
        rows = torch.randint(len(state), (BATCH,), generator=draws)
        with torch.no_grad():
            wanted = reward[rows] + DISCOUNT * target(after[rows], actor(after[rows]))
        learn_critic.zero_grad()
        (critic(state[rows], action[rows]) - wanted).square().mean().backward()
        learn_critic.step()
        learn_actor.zero_grad()
        (-critic(state[rows], actor(state[rows])).mean()).backward()
        learn_actor.step()
        with torch.no_grad():
            for slow, quick in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(quick, 0.01)
    return {"seed": seed, "norm": norm, "looks": looks}


def first(
    looks: list[dict[str, float]], seen: Callable[[dict[str, float]], bool], in_a_row: int
) -> int | None:
    """The step of the first of so many looks in a row that show it."""
    count = 0
    for look in looks:
        count = count + 1 if seen(look) else 0
        if count == in_a_row:
            return int(look["step"])
    return None


def possible(seed: int) -> float:
    """The largest size a value on the data can have: their worst reward for ever."""
    _, (_, _, reward, _) = episodes(controller, EPISODES, seed)
    return float(reward.abs().max()) / (1 - DISCOUNT)


def told(made: dict[str, Any], worst: float) -> dict[str, Any]:
    """When what was seen in a run."""
    looks, limit = made["looks"], possible(made["seed"])
    half = (looks[0]["return"] + worst) / 2
    late = [look for look in looks if look["step"] > looks[-1]["step"] / 2]
    collapsed = first(looks, lambda look: look["return"] < half, LOOKS)
    return {
        "seed": made["seed"],
        "norm": made["norm"],
        "possible": limit,
        "return_at_first": looks[0]["return"],
        "return_late": statistics.median(look["return"] for look in late),
        "value_at_last": looks[-1]["value"],
        "slope_at_last": looks[-1]["far_field/slope"],
        "return": collapsed,
        "values": first(looks, lambda look: look["value"] > 0.1 * limit, LOOKS),
        "far_field": first(looks, lambda look: look["far_field/at_10"] > 10 * limit, LOOKS),
        "tangent": first(looks, lambda look: look["tangent/relative"] > ALARM, LOOKS),
    }


def main() -> None:
    """Every seed with and without the norm; a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = given.out / "diverging_critic.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_lines(path)
    done = {(r["seed"], r["norm"]) for r in runs if r["looks"][-1]["step"] == given.steps}
    for seed in range(given.seeds):
        for norm in NORMS:
            if (seed, norm) not in done:
                made = run(seed, norm, given.steps)
                runs.append(made)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(made) + "\n")
                print(f"seed {seed}, norm {norm}: done", flush=True)
    worst = min(look["return"] for made in runs for look in made["looks"])
    lines = [told(made, worst) for made in runs]
    for line in lines:
        print(json.dumps({k: v if not isinstance(v, float) else round(v, 3) for k, v in line.items()}))
    settings = {"seeds": given.seeds, "steps": given.steps}
    record = {
        "provenance": provenance(settings),
        "worst_return": worst,
        "runs": lines,
    }
    save_record(record, given.out / "diverging_critic.json")


if __name__ == "__main__":
    main()
