"""The kernel of a network given as a torch module."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from farfield.errors import FarfieldError, InvalidValueError
from farfield.gaussian import activation, activation_names
from farfield.kernels._layers import Activate, Dense, Identity, Layer, LayerNorm, RMSNorm, Variance
from farfield.kernels._network import NetworkKernel
from farfield.nn import MLP, Elementwise, GroupedLayerNorm, Project, ScaledLinear, activation_module
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
        names = ", ".join(dict.fromkeys(reader.otherwise))
        warnings.warn(
            f"The weights of {names} are not as torch draws them; the kernel is that of a network drawn so. Give "
            "weight_var and bias_var for the one you mean.",
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
    wide: bool = False
    """Whether a linear layer has been passed."""

    def layers(self, module: nn.Module, path: str) -> Iterator[Layer]:
        """Of a module, from its inputs up."""
        _refuse_hidden(module, path or "the module itself")
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
            if node.op == "placeholder" and (before is None or not node.users):
                before = before or node
                continue
            alone = node.args == (before,) and not node.kwargs
            if node.op == "output" and alone:
                return
            if node.all_input_nodes != [before] or (node.op in ("output", "call_module") and not alone):
                raise InvalidValueError(
                    f"{name} does not call one layer after the other: {node.name} takes something else than what the "
                    f"layer before gave, and that alone. {_RESIDUAL}"
                )
            before = node
            if node.op == "call_module":
                yield from self.layers(module.get_submodule(str(node.target)), _join(path, str(node.target)))
            else:
                yield _function(node, name)

    def _one(self, module: nn.Module, path: str) -> Layer:
        if isinstance(module, ScaledLinear):
            self.wide = True
            return Dense(module.weight_var, module.bias_var)
        if isinstance(module, nn.Linear):
            return self._linear(module, path)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | GroupedLayerNorm):
            for name, start in (("weight", 1.0), ("bias", 0.0)):
                parameter = getattr(module, name, None)
                if parameter is not None:
                    self.assumed[_NORMS] = None
                    if not parameter.is_meta and bool((parameter.detach() != start).any()):
                        self.otherwise.append(path)
            if isinstance(module, GroupedLayerNorm) and module.groups > 1:
                if not self.wide:
                    raise InvalidValueError(
                        f"{path} normalizes the inputs in groups, and their number is what it is. Only behind a "
                        "linear layer groups are as wide as one likes."
                    )
                self.assumed["Groups of a norm are as wide as one likes, so that LN-G is LayerNorm."] = None
            return RMSNorm() if isinstance(module, nn.RMSNorm) else LayerNorm()
        if isinstance(module, Project):
            return RMSNorm()
        if isinstance(module, nn.Identity) or (isinstance(module, nn.Flatten) and module.start_dim == 1):
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
        self.wide = True
        if module.in_features < 1:
            raise InvalidValueError(f"{path} takes no features yet. Run a lazy module once first.")
        if weight_var is None and bias_var is None:
            self.assumed[
                "Weights and biases of nn.Linear are drawn by torch: variance 1/(3 fan_in), both."
            ] = None
            n = module.weight.numel()
            drawn = not module.weight.is_meta
            share = (
                3.0 * module.in_features * float(module.weight.detach().double().square().mean())
                if drawn
                else 1.0
            )
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


_NORMS = "Norms have scale 1 and shift 0, as they begin, and these are not trained."
_READ = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Sequential,
    nn.Flatten,
    ScaledLinear,
    GroupedLayerNorm,
    Project,
)


class _LayerTracer(fx.Tracer):
    """Follows a forward down to the modules that are layers here."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Everything but what only holds others."""
        return True


def _refuse_hidden(module: nn.Module, path: str) -> None:
    """Raise for what a module's type does not show: a forward of its own, hooks, parametrizations."""
    own = "forward" in vars(module) or any(
        isinstance(module, kind) and type(module).forward is not kind.forward for kind in _READ
    )
    hooks = module._forward_hooks or module._forward_pre_hooks
    if own or hooks or hasattr(module, "parametrizations"):
        what = "a forward of its own" if own else "hooks" if hooks else "parametrizations"
        raise InvalidValueError(
            f"{path} is a {type(module).__name__} with {what}, not read here. {_RESIDUAL}"
        )


def _function(node: fx.Node, name: str) -> Layer:
    """A function between modules: flatten, dropout at evaluation, or an activation that torch has."""
    target: Any = node.target
    if node.op == "call_method":
        target = getattr(torch, str(target).removesuffix("_"), None)
    try:
        words = [*inspect.signature(target).parameters][1:]
    except (TypeError, ValueError):  # of C, whose arguments have no names
        words = ["start_dim"] if target is torch.flatten else [str(k) for k in range(len(node.args))]
    rest = dict(zip(words, node.args[1:], strict=False)) | node.kwargs
    rest = {k: v for k, v in rest.items() if k != "inplace" and v is not None}
    if target is torch.flatten and rest == {"start_dim": 1}:
        return Identity()
    if target is nn.functional.dropout and not rest.get("training", True):
        return Identity()
    try:
        found = activation(target)
        if found.name in activation_names():
            return Activate(activation(type(activation_module(found.name))(**rest)) if rest else found, 1.0)
    except (FarfieldError, TypeError, RuntimeError):
        pass
    raise InvalidValueError(f"{name} calls {node.name}, which is no activation that torch has. {_RESIDUAL}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
