"""Repaired actors and critics of Stable-Baselines3, in closed loop with sensors that break.

    pip install stable-baselines3
    python -m benchmarks.repair_control [--algorithms sac td3 ppo] [--seeds 3] [--episodes 20]

SAC, TD3 and PPO are trained on Pendulum-v1 with the library's own settings. Actor and critic are repaired on the
observations of the last training steps, without training or labels. Then the actor drives the pendulum: with sound
sensors, and with one sensor of three that reads 100 deviations at one step in ten (the same steps for every actor).
The critic is asked for its value where a speed sensor reads 1,000 times too much; returns of the task lie in
[−1627, 0] for a discount of 0.99.

Finished runs are lines of a file beside the record, and are not computed again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import farfield as ff
from benchmarks._records import save_record
from benchmarks.repair import OUT, kept_lines, vars_of
from farfield._provenance import provenance

STEPS = {"sac": 8_000, "td3": 12_000, "ppo": 120_000}
SHARE, BROKEN = 0.1, 100.0
LEAST = -16.2736044 / (1 - 0.99)
"""The least reward of Pendulum-v1, π² + 0.1·8² + 0.001·2², for ever, discounted by 0.99."""


class Actor(nn.Module):
    """Observation → action, deterministic."""

    def __init__(self, hidden: nn.Module, last: nn.Module, squash: bool, scale: float) -> None:
        super().__init__()
        self.hidden, self.last, self.squash, self.scale = hidden, last, squash, scale

    def forward(self, observation: Tensor) -> Tensor:  # noqa: D102
        action = self.last(self.hidden(observation))
        return self.scale * (torch.tanh(action) if self.squash else action)


def trained(name: str, seed: int) -> tuple[Actor, nn.Module, Tensor, Tensor]:
    """(actor, critic, observations, what the critic was asked)."""
    import gymnasium
    import stable_baselines3

    env = gymnasium.make("Pendulum-v1")
    kinds = {"sac": stable_baselines3.SAC, "td3": stable_baselines3.TD3, "ppo": stable_baselines3.PPO}
    options: dict[str, Any] = {"seed": seed, "device": "cpu"}
    if name == "ppo":
        options |= {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3}
    if name == "td3":
        sigma = 0.1 * np.ones(1)
        options["action_noise"] = stable_baselines3.common.noise.NormalActionNoise(np.zeros(1), sigma)
    agent = kinds[name]("MlpPolicy", env, **options).learn(STEPS[name])
    policy: Any = agent.policy
    if name == "ppo":
        actor = Actor(policy.mlp_extractor.policy_net, policy.action_net, squash=False, scale=1.0)
        critic: nn.Module = nn.Sequential(policy.mlp_extractor.value_net, policy.value_net)
        seen = torch.as_tensor(agent.rollout_buffer.observations).reshape(-1, 3)
        return actor.eval(), critic.eval(), seen, seen
    buffer: Any = agent.replay_buffer
    seen = torch.as_tensor(buffer.observations[: buffer.size()]).reshape(-1, 3)
    actions = torch.as_tensor(buffer.actions[: buffer.size()]).reshape(-1, 1)
    if name == "sac":
        actor = Actor(policy.actor.latent_pi, policy.actor.mu, squash=True, scale=2.0)
    else:  # TD3's network ends in its own tanh
        actor = Actor(policy.actor.mu, nn.Identity(), squash=False, scale=2.0)
    return actor.eval(), policy.critic.qf0.eval(), seen, torch.cat([seen, actions], 1)


@torch.no_grad()
def returns(actor: nn.Module, scale: Tensor, episodes: int, sensor: int | None) -> float:
    """Mean return; where a sensor breaks it does so at the same steps for every actor."""
    import gymnasium

    env = gymnasium.make("Pendulum-v1")
    draws = np.random.default_rng(0)
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1000 + episode)
        over = False
        while not over:
            row = torch.as_tensor(observation)[None]
            if sensor is not None and draws.random() < SHARE:
                row = row.clone()
                row[0, sensor] = BROKEN * float(scale[sensor]) * (1 if draws.random() < 0.5 else -1)
            action = actor(row)[0].clamp(-2.0, 2.0).numpy()
            observation, reward, ended, cut, _ = env.step(action)
            total += float(reward)
            over = ended or cut
    return total / episodes


def run(name: str, seed: int, episodes: int) -> dict[str, Any]:
    actor, critic, seen, asked = trained(name, seed)
    mended = ff.repair(actor, seen, even_if_bounded=True)
    judged = ff.repair(critic, asked, even_if_bounded=True)
    scale = seen.std(0)
    wild = asked.clone()
    wild[:, 2] *= 1000.0
    with torch.no_grad():
        values = {
            which: {"data": _range(model(asked)), "speed × 1000": _range(model(wild))}
            for which, model in (("as trained", critic), ("repaired", judged.model))
        }
    sensors = {"sound": None, "cos": 0, "sin": 1, "speed": 2}
    found = {
        which: {word: returns(model, scale, episodes, sensor) for word, sensor in sensors.items()}
        for which, model in (("as trained", actor), ("repaired", mended.model))
    }
    return {
        "algorithm": name, "seed": seed, "steps": STEPS[name], "returns": found, "values": values,
        "actor": mended.before.verdict.name, "critic": judged.before.verdict.name,
        "unchanged": {"actor": mended.change.unchanged, "critic": judged.change.unchanged},
    }  # fmt: skip


def _range(values: Tensor) -> list[float]:
    return [float(values.min()), float(values.max())]


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each algorithm: mean returns over seeds, and the critics' least values."""
    lines = []
    for name in dict.fromkeys(r["algorithm"] for r in runs):
        mine = [r for r in runs if r["algorithm"] == name]
        line: dict[str, Any] = {"algorithm": name, "seeds": len(mine), "critics": [r["critic"] for r in mine]}
        for which in ("as trained", "repaired"):
            returns_of = [r["returns"][which] for r in mine]
            broken = [np.mean([found[s] for s in ("cos", "sin", "speed")]) for found in returns_of]
            line[which] = {
                "sound": float(np.mean([found["sound"] for found in returns_of])),
                "broken": float(np.mean(broken)),
                "least value": min(r["values"][which]["speed × 1000"][0] for r in mine),
                "largest value": max(r["values"][which]["speed × 1000"][1] for r in mine),
            }
        lines.append(line)
    return lines


def main() -> None:
    """Train, repair, drive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithms", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    path = given.out / "control.runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_lines(path)
    done = {(r["algorithm"], r["seed"]) for r in runs}
    for seed in range(given.seeds):
        for name in given.algorithms:
            if (name, seed) in done:
                continue
            runs.append(run(name, seed, given.episodes))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(runs[-1]) + "\n")
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    lines = summary(runs)
    for line in lines:
        for which in ("as trained", "repaired"):
            part = line[which]
            print(
                f"{line['algorithm']:<4} {which:<11} sound {part['sound']:8.0f}   broken {part['broken']:8.0f}   "
                f"values with speed × 1000 from {part['least value']:.0f} to {part['largest value']:.0f}"
            )
    print(f"The least return there is: {LEAST:.0f}.")
    save_record({"provenance": provenance(vars_of(given)), "lines": lines}, given.out / "control.json")


if __name__ == "__main__":
    main()
