"""A program over a region, written as another program over all of ℝⁿ.

What is known of programs over every real input is then known over the region: no analysis needs to know regions.
Points of ℝⁿ are taken *onto* the region (or a hair beyond, where numbers round), so nothing in it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.graph._node import InputSpec, Node
from farfield.graph._program import Program

__all__ = ["FREE", "over_ellipsoid", "real_size"]

FREE = "region_free"
"""The one real input of a restricted program, (1, n)."""
_WIDE = torch.float64


def real_size(program: Program) -> int:
    """Entries of all the real inputs together."""
    return sum(math.prod(int(d) for d in spec.shape) for spec in program.inputs if spec.kind == "real")


def over_ellipsoid(program: Program, center: Tensor, axes: Tensor) -> Program:
    r"""Over {x : Σ ((x_i − c_i)/a_i)² ≤ 1}: x = c + a·w/√(‖w‖² + 1), a longer by a hair to cover the rim.

    Parameters
    ----------
    program
        With fixed sizes.
    center, axes
        (n,) float64 over the real inputs, flattened and joined; axes are half-lengths, at least 0.

    Returns
    -------
    Program
        With the real input :data:`FREE` in the place of the others; nodes keep their names. The ellipsoid it covers
        is larger than the one asked for by a few units in the last place.

    Examples
    --------
    >>> from torch import nn
    >>> from farfield.graph import capture
    >>> plain = capture(nn.Linear(2, 1, bias=False), torch.zeros(1, 2), dynamic_batch=False)
    >>> inside = over_ellipsoid(plain, torch.zeros(2).double(), torch.tensor([3.0, 0.0]).double())
    >>> far = inside.evaluate(torch.tensor([[1e9, 1e9]]))["input"]
    >>> bool(torch.allclose(far, torch.tensor([[4.5**0.5, 0.0]]).double()))
    True
    """
    size = real_size(program)
    for name, given in (("center", center), ("axes", axes)):
        if given.shape != (size,) or not bool(torch.isfinite(given).all()):
            raise InvalidValueError(
                f"An ellipsoid's {name} has {size} finite numbers, one for each real input entry, and this one has "
                f"shape {list(given.shape)}."
            )
    if bool((axes < 0).any()):
        raise InvalidValueError("An ellipsoid's axes are half-lengths, so none of them is negative.")
    # The norm's values fill the open ball of radius √n. Three roundings lose at most 3 of the 8 units added.
    least = torch.where(axes > 0, axes.to(_WIDE).clamp_min(1e-290), 0.0)
    weight = (least / math.sqrt(size)) * (1.0 + 2.0**-50)

    def reach(made: Callable[..., str]) -> str:
        scale, shift = (
            made("constant", value=weight),
            made("constant", value=center.reshape(1, -1)),
        )
        ball = made("rms_norm", FREE, scale, dim=(1,), eps=1.0 / size, eps_mode="inside")
        return made("add", ball, shift, alpha=1)

    return _restricted(program, size, reach)


def _restricted(program: Program, size: int, reach: Callable[[Callable[..., str]], str]) -> Program:
    """The program with its real inputs cut out of what ``reach`` makes of the free one."""
    taken = {node.name for node in program.nodes}
    nodes: list[Node] = [Node(FREE, "input", "input", shape=(1, size), dtype=_WIDE, role="input")]
    constants: dict[str, Tensor] = {}

    def made(
        op: str, *inputs: str | None, value: Tensor | None = None, shape: object = None, **attributes: object
    ) -> str:
        name = f"region_{len(nodes)}"
        if value is not None:
            constants[name] = value.to(_WIDE)
            nodes.append(Node(name, op, shape=tuple(value.shape), dtype=_WIDE, role="constant"))
        else:
            sizes = shape if isinstance(shape, tuple) else (1, size)
            nodes.append(Node(name, op, inputs=inputs, attributes=attributes, shape=sizes, dtype=_WIDE))
        return name

    source, begin = reach(made), 0
    for spec in program.inputs:
        if spec.kind != "real":
            continue
        sizes = tuple(int(d) for d in spec.shape)
        count, part = math.prod(sizes), source
        if count != size:
            part = made("slice", source, dim=1, start=begin, end=begin + count, step=1, shape=(1, count))
        nodes.append(
            Node(
                spec.name,
                "reshape",
                inputs=(part,),
                attributes={"shape": sizes},
                shape=sizes,
                dtype=spec.dtype,
            )
        )
        begin += count
    clash = taken & {node.name for node in nodes if node.op != "reshape"}
    if clash:
        raise InvalidValueError(
            f"The program has nodes named {sorted(clash)}, which restricting it needs for itself."
        )
    replaced = {spec.name for spec in program.inputs if spec.kind == "real"}
    free = InputSpec(FREE, (1, size), _WIDE, "real")
    return replace(
        program,
        nodes=(*nodes, *(node for node in program.nodes if node.name not in replaced)),
        inputs=(free, *(spec for spec in program.inputs if spec.kind != "real")),
        constants={**program.constants, **constants},
    )
