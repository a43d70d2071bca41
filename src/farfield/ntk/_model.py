"""What is asked of a model: which outputs, which parameters, and that it is a function of one input at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.ntk._calls import TrackedParameters

__all__ = ["Outputs", "ParameterFilter", "Selection", "require_evaluation", "track"]

Outputs: TypeAlias = str | int | tuple[int, ...]
ParameterFilter: TypeAlias = Callable[[str, Tensor], bool] | str | Iterable[str] | None


@dataclass(frozen=True)
class Selection:
    """From a model's output for one input to the numbers whose gradients are taken; picklable.

    ``"full"`` and ``"trace"`` take every output, ``"sum"`` their sum, an index one of them.
    """

    outputs: Outputs

    def __post_init__(self) -> None:
        if isinstance(self.outputs, str) and self.outputs not in ("full", "trace", "sum"):
            raise InvalidValueError(
                f"outputs is 'full', 'trace', 'sum' or the index of one output, got {self.outputs!r}."
            )
        if not isinstance(self.outputs, str) and not all(_whole(i) for i in self.index):
            raise InvalidValueError(
                "The index of one output is a whole number, or a tuple of one for each axis; got "
                f"{self.outputs!r}. For several outputs take a part of 'full'."
            )

    @property
    def trace(self) -> bool:
        """Whether one number a pair of inputs is asked for."""
        return self.outputs != "full"

    @property
    def index(self) -> tuple[int, ...]:
        """Index of the one output that is selected."""
        assert not isinstance(self.outputs, str)
        return self.outputs if isinstance(self.outputs, tuple) else (self.outputs,)

    def __call__(self, y: Any) -> Tensor:
        """(1, *output) → (K,)."""
        if not isinstance(y, Tensor):
            raise InvalidValueError(
                f"The tangent kernel is that of a tensor, and this model returns a {type(y).__name__}. Wrap it "
                f"in a module whose "
                "forward returns the tensor you mean."
            )
        if self.outputs in ("full", "trace"):
            return y.reshape(-1)
        if self.outputs == "sum":
            return y.sum().reshape(1)
        shape = tuple(y.shape[1:])
        if len(self.index) != len(shape):
            raise InvalidValueError(
                f"outputs={self.outputs!r} has {len(self.index)} indices, and an output has shape {shape}. Give an "
                "index for every axis, or 'trace', 'sum' or 'full'."
            )
        if not all(-size <= i < size for i, size in zip(self.index, shape, strict=True)):
            raise InvalidValueError(
                f"outputs={self.outputs!r} is the index of one output, and an output has shape {shape}."
            )
        return y[0][self.index].reshape(1)


def _whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | list)


def track(model: nn.Module, chosen: ParameterFilter) -> TrackedParameters:
    """The parameters whose gradients count: those that require one, and that the filter takes."""
    if chosen is None:
        tracked = TrackedParameters.of(model, lambda name, parameter: True)
    elif callable(chosen):
        tracked = TrackedParameters.of(model, chosen)
    else:
        named = _named(model, (chosen,) if isinstance(chosen, str) else tuple(chosen))
        tracked = TrackedParameters.of(model, lambda name, parameter: id(parameter) in named)
    if not tracked.parameters:
        raise InvalidValueError(
            "No parameter is left to differentiate by: none requires a gradient"
            + ("." if chosen is None else " and passes the filter.")
        )
    for name, parameter in tracked.parameters.items():
        if not parameter.is_floating_point():
            raise InvalidValueError(
                f"The tangent kernel is of gradients by real parameters, and {name} is {parameter.dtype}. Keep the "
                "real and imaginary parts as a real parameter and join them by torch.view_as_complex."
            )
    return tracked


def _named(model: nn.Module, prefixes: tuple[str, ...]) -> set[int]:
    """Ids of the parameters that have one of the names, or a name below it; a shared one has several."""
    every = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    found: set[int] = set()
    for prefix in prefixes:
        here = {key for name, key in every if name == prefix or name.startswith(prefix + ".")}
        if not here:
            raise UnknownNameError("parameter or module with parameters", prefix, {name for name, _ in every})
        found |= here
    return found


def require_evaluation(model: nn.Module) -> None:
    """Refuse what makes a model random or its outputs depend on the rest of a batch."""
    for path, module in model.named_modules():
        name = f"{path or 'the model'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise InvalidValueError(
                f"{name} keeps no running statistics and normalizes by the batch even in evaluation mode: an "
                "output then depends on the other inputs, and there is no kernel of two inputs. Use GroupNorm or "
                "InstanceNorm."
            )
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InvalidValueError(
                f"{name} is dropout in training mode: its gradients are random. Call model.eval() first."
            )
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0:
            raise InvalidValueError(
                f"{name} has dropout in training mode: its gradients are random. Call model.eval() first."
            )
        if isinstance(module, nn.RReLU):
            raise InvalidValueError(f"{name} has random slopes in training mode. Call model.eval() first.")
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.running_mean is not None:
            raise InvalidValueError(
                f"{name} in training mode changes its running statistics whenever it runs, and the model would not "
                "be left as it was. Call model.eval() first."
            )
        if isinstance(module, nn.utils.parametrizations._SpectralNorm):
            raise InvalidValueError(
                f"{name} in training mode changes its estimate of the norm, and with it the weight, whenever it "
                "runs. Call model.eval() first."
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InvalidValueError(
                f"{name} in training mode normalizes by the batch: an output then depends on the other inputs, "
                f"and there is no "
                "kernel of two inputs. Call model.eval() first."
            )
