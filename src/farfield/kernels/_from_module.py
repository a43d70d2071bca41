"""The kernel of a network given as a torch module."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from farfield.errors import InvalidValueError
from farfield.gaussian import activation
from farfield.kernels._layers import Activate, Dense, Identity, Layer, LayerNorm, RMSNorm, Variance
from farfield.kernels._network import NetworkKernel
from farfield.nn import MLP, Elementwise, GroupedLayerNorm, Project, ScaledLinear
from farfield.nn import LayerNorm as TwoPartLayerNorm

__all__ = ["from_module"]


def from_module(
    module: nn.Module,
    *,
    weight_var: Variance | None = None,
    bias_var: Variance | None = None,
    compress: bool = True,
    tolerance: float | None = None,
) -> NetworkKernel:
    """The kernels of the module's architecture at infinite width, in the NTK parametrization.

    A module fixes the layers; how its weights are drawn it says only if it is a :class:`farfield.nn.MLP` or made of
    :class:`farfield.nn.ScaledLinear`. An ``nn.Linear`` counts as torch draws it, with weights of variance 1/(3
    fan_in) and biases of the same, unless you give weights N(0, σ_w²/fan_in) and biases N(0, σ_b²). A network in
    standard parametrization has the same NNGP; the NTK returned is that of the same function in NTK parametrization.

    Norms count as ε = 0, and their learnable scale and shift as 1 and 0, where they begin, and as not trained, since
    trained they would add to the NTK. What was assumed of the module is in ``assumed`` of the result.

    Parameters
    ----------
    module
        ``nn.Sequential``, nested or not, :class:`farfield.nn.MLP`, or a module whose forward calls one layer after
        the other: Linear, elementwise activations (modules or functions), LayerNorm, RMSNorm, flatten, identity,
        dropout at evaluation.
    weight_var, bias_var
        σ_w² and σ_b² for every ``nn.Linear``; a layer without bias has σ_b² = 0.
    compress, tolerance
        As in :class:`NetworkKernel`.

    Raises
    ------
    InvalidValueError
        With the path of the module that can't be represented, and why.

    Warns
    -----
    UserWarning
        If the weights that the module holds are plainly not those that torch draws, and no variances are given.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    >>> k = from_module(net, weight_var=2.0, bias_var=0.1)
    >>> round(float(k.nngp(torch.ones(1, 3))), 6), len(k.assumed)
    (1.1, 1)
    """
    reader = _Reader((weight_var, bias_var))
    layers = tuple(reader.layers(module, ""))
    if reader.otherwise:
        warnings.warn(
            f"The weights of {', '.join(reader.otherwise)} are not as torch draws them; the kernel is that of a "
            "network drawn so. Give weight_var and bias_var for the one you mean.",
            stacklevel=2,
        )
    try:
        return NetworkKernel(layers, compress, tolerance, tuple(reader.assumed))
    except InvalidValueError as error:
        raise InvalidValueError(f"{type(module).__name__} has no kernel: {error}") from error


_Variances = tuple[Variance | None, Variance | None]


@dataclass
class _Reader:
    """Reads layers from modules; what it assumes, and which weights are otherwise, it notes."""

    linears: _Variances
    assumed: dict[str, None] = field(default_factory=dict)
    otherwise: list[str] = field(default_factory=list)

    def layers(self, module: nn.Module, path: str) -> Iterator[Layer]:
        """Of a module, from its inputs up."""
        if isinstance(module, TwoPartLayerNorm):
            yield LayerNorm()
        elif (
            isinstance(module, MLP) and self.linears == (None, None) and module.spec.parametrization != "ntk"
        ):
            spec = module.spec
            for k, (name, child) in enumerate(module.named_children()):
                self.linears = (spec.weight_var if k else spec.first_weight_var, spec.bias_var)
                yield from self.layers(child, _join(path, name))
            self.linears = (None, None)
        elif isinstance(module, nn.Sequential):
            for name, child in module.named_children():
                yield from self.layers(child, _join(path, name))
        elif any(True for _ in module.children()) and not isinstance(module, Elementwise):
            yield from self._called(module, path)
        else:
            yield self._one(module, path or "the module itself")

    def _called(self, module: nn.Module, path: str) -> Iterator[Layer]:
        """What a forward calls, one layer after the other."""
        name = path or type(module).__name__
        try:
            graph = _LayerTracer().trace(module)
        except Exception as error:  # whatever a forward does with something that is no tensor
            raise InvalidValueError(
                f"{name}: its forward can't be followed ({type(error).__name__}: {error}). Build the kernel from "
                "layers: kernels.NetworkKernel((Dense(), …))."
            ) from error
        before: fx.Node | None = None
        for node in graph.nodes:
            if node.op == "output" or (node.op == "placeholder" and before is None):
                before = before or node
                continue
            if node.all_input_nodes != [before]:
                raise InvalidValueError(
                    f"{name} does not call one layer after the other: {node.name} takes something else than the "
                    f"layer before. {_RESIDUAL}"
                )
            before = node
            if node.op == "call_module":
                yield from self.layers(module.get_submodule(str(node.target)), _join(path, str(node.target)))
            else:
                yield _function(node, name)

    def _one(self, module: nn.Module, path: str) -> Layer:
        if isinstance(module, ScaledLinear):
            return Dense(module.weight_var, module.bias_var)
        if isinstance(module, nn.Linear):
            return self._linear(module, path)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | GroupedLayerNorm):
            if any(True for _ in module.parameters()):
                self.assumed["Norms have scale 1 and shift 0, as they begin, and these are not trained."] = (
                    None
                )
            if isinstance(module, GroupedLayerNorm) and module.groups > 1:
                self.assumed["Groups of a norm are as wide as one likes, so that LN-G is LayerNorm."] = None
            return RMSNorm() if isinstance(module, nn.RMSNorm) else LayerNorm()
        if isinstance(module, Project):
            return RMSNorm()
        if isinstance(module, nn.Identity | nn.Flatten):
            return Identity()
        if isinstance(module, nn.Dropout | nn.AlphaDropout):
            if module.training and module.p > 0:
                raise InvalidValueError(
                    f"{path} is dropout in training mode, which is random. Call module.eval() first."
                )
            return Identity()
        if isinstance(module, Elementwise):
            return Activate(module.sigma, module.scale)
        try:
            return Activate(activation(module), 1.0)
        except InvalidValueError:
            raise InvalidValueError(
                f"{path} is a {type(module).__name__}, which has no kernel here. Known: Linear, elementwise "
                f"activations, LayerNorm, RMSNorm, Flatten, Identity, Dropout at evaluation, one after the other. "
                f"{_RESIDUAL}"
            ) from None

    def _linear(self, module: nn.Linear, path: str) -> Layer:
        weight_var, bias_var = self.linears
        if weight_var is None and bias_var is None:
            self.assumed[
                "Weights and biases of nn.Linear are drawn by torch: variance 1/(3 fan_in), both."
            ] = None
            n = module.weight.numel()
            share = 3.0 * module.in_features * float(module.weight.detach().double().square().mean())
            # Of n uniform numbers the mean square is known to √(0.8/n) of itself.
            if abs(share - 1.0) > 0.05 + 6.0 * math.sqrt(0.8 / n):
                self.otherwise.append(path)
            return Dense(1.0 / 3.0, 0.0 if module.bias is None else 1.0 / (3.0 * module.in_features))
        if weight_var is None or (bias_var is None and module.bias is not None):
            raise InvalidValueError(
                f"{path} is an nn.Linear, and one of its variances is given. Give weight_var and bias_var (weights "
                "N(0, weight_var/fan_in), biases N(0, bias_var)), or neither for torch's own."
            )
        return Dense(weight_var, 0.0 if module.bias is None or bias_var is None else bias_var)


_RESIDUAL = (
    "For a residual network build the layers: kernels.NetworkKernel((Dense(), Residual((…, Dense())), …))."
)


class _LayerTracer(fx.Tracer):
    """Follows a forward down to the modules that are layers here."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Everything but what only holds others."""
        return True


def _function(node: fx.Node, name: str) -> Layer:
    """A function between modules: flatten, dropout at evaluation, or an activation."""
    target: Any = getattr(torch, str(node.target), None) if node.op == "call_method" else node.target
    rest = {k: v for k, v in node.kwargs.items() if k != "inplace" and v is not None}
    if target is torch.flatten:
        return Identity()
    if target is nn.functional.dropout and not rest.get("training", True):
        return Identity()
    try:
        if node.op not in ("call_function", "call_method") or len(node.args) > 1 or target is None:
            raise InvalidValueError("no function of the layer before alone")
        return Activate(activation(functools.partial(target, **rest) if rest else target), 1.0)
    except InvalidValueError as error:
        raise InvalidValueError(
            f"{name} calls {node.name}, which is no activation: {error} {_RESIDUAL}"
        ) from None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
