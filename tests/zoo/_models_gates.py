"""Products, gates, experts and heads: bounded × unbounded is unbounded, and some products decay."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("gates")


def x6():
    return (torch.randn(2, 6),)


def mlp(d=6, out=8, width=16):
    return nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, out))


# ------------------------------------------------------------------------------------------------------ gates


@house.unbounded("a·σ(b): where the gate opens, linear", degree=1.0, absent="FF007")
def glu():
    return nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 2)), x6()


@house.unbounded("silu(a)·b has degree 2", codes="FF007", degree=2.0)
def swiglu():
    def forward(m, x):
        return m.down(functional.silu(m.gate(x)) * m.up(x))

    return compose(forward, gate=nn.Linear(6, 8), up=nn.Linear(6, 8), down=nn.Linear(8, 2)), x6()


@house.bounded("silu(a)·b of a normalized vector: bounded × bounded")
def swiglu_after_norm():
    def forward(m, x):
        h = m.norm(x)
        return m.down(functional.silu(m.gate(h)) * m.up(h))

    return (
        compose(forward, norm=nn.RMSNorm(6), gate=nn.Linear(6, 8), up=nn.Linear(6, 8), down=nn.Linear(8, 2)),
        x6(),
    )


@house.unbounded("x·σ(x) is within 0.2785 of relu", degree=1.0)
def sigmoid_weighted_input():
    return compose(lambda m, x: m.head(x * torch.sigmoid(x)), head=nn.Linear(6, 1)), x6()


@house.unbounded("x·tanh(x) is within a constant of |x|", degree=1.0)
def input_times_its_tanh():
    return compose(lambda m, x: m.head(x * torch.tanh(x)), head=nn.Linear(6, 1)), x6()


@house.bounded("tanh(a)·σ(b)")
def tanh_times_sigmoid():
    def forward(m, x):
        a, b = m.first(x).chunk(2, -1)
        return m.head(torch.tanh(a) * torch.sigmoid(b))

    return compose(forward, first=nn.Linear(6, 16), head=nn.Linear(8, 1)), x6()


@house.bounded("|z|·exp(−z²) ≤ 0.43")
def input_times_gaussian():
    return compose(lambda m, x: m.head(x * torch.exp(-x * x)), head=nn.Linear(6, 1)), x6()


@house.bounded("|z|/(1 + z²) ≤ ½")
def rational_bump():
    return compose(lambda m, x: m.head(x / (1.0 + x.square())), head=nn.Linear(6, 1)), x6()


@house.bounded("|z|/√(1 + z²) < 1, entry by entry")
def algebraic_sigmoid():
    return compose(lambda m, x: m.head(x / torch.sqrt(1.0 + x * x)), head=nn.Linear(6, 1)), x6()


@house.bounded("z/(1 + |z|): softsign written out")
def softsign_by_hand():
    return compose(lambda m, x: m.head(x / (1.0 + x.abs())), head=nn.Linear(6, 1)), x6()


@house.unbounded(
    "FiLM: γ(z)·h(x) + β(z), linear in each and of degree 2 together",
    alone={"x": UNBOUNDED, "z": UNBOUNDED},
    codes="FF007",
    degree=2.0,
)
def film():
    def forward(m, x, z):
        gamma, beta = m.condition(z).chunk(2, -1)
        return m.head(torch.relu(gamma * m.first(x) + beta))

    return (
        compose(forward, condition=nn.Linear(3, 16), first=nn.Linear(6, 8), head=nn.Linear(8, 1)),
        (torch.randn(2, 6), torch.randn(2, 3)),
    )


@house.unbounded(
    "adaptive LayerNorm: bounded in x, linear in the condition that scales it",
    alone={"x": BOUNDED, "z": UNBOUNDED},
    degree=1.0,
)
def adaptive_layer_norm():
    def forward(m, x, z):
        gamma, beta = m.condition(z).chunk(2, -1)
        return m.head((1.0 + gamma) * m.norm(m.first(x)) + beta)

    return (
        compose(
            forward,
            condition=nn.Linear(3, 16),
            first=nn.Linear(6, 8),
            norm=nn.LayerNorm(8, elementwise_affine=False),
            head=nn.Linear(8, 1),
        ),
        (torch.randn(2, 6), torch.randn(2, 3)),
    )


@house.unbounded(
    "a bounded gate of z times a value of x", alone={"x": UNBOUNDED, "z": BOUNDED}, absent="FF007", degree=1.0
)
def gate_of_another_input():
    def forward(m, x, z):
        return m.head(torch.sigmoid(m.gate(z)) * m.value(x))

    return (
        compose(forward, gate=nn.Linear(3, 8), value=nn.Linear(6, 8), head=nn.Linear(8, 1)),
        (torch.randn(2, 6), torch.randn(2, 3)),
    )


# ---------------------------------------------------------------------------------------------------- experts


def mixture(experts, top=None):
    def forward(m, x):
        score = m.gate(x)
        if top is not None:
            best, _ = score.topk(top, -1)
            score = score.masked_fill(score < best[:, -1:], float("-inf"))
        outputs = torch.stack([expert(x) for expert in m.experts], 1)
        return (torch.softmax(score, -1).unsqueeze(-1) * outputs).sum(1)

    return compose(forward, gate=nn.Linear(6, 3), experts=nn.ModuleList(experts))


def normalized_expert():
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))


house.add(
    "mixture_of_experts",
    lambda: (mixture([mlp(out=2) for _ in range(3)]), x6()),
    UNBOUNDED,
    "far away the gate picks one expert, a ReLU network",
    degree=1.0,
)
house.add(
    "mixture_of_normalized_experts",
    lambda: (mixture([normalized_expert() for _ in range(3)]), x6()),
    BOUNDED,
    "a convex combination of bounded experts",
)
house.add(
    "mixture_with_one_plain_expert",
    lambda: (mixture([normalized_expert(), normalized_expert(), mlp(out=2)]), x6()),
    UNBOUNDED,
    "where the gate picks the expert without a norm, linear",
    codes="FF002",
    degree=1.0,
)
house.add(
    "sparse_mixture_of_experts",
    lambda: (mixture([mlp(out=2) for _ in range(3)], top=2), x6()),
    UNBOUNDED,
    "the two best of three ReLU networks",
    degree=1.0,
)


# ------------------------------------------------------------------------------------------------------ heads


@house.unbounded("softplus grows like its argument", degree=1.0)
def softplus_head():
    return nn.Sequential(mlp(out=1), nn.Softplus()), x6()


@house.unbounded("exp of a ReLU network", codes="FF007", degree=float("inf"))
def exponential_head():
    return compose(lambda m, x: torch.exp(m.body(x)), body=mlp(out=1)), x6()


@house.bounded("exp of a bounded number")
def exponential_head_after_norm():
    body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    return compose(lambda m, x: torch.exp(m.body(x)), body=body), x6()


@house.bounded("clipped to [−1, 1]", codes="FF008", bound=1.0)
def clamped_head():
    return compose(lambda m, x: m.body(x).clamp(-1.0, 1.0), body=mlp(out=2)), x6()


@house.unbounded("clipped from above only: it falls without limit", degree=1.0)
def head_clamped_from_above():
    return compose(lambda m, x: m.body(x).clamp(max=1.0), body=mlp(out=2)), x6()


@house.bounded("probabilities", codes="FF008", bound=1.0)
def classifier_probabilities():
    return nn.Sequential(mlp(out=4), nn.Softmax(-1)), x6()


@house.unbounded("log-probabilities of the losing classes fall linearly", degree=1.0)
def classifier_log_probabilities():
    return nn.Sequential(mlp(out=4), nn.LogSoftmax(-1)), x6()


@house.unbounded("log Σ exp is within log 4 of the maximum", degree=1.0)
def energy_head():
    return compose(lambda m, x: torch.logsumexp(m.body(x), -1), body=mlp(out=4)), x6()


@house.bounded("30·cosine of the angle to each class", bound=30.0)
def cosine_classifier():
    def forward(m, x):
        return 30.0 * functional.linear(
            functional.normalize(m.body(x), dim=-1), functional.normalize(m.classes, dim=-1)
        )

    return compose(forward, body=mlp(), classes=nn.Parameter(torch.randn(5, 8))), x6()


@house.unbounded(
    "weights are probabilities; means and widths are linear in the features",
    outputs=(BOUNDED, UNBOUNDED, UNBOUNDED),
    degree=1.0,
)
def mixture_density_heads():
    def forward(m, x):
        h = torch.tanh(m.first(x)) * x.norm(dim=-1, keepdim=True)
        return torch.softmax(m.weights(h), -1), m.means(h), functional.softplus(m.widths(h)) + 1e-3

    return (
        compose(
            forward,
            first=nn.Linear(6, 8),
            weights=nn.Linear(8, 3),
            means=nn.Linear(8, 3),
            widths=nn.Linear(8, 3),
        ),
        x6(),
    )


@house.bounded(
    "mean, softplus and softmax of a normalized feature vector", outputs=(BOUNDED, BOUNDED, BOUNDED)
)
def mixture_density_heads_after_norm():
    def forward(m, x):
        h = torch.relu(m.norm(m.first(x)))
        return torch.softmax(m.weights(h), -1), m.means(h), torch.exp(m.widths(h))

    return (
        compose(
            forward,
            first=nn.Linear(6, 8),
            norm=nn.LayerNorm(8),
            weights=nn.Linear(8, 3),
            means=nn.Linear(8, 3),
            widths=nn.Linear(8, 3),
        ),
        x6(),
    )


@house.unbounded("one head squashed, one not", outputs=(BOUNDED, UNBOUNDED), degree=1.0)
def one_bounded_head_of_two():
    def forward(m, x):
        h = torch.relu(m.first(x))
        return {"action": torch.tanh(m.action(h)), "value": m.value(h)}

    return compose(forward, first=nn.Linear(6, 8), action=nn.Linear(8, 2), value=nn.Linear(8, 1)), x6()


# ------------------------------------------------------------------------------------- canceling and constant


@house.bounded("relu(z) − relu(z) is 0", generic=False)
def difference_of_the_same():
    def forward(m, x):
        a = torch.relu(m.first(x))
        b = torch.relu(m.first(x))
        return m.head(a - b)

    return compose(forward, first=nn.Linear(6, 8), head=nn.Linear(8, 1)), x6()


@house.unbounded("softplus(z) − softplus(−z) is z", degree=1.0)
def difference_of_mirrored_softplus():
    def forward(m, x):
        z = m.first(x)
        return m.head(functional.softplus(z) - functional.softplus(-z))

    return compose(forward, first=nn.Linear(6, 8), head=nn.Linear(8, 1)), x6()


@house.bounded("signs and comparisons take finitely many values")
def signs_and_comparisons():
    def forward(m, x):
        z = m.first(x)
        return m.head(torch.sign(z) + torch.where(z > 1.0, 1.0, -1.0) + (z < 0).to(z.dtype))

    return compose(forward, first=nn.Linear(6, 8), head=nn.Linear(8, 1)), x6()


@house.bounded("min(relu(a), 3) lies in [0, 3]")
def minimum_with_a_constant():
    def forward(m, x):
        return m.head(torch.minimum(torch.relu(m.first(x)), m.cap))

    return compose(forward, first=nn.Linear(6, 8), cap=torch.tensor(3.0), head=nn.Linear(8, 1)), x6()


@house.unbounded("√|z| has no bound either", degree=0.5)
def square_root_growth():
    return compose(
        lambda m, x: m.head(torch.sqrt(1.0 + m.first(x).abs())), first=nn.Linear(6, 8), head=nn.Linear(8, 1)
    ), x6()
