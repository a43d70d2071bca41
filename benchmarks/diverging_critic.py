"""A critic that diverges, and what the monitors say before: without a norm, with one, with one on every hidden layer.

    python -m benchmarks.diverging_critic [--seeds 5] [--steps 4000] [--pull 10 15]

A pendulum is kept upright by a controller that needs little torque: ten episodes of it are all the data there are, in
standard units as usual. An actor is cloned from them; then critic and actor learn on without new data, the actor held
to the data by their squared distance (as TD3+BC does, without its scaling of the critic). The data hold no large
torque, so what the critic says of one is extrapolation: where it says more, the actor leans that way, the critic
learns from its own answer there, and says more still. Rewards are at most 0, so no value above 0 is possible.

Every 50 steps: the return of the actor on the pendulum itself, the mean value over the data, what the far-field
monitor and the tangent monitor say. For each run, the step at which three looks in a row have shown that

* the *return* has collapsed: half of the way from the cloned actor's to the worst that was met in any run;
* the *values* on the data are impossible: above 0 by a tenth of the largest size a value on them can have, which is
  the largest reward in the data over 1 − discount;
* the *far field* grows: the slope at infinity is twice its median over the first ten looks;
* the *tangent* monitor says that errors grow: an eigenvalue above 0.05 of the kernel's largest.

Finished runs are lines of a file beside the record, and are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
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
PULLS = (10.0, 15.0)
"""How much the critic counts in the actor's loss, beside the squared distance from the data in standard units."""
ALARM, LOOKS, BEFORE = 0.05, 3, 10
NORMS = ("none", "first", "every")


@dataclass(frozen=True)
class Pendulum:
    """Many pendulums at once, begun near the top: Gymnasium's ``Pendulum-v1``, equation for equation."""

    angle: np.ndarray
    speed: np.ndarray

    @classmethod
    def near_the_top(cls, count: int, rng: np.random.Generator) -> Pendulum:
        """So many, at most 17° off."""
        return cls(rng.uniform(-0.3, 0.3, count), rng.uniform(-0.3, 0.3, count))

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


def units(rows: Tensor) -> nn.Module:
    """To standard units of these rows, as a layer that does not learn."""
    layer = nn.Linear(rows.shape[1], rows.shape[1]).requires_grad_(False)
    layer.weight.copy_(torch.diag(1 / rows.std(0)))
    layer.bias.copy_(-rows.mean(0) / rows.std(0))
    return layer


def critic_of(norm: str) -> nn.Sequential:
    """(state, action) in standard units → value; a LayerNorm behind the first hidden layer, behind both, or none."""
    first = [nn.LayerNorm(128)] if norm != "none" else []
    second = [nn.LayerNorm(128)] if norm == "every" else []
    return nn.Sequential(
        nn.Linear(4, 128), *first, nn.ReLU(), nn.Linear(128, 128), *second, nn.ReLU(), nn.Linear(128, 1)
    )


class Actor(nn.Module):
    """State → torque in [−2, 2]."""

    def __init__(self, state: Tensor) -> None:
        super().__init__()
        self.net = nn.Sequential(
            units(state),
            nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, state: Tensor) -> Tensor:  # noqa: D102
        torque: Tensor = 2 * self.net(state)
        return torque

    @torch.no_grad()
    def drive(self, seen: np.ndarray) -> np.ndarray:
        """Its torques, for numbers outside torch."""
        return self(torch.from_numpy(seen))[:, 0].double().numpy()


def cloned(state: Tensor, action: Tensor, draws: torch.Generator, steps: int = 2000) -> Actor:
    """An actor that does what the data do."""
    actor = Actor(state)
    optimizer = torch.optim.Adam(actor.parameters(), 3e-4)
    for _ in range(steps):
        rows = torch.randint(len(state), (BATCH,), generator=draws)
        optimizer.zero_grad()
        (actor(state[rows]) - action[rows]).square().mean().backward()
        optimizer.step()
    return actor


def run(seed: int, norm: str, steps: int, pull: float) -> dict[str, Any]:
    """One training run, looked at every 50 steps."""
    _, (state, action, reward, after) = episodes(controller, EPISODES, seed)
    torch.manual_seed(seed)
    draws = torch.Generator().manual_seed(seed)
    critic, target = critic_of(norm), critic_of(norm)
    target.load_state_dict(critic.state_dict())
    actor = cloned(state, action, draws)
    plain = units(torch.cat([state, action], 1))

    def pairs(states: Tensor, actions: Tensor) -> Tensor:
        made: Tensor = plain(torch.cat([states, actions], 1))
        return made

    learn_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    learn_actor = torch.optim.Adam(actor.parameters(), 3e-4)
    shown = torch.randint(len(state), (64,), generator=draws)
    example = pairs(state[shown], action[shown])
    far = FarFieldMonitor(critic, example, every=EVERY)
    tangent = TangentMonitor(
        critic,
        example,
        lambda: pairs(after[shown], actor(after[shown]).detach()),
        discount=DISCOUNT,
        every=EVERY,
    )
    looks = []
    for step in range(steps + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                value = float(critic(pairs(state, action)).mean())
            look = {"step": step, "return": episodes(actor.drive, 20, 99)[0], "value": value}
            looks.append(look | far.step(step) | tangent.step(step))
        rows = torch.randint(len(state), (BATCH,), generator=draws)
        with torch.no_grad():
            wanted = reward[rows] + DISCOUNT * target(pairs(after[rows], actor(after[rows])))
        learn_critic.zero_grad()
        (critic(pairs(state[rows], action[rows])) - wanted).square().mean().backward()
        learn_critic.step()
        learn_actor.zero_grad()
        torque = actor(state[rows])
        apart = ((torque - action[rows]) / action.std()).square().mean()
        (apart - pull * critic(pairs(state[rows], torque)).mean()).backward()
        learn_actor.step()
        with torch.no_grad():
            for slow, quick in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(quick, 0.01)
    return {"seed": seed, "norm": norm, "pull": pull, "looks": looks}


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
    usual = statistics.median(look["far_field/slope"] for look in looks[:BEFORE])
    collapsed = first(looks, lambda look: look["return"] < half, LOOKS)
    return {
        "seed": made["seed"],
        "norm": made["norm"],
        "pull": made["pull"],
        "possible": limit,
        "return_at_first": looks[0]["return"],
        "return_late": statistics.median(look["return"] for look in late),
        "value_at_last": looks[-1]["value"],
        "slope_at_last": looks[-1]["far_field/slope"],
        "return": collapsed,
        "values": first(looks, lambda look: look["value"] > 0.1 * limit, LOOKS),
        "far_field": first(looks, lambda look: look["far_field/slope"] > 2 * usual, LOOKS),
        "tangent": first(looks, lambda look: look["tangent/relative"] > ALARM, LOOKS),
    }


def main() -> None:
    """Every seed with and without the norm; a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--pull", type=float, nargs="+", default=PULLS, help="how much the critic counts")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = given.out / "diverging_critic.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_lines(path)
    done = {(r["pull"], r["seed"], r["norm"]) for r in runs if r["looks"][-1]["step"] == given.steps}
    for pull, seed, norm in itertools.product(given.pull, range(given.seeds), NORMS):
        if (pull, seed, norm) not in done:
            made = run(seed, norm, given.steps, pull)
            runs.append(made)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(made) + "\n")
            print(f"the critic counts {pull:g}, seed {seed}, norm {norm}: done", flush=True)
    worst = min(look["return"] for made in runs for look in made["looks"])
    lines = [told(made, worst) for made in runs]
    for line in lines:
        print(json.dumps({k: v if not isinstance(v, float) else round(v, 3) for k, v in line.items()}))
    settings = {"seeds": given.seeds, "steps": given.steps, "pull": list(given.pull)}
    record = {
        "provenance": provenance(settings),
        "worst_return": worst,
        "runs": lines,
    }
    save_record(record, given.out / "diverging_critic.json")


if __name__ == "__main__":
    main()
