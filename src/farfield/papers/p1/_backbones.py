"""Frozen image networks by name: what the layers trained on top of them see.

The parameters' names are torchvision's, so that its files load strictly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from farfield.data import weights_file
from farfield.errors import InvalidValueError, MissingExtraError, UnknownNameError

__all__ = ["BACKBONES", "Backbone", "MobileNetV2", "ResNet18", "backbone"]


@dataclass(frozen=True)
class Backbone:
    """A frozen network, and what an image must be for it.

    Parameters
    ----------
    name, title
        What to ask for, and what it is.
    features
        Numbers that it gives for an image.
    size
        Side of the images that it reads, in pixels.
    mean, std
        Subtracted from, and divided into, the colors in [0, 1].
    make
        Builds the network with its weights; its output is (n, features).
    weights
        Name of the file in :func:`farfield.data.info`; None if another library brings it.
    """

    name: str
    title: str
    features: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    make: Callable[[], nn.Module]
    weights: str | None = None

    def network(self) -> nn.Module:
        """The network with its weights, in evaluation mode, its batch norms folded into the convolutions."""
        network = _folded(self.make().eval()).requires_grad_(False)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def prepare(self, images: NDArray[np.uint8]) -> Tensor:
        """Images (n, height, width, 3) of bytes to what the network reads, (n, 3, size, size)."""
        if images.ndim != 4 or images.shape[3] != 3:
            raise InvalidValueError(f"Images have the shape (n, height, width, 3), got {images.shape}.")
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def backbone(name: str) -> Backbone:
    """The frozen network of that name.

    Raises
    ------
    UnknownNameError
        With near matches.
    """
    if name not in BACKBONES:
        raise UnknownNameError("backbone", name, BACKBONES)
    return BACKBONES[name]


# ------------------------------------------------------------------ MobileNetV2


def _unit(fan_in: int, fan_out: int, side: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU6."""
    convolution = nn.Conv2d(fan_in, fan_out, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(fan_out), nn.ReLU6())


class _InvertedResidual(nn.Module):
    """Widen, convolve every channel by itself, narrow; added to the input where the shapes agree."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = fan_in * expansion
        widen = [_unit(fan_in, wide)] if expansion > 1 else []
        narrow = (nn.Conv2d(wide, fan_out, 1, bias=False), nn.BatchNorm2d(fan_out))
        self.conv = nn.Sequential(*widen, _unit(wide, wide, 3, stride, groups=wide), *narrow)
        self.adds = stride == 1 and fan_in == fan_out

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, fan_in, h, w) → (n, fan_out, h/stride, w/stride)."""
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1: an image to 1280 features, or with ``classify`` to 1000 logits.

    References
    ----------
    M. Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018.
    """

    _STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    """Expansion, channels, blocks, stride of the first."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_unit(3, 32, 3, 2)]
        fan_in = 32
        for expansion, channels, blocks, stride in self._STAGES:
            for k in range(blocks):
                layers.append(_InvertedResidual(fan_in, channels, stride if k == 0 else 1, expansion))
                fan_in = channels
        self.features = nn.Sequential(*layers, _unit(fan_in, 1280))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 3, h, w) → (n, 1280)."""
        return self.features(x).mean((2, 3))  # type: ignore[no-any-return]

    def classify(self, x: Tensor) -> Tensor:
        """Shape (n, 3, h, w) → (n, 1000), ImageNet's classes."""
        return self.classifier(self(x))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ ResNet-18


class _BasicBlock(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.downsample = (
            None
            if stride == 1 and fan_in == fan_out
            else nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), nn.BatchNorm2d(fan_out))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions, added to the input or to its projection."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """ResNet-18: an image to 512 features.

    Parameters
    ----------
    classes
        Of the classifier in its file; unused by the features.
    first_stride
        Of the first convolution: 2 as published, 1 for small images.

    References
    ----------
    K. He, X. Zhang, S. Ren, J. Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    def __init__(self, classes: int, first_stride: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, first_stride, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        sizes = (64, 64, 128, 256, 512)
        for k in range(1, 5):
            blocks = (
                _BasicBlock(sizes[k - 1], sizes[k], 1 if k == 1 else 2),
                _BasicBlock(sizes[k], sizes[k], 1),
            )
            self.add_module(f"layer{k}", nn.Sequential(*blocks))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 3, h, w) → (n, 512)."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for k in range(1, 5):
            x = self.get_submodule(f"layer{k}")(x)
        return x.mean((2, 3))

    def classify(self, x: Tensor) -> Tensor:
        """Shape (n, 3, h, w) → (n, classes)."""
        return self.fc(self(x))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ weights


def _folded(model: nn.Module) -> nn.Module:
    """The same function with every batch norm in the convolution before it: fewer passes over memory."""
    for module in model.modules():
        previous: tuple[str, nn.Module] | None = None
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d) and previous and isinstance(previous[1], nn.Conv2d):
                setattr(module, previous[0], nn.utils.fuse_conv_bn_eval(previous[1], child))
                setattr(module, name, nn.Identity())
            previous = (name, child)
    return model


def _loaded(model: nn.Module, weights: str) -> nn.Module:
    found: OrderedDict[str, Tensor] = torch.load(weights_file(weights), weights_only=True, map_location="cpu")
    # Files may hold half precision; the network computes in single.
    model.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in found.items()}, strict=True
    )
    return model


def _mobilenet() -> nn.Module:
    return _loaded(MobileNetV2(), "mobilenet_v2")


def _tiny_resnet() -> nn.Module:
    return _loaded(ResNet18(200, first_stride=1), "resnet18_tiny")


def _torchvision_resnet() -> nn.Module:
    """The paper's backbone, from torchvision, which fetches the weights."""
    try:
        from torchvision.models import ResNet18_Weights, resnet18
    except (ImportError, RuntimeError) as error:  # built for another torch, it fails with RuntimeError
        raise MissingExtraError(
            "The ImageNet ResNet-18", "torchvision (for your build of torch)", "vision"
        ) from error
    model: Any = resnet18(weights=ResNet18_Weights.IMAGENET1K_V1)
    model.fc = nn.Identity()
    return model  # type: ignore[no-any-return]


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colors."""

BACKBONES: dict[str, Backbone] = {
    b.name: b
    for b in (
        Backbone(
            "mobilenet_v2", "MobileNetV2 trained on ImageNet", 1280, 128, _MEAN, _STD, make=_mobilenet,
            weights="mobilenet_v2",
        ),
        Backbone(
            "resnet18_tiny", "ResNet-18 trained on Tiny-ImageNet", 512, 64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5),
            make=_tiny_resnet, weights="resnet18_tiny",
        ),
        Backbone("resnet18", "ResNet-18 trained on ImageNet", 512, 224, _MEAN, _STD, make=_torchvision_resnet),
    )
}  # fmt: skip
