"""Actors and critics as reinforcement-learning libraries write them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("rl")
S, A, W = 8, 3, 16


def state():
    return (torch.randn(2, S),)


def state_and_action():
    return torch.randn(2, S), torch.randn(2, A)


def body(d=S + A, out=1, norm=None):
    layers = []
    for size in (d, W):
        layers += [nn.Linear(size, W), *([norm(W)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(W, out))


def joined(m, state, action):
    return m.q(torch.cat([state, action], -1))


@house.bounded("tanh head: actions in [−1, 1]", codes="FF008", bound=1.0)
def td3_actor():
    return nn.Sequential(*body(S, A), nn.Tanh()), state()


@house.unbounded(
    "two ReLU networks of (state, action)",
    outputs=(UNBOUNDED, UNBOUNDED),
    alone={"state": UNBOUNDED, "action": UNBOUNDED},
    degree=1.0,
)
def td3_twin_critics():
    def forward(m, state, action):
        x = torch.cat([state, action], -1)
        return m.q1(x), m.q2(x)

    return compose(forward, q1=body(), q2=body()), state_and_action()


@house.bounded(
    "state and action concatenated before the norm",
    alone={"state": BOUNDED, "action": BOUNDED},
    absent="FF009",
)
def critic_action_before_the_norm():
    return compose(joined, q=body(norm=nn.LayerNorm)), state_and_action()


@house.unbounded(
    "the state is normalized, the action joins after the norm",
    alone={"state": BOUNDED, "action": UNBOUNDED},
    codes="FF002",
    degree=1.0,
)
def critic_action_after_the_norm():
    def forward(m, state, action):
        h = torch.relu(m.norm(m.first(state)))
        return m.q(torch.cat([h, action], -1))

    return (
        compose(
            forward,
            first=nn.Linear(S, W),
            norm=nn.LayerNorm(W),
            q=nn.Sequential(nn.Linear(W + A, W), nn.ReLU(), nn.Linear(W, 1)),
        ),
        state_and_action(),
    )


@house.bounded(
    "the action joins late, and one more norm follows", alone={"state": BOUNDED, "action": BOUNDED}
)
def critic_late_action_and_late_norm():
    def forward(m, state, action):
        h = torch.relu(m.norm1(m.first(state)))
        h = torch.relu(m.norm2(m.second(torch.cat([h, action], -1))))
        return m.q(h)

    return (
        compose(
            forward,
            first=nn.Linear(S, W),
            norm1=nn.LayerNorm(W),
            second=nn.Linear(W + A, W),
            norm2=nn.LayerNorm(W),
            q=nn.Linear(W, 1),
        ),
        state_and_action(),
    )


@house.bounded("DroQ: dropout and LayerNorm after every Linear")
def droq_critic():
    def layer(d):
        return (nn.Linear(d, W), nn.Dropout(0.01), nn.LayerNorm(W), nn.ReLU())

    return compose(joined, q=nn.Sequential(*layer(S + A), *layer(W), nn.Linear(W, 1))), state_and_action()


@house.unbounded(
    "CrossQ: BatchNorm in place of target networks, affine when it serves", codes="FF003", degree=1.0
)
def crossq_critic():
    q = nn.Sequential(nn.BatchNorm1d(S + A), *body(norm=nn.BatchNorm1d))
    return compose(joined, q=q), state_and_action()


@house.bounded("SimBa: residual pre-norm blocks, then a norm")
def simba_critic():
    def forward(m, state, action):
        x = torch.cat([torch.clamp((state - m.mean) / m.std, -5.0, 5.0), action], -1)
        h = m.embed(x)
        for norm, block in zip(m.norms, m.blocks, strict=True):
            h = h + block(norm(h))
        return m.head(m.final(h))

    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(W, 4 * W), nn.ReLU(), nn.Linear(4 * W, W)) for _ in range(2)
    )
    return (
        compose(
            forward,
            mean=torch.randn(S),
            std=torch.rand(S) + 0.5,
            embed=nn.Linear(S + A, W),
            norms=nn.ModuleList(nn.LayerNorm(W) for _ in range(2)),
            blocks=blocks,
            final=nn.LayerNorm(W),
            head=nn.Linear(W, 1),
        ),
        state_and_action(),
    )


@house.unbounded("an ensemble in one einsum: each member a ReLU network", degree=1.0)
def critic_ensemble():
    def forward(m, state, action):
        x = torch.cat([state, action], -1)
        h = torch.relu(torch.einsum("bi,kij->kbj", x, m.w1) + m.b1)
        return (torch.einsum("kbj,kjo->kbo", h, m.w2) + m.b2).amin(0)

    return (
        compose(
            forward,
            w1=nn.Parameter(torch.randn(3, S + A, W) / 3.0),
            b1=nn.Parameter(torch.randn(3, 1, W)),
            w2=nn.Parameter(torch.randn(3, W, 1) / 4.0),
            b2=nn.Parameter(torch.randn(3, 1, 1)),
        ),
        state_and_action(),
    )


@house.bounded("every member is normalized; mean and spread of bounded numbers")
def normalized_ensemble_mean_and_spread():
    def forward(m, state, action):
        x = torch.cat([state, action], -1)
        values = torch.stack([q(x) for q in m.members])
        return values.mean(0), values.std(0)

    return compose(
        forward, members=nn.ModuleList(body(norm=nn.LayerNorm) for _ in range(3))
    ), state_and_action()


@house.unbounded(
    "the mean is linear in the features; log σ is clipped to [−20, 2]",
    outputs=(UNBOUNDED, BOUNDED),
    degree=1.0,
)
def sac_actor_heads():
    def forward(m, state):
        h = m.body(state)
        return m.mean(h), torch.clamp(m.log_std(h), -20.0, 2.0)

    trunk = nn.Sequential(nn.Linear(S, W), nn.ReLU(), nn.Linear(W, W), nn.ReLU())
    return compose(forward, body=trunk, mean=nn.Linear(W, A), log_std=nn.Linear(W, A)), state()


@house.bounded("tanh of the mean; σ = exp of a clipped number", codes="FF008")
def sac_squashed_policy():
    def forward(m, state):
        h = torch.relu(m.first(state))
        log_std = -5.0 + 0.5 * 7.0 * (torch.tanh(m.log_std(h)) + 1.0)
        return torch.tanh(m.mean(h)), log_std.exp()

    return compose(forward, first=nn.Linear(S, W), mean=nn.Linear(W, A), log_std=nn.Linear(W, A)), state()


@house.unbounded(
    "log σ clipped from below only, then exponentiated: σ escapes faster than any power",
    codes="FF007",
    degree=float("inf"),
)
def log_std_clamped_on_one_side():
    def forward(m, state):
        return torch.exp(torch.clamp(m.body(state), min=-20.0))

    return compose(forward, body=body(S, A)), state()


@house.bounded("tanh trunk, linear heads, a free log σ: PPO's default", outputs=(BOUNDED, BOUNDED, BOUNDED))
def ppo_tanh_actor_critic():
    def forward(m, state):
        mean = m.actor(state)
        return mean, m.log_std.exp().expand_as(mean), m.critic(state)

    def trunk(out):
        return nn.Sequential(nn.Linear(S, W), nn.Tanh(), nn.Linear(W, W), nn.Tanh(), nn.Linear(W, out))

    return compose(forward, actor=trunk(A), critic=trunk(1), log_std=nn.Parameter(torch.zeros(A))), state()


@house.unbounded("value + advantage − mean advantage of a ReLU network", degree=1.0)
def dueling_dqn():
    def forward(m, state):
        h = m.features(state)
        advantage = m.advantage(h)
        return m.value(h) + advantage - advantage.mean(-1, keepdim=True)

    features = nn.Sequential(nn.Linear(S, W), nn.ReLU())
    return compose(forward, features=features, value=nn.Linear(W, 1), advantage=nn.Linear(W, 4)), state()


@house.bounded("the same on normalized features")
def dueling_dqn_with_norm():
    def forward(m, state):
        h = m.features(state)
        advantage = m.advantage(h)
        return m.value(h) + advantage - advantage.mean(-1, keepdim=True)

    features = nn.Sequential(nn.Linear(S, W), nn.LayerNorm(W), nn.ReLU())
    return compose(forward, features=features, value=nn.Linear(W, 1), advantage=nn.Linear(W, 4)), state()


@house.unbounded("Atari's network divides by 255, which bounds pixels and not reals", degree=1.0)
def nature_dqn():
    return (
        compose(
            lambda m, frames: m.net(frames / 255.0),
            net=nn.Sequential(
                nn.Conv2d(4, 8, 4, 2),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(72, 5),
            ),
        ),
        (torch.randn(2, 4, 12, 12),),
    )


@house.bounded("the mean of a distribution over fixed atoms lies between them", bound=10.0)
def categorical_dqn():
    def forward(m, state):
        probabilities = torch.softmax(m.body(state).reshape(-1, 4, 21), -1)
        return (probabilities * m.atoms).sum(-1)

    return compose(forward, body=body(S, 84), atoms=torch.linspace(-10.0, 10.0, 21)), state()


@house.unbounded("the inner product of two representations has degree 2", codes="FF007", degree=2.0)
def contrastive_critic():
    def forward(m, state, goal):
        return torch.einsum("bd,bd->b", m.phi(state), m.psi(goal))

    return compose(forward, phi=body(S, 4), psi=body(A, 4)), state_and_action()


@house.bounded("the inner product of unit vectors", bound=1.0)
def normalized_contrastive_critic():
    def forward(m, state, goal):
        return (functional.normalize(m.phi(state), dim=-1) * functional.normalize(m.psi(goal), dim=-1)).sum(
            -1
        )

    return compose(forward, phi=body(S, 4), psi=body(A, 4)), state_and_action()


@house.bounded("symlog input, norm, symexp of a bounded number", bound=None)
def dreamer_value():
    def forward(m, state):
        x = torch.sign(state) * torch.log1p(state.abs())
        y = torch.tanh(m.out(functional.silu(m.norm(m.first(x)))))
        return torch.sign(y) * (torch.exp(y.abs()) - 1.0)

    return compose(forward, first=nn.Linear(S, W), norm=nn.RMSNorm(W), out=nn.Linear(W, 1)), state()


@house.unbounded("symlog slows growth to a logarithm, and a logarithm has no bound", degree=0.0)
def symlog_mlp():
    def forward(m, state):
        return m.body(torch.sign(state) * torch.log1p(state.abs()))

    return compose(forward, body=body(S, 1)), state()


@house.unbounded("values scaled back by fixed statistics (PopArt): affine", degree=1.0)
def popart_value():
    def forward(m, state):
        return m.value(state) * m.std + m.mean

    return compose(forward, value=body(S), mean=torch.tensor(3.0), std=torch.tensor(7.0)), state()
