"""Gradients of a stacked chain of layers, written out: every large pass in place, in buffers that are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from farfield.engine import local

__all__ = ["AffineStep", "FirstAffineStep", "Layer", "Local", "Piece", "Relu", "RowNorm", "WrittenOut"]

Piece = tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]
"""Inputs, (members or 1, rows, features), and the function from outputs to the losses of rows, (members, rows), and
their gradient with respect to the outputs."""


@dataclass
class Pass:
    """What the layers share while they work on some members of a stack.

    ``at``: those members. ``fresh``: nothing has been added to their gradients yet.
    """

    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    at: slice = field(default_factory=lambda: slice(0, 0))
    fresh: bool = True
    buffers: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _views: dict[tuple[str, torch.Size], Tensor] = field(default_factory=dict)

    def parameter(self, name: str) -> Tensor | None:
        """Of the members at work; None if the layer has none."""
        found = self.parameters.get(name)
        return None if found is None else found.detach()[self.at]

    def gradient(self, name: str) -> Tensor | None:
        """Where to add the gradient of a parameter of the members at work; None if it is not trained."""
        found = self.gradients.get(name)
        return None if found is None else found[self.at]

    def add(self, name: str, value: Tensor) -> None:
        """Add to a gradient, or begin it."""
        if (found := self.gradient(name)) is not None:
            found.copy_(value) if self.fresh else found.add_(value)

    def buffer(self, name: str, like: Tensor, width: int | None = None) -> Tensor:
        """Shape (members, rows, width). The next piece uses it again: new memory costs more than a pass over it."""
        shape = like.shape if width is None else torch.Size((*like.shape[:-1], width))
        view = self._views.get((name, shape))
        if view is None:
            memory = self.buffers.get((name, shape[-1]))
            if memory is None or memory.numel() < shape.numel():
                memory = self.buffers[name, shape[-1]] = like.new_empty(shape.numel())
                self._views = {key: kept for key, kept in self._views.items() if key[0] != name}
            view = self._views[name, shape] = memory[: shape.numel()].view(shape)
        return view

    def other(self, given: Tensor, width: int | None = None) -> Tensor:
        """One of the two buffers for what passes back, the one that does not hold ``given``."""
        first = self.buffer("back", given, width)
        return self.buffer("back again", given, width) if first.data_ptr() == given.data_ptr() else first


class Layer(Protocol):
    """One layer of a chain: what :meth:`forward` keeps is used by the :meth:`backward` that follows it."""

    def begin(self, work: Pass) -> None:
        """Before the first piece of some members."""

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """Shape (members, rows, in) → (members, rows, out)."""

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """Add the gradients of parameters; the gradient of the input if it is wanted. May overwrite what it gets."""

    def finish(self, work: Pass) -> None:
        """After the last piece of these members."""


class _Simple(Layer):
    def begin(self, work: Pass) -> None:
        """Nothing to prepare."""

    def finish(self, work: Pass) -> None:
        """Nothing to add."""


@dataclass
class AffineStep(Layer):
    """x ↦ scale·W x + bias_scale·b, centered for a LayerNorm behind it: by centering W and b, which costs no pass."""

    name: str
    scale: float = 1.0
    bias_scale: float = 1.0
    centers: bool = False

    def begin(self, work: Pass) -> None:
        """The weights as they are used."""
        weight, bias = (work.parameter(f"{self.name}{own}") for own in ("weight", "bias"))
        assert weight is not None
        weight = weight if self.scale == 1.0 else self.scale * weight
        bias = None if bias is None else self.bias_scale * bias[:, None]
        if self.centers:
            weight = weight - weight.mean(1, keepdim=True)
            bias = None if bias is None else bias - bias.mean(2, keepdim=True)
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """One product, which adds the bias."""
        self._input = x
        out = work.buffer(self.name, x, self._weight.shape[1])
        if self._bias is None:
            return torch.bmm(x, self._weight.mT, out=out)
        return torch.baddbmm(self._bias, x, self._weight.mT, out=out)

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """dW = gᵀx, db = Σg, dx = gW."""
        if (own := work.gradient(f"{self.name}weight")) is not None:
            own.baddbmm_(gradient.mT, self._input, beta=0.0 if work.fresh else 1.0, alpha=self.scale)
        if self._bias is not None:
            work.add(f"{self.name}bias", gradient.sum(1).mul_(self.bias_scale))
        if not wanted:
            return gradient
        out = work.other(gradient, self._weight.shape[2])
        # With one output it is a multiplication; as a product of matrices torch takes several times as long for it.
        back = torch.mul if self._weight.shape[1] == 1 else torch.bmm
        return back(gradient, self._weight, out=out)

    def finish(self, work: Pass) -> None:
        """The gradients of what was centered are those of the parameters once they are centered too."""
        if self.centers:
            for own in ("weight", "bias"):
                if (found := work.gradient(f"{self.name}{own}")) is not None:
                    found.sub_(found.mean(1, keepdim=True))


@dataclass
class FirstAffineStep(Layer):
    r"""The first layer, with few inputs, and the LayerNorm or RMSNorm right behind it.

    With u = (x, 1), A = (W, b), its columns centered for LayerNorm, and A = Q·R, the norm is
    n = A·u/√(‖R·u‖²/width + ε): what would be passes over ``width`` numbers is done on u. With t the gradient of n,
    v = u/√(…) and q = t·n/width, the gradient of A is Σ t vᵀ − A Σ q v vᵀ, centered again.
    """

    name: str
    scale: float = 1.0
    bias_scale: float = 1.0
    eps: float | None = None
    """Of the norm; None without one."""
    centers: bool = False

    def begin(self, work: Pass) -> None:
        """A and R."""
        weight, bias = (work.parameter(f"{self.name}{own}") for own in ("weight", "bias"))
        assert weight is not None
        last = weight.new_zeros(*weight.shape[:2], 1) if bias is None else self.bias_scale * bias[..., None]
        joined = torch.cat([self.scale * weight, last], 2)
        if self.centers:
            joined = joined - joined.mean(1, keepdim=True)
        self._across = joined.mT.contiguous()
        if self.eps is not None:
            safe = torch.where(
                joined.isfinite(), joined, torch.nan
            )  # of NaN LAPACK makes NaN, of ∞ it may not end
            self._sizes = torch.linalg.qr(safe / joined.shape[1] ** 0.5, mode="r").R.mT.contiguous()
        self._products = joined.new_zeros(len(joined), joined.shape[2], joined.shape[2])
        self._sums = torch.zeros_like(self._across)

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """One product."""
        self._input = x
        if self.eps is not None:
            sizes = torch.linalg.vector_norm(torch.bmm(x, self._sizes), dim=2, keepdim=True)
            self._input = x * sizes.square_().add_(self.eps).rsqrt_()
        self._output = torch.bmm(
            self._input, self._across, out=work.buffer(self.name, x, self._across.shape[2])
        )
        return self._output

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """Nothing passes on: the input has no gradient.

        A ReLU behind may have overwritten n where it is negative: t is 0 there, and t·n what it was.
        """
        self._sums.baddbmm_(self._input.mT, gradient)
        if self.eps is not None:
            along = torch.mul(gradient, self._output, out=work.other(gradient)).mean(2, keepdim=True)
            self._products.baddbmm_(self._input.mT, self._input * along)
        return gradient

    def finish(self, work: Pass) -> None:
        """The gradients of W and b, from that of A."""
        found = self._sums if self.eps is None else self._sums - torch.bmm(self._products, self._across)
        if self.centers:
            found = found - found.mean(2, keepdim=True)
        if (weight := work.gradient(f"{self.name}weight")) is not None:
            torch.mul(found[:, :-1].mT, self.scale, out=weight)
        if (bias := work.gradient(f"{self.name}bias")) is not None:
            torch.mul(found[:, -1], self.bias_scale, out=bias)


@dataclass
class RowNorm(_Simple):
    """LayerNorm; or RMSNorm, which does not center, as LayerNorm need not if what it gets is centered.

    n = x̃/√(mean x̃² + ε), then w∘n + b.
    """

    name: str
    eps: float
    centers: bool
    in_place: bool

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """In place behind a product, which does not need its output again."""
        if not self.in_place:
            x = work.buffer("input of " + self.name, x).copy_(x)
        if self.centers:
            x.sub_(x.mean(2, keepdim=True))
        sizes = torch.linalg.vector_norm(x, dim=2, keepdim=True)
        self._inverse = sizes.square_().div_(x.shape[2]).add_(self.eps).rsqrt_()
        self._normalized = y = x.mul_(self._inverse)
        weight, bias = (work.parameter(f"{self.name}{own}") for own in ("weight", "bias"))
        if weight is not None:
            y = torch.mul(y, weight[:, None], out=work.buffer(self.name, x))
        if bias is not None:
            y = torch.add(y, bias[:, None], out=work.buffer(self.name, x))
        return y

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """t = w∘g; dx = (t − mean t − n·mean(n∘t))/√(…), the term in the middle for LayerNorm only."""
        spare = work.other(gradient)
        if work.gradient(f"{self.name}bias") is not None:
            work.add(f"{self.name}bias", gradient.sum(1))
        if (weight := work.parameter(f"{self.name}weight")) is not None:
            work.add(f"{self.name}weight", torch.mul(gradient, self._normalized, out=spare).sum(1))
            gradient.mul_(weight[:, None])
        along = torch.mul(gradient, self._normalized, out=spare).mean(2, keepdim=True)
        if self.centers:
            gradient.sub_(gradient.mean(2, keepdim=True))
        return gradient.addcmul_(self._normalized, along, value=-1.0).mul_(self._inverse)


@dataclass
class Relu(_Simple):
    """max(x, 0): in place where the layer before does not need its output below zero."""

    name: str
    in_place: bool

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """Keeps its output: it is 0 where the gradient is."""
        self._output = x.relu_() if self.in_place else torch.clamp_min(x, 0.0, out=work.buffer(self.name, x))
        return self._output

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """In place."""
        masked: Tensor = torch.ops.aten.threshold_backward.grad_input(
            gradient, self._output, 0, grad_input=gradient
        )
        return masked


@dataclass
class Local(_Simple):
    """A module without parameters that treats every row alike: its gradient by autograd."""

    module: nn.Module

    def forward(self, x: Tensor, work: Pass) -> Tensor:
        """As the module has it."""
        with torch.enable_grad():
            self._input = x.detach().requires_grad_()
            output: Tensor = self.module(self._input.clone())  # a module may write into what it gets
        self._output = output
        return output.detach()

    def backward(self, gradient: Tensor, work: Pass, *, wanted: bool) -> Tensor:
        """Of this module alone."""
        return torch.autograd.grad(self._output, self._input, gradient)[0]


class WrittenOut:
    """Gradients of the losses of a stacked chain of layers, without autograd.

    Autograd makes a tensor for every operation, and memory that is new costs more than a pass over it. Here a few
    members at a time, and as many of their rows as fit, go through buffers that the next ones use again: the same
    sums in another order.

    Parameters
    ----------
    layers
        From the input to the output.
    parameters
        Of the stack, by name, with the members in front.
    """

    def __init__(self, layers: Sequence[Layer], parameters: dict[str, Tensor]) -> None:
        self.layers = tuple(layers)
        self._work = Pass(parameters)
        self._idle: list[WrittenOut] = []
        """Twins that wait for work, one for each of several threads."""

    @property
    def wants_ones(self) -> bool:
        """Whether inputs have a last feature that is 1."""
        return isinstance(self.layers[0], FirstAffineStep)

    def clear(self) -> None:
        """Begin a step: from now on the parameters' ``grad`` are this chain's, and hold nothing."""
        for name, parameter in self._work.parameters.items():
            if parameter.requires_grad:
                known = self._work.gradients.get(name)
                parameter.grad = self._work.gradients[name] = (
                    torch.zeros_like(parameter, requires_grad=False) if known is None else known
                )

    def accumulate_all(
        self, parts: Sequence[slice], pieces: Callable[[slice], Iterable[Piece]], *, workers: int
    ) -> Tensor:
        """:meth:`accumulate` for every part of the members, several at once, each with buffers of its own."""
        if workers < 2:
            return torch.cat([self.accumulate(at, pieces(at)) for at in parts])
        while len(self._idle) < workers:
            twin = WrittenOut([replace(layer) for layer in self.layers], self._work.parameters)  # type: ignore[type-var]
            twin._work.gradients = self._work.gradients
            self._idle.append(twin)

        def one(at: slice) -> Tensor:
            chain = self._idle.pop()
            try:
                return chain.accumulate(at, pieces(at))
            finally:
                self._idle.append(chain)

        return torch.cat(list(local(workers, threads=1).run(one, parts)))

    @torch.no_grad()
    def accumulate(self, members: slice, pieces: Iterable[Piece]) -> Tensor:
        """Gradients of some members over all rows of a step; the sums of their losses, float64."""
        # The caller's autocast would not reach other threads.
        with torch.autocast("cpu", enabled=False):
            work = self._work
            work.at, work.fresh = members, True
            for layer in self.layers:
                layer.begin(work)
            total = torch.zeros(members.stop - members.start, dtype=torch.float64)
            for inputs, loss in pieces:
                x = inputs.expand(len(total), -1, -1)
                for layer in self.layers:
                    x = layer.forward(x, work)
                losses, gradient = loss(x)
                for k, layer in reversed(tuple(enumerate(self.layers))):
                    gradient = layer.backward(gradient, work, wanted=k > 0)
                total += losses.sum(1).double()
                work.fresh = False
            for layer in self.layers:
                layer.finish(work)
        return total
