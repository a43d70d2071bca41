"""Branch and bound over cells: one output of a network, bounded for every input of few dimensions.

All of ℝⁿ is the set of rays u = (x, t), t > 0, so it is covered by boxes on the surface of a cube; a box domain is
covered by boxes of its own. The box with the largest bound is halved until the bound meets a value the network
attains, or time is up: whenever it stops, the largest bound over the boxes holds for every input.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield._budget import Budget, Clock, running
from farfield.certify._cone import Cone
from farfield.certify._proofs import CellsProof
from farfield.certify.affine import Network
from farfield.certify.cells._compile import CellNetwork, compile_cells

__all__ = ["AXIS_LETTERS", "CellsState", "branch"]

LEAF, OUTSIDE = -1, -2
INSIDE = 1.0 - 1e-9
"""Of a ball's radius, where values in it are looked at."""
NODE_BYTES = 9
NODE_SECONDS = 6e-7
"""About what writing one node of a tree as text takes."""
AXIS_LETTERS = "0123456789abcdefghijklmnopqrstuvw"
"""How trees name axes."""


class CellsState:
    """Where a search stopped; only ``branch`` looks inside."""

    def __init__(self, compiled: CellNetwork) -> None:
        self.compiled = compiled
        axes, faces = compiled.axes, compiled.faces
        self.axis = torch.full((max(1024, faces),), LEAF, dtype=torch.int8)
        self.child = torch.zeros(self.axis.shape[0], dtype=torch.int64)
        self.nodes = faces
        self.bounded, self.seconds = 0, 0.0
        self.attained = -math.inf
        self.best: Tensor | None = None
        self.retired = -math.inf
        empty = torch.zeros(0, axes, dtype=torch.float64)
        self.face, self.node = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        self.center, self.half, self.share = empty, empty, empty
        self.upper = torch.zeros(0, dtype=torch.float64)

    def roots(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(face, node, center, half) of the first cells: side faces are halved at t = 0, one half left out."""
        axes, faces = self.compiled.axes, self.compiled.faces
        face = torch.arange(faces)
        center = torch.zeros(faces, axes, dtype=torch.float64)
        half = torch.ones(faces, axes, dtype=torch.float64)
        if not self.compiled.homogeneous:
            return face, face.clone(), center, half
        node = face.clone()
        self.axis[2 * axes] = OUTSIDE
        for side in range(2 * axes):
            self.axis[side], self.child[side] = axes - 1, self.nodes
            self.axis[self.nodes] = OUTSIDE
            node[side] = self.nodes + 1
            self.nodes += 2
            center[side, -1] = half[side, -1] = 0.5
        keep = face != 2 * axes
        return face[keep], node[keep], center[keep], half[keep]

    def divide(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take cells out of the pool and halve each along the axis with the largest share of its remainder."""
        face, node = self.face[chosen], self.node[chosen]
        center, half, share = self.center[chosen], self.half[chosen], self.share[chosen]
        keep = torch.ones(self.face.shape[0], dtype=torch.bool)
        keep[chosen] = False
        for name in ("face", "node", "center", "half", "share", "upper"):
            setattr(self, name, getattr(self, name)[keep])
        axis = share.argmax(1)
        count = len(chosen)
        while self.nodes + 2 * count > self.axis.shape[0]:
            self.axis = torch.cat([self.axis, torch.full_like(self.axis, LEAF)])
            self.child = torch.cat([self.child, torch.zeros_like(self.child)])
        first = self.nodes + 2 * torch.arange(count)
        self.axis[node], self.child[node] = axis.to(torch.int8), first
        self.nodes += 2 * count
        column = axis[:, None]
        half = half.scatter(1, column, half.gather(1, column) / 2)
        step = torch.zeros_like(half).scatter(1, column, half.gather(1, column))
        return (
            torch.cat([face, face]),
            torch.cat([first, first + 1]),
            torch.cat([center - step, center + step]),
            torch.cat([half, half]),
        )

    def bytes(self) -> int:
        """About what the pool and the trees hold."""
        return self.face.shape[0] * 8 * (3 + 3 * self.compiled.axes) + self.axis.shape[0] * NODE_BYTES

    def largest(self) -> float:
        """The bound over all cells."""
        return max(self.retired, float(self.upper.max()) if self.upper.numel() else -math.inf)

    def texts(self) -> tuple[str, ...]:
        """The trees."""
        axis, child = self.axis[: self.nodes].tolist(), self.child[: self.nodes].tolist()
        made = []
        for root in range(self.compiled.faces):
            parts, stack = [], [root]
            while stack:
                node = stack.pop()
                kind = axis[node]
                if kind >= 0:
                    parts.append(AXIS_LETTERS[kind])
                    stack.append(child[node] + 1)
                    stack.append(child[node])
                else:
                    parts.append("." if kind == LEAF else "x")
            made.append("".join(parts))
        return tuple(made)


def branch(
    network: Network,
    output_index: int,
    sign: int,
    *,
    time_budget: float | Budget | Clock,
    tolerance: float = 0.0,
    attained: float | None = None,
    state: CellsState | None = None,
    progress: Callable[[float, float, int], None] | None = None,
    batch: int | None = None,
    memory_bytes: int = 1 << 30,
    cone: Cone | None = None,
) -> tuple[CellsProof, CellsState]:
    """Bound sign·f from above for every input of a compact network.

    Cells with the largest bound are halved first. What comes back is sound whenever the search stops; in n dimensions
    the excess falls like (cells)^(−2/n).

    Parameters
    ----------
    network, output_index, sign
        What to bound: see ``compile_cells``.
    time_budget
        When to stop, in seconds or as a budget; a step is one batch of cells bounded.
    tolerance
        Cells whose bound is at most attained + tolerance are done.
    attained
        A value sign·f is known to reach.
    state
        Where an earlier call on the same network, output and sign stopped.
    progress
        Called with (bound, attained, cells bounded) after every batch.
    batch, memory_bytes
        Cells bounded at once (chosen by the network's width if not given); what may be held in all.
    cone
        The domain, where it is smaller than all inputs of a homogeneous network, or an ellipsoid in a network's box:
        cells outside of it don't count.
    """
    clock = running(time_budget)
    first = state is None
    if state is None:
        state = CellsState(compile_cells(network, output_index, sign, cone))
    compiled, before = state.compiled, clock.elapsed
    size = batch or _batch_size(compiled)
    state.attained = max(state.attained, -math.inf if attained is None else attained)
    status = "met"
    if first:
        clock.spend()
        _enter(state, *state.roots(), tolerance)
    slowest = 0.0
    while True:
        chosen = _worst(state, state.attained + tolerance, size // 2)
        if not len(chosen):
            break
        begun = clock.elapsed
        if clock.seconds_left - state.nodes * NODE_SECONDS < slowest or clock.over:
            status = "deadline"
            break
        if state.bytes() + 16 * size * (10 + 3 * compiled.axes) > memory_bytes:
            status = "memory"
            break
        clock.spend()
        _enter(state, *state.divide(chosen), tolerance)
        slowest = max(0.9 * slowest, clock.elapsed - begun)
        if progress is not None:
            progress(state.largest(), state.attained, state.bounded)
    trees = state.texts()
    state.seconds += clock.elapsed - before
    return _proof(state, output_index, sign, trees, status), state


def _batch_size(compiled: CellNetwork) -> int:
    width = max([s.block.size for s in compiled.steps], default=1)
    return max(32, min(4096, int(2.5e5 / (width * (compiled.axes + 2)))))


def _worst(state: CellsState, line: float, count: int) -> Tensor:
    """Cells to halve next: the largest bounds, of those above the line; cells narrower than 2⁻⁴⁰ are not split."""
    open_ = torch.nonzero((state.upper > line) & (state.half.amin(1) > 2.0**-40)).reshape(-1)
    if len(open_) <= count:
        return open_
    return open_[torch.topk(state.upper[open_], count, sorted=False).indices]


def _enter(
    state: CellsState, face: Tensor, node: Tensor, center: Tensor, half: Tensor, tolerance: float
) -> None:
    """Bound cells, look at values inside them, and put those that are not done into the pool."""
    upper, share, slopes = state.compiled.bound(face, center, half)
    state.bounded += len(face)
    _look(state, face, center, half, upper, slopes)
    active = upper > state.attained + tolerance
    if not bool(active.all()):
        state.retired = max(state.retired, float(upper[~active].max()))
    for name, value in (
        ("face", face), ("node", node), ("center", center), ("half", half), ("share", share), ("upper", upper),
    ):  # fmt: skip
        setattr(state, name, torch.cat([getattr(state, name), value[active]]))


def _look(
    state: CellsState, face: Tensor, center: Tensor, half: Tensor, upper: Tensor, slopes: Tensor
) -> None:
    """Values at the centers of the most promising cells, and at the corners their slopes point to."""
    best = torch.topk(upper, min(len(upper), 64), sorted=False).indices
    compiled = state.compiled
    corner = center[best] + half[best] * torch.sign(slopes[best])
    if compiled.ball is not None:
        corner = center[best] + torch.nn.functional.normalize(slopes[best] / half[best]) * half[best]
    p = compiled.points(
        torch.cat([face[best], face[best]]), torch.cat([center[best], corner]).clamp(-1.0, 1.0)
    )
    if compiled.ball is not None:
        p = p * (INSIDE / p.norm(dim=1, keepdim=True).clamp_min(INSIDE))
    u = p @ compiled.matrix.T + compiled.shift
    if compiled.homogeneous:
        u[:, -1] = u[:, -1].clamp_min(0.0)
    values = compiled.evaluate(u)
    values = torch.where(torch.isfinite(values), values, -math.inf)
    if compiled.cone is not None:
        values = torch.where(compiled.cone.inside(u), values, -math.inf)
    top = int(values.argmax())
    if float(values[top]) > state.attained:
        state.attained, state.best = float(values[top]), u[top]


def _proof(
    state: CellsState, output_index: int, sign: int, trees: tuple[str, ...], status: str
) -> CellsProof:
    compiled = state.compiled
    point, finite = (), True
    if state.best is not None:
        u = state.best
        finite = not compiled.homogeneous or float(u[-1]) > 1e-12 * float(u.abs().max())
        x = u[:-1] if compiled.homogeneous else u
        point = tuple((x / u[-1] if compiled.homogeneous and finite else x).tolist())
    return CellsProof(
        bound=state.largest(),
        attained=state.attained,
        point=point,
        finite=finite,
        sign=sign,
        output=output_index,
        trees=trees,
        matrix=tuple(tuple(row) for row in compiled.matrix.tolist()),
        shift=tuple(compiled.shift.tolist()),
        cells=sum(tree.count(".") for tree in trees),
        bounded=state.bounded,
        seconds=state.seconds,
        status=status,
    )
