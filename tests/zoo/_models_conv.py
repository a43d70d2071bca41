"""Convolutional networks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("conv")


def image(channels=3, size=8):
    return (torch.randn(2, channels, size, size),)


def cnn(norm):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


house.add(
    "plain_cnn",
    lambda: (cnn(lambda c: nn.Identity()), image()),
    UNBOUNDED,
    "piecewise linear, not 0",
    degree=1.0,
)
house.add(
    "batch_norm_cnn",
    lambda: (cnn(nn.BatchNorm2d), image()),
    UNBOUNDED,
    "BatchNorm is affine in eval mode",
    codes="FF003",
    degree=1.0,
)
house.add("group_norm_cnn", lambda: (cnn(lambda c: nn.GroupNorm(2, c)), image()), BOUNDED, "GroupNorm cuts")
house.add(
    "instance_norm_cnn",
    lambda: (cnn(lambda c: nn.InstanceNorm2d(c, affine=True)), image()),
    BOUNDED,
    "InstanceNorm divides by the sample's own spread",
)
house.add(
    "instance_norm_with_running_statistics_cnn",
    lambda: (cnn(lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True)), image()),
    UNBOUNDED,
    "with running statistics InstanceNorm is affine in eval mode, like BatchNorm",
    codes="FF003",
    degree=1.0,
)


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, c, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, c, 3, padding=1, bias=False), norm(c)
        self.conv2, self.norm2 = nn.Conv2d(c, c, 3, padding=1, bias=False), norm(c)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.act(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.act(out)


class ResNet(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d, stem_norm=None, head_norm=None):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = (stem_norm or norm)(8)
        self.layer1, self.layer2 = Block(8, norm), Block(8, norm)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.last = head_norm(8) if head_norm else nn.Identity()
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = self.layer2(self.layer1(x))
        return self.fc(self.last(torch.flatten(self.pool(x), 1)))


def groups(c):
    return nn.GroupNorm(2, c)


house.add(
    "resnet", lambda: (ResNet(), image()), UNBOUNDED, "affine norms, linear skips", codes="FF003", degree=1.0
)
house.add(
    "resnet_with_norm_before_the_classifier",
    lambda: (ResNet(head_norm=nn.LayerNorm), image()),
    BOUNDED,
    "a LayerNorm on the pooled features cuts everything",
)
house.add(
    "group_norm_resnet",
    lambda: (ResNet(groups), image()),
    BOUNDED,
    "the stem is normalized, so are the branches: bounded + bounded",
)
house.add(
    "resnet_with_group_norm_in_branches_only",
    lambda: (ResNet(groups, stem_norm=lambda c: nn.Identity()), image()),
    UNBOUNDED,
    "the stem reaches the head through the skips",
    codes="FF002",
    degree=1.0,
)


class UNet(nn.Module):
    """Two levels; the finest skip comes from the first block or from the raw image."""

    def __init__(self, raw_skip):
        super().__init__()
        self.raw_skip = raw_skip
        self.down1, self.down2 = self._conv(2, 4), self._conv(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.mix = self._conv(8, 4)
        self.out = nn.Conv2d(6 if raw_skip else 4, 1, 1)

    @staticmethod
    def _conv(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU())

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(functional.max_pool2d(a, 2))
        h = self.mix(torch.cat([a, self.up(b)], 1))
        return self.out(torch.cat([h, x], 1) if self.raw_skip else h)


house.add("unet", lambda: (UNet(False), image(2)), BOUNDED, "every path starts with a normalized block")
house.add(
    "unet_with_raw_skip",
    lambda: (UNet(True), image(2)),
    UNBOUNDED,
    "the image itself is concatenated before the last convolution",
    codes="FF002",
    degree=1.0,
)


@house.unbounded("BatchNorm U-Net with bilinear upsampling: piecewise linear", codes="FF003", degree=1.0)
def batch_norm_unet():
    def forward(m, x):
        a = torch.relu(m.n1(m.c1(x)))
        b = torch.relu(m.n2(m.c2(functional.avg_pool2d(a, 2))))
        b = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return m.out(torch.cat([a, b], 1))

    return (
        compose(
            forward,
            c1=nn.Conv2d(2, 4, 3, padding=1),
            n1=nn.BatchNorm2d(4),
            c2=nn.Conv2d(4, 4, 3, padding=1),
            n2=nn.BatchNorm2d(4),
            out=nn.Conv2d(8, 1, 1),
        ),
        image(2),
    )


class LayerNorm2d(nn.Module):
    """ConvNeXt's LayerNorm over channels, written out."""

    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.norm, self.wide, self.narrow = nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(1e-2 * torch.ones(c))

    def forward(self, x):
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.gamma * self.narrow(functional.gelu(self.wide(h)))
        return x + h.permute(0, 3, 1, 2)


def convnext(stem_norm):
    stem = [nn.Conv2d(3, 6, 2, 2), LayerNorm2d(6)] if stem_norm else [nn.Conv2d(3, 6, 2, 2)]
    return nn.Sequential(
        *stem, ConvNeXtBlock(6), ConvNeXtBlock(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


house.add(
    "convnext_with_stem_norm",
    lambda: (convnext(True), image()),
    BOUNDED,
    "the stem's norm bounds the stream, the blocks add bounded terms: no final norm is needed",
)
house.add(
    "convnext_without_stem_norm",
    lambda: (convnext(False), image()),
    UNBOUNDED,
    "the stem runs along the skips to the head",
    codes="FF002",
    degree=1.0,
)


class InvertedResidual(nn.Module):
    """MobileNetV2's block: ReLU6 inside, a linear bottleneck outside."""

    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, 2 * c, 1, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * c, c, 1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return x + self.body(x)


def mobilenet(first):
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        first,
        InvertedResidual(6),
        InvertedResidual(6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


house.add(
    "mobilenet",
    lambda: (mobilenet(nn.ReLU6()), image()),
    BOUNDED,
    "the stem's ReLU6 caps the stream at 6, every later branch is bounded",
    codes="FF008",
)
house.add(
    "mobilenet_with_relu_stem",
    lambda: (mobilenet(nn.ReLU()), image()),
    UNBOUNDED,
    "a ReLU stem runs along the skips, past every ReLU6",
    codes="FF003",
    degree=1.0,
    slow=True,
)


def squeeze_excite(norm):
    def forward(m, x):
        h = m.norm(m.conv(x))
        scale = torch.sigmoid(m.up(torch.relu(m.down(h.mean((2, 3))))))
        return m.head((h * scale[:, :, None, None]).mean((2, 3)))

    return compose(
        forward,
        conv=nn.Conv2d(3, 8, 3),
        norm=norm,
        down=nn.Linear(8, 2),
        up=nn.Linear(2, 8),
        head=nn.Linear(8, 2),
    )


house.add(
    "squeeze_excite",
    lambda: (squeeze_excite(nn.Identity()), image()),
    UNBOUNDED,
    "a gate in (0, 1) times something linear: along rays that open a gate, linear",
    degree=1.0,
)
house.add(
    "squeeze_excite_after_group_norm",
    lambda: (squeeze_excite(nn.GroupNorm(4, 8)), image()),
    BOUNDED,
    "bounded × bounded",
)


class WaveNet(nn.Module):
    """Gated dilated convolutions; the head reads the skips, or the residual stream."""

    def __init__(self, from_skips):
        super().__init__()
        self.from_skips = from_skips
        self.inp, self.out = nn.Conv1d(2, 6, 1), nn.Conv1d(6, 2, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(6, 12, 2, dilation=2**k) for k in range(2))
        self.mixed = nn.ModuleList(nn.Conv1d(6, 12, 1) for _ in range(2))

    def forward(self, x):
        h, skips = self.inp(x), 0.0
        for k, (dilated, mixed) in enumerate(zip(self.dilated, self.mixed, strict=True)):
            a, b = dilated(functional.pad(h, (2**k, 0))).chunk(2, 1)
            residual, skip = mixed(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skips = h + residual, skips + skip
        return self.out(torch.relu(skips if self.from_skips else h))


house.add(
    "wavenet_read_from_skips",
    lambda: (WaveNet(True), (torch.randn(2, 2, 9),)),
    BOUNDED,
    "every skip is linear in tanh·σ, bounded; the residual stream ends in no output",
)
house.add(
    "wavenet_read_from_residual",
    lambda: (WaveNet(False), (torch.randn(2, 2, 9),)),
    UNBOUNDED,
    "the residual stream carries the input",
    degree=1.0,
)


@house.bounded("an autoencoder that ends in a sigmoid: pixels in (0, 1)", codes="FF008", bound=1.0)
def autoencoder_with_sigmoid():
    return (
        nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 4, 2, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 2, 2),
            nn.Sigmoid(),
        ),
        image(1),
    )


@house.unbounded(
    "reconstruction squashed, mean and log-variance linear in the features",
    outputs=(BOUNDED, UNBOUNDED, UNBOUNDED),
    degree=1.0,
)
def variational_autoencoder():
    def forward(m, x):
        h = torch.relu(m.encode(x.flatten(1)))
        mean, log_variance = m.mean(h), m.spread(h)
        return torch.sigmoid(m.decode(mean)).reshape(x.shape), mean, log_variance

    return (
        compose(
            forward,
            encode=nn.Linear(16, 12),
            mean=nn.Linear(12, 3),
            spread=nn.Linear(12, 3),
            decode=nn.Linear(3, 16),
        ),
        image(1, 4),
    )


@house.unbounded("local averages and pixel shuffles move numbers about", degree=1.0)
def super_resolution():
    return (
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, padding_mode="reflect"),
            nn.PReLU(8),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.PixelShuffle(2),
        ),
        image(1, 6),
    )


@house.bounded("x_c/(k + α·mean x²)^¾ decays like |x|^(−½): local response norm of a linear map")
def local_response_norm_cnn():
    return (
        nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.LocalResponseNorm(3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        ),
        image(),
    )
