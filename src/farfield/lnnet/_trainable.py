"""LN-Nets to be trained: linear maps and LayerNorm, of any width."""

from __future__ import annotations

import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.nn import GroupedLayerNorm

__all__ = ["trainable"]


def trainable(
    in_features: int, out_features: int, *, width: int, depth: int, groups: int = 1, seed: int | None = None
) -> nn.Sequential:
    """A network without an activation: ``depth`` linear layers with LayerNorm behind each, and a linear readout.

    Nothing in it bends but the norms, which have neither scale nor shift: the next linear layer would take them in.

    Parameters
    ----------
    groups
        Of each norm: 1 for LayerNorm, more for LN-G, 0 for no norm at all, a deep linear network.
    seed
        Of torch's initialization, whose own state is left alone; drawn from that state if None.

    References
    ----------
    [P3] LN-Net and LN-G.

    Examples
    --------
    >>> [type(m).__name__ for m in trainable(5, 2, width=8, depth=2)]
    ['Linear', 'GroupedLayerNorm', 'Linear', 'GroupedLayerNorm', 'Linear']
    """
    if min(in_features, out_features, width) < 1 or depth < 0:
        raise InvalidValueError(
            f"Sizes are 1 or more and depth 0 or more; got {in_features}, {out_features}, {width}, {depth}."
        )

    def build() -> nn.Sequential:
        layers: list[nn.Module] = []
        for k in range(depth):
            layers.append(nn.Linear(width if k else in_features, width))
            if groups:
                layers.append(GroupedLayerNorm(width, groups, elementwise_affine=False))
        return nn.Sequential(*layers, nn.Linear(width if depth else in_features, out_features))

    if seed is None:
        return build()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return build()
