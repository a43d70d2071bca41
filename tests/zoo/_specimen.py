"""A specimen: a model, the truth about it, and why that is the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["BOUNDED", "UNBOUNDED", "Family", "Specimen", "Truth", "compose"]

Truth = Literal["BOUNDED", "UNBOUNDED"]
BOUNDED: Truth = "BOUNDED"
UNBOUNDED: Truth = "UNBOUNDED"


@dataclass(frozen=True)
class Specimen:
    """One model of the zoo.

    Parameters
    ----------
    name, family
        Unique name; the file it lives in.
    make
        Builds (model, inputs) from torch's default generator; call :meth:`build` instead.
    truth
        Over all outputs and all real inputs at once, in real arithmetic.
    why
        The proof, in a line.
    codes, absent
        Findings that have to be there, and findings that would be wrong.
    outputs
        Truth of every tensor returned, in order; empty where ``truth`` says it all.
    alone
        Truth when one input moves and the others stand still.
    bound
        A proved bound on every |output|, where there is a simple one.
    degree
        Of the fastest growth over all inputs together; infinite for an exponential, 0 for a logarithm.
    batched
        The first axis of every real input counts samples. If not, an input is one point.
    needs
        Packages without which the specimen is skipped.
    generic
        Draw norms' parameters and zero biases at random as well, as after training.
    slow
        Left out of the quick run.
    """

    name: str
    family: str
    make: Callable[[], tuple[nn.Module, Any]]
    truth: Truth
    why: str
    codes: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    outputs: tuple[Truth, ...] = ()
    alone: Mapping[str, Truth] = field(default_factory=dict)
    bound: float | None = None
    degree: float | None = None
    batched: bool = True
    needs: tuple[str, ...] = ()
    generic: bool = True
    slow: bool = False

    def build(self, seed: int = 0) -> tuple[nn.Module, Any]:
        """The model in eval mode and its example inputs; the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, inputs = self.make()
            if self.generic:
                unsettle(model)
        return model.eval(), inputs


class Family:
    """Collects the specimens of one file."""

    def __init__(self, name: str, *, needs: Iterable[str] = ()) -> None:
        self.name, self.needs = name, tuple(needs)
        self.specimens: list[Specimen] = []

    def add(self, name: str, make: Callable[[], Any], truth: Truth, why: str, **rest: Any) -> None:
        """One specimen; codes may be given as one string, separated by blanks."""
        for key in ("codes", "absent"):
            if key in rest:
                rest[key] = frozenset(rest[key].split())
        rest["needs"] = (*self.needs, *rest.get("needs", ()))
        self.specimens.append(Specimen(name, self.name, make, truth, why, **rest))

    def bounded(self, why: str, **rest: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate the builder of a bounded model."""
        return self._decorator(BOUNDED, why, rest)

    def unbounded(self, why: str, **rest: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate the builder of an unbounded model."""
        return self._decorator(UNBOUNDED, why, rest)

    def _decorator(self, truth: Truth, why: str, rest: dict[str, Any]) -> Any:
        def enroll(make: Callable[[], Any]) -> Callable[[], Any]:
            self.add(make.__name__, make, truth, why, **rest)
            return make

        return enroll


def compose(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A module with this ``forward(self, …)`` and these children, parameters and buffers."""
    module: nn.Module = type("Composed", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
            module.register_buffer(name, part)
        else:
            setattr(module, name, part)
    return module


def unsettle(model: nn.Module) -> None:
    """Random values for parameters that start all equal and for running statistics: nothing holds by accident."""
    with torch.no_grad():
        for parameter in model.parameters():
            first = float(parameter.flatten()[0]) if parameter.numel() > 1 else math.nan
            if not bool((parameter == first).all()):
                continue
            noise = torch.randn(parameter.shape)
            parameter.copy_(0.1 * noise if first == 0.0 else first * (1.0 + 0.2 * noise))
        for module in model.modules():
            if isinstance(getattr(module, "running_var", None), Tensor):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
