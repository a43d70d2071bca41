"""Small models of many kinds: name → a function that builds the model and an example input."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {}


def model(build):
    MODELS[build.__name__] = build
    return build


class Lambda(nn.Module):
    """Children called through a function of them and the inputs."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            if isinstance(child, nn.Module):
                setattr(self, name, child)
            elif isinstance(child, nn.Parameter):
                self.register_parameter(name, child)
            else:
                self.register_buffer(name, child)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def mlp(*middle, d=6, width=16, out=3):
    return nn.Sequential(nn.Linear(d, width), *middle, nn.ReLU(), nn.Linear(width, out))


X = (3, 6)


@model
def plain_mlp():
    return mlp(), (torch.randn(X),)


@model
def layer_norm_mlp():
    return mlp(nn.LayerNorm(16)), (torch.randn(X),)


@model
def rms_norm_mlp():
    return mlp(nn.RMSNorm(16)), (torch.randn(X),)


@model
def group_norm_mlp():
    return mlp(nn.GroupNorm(4, 16)), (torch.randn(X),)


@model
def batch_norm_mlp():
    net = mlp(nn.BatchNorm1d(16))
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net, (torch.randn(X),)


@model
def dropout_in_train_mode():
    return mlp(nn.Dropout(0.5)).train(), (torch.randn(X),)


@model
def many_activations():
    names = (
        "GELU SiLU Mish ELU SELU CELU Softplus Softsign Tanh Sigmoid Hardswish Hardsigmoid LeakyReLU PReLU "
        "ReLU6 Hardtanh LogSigmoid Tanhshrink Softshrink Hardshrink RReLU"
    )
    acts = [*(getattr(nn, name)() for name in names.split()), nn.GELU("tanh")]
    layers = [layer for act in acts for layer in (nn.Linear(6, 6), act)]
    return nn.Sequential(*layers), (torch.randn(X),)


@model
def residual():
    def forward(m, x):
        h = m.inp(x)
        h = h + torch.relu(m.fc(m.ln(h)))
        return m.out(m.ln(h))

    return Lambda(
        forward, inp=nn.Linear(6, 8), ln=nn.LayerNorm(8), fc=nn.Linear(8, 8), out=nn.Linear(8, 1)
    ), (torch.randn(X),)


@model
def critic():
    def forward(m, state, action):
        return m.q(torch.cat([m.s(state), action], -1))

    net = Lambda(
        forward,
        s=nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU()),
        q=nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 1)),
    )
    return net, (torch.randn(3, 8), torch.randn(3, 2))


@model
def dictionary_output():
    def forward(m, x):
        h = m.body(x)
        return {"mean": m.mean(h), "scale": (functional.softplus(m.scale(h)), None)}

    return Lambda(forward, body=mlp(out=8), mean=nn.Linear(8, 2), scale=nn.Linear(8, 2)), (torch.randn(X),)


@model
def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding="same", padding_mode="circular"),
        nn.InstanceNorm2d(8, affine=True),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ), (torch.randn(2, 3, 8, 8),)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.act(self.na(self.a(x)))
        out = self.nb(self.b(out))
        out += x
        return self.act(out)


@model
def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), Block(8), Block(8), nn.AvgPool2d(2), nn.Flatten(1), nn.Linear(32, 5)
    ), (torch.randn(2, 3, 8, 8),)


@model
def unet():
    def forward(m, x):
        a = m.down1(x)
        b = m.down2(functional.max_pool2d(a, 2))
        up = m.up(b)
        up2 = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return m.out(torch.cat([a, up, up2], 1))

    def conv(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU())

    return Lambda(
        forward,
        down1=conv(2, 4),
        down2=conv(4, 6),
        up=nn.ConvTranspose2d(6, 4, 2, 2),
        out=nn.Conv2d(14, 1, 1),
    ), (torch.randn(2, 2, 8, 8),)


@model
def temporal_convolution():
    return nn.Sequential(
        nn.ConstantPad1d((2, 0), 0.0),
        nn.Conv1d(4, 8, 3),
        nn.ReLU(),
        nn.ReplicationPad1d(1),
        nn.Conv1d(8, 4, 3, dilation=1),
    ), (torch.randn(2, 4, 9),)


class Last(nn.Module):
    """The last step of a recurrent layer, through a linear head."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, x):
        out, state = self.layer(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(out[:, -1]), state


@model
def lstm():
    return Last(nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.1), 5), (torch.randn(2, 7, 4),)


@model
def bidirectional_gru():
    return Last(nn.GRU(4, 5, batch_first=True, bidirectional=True), 10), (torch.randn(2, 7, 4),)


@model
def elman():
    return Last(nn.RNN(4, 5, batch_first=True, nonlinearity="relu"), 5), (torch.randn(2, 7, 4),)


@model
def unrolled_cells():
    def forward(m, x):
        h = c = x.new_zeros(x.shape[0], 5)
        g = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            h, c = m.lstm(x[:, t], (h, c))
            g = m.gru(h, g)
        return m.head(g)

    return Lambda(forward, lstm=nn.LSTMCell(4, 5), gru=nn.GRUCell(5, 5), head=nn.Linear(5, 2)), (
        torch.randn(2, 3, 4),
    )


@model
def multihead_attention():
    def forward(m, x):
        out, weights = m.attention(x, x, x)
        return m.norm(x + out), weights

    return Lambda(forward, attention=nn.MultiheadAttention(8, 2, batch_first=True), norm=nn.LayerNorm(8)), (
        torch.randn(2, 5, 8),
    )


@model
def masked_attention():
    def forward(m, x, padding):
        out, _ = m.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        return out

    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    return Lambda(forward, attention=nn.MultiheadAttention(8, 2, batch_first=True)), (
        torch.randn(2, 5, 8),
        padding,
    )


@model
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False), (
        torch.randn(2, 5, 8),
    )


@model
def post_norm_transformer():
    return nn.TransformerEncoderLayer(8, 2, 16), (torch.randn(5, 2, 8),)


@model
def full_transformer():
    def forward(m, a, b):
        return m.net(a, b, tgt_mask=nn.Transformer.generate_square_subsequent_mask(b.shape[1], dtype=a.dtype))

    return Lambda(forward, net=nn.Transformer(8, 2, 1, 1, 16, batch_first=True)), (
        torch.randn(2, 5, 8),
        torch.randn(2, 4, 8),
    )


@model
def causal_decoder():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(11, 8), nn.Embedding(6, 8)
            self.ln1, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
            self.ln2, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.tok.weight
            self.register_buffer("mask", torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6))

        def forward(self, ids):
            batch, length = ids.shape
            x = self.tok(ids) + self.pos(torch.arange(length))
            q, k, v = self.qkv(self.ln1(x)).view(batch, length, 2, 12).transpose(1, 2).chunk(3, -1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(4)
            scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
            y = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, length, 8)
            return self.head(self.ln2(x + self.proj(y)))

    return Decoder(), (torch.randint(11, (2, 5)),)


@model
def positional_encoding():
    def forward(m, x):
        t = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        f = torch.exp(torch.arange(0, 8, 2, dtype=x.dtype) * (-math.log(1e4) / 8))
        return m.norm(x + torch.cat([torch.sin(t * f), torch.cos(t * f)], -1))

    return Lambda(forward, norm=nn.LayerNorm(8)), (torch.randn(2, 5, 8),)


@model
def mixture_of_experts():
    def forward(m, x):
        gate = m.gate(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in m.experts], 1)
        return torch.einsum("be,bed->bd", gate, outputs)

    return Lambda(forward, gate=nn.Linear(6, 3), experts=nn.ModuleList(mlp() for _ in range(3))), (
        torch.randn(X),
    )


@model
def top_k_experts():
    def forward(m, x):
        weights, chosen = m.gate(x).topk(2, -1)
        outputs = torch.stack([expert(x) for expert in m.experts], 1)
        picked = outputs.gather(1, chosen[..., None].expand(-1, -1, outputs.shape[-1]))
        return (weights.softmax(-1)[..., None] * picked).sum(1)

    return Lambda(forward, gate=nn.Linear(6, 3), experts=nn.ModuleList(mlp() for _ in range(3))), (
        torch.randn(X),
    )


@model
def sparse_experts():
    """Rows sent to each expert by a mask: how many is known only when it runs."""

    def forward(m, x):
        chosen = m.gate(x).argmax(-1)
        out = torch.zeros(x.shape[0], 3, dtype=x.dtype)
        for i, expert in enumerate(m.experts):
            rows = torch.where(chosen == i)[0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out

    return Lambda(forward, gate=nn.Linear(6, 2), experts=nn.ModuleList(mlp() for _ in range(2))), (
        torch.randn(X),
    )


class Spectral(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, 2) / channels)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[..., : self.modes] = torch.einsum(
            "bim,iom->bom", spectrum[..., : self.modes], torch.view_as_complex(self.weight)
        )
        return torch.fft.irfft(out, n=x.shape[-1])


@model
def fourier_operator():
    def forward(m, x):
        h = m.lift(x)
        return m.head(functional.gelu(m.spectral(h) + m.point(h)))

    return Lambda(
        forward,
        lift=nn.Conv1d(1, 4, 1),
        spectral=Spectral(4, 3),
        point=nn.Conv1d(4, 4, 1),
        head=nn.Conv1d(4, 1, 1),
    ), (torch.randn(2, 1, 16),)


@model
def fourier_operator_2d():
    def forward(m, x):
        s = torch.fft.rfft2(x, norm="ortho")
        return torch.fft.irfft2(s * m.filter.abs(), s=x.shape[-2:], norm="ortho") + x

    return Lambda(forward, filter=nn.Parameter(torch.randn(8, 5))), (torch.randn(2, 1, 8, 8),)


@model
def deep_operator_network():
    def forward(m, u, y):
        return torch.einsum("bp,qp->bq", m.branch(u), m.trunk(y)) + m.bias

    return Lambda(forward, branch=mlp(out=8), trunk=mlp(d=1, out=8), bias=nn.Parameter(torch.zeros(()))), (
        torch.randn(3, 6),
        torch.rand(5, 1),
    )


@model
def siren():
    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(30 * x)

    return nn.Sequential(nn.Linear(2, 16), Sine(), nn.Linear(16, 16), Sine(), nn.Linear(16, 1)), (
        torch.randn(3, 2),
    )


@model
def coupling_flow():
    def forward(m, x):
        a, b = x.chunk(2, -1)
        s, t = m.net(a).chunk(2, -1)
        s = torch.tanh(s)
        z = torch.cat([a, b * torch.exp(s) + t], -1)
        return z.flip(-1), s.sum(-1)

    return Lambda(forward, net=mlp(d=3, out=6)), (torch.randn(X),)


@model
def swiglu():
    def forward(m, x):
        return x + m.down(functional.silu(m.gate(m.norm(x))) * m.up(m.norm(x)))

    return Lambda(
        forward, norm=nn.RMSNorm(6), gate=nn.Linear(6, 8), up=nn.Linear(6, 8), down=nn.Linear(8, 6)
    ), (torch.randn(X),)


@model
def gated_linear_unit():
    return nn.Sequential(nn.Linear(6, 8), nn.GLU(), nn.Linear(4, 2)), (torch.randn(X),)


@model
def neural_ode_step():
    def forward(m, x):
        for _ in range(3):
            k1 = m.f(x)
            k2 = m.f(x + 0.05 * k1)
            x = x + 0.1 * k2
        return x

    return Lambda(forward, f=mlp(out=6)), (torch.randn(X),)


@model
def hypernetwork():
    def forward(m, x, z):
        w = m.hyper(z).view(-1, 3, 6)
        return torch.bmm(w, x.unsqueeze(-1)).squeeze(-1)

    return Lambda(forward, hyper=mlp(d=2, out=18)), (torch.randn(3, 6), torch.randn(3, 2))


@model
def weight_normalized():
    net = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 8)),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(8, 8)),
    )
    return net, (torch.randn(X),)


@model
def old_weight_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2)), (
        torch.randn(X),
    )


@model
def in_place_writes():
    def forward(m, x):
        h = m.fc(x)
        h.mul_(2).add_(1)
        h[:, :2] = 0
        h[:, 3] = x[:, 0]
        view = h[:, 4:]
        view.clamp_(min=0)
        return h

    return Lambda(forward, fc=nn.Linear(6, 8)), (torch.randn(X),)


@model
def shared_module():
    def forward(m, x):
        return m.head(torch.tanh(m.fc(torch.relu(m.fc(x)))))

    return Lambda(forward, fc=nn.Linear(6, 6), head=nn.Linear(6, 1)), (torch.randn(X),)


@model
def graph_network():
    def forward(m, x, edges):
        for _ in range(2):
            source, target = edges[0], edges[1]
            messages = torch.relu(m.edge(torch.cat([x[source], x[target]], -1)))
            total = torch.zeros_like(x).index_add(0, target, messages)
            count = torch.zeros_like(x[:, :1]).scatter_add(
                0, target[:, None], torch.ones_like(messages[:, :1])
            )
            x = m.node(torch.cat([x, total / count.clamp(min=1)], -1))
        return x

    return Lambda(forward, edge=nn.Linear(12, 6), node=nn.Linear(12, 6)), (
        torch.randn(5, 6),
        torch.randint(5, (2, 9)),
    )


@model
def embedding_tabular():
    def forward(m, categories, numbers):
        e = torch.cat([m.a(categories[:, 0]), m.b(categories[:, 1])], -1)
        bag = m.bag(categories)
        return m.head(torch.cat([e, numbers, bag], -1))

    return Lambda(
        forward,
        a=nn.Embedding(5, 3),
        b=nn.Embedding(5, 2),
        bag=nn.EmbeddingBag(5, 2, mode="mean"),
        head=mlp(d=13),
    ), (torch.randint(5, (3, 2)), torch.randn(3, 6))


@model
def llama_rms_norm():
    class RMS(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(6))

        def forward(self, h):
            kind = h.dtype
            h = h.to(torch.float64)
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * h.to(kind)

    return nn.Sequential(RMS(), nn.Linear(6, 2)), (torch.randn(X),)


@model
def variational_encoder():
    def forward(m, x):
        mean, logvar = m.net(x).chunk(2, -1)
        return mean, torch.exp(0.5 * logvar), -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(-1)

    return Lambda(forward, net=mlp(out=8)), (torch.randn(X),)


@model
def cosine_head():
    def forward(m, x):
        h = m.body(x)
        return (
            functional.linear(functional.normalize(h), functional.normalize(m.prototypes)) * 10
            + functional.cosine_similarity(h, m.prototypes[:1])[:, None]
        )

    return Lambda(forward, body=mlp(out=4), prototypes=nn.Parameter(torch.randn(5, 4))), (torch.randn(X),)


@model
def kolmogorov_arnold():
    def forward(m, x):
        grid = torch.linspace(-2, 2, 5, dtype=x.dtype)
        basis = torch.exp(-((x[..., None] - grid) ** 2))
        return torch.einsum("bik,iko->bo", basis, m.coefficients) + functional.linear(
            functional.silu(x), m.base
        )

    return Lambda(
        forward, coefficients=nn.Parameter(torch.randn(6, 5, 2)), base=nn.Parameter(torch.randn(2, 6))
    ), (torch.randn(X),)


@model
def pixel_shuffle_upscaler():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.PixelShuffle(2),
        nn.PReLU(2),
        nn.ReflectionPad2d(1),
        nn.Conv2d(2, 1, 3),
    ), (torch.randn(1, 1, 5, 5),)


@model
def squeeze_and_excite():
    def forward(m, x):
        scale = m.gate(x.mean((2, 3)))[:, :, None, None]
        return x * scale

    return Lambda(
        forward, gate=nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4), nn.Hardsigmoid())
    ), (torch.randn(2, 4, 5, 5),)


@model
def dueling_q_network():
    def forward(m, x):
        h = m.body(x)
        advantage = m.advantage(h)
        return m.value(h) + advantage - advantage.mean(-1, keepdim=True)

    return Lambda(forward, body=mlp(out=8), value=nn.Linear(8, 1), advantage=nn.Linear(8, 4)), (
        torch.randn(X),
    )


@model
def squashed_gaussian_policy():
    def forward(m, x):
        mean, log_std = m.net(x).chunk(2, -1)
        log_std = torch.clamp(log_std, -20, 2)
        return torch.tanh(mean), log_std.exp()

    return Lambda(forward, net=mlp(out=4)), (torch.randn(X),)
