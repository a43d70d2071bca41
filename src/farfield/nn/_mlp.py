"""Multilayer perceptrons as the papers build them: parametrization, activation, norm and where it sits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.gaussian import activation, moments
from farfield.gaussian._registry import ActivationLike
from farfield.nn._chain import Chain
from farfield.nn._elementwise import Elementwise, activation_module
from farfield.nn._norms import GroupedLayerNorm, MeanFieldCenter, MeanFieldProject, Project
from farfield.nn._range_head import RangeHead

__all__ = ["MLP", "MLPSpec", "ScaledLinear"]

Norm: TypeAlias = (
    "Literal['layer', 'rms', 'batch', 'grouped', 'mean_field'] | Callable[[int], nn.Module] | None"
)
_NORMS = ("layer", "rms", "batch", "grouped", "mean_field")
Placement: TypeAlias = "Literal['none', 'first', 'second', 'last', 'every'] | Iterable[int]"


class ScaledLinear(nn.Module):
    r"""z = √(σ_w²/fan_in)·W x + σ_b·b with every entry of W and b drawn from N(0, 1).

    The NTK parametrization: the scale sits in the forward pass, not in the weights, so that gradients have the size
    the infinite-width theory assumes.

    Parameters
    ----------
    in_features, out_features
        Shape of W, (out, in).
    weight_var, bias_var
        σ_w² and σ_b². With σ_b² = 0 there is no bias.
    generator
        Source of the draws.

    References
    ----------
    [P1] App. A.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_var: float = 1.0,
        bias_var: float = 0.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_variances(weight_var, bias_var)
        self.in_features, self.out_features = in_features, out_features
        self.weight_var, self.bias_var = float(weight_var), float(bias_var)
        self.weight = nn.Parameter(torch.randn(out_features, in_features, generator=generator, dtype=dtype))
        self.bias = (
            nn.Parameter(torch.randn(out_features, generator=generator, dtype=dtype))
            if bias_var > 0
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., in) → (..., out)."""
        bias = None if self.bias is None else math.sqrt(self.bias_var) * self.bias
        return nn.functional.linear(x, math.sqrt(self.weight_var / self.in_features) * self.weight, bias)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.in_features}, {self.out_features}, weight_var={self.weight_var:g}, bias_var={self.bias_var:g}"


@dataclass(frozen=True)
class MLPSpec:
    """What an :class:`MLP` was built from, resolved: plain data."""

    in_features: int
    out_features: int | None
    width: int | tuple[int, ...]
    depth: int
    activation: str
    activation_parameters: tuple[tuple[str, float], ...]
    norm: str
    norm_layers: tuple[int, ...]
    order: str
    parametrization: str
    weight_var: float
    bias_var: float
    norm_affine: bool
    norm_eps: float
    groups: int
    certified_range: tuple[float, float] | None = None
    first_weight_var: float = 1.0


def _norm_layers(placement: Placement, depth: int) -> tuple[int, ...]:
    if isinstance(placement, str):
        named = {
            "none": (),
            "first": (0,),
            "second": (1,),
            "last": (depth - 1,),
            "every": tuple(range(depth)),
        }
        if placement not in named:
            raise InvalidValueError(
                f"A placement is one of {', '.join(named)} or the hidden layers' indices, got {placement!r}."
            )
        layers = named[placement]
    else:
        layers = tuple(sorted(set(placement)))
    outside = [k for k in layers if not 0 <= k < depth]
    if outside:
        raise InvalidValueError(
            f"A norm sits at a hidden layer, 0 to {depth - 1} here (depth {depth}); got {outside}."
        )
    return layers


class MLP(Chain):
    r"""A multilayer perceptron: ``depth`` hidden layers of ``width`` units and, unless left out, a linear readout.

    Parameters
    ----------
    in_features, out_features
        Sizes of input and output; ``out_features=None`` ends at the last hidden layer, as P2 studies it.
    width, depth
        Units per hidden layer; number of hidden layers. A sequence of widths, one a layer, says the depth too.
    activation
        Name, Activation, callable or elementwise module (copied, so that every layer has its own).
    norm
        ``"layer"``, ``"rms"``, ``"batch"``, ``"grouped"`` (P3's LN-G), ``"mean_field"`` (P2 §6: the statistics of
        infinite width in place of the measured ones, for inputs of mean square one; needs order ``"post"``), a
        callable ``width -> module``, or None.
    placement
        Where norms sit among the hidden layers: ``"none"``, ``"first"``, ``"second"``, ``"last"``, ``"every"`` or
        the indices, counted from 0.
    order
        ``"pre"``: Linear → norm → activation (P1). ``"post"``: Linear → activation → norm (P2).
    parametrization
        - ``"standard"``: weights N(0, σ_w²/fan_in), biases N(0, σ_b²), torch's Linear. With the default
          ``weight_var=None`` σ_w² = 1/E σ(z)² in hidden layers after the first (2 for ReLU: Kaiming) and in the
          readout, 1 in the first.
        - ``"ntk"``: P1 App. A. :class:`ScaledLinear` and activations scaled by √c_φ, c_φ = 1/E φ(z)²; σ_w² = 1 by
          default.
        - ``"mean_field"``: P2. Weights N(0, 1/fan_in), no bias.
    weight_var, bias_var
        σ_w², σ_b².
    norm_affine, norm_eps, groups
        Passed to the norm: learnable affine (off, as in the theory), ε, number of groups for ``"grouped"``.
    certified_range
        (a, b): a :class:`farfield.nn.RangeHead` behind the readout keeps every output in [a, b] for every input; it
        is the identity on the middle 80 % of that interval. Needs a readout.
    generator
        Source of every draw; the global one if None. No seed is ever set.
    dtype
        Of the parameters.

    Examples
    --------
    >>> net = MLP(2, 1, width=4, depth=2, norm="layer", placement="first", generator=torch.Generator().manual_seed(0))
    >>> [type(m).__name__ for m in net]
    ['Linear', 'LayerNorm', 'ReLU', 'Linear', 'ReLU', 'Linear']
    """

    spec: MLPSpec

    def __init__(
        self,
        in_features: int,
        out_features: int | None,
        *,
        width: int | Sequence[int],
        depth: int | None = None,
        activation: ActivationLike = "relu",
        norm: Norm = None,
        placement: Placement = "every",
        order: Literal["pre", "post"] = "pre",
        parametrization: Literal["standard", "ntk", "mean_field"] = "standard",
        weight_var: float | None = None,
        bias_var: float = 0.0,
        norm_affine: bool = False,
        norm_eps: float = 1e-5,
        groups: int = 1,
        certified_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        widths = _widths(width, depth)
        depth = len(widths)
        if min(in_features, depth, *widths, 1 if out_features is None else out_features) < 1:
            raise InvalidValueError(
                "An MLP has sizes and every width >= 1 and depth >= 1 hidden layers, got "
                f"in_features={in_features}, out_features={out_features}, width={width}, depth={depth}."
            )
        if order not in ("pre", "post"):
            raise InvalidValueError(f"The order is 'pre' or 'post' (norm before or after σ), got {order!r}.")
        if parametrization not in ("standard", "ntk", "mean_field"):
            raise InvalidValueError(
                f"The parametrization is 'standard', 'ntk' or 'mean_field', got {parametrization!r}."
            )
        if parametrization == "mean_field" and (bias_var or weight_var not in (None, 1.0)):
            raise InvalidValueError(
                "P2's parametrization has weights N(0, 1/fan_in) and no bias: leave both out."
            )
        _check_variances(1.0 if weight_var is None else weight_var, bias_var)
        if not (norm is None or callable(norm) or norm in _NORMS):
            raise InvalidValueError(
                f"A norm is one of {', '.join(_NORMS)}, a callable width -> module or None, got {norm!r}."
            )
        if norm == "mean_field" and (order != "post" or norm_affine):
            raise InvalidValueError(
                "The mean-field norm stands for statistics after the activation, by constants: order='post' and "
                f"norm_affine=False, got {order!r} and {norm_affine}."
            )
        if certified_range is not None and out_features is None:
            raise InvalidValueError(
                "certified_range bounds the readout, and out_features=None leaves the readout out."
            )
        sigma = _resolve(activation)
        placed = _norm_layers(placement, depth)
        layers = () if norm is None else placed
        second = moments(sigma).second
        hidden_var, first_var = _weight_variances(parametrization, weight_var, second)
        output_scale = 1.0 / math.sqrt(second) if parametrization == "ntk" else 1.0
        pre_activation = first_var + bias_var  # its variance at infinite width, for inputs of mean square one

        def linear(fan_in: int, fan_out: int, variance: float) -> nn.Module:
            if parametrization == "ntk":
                return ScaledLinear(
                    fan_in, fan_out, weight_var=variance, bias_var=bias_var, generator=generator, dtype=dtype
                )
            # Without torch's own initialization, which draws from the global generator.
            module: nn.Linear = nn.utils.skip_init(
                nn.Linear, fan_in, fan_out, bias=bias_var > 0, device=torch.get_default_device(), dtype=dtype
            )
            with torch.no_grad():
                module.weight.normal_(0.0, math.sqrt(variance / fan_in), generator=generator)
                if module.bias is not None:
                    module.bias.normal_(0.0, math.sqrt(bias_var), generator=generator)
            return module

        modules: list[nn.Module] = []
        fan_in = in_features
        for k, fan_out in enumerate(widths):
            modules.append(linear(fan_in, fan_out, first_var if k == 0 else hidden_var))
            unit = (
                Elementwise(sigma, scale=output_scale)
                if parametrization == "ntk"
                else activation_module(activation)
            )
            norms: list[nn.Module] = []
            if k in layers and norm == "mean_field":
                constants = {"variance": pre_activation, "output_scale": output_scale}
                norms = [MeanFieldCenter(sigma, **constants), MeanFieldProject(sigma, **constants)]
            elif k in layers:
                norms = [_norm_module(norm, fan_out, norm_affine, norm_eps, groups, dtype)]
            unit = copy.deepcopy(unit)  # a module passed in would be shared by all layers
            modules += [*norms, unit] if order == "pre" else [unit, *norms]
            fan_in = fan_out
            if norm == "mean_field":
                spread = (
                    1.0 if k in layers else output_scale**2 * moments(sigma, variance=pre_activation).second
                )
                pre_activation = hidden_var * spread + bias_var
        if out_features is not None:
            modules.append(linear(fan_in, out_features, hidden_var))
        if certified_range is not None:
            modules.append(RangeHead(*certified_range))
        super().__init__(*modules)
        self.spec = MLPSpec(
            in_features=in_features,
            out_features=out_features,
            width=width if isinstance(width, int) else widths,
            depth=depth,
            activation=sigma.name,
            activation_parameters=sigma.parameters,
            norm="none" if norm is None else norm if isinstance(norm, str) else "custom",
            norm_layers=layers,
            order=order,
            parametrization=parametrization,
            weight_var=hidden_var,
            bias_var=float(bias_var),
            norm_affine=norm_affine,
            norm_eps=norm_eps,
            groups=groups,
            certified_range=None
            if certified_range is None
            else (float(certified_range[0]), float(certified_range[1])),
            first_weight_var=first_var,
        )


_resolve = activation  # the constructor's own parameter shadows the name


def _widths(width: int | Sequence[int], depth: int | None) -> tuple[int, ...]:
    """One for every hidden layer."""
    if isinstance(width, int):
        if depth is None:
            raise InvalidValueError("With one width for all layers, depth says how many there are.")
        return (width,) * depth
    widths = tuple(int(w) for w in width)
    if depth is not None and depth != len(widths):
        raise InvalidValueError(
            f"There is one width for every hidden layer: got {len(widths)} and depth={depth}."
        )
    return widths


def _weight_variances(parametrization: str, weight_var: float | None, second: float) -> tuple[float, float]:
    """σ_w² of the hidden layers and readout, and of the first layer."""
    if parametrization == "mean_field":
        return 1.0, 1.0
    if weight_var is not None:
        return float(weight_var), float(weight_var)
    return (1.0, 1.0) if parametrization == "ntk" else (1.0 / second, 1.0)


def _check_variances(weight_var: float, bias_var: float) -> None:
    if not (0.0 < weight_var < math.inf and 0.0 <= bias_var < math.inf):
        raise InvalidValueError(
            f"Variances are finite, weight_var > 0 and bias_var >= 0; got {weight_var!r} and {bias_var!r}."
        )


def _norm_module(
    norm: Norm, width: int, affine: bool, norm_eps: float, groups: int, dtype: torch.dtype | None
) -> nn.Module:
    if callable(norm):
        return norm(width)
    if norm == "layer":
        return nn.LayerNorm(width, eps=norm_eps, elementwise_affine=affine, dtype=dtype)
    if norm == "rms":
        return nn.RMSNorm(width, eps=norm_eps, dtype=dtype) if affine else Project(norm_eps)
    if norm == "batch":
        return nn.BatchNorm1d(width, eps=norm_eps, affine=affine, dtype=dtype)
    module = GroupedLayerNorm(width, groups, elementwise_affine=affine, norm_eps=norm_eps)
    return module.to(dtype) if dtype is not None else module
