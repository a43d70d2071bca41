"""Modules of every kind an empirical kernel is asked for, and a reference that differentiates one number at a time.

``CATALOGUE`` maps a name to a builder, and a builder gives a model and a function from a count to that many inputs.
Nothing here comes from farfield.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

CATALOGUE = {}


def register(builder):
    CATALOGUE[builder.__name__] = builder
    return builder


def build(name, dtype=torch.float64, seed=0):
    """The model, in evaluation mode, and two batches of different sizes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = CATALOGUE[name]()
        for p in model.parameters():  # norms start at 1 and 0, which would hide errors
            p.data.add_(0.1 * torch.randn_like(p))
        model = model.to(dtype).eval()
        x, y = inputs(4), inputs(3)
    if x.is_floating_point():
        x, y = x.to(dtype), y.to(dtype)
    return model, x, y


def real(*shape):
    return lambda n: torch.randn(n, *shape)


def tokens(length, size):
    return lambda n: torch.randint(0, size, (n, length))


# ------------------------------------------------------------------ the reference


def gradients(model, x, chosen=lambda name: True):
    """(n, K, P) by one backward pass for every number, one input at a time, through the model as it is."""
    wanted = [p for name, p in model.named_parameters() if p.requires_grad and chosen(name)]
    rows = []
    for z in x:
        y = model(z.unsqueeze(0)).reshape(-1)
        row = []
        for value in y:
            found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
            row.append(
                torch.cat(
                    [(torch.zeros_like(p) if g is None else g.to_dense()).reshape(-1)
                     for p, g in zip(wanted, found, strict=True)]
                )
            )  # fmt: skip
        rows.append(torch.stack(row))
    return torch.stack(rows).detach()


def reference(model, x, y=None, outputs="trace", chosen=lambda name: True):
    """The kernel from those, by its definition."""
    a = gradients(model, x, chosen)
    b = a if y is None else gradients(model, y, chosen)
    full = torch.einsum("nkp,mlp->nmkl", a, b)
    if outputs == "full":
        return full
    if outputs == "trace":
        return full.diagonal(dim1=2, dim2=3).sum(-1)
    if outputs == "sum":
        return full.sum((2, 3))
    shape = model(x[:1]).shape[1:]
    place = outputs if isinstance(outputs, tuple) else (outputs,)
    k = 0
    for size, i in zip(shape, place, strict=True):
        k = k * size + i % size
    return full[:, :, k, k]


def distance(a, b):
    """Largest difference relative to the largest entry, if there is one that is not zero."""
    return float((a - b).abs().max()) / (float(b.abs().max()) or 1.0)


# ------------------------------------------------------------------ fully connected


@register
def linear():
    return nn.Linear(5, 3), real(5)


@register
def mlp():
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 1)), real(5)


@register
def mlp_in_place():
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(inplace=True), nn.Linear(9, 2)), real(5)


@register
def mlp_without_biases():
    return nn.Sequential(nn.Linear(5, 9, bias=False), nn.GELU(), nn.Linear(9, 2, bias=False)), real(5)


@register
def layer_norm_affine():
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)), real(5)


@register
def layer_norm_plain():
    norm = nn.LayerNorm(8, elementwise_affine=False)
    return nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, 2)), real(5)


@register
def layer_norm_over_two_axes():
    return nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(12, 2)), real(3, 4)


@register
def rms_norm():
    return nn.Sequential(nn.Linear(5, 8), nn.RMSNorm(8), nn.SiLU(), nn.Linear(8, 2)), real(5)


class HandWrittenNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@register
def rms_norm_by_hand():
    return nn.Sequential(nn.Linear(5, 8), HandWrittenNorm(8), nn.SiLU(), nn.Linear(8, 2)), real(5)


@register
def residual():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            for block in self.blocks:
                x = x + F.relu(block(x))
            return self.head(x)

    return Residual(), real(6)


@register
def prelu():
    return nn.Sequential(nn.Linear(5, 6), nn.PReLU(6), nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 2)), real(5)


@register
def prelu_narrow():
    """Of one unit and of one channel: torch's own rule for batches of it is wrong there."""
    model = nn.Sequential(nn.Linear(5, 1), nn.PReLU(), nn.Linear(1, 3), nn.PReLU(3), nn.Tanh())
    model[1].weight.requires_grad_(False)
    return model, real(5)


@register
def prelu_of_channels():
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.PReLU(3), nn.Conv2d(3, 2, 2), nn.PReLU(), nn.Flatten()), real(
        1, 3, 3
    )


@register
def bilinear():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = nn.Bilinear(3, 2, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.pair(x[:, :3], x[:, 3:])))

    return Pair(), real(5)


@register
def einsum():
    class Einsum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, 2))
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            return self.head(torch.einsum("bi,cio->bco", x, self.weight).flatten(1).tanh())

    return Einsum(), real(4)


@register
def raw_parameters():
    """A scale, a shift, a matrix and a temperature without modules."""

    class Raw(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(5))
            self.shift = nn.Parameter(torch.randn(1, 5))
            self.matrix = nn.Parameter(torch.randn(5, 4))
            self.temperature = nn.Parameter(torch.tensor(0.7))
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x):
            h = torch.tanh(self.scale * x + self.shift) @ self.matrix
            return self.gain * (h / self.temperature.exp()) - self.temperature

    return Raw(), real(5)


@register
def parameter_larger_than_what_it_scales():
    """x (n, d) times a parameter (1, T, d), and times one with an axis of its own."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = nn.Parameter(torch.randn(3, 5))
            self.places = nn.Parameter(torch.randn(1, 3, 1))
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            h = x.unsqueeze(1) * self.queries
            return self.head(torch.sin(h + self.places)).sum(1)

    return Outer(), real(5)


@register
def scale_by_a_number_of_the_input():
    class ByNumber(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 3, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            rows = [self.table * row.norm().reshape(1, 1) for row in x]
            return self.head(torch.tanh(torch.cat(rows))).sum(1)

    return ByNumber(), real(5)


@register
def short_bias():
    """One bias for all units."""

    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 5))
            self.bias = nn.Parameter(torch.randn(1))
            self.other = nn.Parameter(torch.randn(6, 3))
            self.offset = nn.Parameter(torch.randn(1))

        def forward(self, x):
            h = torch.tanh(F.linear(x, self.weight, self.bias))
            return torch.addmm(self.offset, h, self.other)

    return Short(), real(5)


@register
def scaled_parameters():
    """Weights and biases times numbers, by every way of writing that, and moved by constants."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6, 4))
            self.bias, self.offset = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(4))
            self.gain, self.table = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2, 4))

        def forward(self, x):
            h = F.linear(x, self.first / math.sqrt(5), 0.1 * self.bias).tanh()
            h = torch.addmm(self.offset * 3, h, torch.mul(self.second, 0.5) * 0.2).tanh()
            h = h * (1.0 + self.gain) + 2 * self.offset.to(h.dtype)
            rows = F.embedding((x[:, 0] > 0).long(), -1.5 * self.table)
            return (h + rows) @ (self.second.contiguous() * 2).T

    return Scaled(), real(5)


@register
def scaled_and_otherwise():
    """A multiple that is used in a way no rule knows, and the parameter itself in one that has a rule."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.other = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            half = 0.5 * self.weight
            h = F.linear(x, half).tanh() + F.linear(x, self.weight).sin() + F.linear(x, half.exp())
            return h + Square.apply(x, 2 * self.other) + F.linear(x, self.other)

    return Mixed(), real(5)


@register
def weight_norm():
    layer = parametrizations.weight_norm(nn.Linear(5, 6))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 2)), real(5)


@register
def orthogonal():
    layer = parametrizations.orthogonal(nn.Linear(5, 5), orthogonal_map="cayley")
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)), real(5)


@register
def buffers():
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.randn(5))
            self.register_buffer("mixing", torch.randn(5, 5))
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(torch.relu((x - self.mean) @ self.mixing))

    return Centered(), real(5)


@register
def frozen():
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    model[3].weight.requires_grad_(False)
    return model, real(5)


@register
def unused_parameter():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 2)
            self.spare = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(x).tanh()

    return Unused(), real(5)


@register
def functional_weight():
    """A weight transposed and scaled before it is used."""

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 6))
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            return self.head(F.linear(x, self.weight.T / math.sqrt(5)).relu())

    return Functional(), real(5)


@register
def squeezed():
    """No axis is left of the output, not even of the batch where it has one input."""

    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1))

        def forward(self, x):
            return self.net(x).squeeze()

    return Squeezed(), real(5)


class Square(torch.autograd.Function):
    """x ↦ (xWᵀ)², with a derivative of its own: what happens inside its forward has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return F.linear(x, weight) ** 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        h = 2 * g * (x @ weight.T)
        return h @ weight, h.transpose(-1, -2) @ x

    @staticmethod
    def jvp(ctx, dx, dw):
        x, weight = ctx.saved_tensors
        moved = x.new_zeros(len(x), len(weight))
        if dx is not None:
            moved = moved + dx @ weight.T
        if dw is not None:
            moved = moved + x @ dw.T
        return 2 * (x @ weight.T) * moved


@register
def custom_function():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            h = self.first(x).tanh()
            return self.head(Square.apply(h, self.first.weight))

    return Custom(), real(5)


@register
def sorted_rows():
    """Works on the batch in another order, and puts it back."""

    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))

        def forward(self, x):
            order = x[:, 0].argsort()
            y = self.net(x[order])
            return y[order.argsort()]

    return Sorted(), real(5)


@register
def control_flow():
    """Which sign is taken depends on the input, one row at a time."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            rows = [self.first(row.unsqueeze(0)) * (1.0 if row.sum().item() > 0 else -2.0) for row in x]
            return self.head(torch.cat(rows).tanh())

    return Branches(), real(5)


@register
def stopped_gradient():
    """A layer that is used once with a gradient and once without, in both of the ways there are."""

    class Stopped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.no_grad():
                target = self.first(x)
            h = self.first(x).tanh() * target + self.second(x).detach() * self.second(2 * x)
            return self.head(h)

    return Stopped(), real(5)


@register
def without_any_shape():
    """Outputs without an axis of their own."""
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1), nn.Flatten(0)), real(5)


# ------------------------------------------------------------------ convolutions and norms of channels


@register
def cnn():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    return model, real(2, 6, 6)


@register
def conv_stride_dilation_groups():
    model = nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, groups=6, bias=False),
        nn.Flatten(),
        nn.LazyLinear(2),
    )
    inputs = real(4, 7, 6)
    model(inputs(1))
    return model, inputs


@register
def conv_padding_modes():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
        nn.Tanh(),
        nn.Conv2d(3, 2, 3, padding="same"),
        nn.Flatten(),
        nn.Linear(32, 2),
    )
    return model, real(2, 4, 4)


@register
def conv_of_one_dimension():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv1d(4, 3, 2, dilation=2, groups=1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )
    return model, real(2, 8)


@register
def conv_of_three_dimensions():
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)), real(1, 3, 3, 3)


@register
def conv_without_modules():
    """Options given as torch allows them: one number in a list for two axes."""

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2, 2, 2))
            self.bias = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return F.conv2d(x, self.weight, self.bias, stride=(2,), padding=[1]).tanh().flatten(1).mean(1)

    return Functional(), real(2, 5, 5)


@register
def conv_transpose():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2), nn.Flatten(), nn.Linear(16, 2)
    )
    return model, real(1, 4, 4)


@register
def spatial_output():
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2)), real(2, 3, 3)


@register
def batch_norm():
    norm = nn.BatchNorm2d(4)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)), real(2, 4, 4)


@register
def batch_norm_of_vectors():
    norm = nn.BatchNorm1d(6)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(nn.Linear(5, 6), norm, nn.ReLU(), nn.Linear(6, 2)), real(5)


@register
def group_norm():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(64, 2)
    )
    return model, real(2, 4, 4)


@register
def instance_norm():
    norm = nn.InstanceNorm2d(3, affine=True)
    return nn.Sequential(nn.Conv2d(2, 3, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)), real(2, 4, 4)


# ------------------------------------------------------------------ sequences


@register
def attention():
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.attend(x, x, x)[0].mean(1))

    return Attend(), real(3, 8)


@register
def attention_of_unequal_sizes():
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True, add_bias_kv=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.attend(x, x[..., :5], x[..., 2:])[0].mean(1))

    return Attend(), real(3, 8)


@register
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 1)), real(3, 8)


@register
def transformer_decoder():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, 2)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))

        def forward(self, x):
            return self.head(self.layer(x, x.flip(1), tgt_mask=self.mask.to(x.dtype)))[:, -1]

    return Decoder(), real(3, 8)


class AddMM(nn.Module):
    """A Linear layer as GPT-2 writes it: y = xW + b through addmm of the flattened batch."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        shape = (*x.shape[:-1], len(self.bias))
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = AddMM(width, 3 * width), AddMM(width, width)
        self.up, self.down = AddMM(width, 4 * width), AddMM(4 * width, width)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (
            part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.attend(self.before(x)).split(d, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head that is the token embedding if ``tied``."""

    def __init__(self, tied, size=4, length=3, width=8, heads=2, depth=1):
        super().__init__()
        self.words, self.places = nn.Embedding(size, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, size, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.last(self.blocks(self.words(tokens) + self.places(places))))[:, -1]


@register
def gpt():
    return GPT(tied=False), tokens(3, 4)


@register
def gpt_tied():
    return GPT(tied=True), tokens(3, 4)


@register
def gpt_every_position():
    class Every(GPT):
        def forward(self, tokens):
            places = torch.arange(tokens.shape[1])
            return self.head(self.last(self.blocks(self.words(tokens) + self.places(places))))

    return Every(tied=True, size=3, length=2), tokens(2, 3)


@register
def positional_parameter():
    class Positional(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Parameter(torch.randn(1, 4, 6))
            self.token = nn.Parameter(torch.randn(1, 1, 6))
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
            return self.head(self.layer(x)[:, 0])

    return Positional(), real(3, 6)


@register
def embedding_with_padding():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(6, 4, padding_idx=0)
            self.head = nn.Linear(4, 2)

        def forward(self, tokens):
            return self.head(self.words(tokens).tanh().mean(1))

    return Bag(), tokens(5, 6)


@register
def embedding_sparse():
    return nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Flatten(), nn.Tanh(), nn.Linear(15, 2)), tokens(
        5, 6
    )


@register
def embedding_bag():
    return nn.Sequential(nn.EmbeddingBag(6, 4), nn.Tanh(), nn.Linear(4, 2)), tokens(5, 6)


class Last(nn.Module):
    def __init__(self, cell, width, outputs=2):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@register
def lstm():
    return Last(nn.LSTM(3, 4, num_layers=2, batch_first=True), 4), real(4, 3)


@register
def gru_both_ways():
    return Last(nn.GRU(3, 4, batch_first=True, bidirectional=True), 8), real(4, 3)


@register
def rnn_cell():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRUCell(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = x.new_zeros(len(x), 4)
            for step in x.unbind(1):
                h = self.cell(step, h)
            return self.head(h)

    return Steps(), real(3, 3)


@register
def time_first():
    """The batch is the second axis inside."""

    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))

        def forward(self, x):
            return self.net(x.transpose(0, 1)).mean(0)

    return TimeFirst(), real(4, 3)


# ------------------------------------------------------------------ shared parameters


@register
def shared_linear():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Linear(5, 2)), real(5)


@register
def shared_block_with_norms():
    block = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5), nn.ReLU())
    return nn.Sequential(block, nn.LayerNorm(5), block, block[0], nn.Linear(5, 2)), real(5)


@register
def shared_weight_own_biases():
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(5, 2)), real(5)


@register
def shared_across_kinds():
    """One matrix as a Linear's weight, as its transpose, and entry by entry."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5))
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            h = F.linear(x, self.weight).tanh() @ self.weight
            return self.head((h.unsqueeze(1) * self.weight).sin().sum(1))

    return Shared(), real(5)


@register
def shared_conv():
    layer = nn.Conv2d(2, 2, 3, padding=1)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Flatten(), nn.Linear(18, 2)), real(2, 3, 3)


@register
def autoencoder_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(5, 3)
            self.offset = nn.Parameter(torch.randn(5))

        def forward(self, x):
            return F.linear(self.encoder(x).tanh(), self.encoder.weight.t(), self.offset)

    return Tied(), real(5)
