"""Multilayer perceptrons: every activation, every place for a norm, every norm."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("mlp")


def x6():
    return (torch.randn(2, 6),)


def mlp(*middle, act=None, d=6, width=16, out=3):
    return nn.Sequential(nn.Linear(d, width), *middle, act or nn.ReLU(), nn.Linear(width, out))


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Bump(nn.Module):
    def forward(self, x):
        return torch.exp(-x.square())


class SquaredReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x).square()


class Snake(nn.Module):
    def forward(self, x):
        return x + torch.sin(x).square()


class Doubled(nn.Module):
    """Concatenated ReLU: both halves of the line."""

    def forward(self, x):
        return torch.cat([torch.relu(x), torch.relu(-x)], -1)


# ------------------------------------------------------------------------------------------- activations

GROWING = {
    "identity": (nn.Identity, "an affine map"),
    "relu": (nn.ReLU, "its bias-free network is not 0"),
    "leaky_relu": (nn.LeakyReLU, "piecewise linear, bias-free network not 0"),
    "prelu": (nn.PReLU, "piecewise linear, bias-free network not 0"),
    "gelu": (nn.GELU, "|gelu − relu| ≤ 0.17: slopes of the ReLU network"),
    "gelu_tanh": (lambda: nn.GELU("tanh"), "within a constant of relu"),
    "silu": (nn.SiLU, "|silu − relu| ≤ 0.2785: slopes of the ReLU network"),
    "mish": (nn.Mish, "|mish − relu| ≤ 0.3088: slopes of the ReLU network"),
    "elu": (nn.ELU, "|elu − relu| ≤ 1: slopes of the ReLU network"),
    "selu": (nn.SELU, "within a constant of 1.0507·relu"),
    "celu": (nn.CELU, "within a constant of relu"),
    "softplus": (nn.Softplus, "|softplus − relu| ≤ ln 2: slopes of the ReLU network"),
    "hardswish": (nn.Hardswish, "equals relu outside [−3, 3]"),
    "logsigmoid": (nn.LogSigmoid, "−softplus(−x): linear downwards"),
    "tanhshrink": (nn.Tanhshrink, "x − tanh x, within 1 of x"),
    "softshrink": (nn.Softshrink, "within ½ of x"),
    "hardshrink": (nn.Hardshrink, "x outside [−½, ½]"),
    "snake": (Snake, "x + sin² x, within 1 of x"),
}
for _name, (_act, _why) in GROWING.items():
    house.add(f"{_name}_mlp", lambda act=_act: (mlp(act=act()), x6()), UNBOUNDED, _why, degree=1.0)

SATURATING = {
    "tanh": (nn.Tanh, "|tanh| ≤ 1"),
    "sigmoid": (nn.Sigmoid, "values in (0, 1)"),
    "softsign": (nn.Softsign, "|x|/(1+|x|) < 1"),
    "hardtanh": (nn.Hardtanh, "clipped to [−1, 1]"),
    "hardsigmoid": (nn.Hardsigmoid, "clipped to [0, 1]"),
    "relu6": (nn.ReLU6, "clipped to [0, 6]"),
    "sine": (Sine, "|sin| ≤ 1"),
    "bump": (Bump, "exp(−x²) in (0, 1]"),
    "hidden_softmax": (lambda: nn.Softmax(-1), "probabilities"),
}
for _name, (_act, _why) in SATURATING.items():
    house.add(f"{_name}_mlp", lambda act=_act: (mlp(act=act()), x6()), BOUNDED, f"hidden units: {_why}")


@house.unbounded("relu² has degree 2", codes="FF007", degree=2.0)
def squared_relu_mlp():
    return mlp(act=SquaredReLU()), x6()


@house.unbounded("(relu(z), relu(−z)) keeps |z|", degree=1.0)
def concatenated_relu_mlp():
    return nn.Sequential(nn.Linear(6, 8), Doubled(), nn.Linear(16, 2)), x6()


@house.unbounded("the largest of several affine maps: linear along a generic ray", degree=1.0)
def maxout():
    def forward(m, x):
        return m.head(m.pieces(x).reshape(-1, 8, 3).amax(-1))

    return compose(forward, pieces=nn.Linear(6, 24), head=nn.Linear(8, 2)), x6()


# ------------------------------------------------------------------------------------------ where the norm sits


@house.bounded("the norm of a linear image is at most √16·max|γ| + |β|", absent="FF004 FF005 FF009")
def norm_before_the_activation():
    return mlp(nn.LayerNorm(16)), x6()


@house.bounded("every path passes the norm")
def norm_after_the_activation():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3)), x6()


@house.bounded("one norm at the second layer is enough")
def norm_at_the_second_layer():
    return (
        nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)
        ),
        x6(),
    )


@house.bounded("a norm at every layer", absent="FF010")
def norm_at_every_layer():
    layers = [
        layer
        for d in (6, 16, 16)
        for layer in (nn.Linear(d, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1))
    ]
    return nn.Sequential(*layers, nn.Linear(16, 1)), x6()


@house.bounded("the raw input is normalized; its scale is gone", codes="FF009")
def norm_on_the_raw_input():
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), x6()


@house.bounded("the norm of two numbers is ± one vector", codes="FF004 FF009")
def norm_of_two_features():
    return nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), (torch.randn(2, 2),)


@house.bounded("centering one number leaves 0: the network is constant", codes="FF004")
def norm_of_one_feature():
    return nn.Sequential(nn.Linear(6, 1), nn.LayerNorm(1), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)), x6()


@house.bounded("the output itself is normalized")
def norm_at_the_output():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.LayerNorm(5)), x6()


@house.unbounded("the raw input is concatenated after the norm", codes="FF002", degree=1.0)
def norm_then_raw_input_concatenated():
    def forward(m, x):
        return m.head(torch.cat([torch.relu(m.norm(m.first(x))), x], -1))

    return compose(forward, first=nn.Linear(6, 16), norm=nn.LayerNorm(16), head=nn.Linear(22, 1)), x6()


@house.bounded("24 layers, each normalized before its ReLU: samples align, and stay bounded", codes="FF010")
def deep_norm_before_relu():
    layers = [
        layer
        for k in range(24)
        for layer in (nn.Linear(6 if k == 0 else 16, 16), nn.LayerNorm(16), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(16, 1)), x6()


# ------------------------------------------------------------------------------------------------- which norm


@house.bounded("‖RMSNorm(z)‖ ≤ √d·max|γ|", absent="FF005")
def rms_norm():
    return mlp(nn.RMSNorm(16)), x6()


@house.bounded("each group has norm at most √(group size)")
def group_norm():
    return mlp(nn.GroupNorm(4, 16)), x6()


@house.bounded("LayerNorm without parameters")
def layer_norm_without_parameters():
    return mlp(nn.LayerNorm(16, elementwise_affine=False, eps=1e-3)), x6()


@house.unbounded("with fixed statistics BatchNorm is affine", codes="FF003", degree=1.0)
def batch_norm():
    return mlp(nn.BatchNorm1d(16)), x6()


@house.bounded("BatchNorm is affine, the LayerNorm after it bounds", absent="FF003")
def batch_norm_then_layer_norm():
    return mlp(nn.BatchNorm1d(16), nn.LayerNorm(16)), x6()


@house.bounded("unit length", bound=None)
def l2_normalized():
    def forward(m, x):
        return m.head(functional.normalize(m.body(x), dim=-1))

    return compose(forward, body=mlp(out=8), head=nn.Linear(8, 2)), x6()


@house.bounded("a LayerNorm written out: (z − mean)/√(var + ε)", absent="FF005")
def layer_norm_by_hand():
    def forward(m, x):
        z = m.first(x)
        z = z - z.mean(-1, keepdim=True)
        z = z / torch.sqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)
        return m.head(torch.relu(m.gain * z + m.shift))

    return (
        compose(
            forward,
            first=nn.Linear(6, 16),
            head=nn.Linear(16, 2),
            gain=nn.Parameter(torch.ones(16)),
            shift=nn.Parameter(torch.zeros(16)),
        ),
        x6(),
    )


@house.bounded("RMSNorm as in Llama: z·rsqrt(mean z² + ε)")
def rms_norm_by_hand():
    def forward(m, x):
        z = m.first(x)
        return m.head(functional.silu(m.gain * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6))))

    return (
        compose(forward, first=nn.Linear(6, 16), head=nn.Linear(16, 2), gain=nn.Parameter(torch.ones(16))),
        x6(),
    )


@house.bounded("RMSNorm as in Gemma: (1 + w)·z·rsqrt(mean z² + ε)")
def rms_norm_with_unit_offset():
    def forward(m, x):
        z = m.first(x)
        return m.head(z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * (1.0 + m.gain))

    return (
        compose(forward, first=nn.Linear(6, 16), head=nn.Linear(16, 2), gain=nn.Parameter(torch.zeros(16))),
        x6(),
    )


@house.bounded("(z − mean)/(std + ε): |z_i − mean| ≤ √(d−1)·std")
def standardized_by_hand():
    def forward(m, x):
        z = m.first(x)
        z = (z - z.mean(-1, keepdim=True)) / (z.std(-1, keepdim=True) + 1e-6)
        return m.head(torch.relu(z))

    return compose(forward, first=nn.Linear(6, 16), head=nn.Linear(16, 2)), x6()


@house.bounded("z·√d/max(‖z‖, ε), ScaleNorm")
def scale_norm():
    def forward(m, x):
        z = m.first(x)
        return m.head(torch.relu(m.gain * z / z.norm(dim=-1, keepdim=True).clamp(min=1e-5)))

    return (
        compose(
            forward,
            first=nn.Linear(6, 16),
            head=nn.Linear(16, 2),
            gain=nn.Parameter(torch.tensor(math.sqrt(16))),
        ),
        x6(),
    )


@house.bounded("each entry divided by the largest of its row (plus one)")
def divided_by_the_largest():
    def forward(m, x):
        z = m.first(x)
        return m.head(z / (z.abs().amax(-1, keepdim=True) + 1.0))

    return compose(forward, first=nn.Linear(6, 16), head=nn.Linear(16, 2)), x6()


@house.unbounded("a normalized weight is still a fixed linear map", degree=1.0, absent="FF005")
def weight_normalized():
    return (
        nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 16)),
            nn.ReLU(),
            parametrizations.weight_norm(nn.Linear(16, 1)),
        ),
        x6(),
    )


@house.unbounded("Lipschitz constant 1 is a slope, not a bound", degree=1.0)
def spectrally_normalized():
    return (
        nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(6, 16)),
            nn.ReLU(),
            parametrizations.spectral_norm(nn.Linear(16, 16)),
            nn.ReLU(),
            nn.utils.spectral_norm(nn.Linear(16, 1)),
        ),
        x6(),
    )


@house.unbounded("dropout is the identity in eval mode", degree=1.0)
def dropout_mlp():
    return mlp(nn.Dropout(0.5)), x6()


@house.bounded("standardized, then clipped to ±10, as RL libraries do with observations", codes="FF008")
def clipped_observations():
    def forward(m, x):
        return m.body(torch.clamp((x - m.mean) / torch.sqrt(m.var + 1e-8), -10.0, 10.0))

    return compose(forward, body=mlp(), mean=torch.randn(6), var=torch.rand(6) + 0.5), x6()


@house.bounded("the last layer starts at zero: the output is its bias", generic=False)
def zero_initialized_head():
    net = mlp()
    nn.init.zeros_(net[2].weight)
    return net, x6()
