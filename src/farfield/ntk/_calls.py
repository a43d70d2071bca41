"""Uses of parameters: what is noted of one, and which parameters count."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["ParameterCall", "Recording", "TrackedParameters"]

CallKind = Literal["linear", "transposed", "convolution", "embedding", "scale", "shift"]


@dataclass(frozen=True)
class ParameterCall:
    """One use of one or two parameters.

    Parameters
    ----------
    kind
        ``"linear"`` (y = x Wᵀ + b), ``"transposed"`` (y = x W + b), ``"convolution"``, ``"embedding"``,
        ``"scale"`` (y = x ⊙ w), ``"shift"`` (y = x + b, scaled).
    weight, bias
        Names of the parameters, None where there is none or where it is not tracked.
    options
        What else the contribution depends on, plain values.
    factors
        Numbers that weight and bias were multiplied by on the way.
    """

    kind: CallKind
    weight: str | None
    bias: str | None
    options: tuple[tuple[str, Any], ...] = ()
    factors: tuple[float, float] = (1.0, 1.0)

    def option(self, name: str, default: Any = None) -> Any:
        """One of the options."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class TrackedParameters:
    """The parameters whose gradients count, by name and by identity.

    Parameters
    ----------
    names
        id of a parameter → its name.
    parameters
        Name → parameter; a shared one counts once.
    places
        Name → one path for every module that holds it.
    lock
        Held while a model runs: putting other values into it changes the module itself for that time.
    known
        What earlier runs have found out about the model.
    """

    names: dict[int, str]
    parameters: dict[str, Tensor]
    places: dict[str, tuple[str, ...]]
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)
    known: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(model: nn.Module, chosen: Callable[[str, Tensor], bool]) -> TrackedParameters:
        """Parameters that require a gradient and are chosen."""
        names: dict[int, str] = {}
        parameters: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and chosen(name, parameter):
                names[id(parameter)] = name
                parameters[name] = parameter
        places: dict[str, list[str]] = {name: [] for name in parameters}
        for path, module in model.named_modules():  # each module once, however often it is used
            for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                name = names.get(id(parameter), "")
                if name:
                    places[name].append(f"{path}.{attribute}" if path else attribute)
        return TrackedParameters(names, parameters, {name: tuple(found) for name, found in places.items()})

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest that holds the gradients by every parameter."""
        dtypes = (p.dtype for p in self.parameters.values())
        return functools.reduce(torch.promote_types, dtypes)

    def substitute(self, model: nn.Module, values: dict[str, Tensor], x: Tensor) -> Any:
        """model(x) with other values of some of the parameters."""
        # Torch's own handling of tied weights sets a module that is used twice twice, and leaves the wrong
        # tensor behind.
        everywhere = {place: value for name, value in values.items() for place in self.places[name]}
        with self.lock:
            return functional_call(model, everywhere, (x,), tie_weights=False) if values else model(x)

    def __getstate__(self) -> dict[str, Any]:
        # Ids are those of this process.
        return {"parameters": self.parameters, "places": self.places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = {id(parameter): name for name, parameter in state["parameters"].items()}
        self.__dict__.update(state, names=names, lock=threading.RLock(), known={})

    def name(self, value: Any) -> str | None:
        """The name of a tracked parameter, None for anything else."""
        # By identity alone: the parameters are alive, so nothing else has their ids.
        return self.names.get(id(value))


@dataclass
class Recording:
    """Calls on tracked parameters, in the order they were made.

    Parameters
    ----------
    tracked
        The parameters.
    perturbations
        One for every call, added to its output; None where there is none.
    opaque
        Parameters whose use is not understood: they are left alone here, and their gradients are taken as they are.
    keep
        Whether to keep the calls' outputs themselves, to differentiate by.
    copy
        Whether the model goes on with copies of the kept outputs, which it may then write to.
    trace
        Whether to note where the graph goes on below the calls, for ``hidden``.
    calls, inputs, outputs
        What was called, on what, and shape, dtype and device of what came out.
    kept
        The outputs.
    sources
        Where the graph goes on below the calls: nodes of what they were given.
    moved
        Whether something was called that may change the order of a batch.
    plain
        Whether all calls so far were recorded or act on every entry alone: then no row can meet another.
    multiples
        Tensors that are a parameter times a number: id → name, number, and the tensor, so that its id stays its own.
    versions
        What must stay as it is, and how often it had been written to: the calls' inputs, and outputs without a copy.
    room
        Bytes that the outputs of all calls may take. The run is abandoned before a call that takes more, or whose
        output's size isn't known beforehand. None: no limit.
    """

    tracked: TrackedParameters
    perturbations: tuple[Tensor, ...] | None = None
    opaque: set[str] = field(default_factory=set)
    keep: bool = False
    copy: bool = True
    trace: bool = False
    calls: list[ParameterCall] = field(default_factory=list)
    inputs: list[Tensor | None] = field(default_factory=list)
    outputs: list[tuple[torch.Size, torch.dtype, torch.device]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    moved: bool = False
    plain: bool = True
    multiples: dict[int, tuple[str, float, Tensor]] = field(default_factory=dict)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    room: int | None = None

    def known(self, value: Any) -> str | None:
        """The name of the tracked parameter that a tensor is, or is a multiple of; None for anything else."""
        name = self.tracked.name(value)
        if name is None and id(value) in self.multiples:
            name = self.multiples[id(value)][0]
        return name

    def name(self, value: Any) -> str | None:
        """The same, if all its uses are understood so far."""
        name = self.known(value)
        return None if name in self.opaque else name

    def factor(self, value: Any) -> float:
        """The factor by which a parameter was multiplied to give this tensor."""
        return self.multiples[id(value)][1] if id(value) in self.multiples else 1.0

    def multiple(self, value: Tensor, of: Tensor, factor: float) -> None:
        """Note that a tensor is a parameter, or a multiple of one, times a number and perhaps moved by a constant."""
        name = self.name(of)
        assert name is not None
        self.multiples[id(value)] = (name, factor * self.factor(of), value)

    def add(self, call: ParameterCall, x: Tensor, y: Tensor) -> Tensor:
        """Record a call with input x and output y; the output with its perturbation."""
        index = len(self.calls)
        self.calls.append(call)
        self.inputs.append(x if call.weight is not None else None)
        self.outputs.append((y.shape, y.dtype, y.device))
        if self.keep:
            self.kept.append(y)
            self.versions.append((x, x._version))
            if self.copy:
                return y.clone()
            self.versions.append((y, y._version))
            return y
        return y if self.perturbations is None else y + self.perturbations[index]

    def untouched(self) -> bool:
        """Whether what must stay as it is has not been written to since."""
        return all(value._version == version for value, version in self.versions)
