"""How many points networks of linear maps and LayerNorm can label in every way: their VC dimension from below."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.lnnet._construct import construct

__all__ = ["shattering_depth", "vc_lower_bound"]


def vc_lower_bound(depth: int, inputs: int = 1) -> int:
    r"""A lower bound of the VC dimension of LN-Nets three neurons wide with ``depth`` LayerNorms: depth + inputs + 1.

    P3 states a lower bound, whose wording was not at hand; its construction gives L + 2 for depth L, since m points
    on a line take m − 2 layers whatever their two labels. With d inputs more is true. Of m = L + d + 1 points in
    general position take any d + 1; an affine map sends those of one label to 0 and the others to 1 (all but one to
    0 if they have one label), and the remaining L anywhere. That leaves L + 2 positions on a line at the most, for
    which L layers do. At L = 0 this is the VC dimension d + 1 of affine classifiers. At d = 1, L = 1 it is exact:
    there the sets are intervals and their complements, which do not give four points all labels. A network with
    layers to spare keeps its labels: a fold about a center far away keeps the order of the points.

    Parameters
    ----------
    depth
        LayerNorms, L ≥ 0.
    inputs
        Dimension d of the points.

    References
    ----------
    [P3] Theorem 2, and the lower bound of the VC dimension that follows it. The form with inputs is ours.

    Examples
    --------
    >>> vc_lower_bound(3), vc_lower_bound(3, inputs=5), vc_lower_bound(0, inputs=2)
    (5, 9, 3)
    """
    if depth < 0 or inputs < 1:
        raise InvalidValueError(
            f"Depth is at least 0 and there is an input, got depth {depth}, inputs {inputs}."
        )
    return depth + inputs + 1


def shattering_depth(x: Float[Tensor, "m d"], *, generator: torch.Generator | None = None) -> int:
    """The most LayerNorms that a network takes for a labeling of these points with two labels: all are built.

    So the points are shattered by LN-Nets of this depth, whose VC dimension is therefore at least m. A proof by
    construction: every network is run on all points. Cost: 2^(m−1) networks; at most 12 points are taken.

    Parameters
    ----------
    x
        Distinct points in general position, one a row: no d + 1 of them in a hyperplane.
    generator
        Source of the construction's candidates.

    Examples
    --------
    >>> x = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None] ** 1.5
    >>> shattering_depth(x, generator=torch.Generator().manual_seed(0))
    2
    """
    count, inputs = x.shape
    if not 1 <= count <= 12:
        raise InvalidValueError(f"All labelings of 1 to 12 points are built, got {count} points.")
    deepest = 0
    for rest in itertools.product((0, 1), repeat=count - 1):
        labels = torch.tensor((0, *rest))
        line, own = _on_a_line(x.double(), labels, inputs)
        if len(own.unique()) < 2 or _is_sorted(line, own):
            continue
        net = construct(line[:, None], own, rule="paper", generator=generator)
        deepest = max(deepest, net.depth)
    return deepest


def _on_a_line(x: Tensor, labels: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """Positions of an affine image in which the first d + 1 points take two values, and no value has two labels."""
    chosen = slice(0, min(inputs + 1, len(x)))
    lifted = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    wanted = labels[chosen].double()
    if len(wanted) > 1 and bool((wanted == wanted[0]).all()):
        wanted = wanted * 0.0
        wanted[-1] = 1.0
    functional = torch.linalg.lstsq(lifted[chosen], wanted[:, None], driver="gelsd").solution
    line = (lifted @ functional)[:, 0]
    if not torch.allclose(line[chosen], wanted, atol=1e-9):
        raise InvalidValueError("The points are in general position: no d + 1 of them lie in a hyperplane.")
    line[chosen] = wanted  # exactly: equal positions are one
    order = line.argsort(stable=True)
    return line[order], labels[order]


def _is_sorted(line: Tensor, labels: Tensor) -> bool:
    """Whether a threshold separates the labels, so that no layer is needed."""
    changes = labels.diff() != 0
    return int(changes.sum()) <= 1 and not bool((changes & (line.diff() == 0)).any())
