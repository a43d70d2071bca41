"""Operators, fields, flows and solvers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("science")


def mlp(d, out, act=nn.ReLU, width=16):
    return nn.Sequential(nn.Linear(d, width), act(), nn.Linear(width, out))


def points(d=2):
    return (torch.randn(2, d),)


# -------------------------------------------------------------------------------------------------- operators


def deep_operator(m, function, point):
    return (m.branch(function) * m.trunk(point)).sum(-1, keepdim=True) + m.bias


@house.unbounded(
    "branch times trunk: degree 2 together, 1 in each",
    alone={"function": UNBOUNDED, "point": UNBOUNDED},
    codes="FF007",
    degree=2.0,
)
def deeponet():
    return (
        compose(deep_operator, branch=mlp(6, 8), trunk=mlp(2, 8, nn.GELU), bias=nn.Parameter(torch.zeros(1))),
        (torch.randn(2, 6), torch.randn(2, 2)),
    )


@house.unbounded(
    "a tanh trunk is bounded in the point, the branch is linear in the function",
    alone={"function": UNBOUNDED, "point": BOUNDED},
    degree=1.0,
)
def deeponet_with_bounded_trunk():
    return (
        compose(deep_operator, branch=mlp(6, 8), trunk=mlp(2, 8, nn.Tanh), bias=nn.Parameter(torch.zeros(1))),
        (torch.randn(2, 6), torch.randn(2, 2)),
    )


@house.bounded(
    "normalized branch times tanh trunk: bounded × bounded", alone={"function": BOUNDED, "point": BOUNDED}
)
def deeponet_normalized():
    branch = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))
    return (
        compose(deep_operator, branch=branch, trunk=mlp(2, 8, nn.Tanh), bias=nn.Parameter(torch.zeros(1))),
        (torch.randn(2, 6), torch.randn(2, 2)),
    )


@house.unbounded(
    "the Cartesian product form: every function at every point",
    alone={"functions": UNBOUNDED, "points": UNBOUNDED},
    codes="FF007",
    degree=2.0,
    batched=False,
)
def deeponet_on_a_grid():
    def forward(m, functions, points):
        return torch.einsum("bp,qp->bq", m.branch(functions), m.trunk(points))

    return compose(forward, branch=mlp(6, 8), trunk=mlp(1, 8)), (torch.randn(3, 6), torch.randn(5, 1))


class SpectralConv(nn.Module):
    """Fourier layer: a few modes are mixed, the others dropped."""

    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, 2) / channels)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        mixed = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], torch.view_as_complex(self.weight))
        mixed = functional.pad(mixed, (0, spectrum.shape[-1] - self.modes))
        return torch.fft.irfft(mixed, n=x.shape[-1])


class FNO(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.lift, self.project = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 1, 1)
        self.spectral = nn.ModuleList(SpectralConv(4, 3) for _ in range(2))
        self.local = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(2))
        self.norms = nn.ModuleList(norm(4) for _ in range(2))

    def forward(self, x):
        h = self.lift(x)
        for spectral, local, norm in zip(self.spectral, self.local, self.norms, strict=True):
            h = functional.gelu(norm(spectral(h) + local(h)))
        return self.project(h)


house.add(
    "fno",
    lambda: (FNO(lambda c: nn.Identity()), (torch.randn(2, 1, 12),)),
    UNBOUNDED,
    "transforms and mixing are linear, GELU is within a constant of ReLU",
    degree=1.0,
)
house.add(
    "fno_with_group_norm",
    lambda: (FNO(lambda c: nn.GroupNorm(1, c)), (torch.randn(2, 1, 12),)),
    BOUNDED,
    "a norm after every Fourier layer",
)


class SpectralConv2d(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, modes, 2) / channels)

    def forward(self, x):
        k, spectrum = self.modes, torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[..., :k, :k] = torch.einsum(
            "biuv,iouv->bouv", spectrum[..., :k, :k], torch.view_as_complex(self.weight)
        )
        return torch.fft.irfft2(out, s=x.shape[-2:])


@house.unbounded("a two-dimensional Fourier layer with in-place assignment of its modes", degree=1.0)
def fno_2d():
    return (
        nn.Sequential(nn.Conv2d(1, 3, 1), SpectralConv2d(3, 2), nn.GELU(), nn.Conv2d(3, 1, 1)),
        (torch.randn(2, 1, 6, 6),),
    )


# ----------------------------------------------------------------------------------------------------- fields


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(30.0 * x)


def siren():
    return nn.Sequential(nn.Linear(2, 16), Sine(), nn.Linear(16, 16), Sine(), nn.Linear(16, 1))


house.add("siren", lambda: (siren(), points()), BOUNDED, "|sin| ≤ 1")


@house.unbounded("a linear trend beside the sines", degree=1.0)
def siren_with_linear_trend():
    return compose(lambda m, x: m.net(x) + m.trend(x), net=siren(), trend=nn.Linear(2, 1)), points()


@house.bounded("sin and cos of frequencies, then a ReLU network of bounded numbers")
def fourier_features():
    def forward(m, x):
        angle = 2.0 * math.pi * x @ m.frequencies
        return m.net(torch.cat([torch.sin(angle), torch.cos(angle)], -1))

    return compose(forward, frequencies=torch.randn(2, 8), net=mlp(16, 1)), points()


@house.unbounded("NeRF concatenates the raw coordinates to the sines", degree=1.0)
def nerf_encoding_with_raw_coordinates():
    def forward(m, x):
        parts = [x]
        for k in range(3):
            parts += [torch.sin(2.0**k * x), torch.cos(2.0**k * x)]
        return m.net(torch.cat(parts, -1))

    return compose(forward, net=mlp(14, 4)), points()


@house.bounded("exp(−‖x − c‖²/2s²) in (0, 1]")
def radial_basis():
    def forward(m, x):
        distance = (x.unsqueeze(1) - m.centers).square().sum(-1)
        return m.head(torch.exp(-distance * torch.exp(m.log_width)))

    return (
        compose(
            forward,
            centers=nn.Parameter(torch.randn(8, 2)),
            log_width=nn.Parameter(torch.randn(8)),
            head=nn.Linear(8, 1),
        ),
        points(),
    )


@house.bounded("1/√(1 + ‖x − c‖²) ≤ 1")
def inverse_multiquadric():
    def forward(m, x):
        return m.head(torch.rsqrt(1.0 + (x.unsqueeze(1) - m.centers).square().sum(-1)))

    return compose(forward, centers=nn.Parameter(torch.randn(8, 2)), head=nn.Linear(8, 1)), points()


@house.unbounded("√(1 + ‖x − c‖²) grows like ‖x‖", degree=1.0)
def multiquadric():
    def forward(m, x):
        return m.head(torch.sqrt(1.0 + (x.unsqueeze(1) - m.centers).square().sum(-1)))

    return compose(forward, centers=nn.Parameter(torch.randn(8, 2)), head=nn.Linear(8, 1)), points()


@house.bounded("random kitchen sinks: cosines")
def random_cosine_features():
    def forward(m, x):
        return m.head(math.sqrt(2.0 / 16) * torch.cos(x @ m.frequencies + m.phases))

    return compose(
        forward, frequencies=torch.randn(2, 16), phases=torch.rand(16), head=nn.Linear(16, 1)
    ), points()


@house.bounded("a tanh network of (t, x): PINN", alone={"t": BOUNDED, "x": BOUNDED})
def pinn():
    def forward(m, t, x):
        return m.net(torch.cat([t, x], -1))

    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return compose(forward, net=net), (torch.randn(2, 1), torch.randn(2, 1))


@house.unbounded(
    "hard boundary conditions multiply by x(1 − x): bounded times degree 2",
    alone={"t": BOUNDED, "x": UNBOUNDED},
    codes="FF007",
    degree=2.0,
)
def pinn_with_hard_boundary():
    def forward(m, t, x):
        return x * (1.0 - x) * m.net(torch.cat([t, x], -1))

    return compose(forward, net=mlp(2, 1, nn.Tanh)), (torch.randn(2, 1), torch.randn(2, 1))


@house.unbounded("features up to x³", codes="FF007", degree=3.0)
def polynomial_features():
    def forward(m, x):
        return m.head(torch.cat([x, x**2, x**3], -1))

    return compose(forward, head=nn.Linear(6, 1)), points()


@house.bounded("Chebyshev polynomials of tanh x")
def chebyshev_of_tanh():
    def forward(m, x):
        t = torch.tanh(x)
        return m.head(torch.cat([t, 2.0 * t**2 - 1.0, 4.0 * t**3 - 3.0 * t], -1))

    return compose(forward, head=nn.Linear(6, 1)), points()


@house.unbounded("a KAN layer: SiLU base plus bumps", degree=1.0)
def kolmogorov_arnold_layer():
    def forward(m, x):
        bumps = torch.exp(-((x.unsqueeze(-1) - m.grid) ** 2)).flatten(1)
        return m.base(functional.silu(x)) + m.spline(bumps)

    return compose(
        forward, grid=torch.linspace(-2.0, 2.0, 5), base=nn.Linear(2, 3), spline=nn.Linear(10, 3)
    ), points()


# ------------------------------------------------------------------------------------------------------ flows


@house.unbounded("z₂ = x₂·exp(tanh s(x₁)) + t(x₁), and z₁ = x₁", degree=1.0)
def coupling_flow():
    def forward(m, x):
        a, b = x.chunk(2, -1)
        s, t = m.net(a).chunk(2, -1)
        s = torch.tanh(s)
        return torch.cat([a, b * torch.exp(s) + t], -1), s.sum(-1)

    return compose(forward, net=mlp(3, 6)), points(6)


@house.unbounded("exp of an unbounded scale", codes="FF007", degree=float("inf"))
def coupling_flow_without_tanh():
    def forward(m, x):
        a, b = x.chunk(2, -1)
        s, t = m.net(a).chunk(2, -1)
        return torch.cat([a, b * torch.exp(s) + t], -1)

    return compose(forward, net=mlp(3, 6)), points(6)


@house.unbounded("x + u·tanh(w·x + b): a planar flow moves points by a bounded step", degree=1.0)
def planar_flow():
    def forward(m, x):
        return x + m.u * torch.tanh(x @ m.w + m.b).unsqueeze(-1)

    return (
        compose(
            forward,
            u=nn.Parameter(torch.randn(4)),
            w=nn.Parameter(torch.randn(4)),
            b=nn.Parameter(torch.randn(())),
        ),
        points(4),
    )


# ------------------------------------------------------------------------------------------------ time steppers


@house.unbounded("x + h·f(x): the state itself is carried", degree=1.0)
def euler_step():
    return compose(lambda m, x: x + 0.1 * m.f(x), f=mlp(4, 4)), points(4)


@house.unbounded(
    "x + h·f(x) with f bounded: drift is at most h·sup f, the start is not bounded", codes="FF002", degree=1.0
)
def euler_step_of_a_bounded_field():
    field = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    return compose(lambda m, x: x + 0.1 * m.f(x), f=field), points(4)


@house.unbounded("four stages of a ReLU field", degree=1.0)
def runge_kutta_step():
    def forward(m, x):
        k1 = m.f(x)
        k2 = m.f(x + 0.05 * k1)
        k3 = m.f(x + 0.05 * k2)
        k4 = m.f(x + 0.1 * k3)
        return x + (0.1 / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return compose(forward, f=mlp(4, 4)), points(4)


@house.bounded("a rollout that is renormalized at every step stays on a sphere")
def renormalized_rollout():
    def forward(m, x):
        for _ in range(3):
            x = functional.normalize(x + 0.1 * m.f(x), dim=-1)
        return x

    return compose(forward, f=mlp(4, 4, nn.Tanh)), points(4)


# ------------------------------------------------------------------------------------------------ hyper-networks


@house.unbounded(
    "weights linear in z, applied to x: degree 2 together",
    alone={"x": UNBOUNDED, "z": UNBOUNDED},
    codes="FF007",
    degree=2.0,
)
def hypernetwork():
    def forward(m, x, z):
        return torch.bmm(m.hyper(z).view(-1, 3, 6), x.unsqueeze(-1)).squeeze(-1)

    return compose(forward, hyper=mlp(2, 18)), (torch.randn(2, 6), torch.randn(2, 2))


@house.unbounded(
    "weights squashed by tanh: bounded in z, linear in x", alone={"x": UNBOUNDED, "z": BOUNDED}, degree=1.0
)
def hypernetwork_with_bounded_weights():
    def forward(m, x, z):
        return torch.bmm(torch.tanh(m.hyper(z)).view(-1, 3, 6), x.unsqueeze(-1)).squeeze(-1)

    return compose(forward, hyper=mlp(2, 18)), (torch.randn(2, 6), torch.randn(2, 2))


# ---------------------------------------------------------------------------------------------- sets and graphs


@house.unbounded("the mean of a set of features", degree=1.0)
def deep_set():
    return compose(lambda m, x: m.rho(m.phi(x).mean(1)), phi=mlp(3, 8), rho=mlp(8, 1)), (
        torch.randn(2, 5, 3),
    )


@house.bounded("the same, normalized after pooling")
def deep_set_with_norm():
    def forward(m, x):
        return m.rho(m.norm(m.phi(x).sum(1)))

    return compose(forward, phi=mlp(3, 8), norm=nn.LayerNorm(8), rho=mlp(8, 1)), (torch.randn(2, 5, 3),)


def ring(n=5):
    adjacency = torch.eye(n).roll(1, 0) + torch.eye(n).roll(-1, 0) + torch.eye(n)
    return adjacency / 3.0


@house.unbounded("averages over neighbors of a ReLU network", degree=1.0)
def graph_convolution():
    def forward(m, x):
        x = torch.relu(m.first(m.adjacency @ x))
        return m.second(m.adjacency @ x)

    return compose(forward, adjacency=ring(), first=nn.Linear(3, 8), second=nn.Linear(8, 2)), (
        torch.randn(2, 5, 3),
    )


@house.unbounded("attention over neighbors: weights bounded, messages linear", degree=1.0)
def graph_attention():
    def forward(m, x):
        h = m.value(x)
        score = functional.leaky_relu(m.left(h) + m.right(h).transpose(1, 2), 0.2)
        score = score.masked_fill(m.adjacency == 0.0, float("-inf"))
        return torch.softmax(score, -1) @ h

    return (
        compose(
            forward, adjacency=ring(), value=nn.Linear(3, 4), left=nn.Linear(4, 1), right=nn.Linear(4, 1)
        ),
        (torch.randn(2, 5, 3),),
    )


@house.bounded("messages of normalized nodes; the readout is a sum of five bounded numbers")
def normalized_message_passing():
    def forward(m, x):
        h = m.norm(m.inp(x))
        h = h + torch.relu(m.message(m.adjacency @ h))
        return m.readout(h).sum(1)

    return (
        compose(
            forward,
            adjacency=ring(),
            inp=nn.Linear(3, 8),
            norm=nn.LayerNorm(8),
            message=nn.Linear(8, 8),
            readout=nn.Linear(8, 1),
        ),
        (torch.randn(2, 5, 3),),
    )
