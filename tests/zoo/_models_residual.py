"""Residual networks: the skip path is the escape path, unless something cuts it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("residual")
D = 12


def x6():
    return (torch.randn(2, 6),)


def branch(act=nn.ReLU):
    return nn.Sequential(nn.Linear(D, 2 * D), act(), nn.Linear(2 * D, D))


class PreNorm(nn.Module):
    """h ← h + f(norm(h)), as many times as asked; a final norm or not."""

    def __init__(self, depth=2, final=True, norm=nn.LayerNorm, act=nn.ReLU):
        super().__init__()
        self.embed, self.head = nn.Linear(6, D), nn.Linear(D, 2)
        self.norms = nn.ModuleList(norm(D) for _ in range(depth))
        self.branches = nn.ModuleList(branch(act) for _ in range(depth))
        self.final = norm(D) if final else nn.Identity()

    def forward(self, x):
        h = self.embed(x)
        for norm, block in zip(self.norms, self.branches, strict=True):
            h = h + block(norm(h))
        return self.head(self.final(h))


class PostNorm(nn.Module):
    """h ← norm(h + f(h))."""

    def __init__(self, depth=2, scale=1.0):
        super().__init__()
        self.scale = scale
        self.embed, self.head = nn.Linear(6, D), nn.Linear(D, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(depth))
        self.branches = nn.ModuleList(branch(nn.GELU) for _ in range(depth))

    def forward(self, x):
        h = self.embed(x)
        for norm, block in zip(self.norms, self.branches, strict=True):
            h = norm(self.scale * h + block(h))
        return self.head(h)


house.add(
    "pre_norm_without_final_norm",
    lambda: (PreNorm(final=False), x6()),
    UNBOUNDED,
    "embed(x) reaches the head through the skips; the branches are bounded",
    codes="FF002",
    degree=1.0,
)
house.add("pre_norm_with_final_norm", lambda: (PreNorm(), x6()), BOUNDED, "the final norm cuts the skip path")
house.add(
    "pre_rms_norm_without_final_norm",
    lambda: (PreNorm(final=False, norm=nn.RMSNorm, act=nn.SiLU), x6()),
    UNBOUNDED,
    "the same with RMSNorm",
    codes="FF002",
    degree=1.0,
)
house.add(
    "pre_rms_norm_with_final_norm",
    lambda: (PreNorm(norm=nn.RMSNorm, act=nn.SiLU), x6()),
    BOUNDED,
    "the final RMSNorm cuts the skip path",
)
house.add("post_norm", lambda: (PostNorm(), x6()), BOUNDED, "every block ends in a norm")
house.add("deep_norm", lambda: (PostNorm(4, 1.7), x6()), BOUNDED, "norm(α·h + f(h)) after every block")
house.add(
    "pre_batch_norm_with_final_batch_norm",
    lambda: (PreNorm(norm=nn.BatchNorm1d), x6()),
    UNBOUNDED,
    "every norm is affine in eval mode",
    codes="FF003",
    degree=1.0,
)


@house.unbounded("plain skips: bias-free network not 0", degree=1.0)
def plain_residual():
    def forward(m, x):
        h = m.embed(x)
        return m.head(h + m.block(h))

    return compose(forward, embed=nn.Linear(6, D), block=branch(), head=nn.Linear(D, 1)), x6()


@house.unbounded(
    "a branch normalized on both sides is bounded; the skip beside it is not", codes="FF002", degree=1.0
)
def sandwich_norm_without_final_norm():
    def forward(m, x):
        h = m.embed(x)
        h = h + m.after(m.block(m.before(h)))
        return m.head(h)

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            before=nn.LayerNorm(D),
            block=branch(),
            after=nn.LayerNorm(D),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.bounded("the embedding is normalized: the skips add bounded to bounded")
def normalized_embedding_then_skips():
    def forward(m, x):
        h = m.norm(m.embed(x))
        h = h + m.first(h)
        h = h + m.second(h)
        return m.head(h)

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            norm=nn.LayerNorm(D),
            first=branch(),
            second=branch(),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded("γ·f(norm(h)) is bounded, h is not", codes="FF002", degree=1.0)
def layer_scale():
    def forward(m, x):
        h = m.embed(x)
        return m.head(h + m.gamma * m.block(m.norm(h)))

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            norm=nn.LayerNorm(D),
            block=branch(),
            gamma=nn.Parameter(1e-4 * torch.ones(D)),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded("ReZero starts as the identity: h + 0·f(h)", degree=1.0)
def rezero():
    def forward(m, x):
        h = m.embed(x)
        return m.head(h + m.alpha * m.block(h))

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            block=branch(),
            alpha=nn.Parameter(torch.zeros(())),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded("σ(g)·h: where the gate opens, h passes", codes="FF002", degree=1.0)
def gated_residual():
    def forward(m, x):
        h = m.embed(x)
        gate = torch.sigmoid(m.gate(h))
        return m.head(gate * h + (1.0 - gate) * m.block(m.norm(h)))

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            gate=nn.Linear(D, D),
            norm=nn.LayerNorm(D),
            block=branch(),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded("t·relu(Wh) + (1 − t)·h is linear where t is 0 or 1", degree=1.0)
def highway():
    def forward(m, x):
        for value, gate in ((m.value1, m.gate1), (m.value2, m.gate2)):
            t = torch.sigmoid(gate(x))
            x = t * torch.relu(value(x)) + (1.0 - t) * x
        return m.head(x)

    return (
        compose(
            forward,
            value1=nn.Linear(6, 6),
            gate1=nn.Linear(6, 6),
            value2=nn.Linear(6, 6),
            gate2=nn.Linear(6, 6),
            head=nn.Linear(6, 1),
        ),
        x6(),
    )


def dense(final):
    def forward(m, x):
        for layer in m.layers:
            x = torch.cat([x, torch.relu(layer(x))], -1)
        return m.head(m.final(x))

    layers = nn.ModuleList(nn.Linear(6 + 8 * k, 8) for k in range(3))
    return compose(
        forward, layers=layers, final=nn.LayerNorm(30) if final else nn.Identity(), head=nn.Linear(30, 1)
    )


house.add(
    "dense_connections",
    lambda: (dense(False), x6()),
    UNBOUNDED,
    "the input is concatenated all the way",
    degree=1.0,
)
house.add("dense_connections_final_norm", lambda: (dense(True), x6()), BOUNDED, "one norm after all of them")


@house.bounded("h ← tanh(h + f(h)): every entry in [−1, 1]")
def residual_squashed_by_tanh():
    def forward(m, x):
        h = torch.tanh(m.embed(x))
        h = torch.tanh(h + m.block(h))
        return m.head(h)

    return compose(forward, embed=nn.Linear(6, D), block=branch(), head=nn.Linear(D, 1)), x6()


@house.bounded("h stays on the unit sphere: h ← norm(h + α(norm f(h) − h))")
def residual_on_the_sphere():
    def forward(m, x):
        h = functional.normalize(m.embed(x), dim=-1)
        h = functional.normalize(h + m.alpha * (functional.normalize(m.block(h), dim=-1) - h), dim=-1)
        return m.head(h)

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            block=branch(),
            alpha=nn.Parameter(0.1 * torch.ones(D)),
            head=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded(
    "the main head is normalized; the auxiliary one reads the stream before the norm",
    outputs=(BOUNDED, UNBOUNDED),
    codes="FF002",
    degree=1.0,
)
def auxiliary_head_before_the_norm():
    def forward(m, x):
        h = m.embed(x)
        h = h + m.block(m.norm(h))
        return m.head(m.final(h)), m.auxiliary(h)

    return (
        compose(
            forward,
            embed=nn.Linear(6, D),
            norm=nn.LayerNorm(D),
            block=branch(),
            final=nn.LayerNorm(D),
            head=nn.Linear(D, 1),
            auxiliary=nn.Linear(D, 1),
        ),
        x6(),
    )


@house.unbounded("the norm is followed by one more skip from the raw embedding", codes="FF002", degree=1.0)
def skip_over_the_final_norm():
    def forward(m, x):
        e = m.embed(x)
        return m.head(e + m.final(e + m.block(e)))

    return (
        compose(forward, embed=nn.Linear(6, D), block=branch(), final=nn.LayerNorm(D), head=nn.Linear(D, 1)),
        x6(),
    )
