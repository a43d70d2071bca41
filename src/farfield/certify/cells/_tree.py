"""Reading a proof back: the cells its trees describe, and their bounds once more."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from farfield._typing import Bool, Float
from farfield.certify._proofs import CellsProof
from farfield.certify.affine import Network
from farfield.certify.cells._branch import AXIS_LETTERS
from farfield.certify.cells._compile import compile_cells
from farfield.errors import FarfieldError

__all__ = ["BrokenProofError", "leaves", "recheck"]


class BrokenProofError(FarfieldError):
    """A proof whose trees or coordinates do not cover the domain."""


def leaves(
    tree: str, axes: int
) -> tuple[Float[torch.Tensor, "L k"], Float[torch.Tensor, "L k"], Bool[torch.Tensor, " L"]]:
    """(centers, half-widths, whether inside the domain) of the cells of one face.

    Parameters
    ----------
    tree
        Preorder: an axis letter halves the cell, lower half first; ``.`` and ``x`` end it.
    axes
        Dimension of the face; the root is [−1, 1]^axes.

    Examples
    --------
    >>> leaves("0x.", 1)[0].tolist()
    [[-0.5], [0.5]]
    """
    kinds = {letter: place for place, letter in enumerate(AXIS_LETTERS[:axes])}
    centers: list[list[float]] = []
    halves: list[list[float]] = []
    inside: list[bool] = []
    stack = [([0.0] * axes, [1.0] * axes)]
    for letter in tree:
        if not stack:
            raise BrokenProofError("A tree of cells goes on after its last cell.")
        center, half = stack.pop()
        if letter in ".x":
            centers.append(center)
            halves.append(half)
            inside.append(letter == ".")
            continue
        if letter not in kinds:
            raise BrokenProofError(f"A tree of cells with {axes} axes has no axis {letter!r}.")
        axis = kinds[letter]
        half = [*half[:axis], half[axis] / 2, *half[axis + 1 :]]
        places = (center[axis] + half[axis], center[axis] - half[axis])
        stack.extend(([*center[:axis], place, *center[axis + 1 :]], half) for place in places)
    if stack:
        raise BrokenProofError("A tree of cells ends before all of its cells are closed.")
    make = torch.tensor
    size = (len(centers), axes)
    return (
        make(centers, dtype=torch.float64).reshape(size),
        make(halves, dtype=torch.float64).reshape(size),
        make(inside, dtype=torch.bool),
    )


def recheck(network: Network, proof: CellsProof, *, batch: int = 1024) -> float:
    """The bound a proof's cells give, computed again from the network and the trees alone.

    Raises
    ------
    BrokenProofError
        Where the cells do not cover the domain: a tree that is not closed, coordinates that are not invertible, a
        cell left out although it has inputs.
    """
    compiled = compile_cells(network, proof.output, proof.sign)
    if compiled.homogeneous:
        matrix = torch.tensor(proof.matrix, dtype=torch.float64)
        if matrix.shape != compiled.matrix.shape or not bool(
            (torch.triu(matrix) == matrix).all()
            & (torch.diagonal(matrix) > 0).all()
            & torch.isfinite(matrix).all()
        ):
            raise BrokenProofError(
                "Coordinates of cells are an upper triangular matrix with a positive diagonal."
            )
        compiled = replace(compiled, matrix=matrix)
    if len(proof.trees) != compiled.faces:
        raise BrokenProofError(f"{compiled.faces} faces need as many trees, got {len(proof.trees)}.")
    bound = -math.inf
    for face, tree in enumerate(proof.trees):
        center, half, inside = leaves(tree, compiled.axes)
        out = ~inside
        if bool(out.any()):
            last = compiled.points(torch.full((int(out.sum()),), face), center[out] + half[out])[:, -1]
            if not compiled.homogeneous or bool((last > 0).any()):
                raise BrokenProofError(f"A cell of face {face} is left out although it has inputs.")
        for start in range(0, int(inside.sum()), batch):
            c, h = center[inside][start : start + batch], half[inside][start : start + batch]
            upper, _, _ = compiled.bound(torch.full((len(c),), face), c, h)
            bound = max(bound, float(upper.max()))
    return bound
