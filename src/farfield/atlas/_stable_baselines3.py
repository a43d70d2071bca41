"""The networks of Stable-Baselines3: what its algorithms act and judge with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield.atlas._recipes import Recipes

__all__ = ["architectures", "build"]

_RECIPES = Recipes("stable_baselines3")
architectures, build = _RECIPES.architectures, _RECIPES.build
FEATURES, ACTIONS = 6, 2


class _ActorCritic(nn.Module):
    """Mean action (or logits) and value of a policy, without the draw."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.policy.extract_features(observation)
        actor, critic = self.policy.mlp_extractor(features)
        return self.policy.action_net(actor), self.policy.value_net(critic)


class _Mean(nn.Module):
    """The mean of an actor that draws, squashed as its actions are."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observation: Tensor) -> Tensor:
        mean, _, _ = self.actor.get_action_dist_params(observation)
        return torch.tanh(mean)


def _spaces(image: bool = False) -> tuple[Any, Any]:
    from gymnasium import spaces

    seen: Any = spaces.Box(-float("inf"), float("inf"), (FEATURES,))
    if image:
        seen = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
    return seen, spaces.Box(-1.0, 1.0, (ACTIONS,))


def _rate(_: float) -> float:
    return 1e-3


def _actor_critic(**options: Any) -> tuple[nn.Module, Any]:
    from stable_baselines3.common.policies import ActorCriticPolicy

    seen, acts = _spaces()
    return _ActorCritic(ActorCriticPolicy(seen, acts, _rate, **options)), {
        "observation": torch.randn(2, FEATURES)
    }


def _actor_critic_on_images() -> tuple[nn.Module, Any]:
    from stable_baselines3.common.policies import ActorCriticCnnPolicy

    seen, acts = _spaces(image=True)
    return _ActorCritic(ActorCriticCnnPolicy(seen, acts, _rate)), {"observation": torch.randn(2, 3, 36, 36)}


def _q_network() -> tuple[nn.Module, Any]:
    from gymnasium import spaces
    from stable_baselines3.dqn.policies import DQNPolicy

    policy = DQNPolicy(_spaces()[0], spaces.Discrete(3), _rate)
    return policy.q_net, (torch.randn(2, FEATURES),)


def _continuous(kind: str, part: str) -> tuple[nn.Module, Any]:
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    policy: Any = (SACPolicy if kind == "sac" else TD3Policy)(*_spaces(), _rate)
    state, action = torch.randn(2, FEATURES), torch.randn(2, ACTIONS)
    if part == "critic":
        return policy.critic, (state, action)
    return (_Mean(policy.actor) if kind == "sac" else policy.actor), (state,)


_RECIPES.add("ppo_a2c_mlp_policy", "ppo", "reinforcement learning", _actor_critic)
_RECIPES.add(
    "ppo_a2c_mlp_policy_relu",
    "ppo",
    "reinforcement learning",
    lambda: _actor_critic(activation_fn=nn.ReLU),
)
_RECIPES.add("ppo_a2c_cnn_policy", "ppo", "reinforcement learning", _actor_critic_on_images)
_RECIPES.add("dqn_q_network", "dqn", "reinforcement learning", _q_network)
for _kind in ("sac", "td3"):
    for _part in ("actor", "critic"):
        _RECIPES.add(
            f"{_kind}_{_part}",
            _kind,
            "reinforcement learning",
            lambda kind=_kind, part=_part: _continuous(kind, part),  # type: ignore[misc]
        )
