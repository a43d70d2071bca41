"""LN-G in a model that exists: every LayerNorm exchanged for one in groups, on a copy."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.nn._norms import GroupedChannelNorm, GroupedLayerNorm, LayerNorm

__all__ = ["to_grouped"]

Model = TypeVar("Model", bound=nn.Module)


def to_grouped(model: Model, groups: int) -> Model:
    """A copy of a model with LN-G, LayerNorm inside ``groups`` groups of features, in place of every LayerNorm.

    Weights stay, under their names, so that checkpoints load into either; with one group the function stays, too.
    Scales, shifts and ε are those of the norms before. Norms over the channels of images (``LayerNorm2d`` of
    torchvision and timm) become :class:`GroupedChannelNorm`. RMSNorm, BatchNorm and GroupNorm are left.

    torch's fast path for transformer encoders reads a norm's weights and computes plain LayerNorm with them, so it is
    switched off in the layers that are changed, and there alone: they take their ordinary path, at its speed.
    What a model does with ``norm.weight`` itself, as in ``F.layer_norm(x, shape, self.norm.weight)``, stays as it is.

    Parameters
    ----------
    model
        Any module. It is not changed.
    groups
        A divisor of the features of every LayerNorm in it, and smaller than they are.

    Raises
    ------
    InvalidValueError
        If there is no LayerNorm, or one of them can't be parted: with its name and the reason.

    References
    ----------
    [P3] LN-G, "group partition".

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    >>> to_grouped(net, groups=2)[1]
    GroupedLayerNorm(8, groups=2, elementwise_affine=True, norm_eps=1e-05)
    """
    made = copy.deepcopy(model)
    _refuse_out_of_sight(made)
    found = {name: m for name, m in made.named_modules() if isinstance(m, nn.LayerNorm | LayerNorm)}
    if not found:
        raise InvalidValueError(f"{type(model).__name__} has no LayerNorm that could be parted into groups.")
    new: dict[nn.Module, nn.Module] = {
        m: _grouped(m, groups, name or type(m).__name__) for name, m in found.items()
    }
    for module in list(made.modules()):
        for name, child in list(module._modules.items()):  # a norm that is used twice has two names here
            if child in new:
                setattr(module, name, new[child])
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            # Ragged batches are for the fast path only, and no other layer takes them.
            module.use_nested_tensor = False
    return new.get(made, made)  # type: ignore[return-value]


def _grouped(norm: nn.Module, groups: int, name: str) -> GroupedLayerNorm:
    shape = tuple(norm.normalized_shape) if isinstance(norm, nn.LayerNorm) else ()
    if len(shape) != 1:
        why = (
            f"normalizes over axes of sizes {', '.join(map(str, shape))}; groups are of features of one axis. Over "
            "channels and places of an image together nn.GroupNorm is the norm in groups"
            if shape
            else "is farfield's LayerNorm, which takes any number of features. Use nn.LayerNorm, which knows it"
        )
        raise InvalidValueError(f"{name} {why}.")
    if hasattr(norm, "parametrizations"):
        raise InvalidValueError(f"{name} has parametrized weights. Remove the parametrization first.")
    kind = _kind(norm, shape[0], name)
    try:
        return _with_weights(norm, kind, shape[0], groups)
    except InvalidValueError as error:
        raise InvalidValueError(f"{name}: {error}") from None


def _refuse_out_of_sight(model: nn.Module) -> None:
    """Raise for norms that are called past the places where modules can be exchanged."""
    for name, module in model.named_modules():
        held = [v for value in vars(module).values() if isinstance(value, list | tuple) for v in value]
        norms = [
            m for v in held if isinstance(v, nn.Module) for m in v.modules() if isinstance(m, nn.LayerNorm)
        ]
        if norms or (name and hasattr(module, "_orig_mod")):
            what = "holds a LayerNorm in a plain list" if norms else "is compiled"
            way = "Use nn.ModuleList" if norms else "Compile it when its norms are exchanged"
            raise InvalidValueError(
                f"{name or type(module).__name__} {what}, where it can't be exchanged. {way}."
            )


def _with_weights(norm: Any, kind: type[GroupedLayerNorm], features: int, groups: int) -> GroupedLayerNorm:
    made = kind(features, groups, elementwise_affine=False, norm_eps=float(norm.eps))
    made.weight, made.bias = norm.weight, norm.bias
    for held in vars(norm):
        if "_hooks" in held:
            setattr(made, held, getattr(norm, held))
    return made.train(norm.training)


def _kind(norm: nn.Module, features: int, name: str) -> type[GroupedLayerNorm]:
    """Over the last axis or the channels: a subclass has a way of its own, which numbers through it show."""
    if type(norm) is nn.LayerNorm:
        return GroupedLayerNorm
    like = next(norm.parameters(), torch.zeros(()))
    norm = copy.deepcopy(norm)
    for parameter in norm.parameters():  # which may begin at 0, and then show nothing
        parameter.data = torch.linspace(0.5, 1.5, parameter.numel()).reshape(parameter.shape).to(like)
    for kind, shape in ((GroupedChannelNorm, (2, features, 3, 5)), (GroupedLayerNorm, (2, 3, features))):
        x = torch.linspace(-2.0, 3.0, math.prod(shape)).sin().reshape(shape).to(like)
        try:
            with torch.no_grad():
                found, plain = norm(x), _with_weights(norm, kind, features, 1)(x)
            if torch.allclose(found, plain, atol=1e-2 if x.dtype.itemsize < 4 else 1e-5):
                return kind
        except (RuntimeError, ValueError, IndexError):
            continue
    raise InvalidValueError(
        f"{name} is a {type(norm).__name__}, which computes something else than LayerNorm over the last axis or over "
        "channels. Exchange it for nn.LayerNorm first."
    )
