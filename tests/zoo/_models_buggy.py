"""Shapes of real bugs: a norm that was asked for and is not there, is not enough, or is in the wrong place."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("buggy")


def x6():
    return (torch.randn(2, 6),)


class FlagIgnored(nn.Module):
    """``layer_norm=True`` is accepted, stored, and never looked at again."""

    def __init__(self, layer_norm=True):
        super().__init__()
        self.layer_norm = layer_norm
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


house.add(
    "flag_accepted_and_never_applied",
    lambda: (FlagIgnored(layer_norm=True), x6()),
    UNBOUNDED,
    "no norm is built",
    codes="FF001 FF005",
    degree=1.0,
)


class BuiltNotCalled(nn.Module):
    """``layer_norm=True`` builds the norm; ``forward`` does not call it."""

    def __init__(self, layer_norm=True):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.use_layer_norm = layer_norm

    def forward(self, x):
        return self.head(torch.relu(self.inner(x)))


house.add(
    "norm_built_and_never_called",
    lambda: (BuiltNotCalled(), x6()),
    UNBOUNDED,
    "the norm is not on the executed path",
    codes="FF001 FF005",
    degree=1.0,
)


class ResultDropped(nn.Module):
    """The norm is called, and what it returns is thrown away."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x):
        h = self.inner(x)
        self.norm(h)
        return self.head(torch.relu(h))


house.add(
    "norm_called_and_result_dropped",
    lambda: (ResultDropped(), x6()),
    UNBOUNDED,
    "norms do not work in place",
    codes="FF001 FF005",
    degree=1.0,
)


class OnlyInTraining(nn.Module):
    """The norm runs in training mode only."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x):
        h = self.inner(x)
        if self.training:
            h = self.norm(h)
        return self.head(torch.relu(h))


house.add(
    "norm_in_training_mode_only",
    lambda: (OnlyInTraining(), x6()),
    UNBOUNDED,
    "in eval mode there is no norm",
    codes="FF001 FF005",
    degree=1.0,
)


@house.unbounded("a pre-norm transformer whose final norm was forgotten", codes="FF001 FF002", degree=1.0)
def transformer_without_final_norm():
    def forward(m, x):
        return m.head(m.encoder(m.embed(x)).mean(1))

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
    return (
        compose(
            forward,
            embed=nn.Linear(3, 8),
            encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            head=nn.Linear(8, 1),
        ),
        (torch.randn(2, 4, 3),),
    )


@house.bounded(
    "the action is normalized before anything else: bounded, and a and 10·a look the same",
    alone={"state": BOUNDED, "action": BOUNDED},
    codes="FF009",
    absent="FF001",
)
def norm_on_the_action_vector():
    def forward(m, state, action):
        h = m.first(torch.cat([state, m.action_norm(action)], -1))
        return m.head(torch.relu(m.norm(h)))

    return (
        compose(
            forward,
            action_norm=nn.LayerNorm(4),
            first=nn.Linear(12, 16),
            norm=nn.LayerNorm(16),
            head=nn.Linear(16, 1),
        ),
        (torch.randn(2, 8), torch.randn(2, 4)),
    )


@house.unbounded(
    "only the action is normalized, the state is not",
    alone={"state": UNBOUNDED, "action": BOUNDED},
    codes="FF001 FF009",
    degree=1.0,
)
def norm_on_the_action_vector_only():
    def forward(m, state, action):
        h = m.first(torch.cat([state, m.action_norm(action)], -1))
        return m.head(torch.relu(h))

    return (
        compose(forward, action_norm=nn.LayerNorm(4), first=nn.Linear(12, 16), head=nn.Linear(16, 1)),
        (torch.randn(2, 8), torch.randn(2, 4)),
    )


@house.unbounded(
    "the second of two critics was built without the norm",
    outputs=(BOUNDED, UNBOUNDED),
    codes="FF001",
    degree=1.0,
)
def second_critic_without_norm():
    def forward(m, state, action):
        x = torch.cat([state, action], -1)
        return m.q1(x), m.q2(x)

    q1 = nn.Sequential(nn.Linear(11, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    q2 = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 1))
    return compose(forward, q1=q1, q2=q2), (torch.randn(2, 8), torch.randn(2, 3))


@house.unbounded(
    "instance statistics are put back at the end: normalizing is undone", codes="FF001", degree=1.0
)
def reversible_instance_norm():
    def forward(m, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        return m.net((x - mean) / std) * std + mean

    return compose(forward, net=nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))), x6()


@house.unbounded("the norm runs beside the path, not on it", codes="FF001 FF002", degree=1.0)
def norm_on_a_side_branch():
    def forward(m, x):
        h = m.first(x)
        return m.head(torch.relu(h) + 0.1 * torch.relu(m.norm(h)))

    return compose(forward, first=nn.Linear(6, 16), norm=nn.LayerNorm(16), head=nn.Linear(16, 1)), x6()


@house.unbounded("a ‘norm’ that divides by a fixed scale is an affine map", codes="FF001", degree=1.0)
def fixed_standardization():
    def forward(m, x):
        return m.net((x - m.mean) / m.std)

    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    return compose(forward, mean=torch.randn(6), std=torch.rand(6) + 0.5, net=net), x6()


@house.unbounded("divides by the square root of the spread: x^½ is left", codes="FF001", degree=0.5)
def norm_with_a_square_root_too_many():
    def forward(m, x):
        z = m.first(x)
        return m.head(z / torch.sqrt(z.std(-1, keepdim=True) + 1e-5))

    return compose(forward, first=nn.Linear(6, 16), head=nn.Linear(16, 1)), x6()


@house.unbounded("the norm's own scale is fed in beside it", codes="FF001", degree=1.0)
def norm_with_its_scale_as_a_feature():
    def forward(m, x):
        z = m.first(x)
        return m.head(torch.cat([m.norm(z), z.norm(dim=-1, keepdim=True)], -1))

    return compose(forward, first=nn.Linear(6, 16), norm=nn.LayerNorm(16), head=nn.Linear(17, 1)), x6()


@house.bounded("the norm sits on the time axis instead of the features: odd, and bounding all the same")
def norm_over_the_wrong_axis():
    def forward(m, x):
        h = functional.layer_norm(m.first(x).transpose(1, 2), (5,)).transpose(1, 2)
        return m.head(torch.relu(h))

    return compose(forward, first=nn.Linear(3, 8), head=nn.Linear(8, 1)), (torch.randn(2, 5, 3),)
