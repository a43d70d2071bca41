"""The kernels as GPyTorch kernels, for Gaussian processes and BoTorch: the one place that imports gpytorch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.gaussian._registry import ActivationLike
from farfield.kernels._layers import Variance
from farfield.kernels._mlp import mlp
from farfield.kernels._network import NetworkKernel
from farfield.kernels._program import KernelKind

try:
    from gpytorch.constraints import Interval, Positive
    from gpytorch.kernels import Kernel
    from gpytorch.priors import Prior
except ImportError as error:
    raise MissingExtraError("farfield.kernels.gpytorch", "gpytorch", "gpytorch") from error

__all__ = ["NNGPKernel", "NTKKernel"]

_WORTH_A_TABLE = 2_000_000
"""Entries times layers from which fitting a polynomial in the angle costs less than walking the layers:
hyperparameters change at every step of an optimizer, and with them the polynomial."""


class _InfiniteWidthKernel(Kernel):  # type: ignore[misc]
    """What the two kernels share: hyperparameters, and how a batch of them is evaluated."""

    has_lengthscale = False
    kind: KernelKind

    def __init__(
        self,
        depth: int = 2,
        activation: ActivationLike = "relu",
        layer_norm: Literal["first", "second", "last", "every"] | Iterable[int] | None = "first",
        order: Literal["pre", "post"] = "pre",
        norm: Literal["layer", "rms"] = "layer",
        *,
        weight_var_prior: Prior | None = None,
        weight_var_constraint: Interval | None = None,
        bias_var_prior: Prior | None = None,
        bias_var_constraint: Interval | None = None,
        batch_shape: torch.Size | None = None,
        active_dims: tuple[int, ...] | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("ard_num_dims") is not None:
            raise InvalidValueError(
                f"{type(self).__name__} has one weight variance for all inputs and no lengthscales: leave out "
                "ard_num_dims, and scale the inputs instead."
            )
        super().__init__(batch_shape=batch_shape, active_dims=active_dims, **kwargs)
        self.depth = depth
        self.activation = activation
        names_or_none = layer_norm is None or isinstance(layer_norm, str)
        self.layer_norm: Any = layer_norm if names_or_none else tuple(layer_norm)  # type: ignore[arg-type]
        self.order = order
        self.norm = norm
        self._network(
            1.0, 1.0, compress=False
        )  # refuses a network that does not exist, here and not at first use
        for name, prior, constraint, initial in (
            ("weight_var", weight_var_prior, weight_var_constraint, 1.0),
            ("bias_var", bias_var_prior, bias_var_constraint, 0.1),
        ):
            self._register(name, prior, constraint, initial)

    def _register(self, name: str, prior: Prior | None, constraint: Interval | None, initial: float) -> None:
        raw = torch.nn.Parameter(torch.zeros(*self.batch_shape, 1, 1))
        self.register_parameter(name=f"raw_{name}", parameter=raw)
        self.register_constraint(f"raw_{name}", Positive() if constraint is None else constraint)
        if constraint is None or (
            constraint.initial_value is None and constraint.check(torch.tensor(initial))
        ):
            self._set(name, initial)
        if prior is not None:
            closures = {"weight_var": (_weight_var, _set_weight_var), "bias_var": (_bias_var, _set_bias_var)}
            self.register_prior(f"{name}_prior", prior, *closures[name])

    # ------------------------------------------------------------------ hyperparameters

    @property
    def weight_var(self) -> Tensor:
        """σ_w², shape (batch_shape..., 1, 1)."""
        return self._get("weight_var")

    @weight_var.setter
    def weight_var(self, value: float | Tensor) -> None:
        self._set("weight_var", value)

    @property
    def bias_var(self) -> Tensor:
        """σ_b², shape (batch_shape..., 1, 1)."""
        return self._get("bias_var")

    @bias_var.setter
    def bias_var(self, value: float | Tensor) -> None:
        self._set("bias_var", value)

    def _get(self, name: str) -> Tensor:
        value: Tensor = getattr(self, f"raw_{name}_constraint").transform(getattr(self, f"raw_{name}"))
        return value

    def _set(self, name: str, value: float | Tensor) -> None:
        raw: Tensor = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        self.initialize(**{f"raw_{name}": getattr(self, f"raw_{name}_constraint").inverse_transform(value)})

    def network(self) -> NetworkKernel:
        """The kernel with the hyperparameters as they are now: its ``sup_diagonal``, ``slope`` and the rest.

        Raises
        ------
        InvalidValueError
            If there is a batch of hyperparameters: index the kernel first, ``kernel[0].network()``.
        """
        if self.weight_var.numel() != 1:
            raise InvalidValueError(
                f"One network has one set of hyperparameters; this kernel has a batch of shape "
                f"{tuple(self.batch_shape)}. Index it first: kernel[0].network()."
            )
        return self._network(self.weight_var.item(), self.bias_var.item(), compress=True)

    def _network(self, weight_var: Variance, bias_var: Variance, *, compress: bool) -> NetworkKernel:
        return mlp(
            depth=self.depth,
            activation=self.activation,
            layer_norm=self.layer_norm,
            order=self.order,
            norm=self.norm,
            weight_var=weight_var,
            bias_var=bias_var,
            compress=compress,
        )

    # ------------------------------------------------------------------ evaluation

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any
    ) -> Tensor:
        """The matrix (..., n, m), or with ``diag`` the kernel of corresponding rows (..., n)."""
        if last_dim_is_batch:
            raise InvalidValueError(
                f"{type(self).__name__} does not split its inputs into features (last_dim_is_batch, which GPyTorch "
                "deprecates). For a sum over features evaluate on x.mT.unsqueeze(-1) with batch_shape=[d], and add."
            )
        # Rows paired with themselves have an exact diagonal. Equal tensors that are not one tensor may each want a
        # gradient of their own, and then stay two.
        same = x1 is x2 or (
            x1.shape == x2.shape and not (x1.requires_grad or x2.requires_grad) and torch.equal(x1, x2)
        )
        batch = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        weights, biases = self.weight_var, self.bias_var
        if weights.numel() == 1:
            rows = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
            x1, x2 = (x.expand(*rows, *x.shape[-2:]) for x in (x1, x2))
            value = self._one(weights.reshape(()), biases.reshape(()), x1, None if same else x2, diag)
            return value.expand(*batch, *value.shape[len(rows) :])
        weights, biases = (v.squeeze((-2, -1)).expand(batch).reshape(-1) for v in (weights, biases))
        x1, x2 = (x.expand(*batch, *x.shape[-2:]).flatten(end_dim=-3) for x in (x1, x2))
        values = [
            self._one(w, b, x1[k], None if same else x2[k], diag)
            for k, (w, b) in enumerate(zip(weights, biases, strict=True))
        ]
        return torch.stack(values).reshape(*batch, *values[0].shape)

    def _one(self, weight_var: Tensor, bias_var: Tensor, x1: Tensor, x2: Tensor | None, diag: bool) -> Tensor:
        """With one set of hyperparameters."""
        columns = 1 if diag else (x1 if x2 is None else x2).shape[-2]
        entries = columns * (x1.numel() // max(x1.shape[-1], 1))
        network = self._network(weight_var, bias_var, compress=entries * self.depth >= _WORTH_A_TABLE)
        if not diag:
            return network.function(self.kind)(x1, x2)
        if x2 is None:
            return network.diagonal(x1, self.kind)
        return network.function(self.kind)(x1.unsqueeze(-2), x2.unsqueeze(-2)).squeeze((-2, -1))


def _weight_var(kernel: _InfiniteWidthKernel) -> Tensor:
    return kernel.weight_var


def _set_weight_var(kernel: _InfiniteWidthKernel, value: float | Tensor) -> None:
    kernel.weight_var = value


def _bias_var(kernel: _InfiniteWidthKernel) -> Tensor:
    return kernel.bias_var


def _set_bias_var(kernel: _InfiniteWidthKernel, value: float | Tensor) -> None:
    kernel.bias_var = value


class NTKKernel(_InfiniteWidthKernel):
    r"""The neural tangent kernel of a fully connected network of infinite width, for GPyTorch.

    .. math:: \Theta(x, x') = \mathbb E\, \nabla_{\!W} f(x)\cdot\nabla_{\!W} f(x')

    in the NTK parametrization of :func:`farfield.kernels.mlp`. Exact to rounding; the diagonal is computed apart,
    in O(n). With a norm Θ(x, x) is bounded over all inputs, and so is a posterior mean: see
    ``kernel.network().sup_diagonal()``.

    A batch of hyperparameters is evaluated one by one. There is no lengthscale: put the kernel into a
    ``ScaleKernel`` for an output scale, and standardize the inputs. Gradients go to hyperparameters and to inputs.
    As a function of one argument Θ of ReLU has a kink where both coincide; the derivative given there is the mean
    of both sides.

    Parameters
    ----------
    depth, activation, layer_norm, order, norm
        As for :func:`farfield.kernels.mlp`.
    weight_var_prior, bias_var_prior
        Priors on σ_w² and σ_b².
    weight_var_constraint, bias_var_constraint
        Their constraints; ``Positive()`` unless given. They start at 1 and 0.1, or at the constraint's initial value.
    batch_shape, active_dims
        As for every GPyTorch kernel.

    References
    ----------
    [P1] §3 and App. A.

    Examples
    --------
    >>> from gpytorch.kernels import ScaleKernel
    >>> kernel = NTKKernel(depth=2, layer_norm="first")
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> ScaleKernel(kernel)(x).to_dense().detach() / torch.log(torch.tensor(2.0))
    tensor([[3.3000, 1.1311],
            [1.1311, 3.3000]])
    >>> round(kernel.network().sup_diagonal(), 6)
    3.3
    """

    kind: KernelKind = "ntk"


class NNGPKernel(_InfiniteWidthKernel):
    r"""The covariance of the outputs of a fully connected network of infinite width at initialization, for GPyTorch.

    .. math:: K(x, x') = \mathbb E\, f(x) f(x')

    The kernel of the Gaussian process that such a network is before training. Otherwise as :class:`NTKKernel`.

    Parameters
    ----------
    depth, activation, layer_norm, order, norm
        As for :func:`farfield.kernels.mlp`.
    weight_var_prior, bias_var_prior, weight_var_constraint, bias_var_constraint, batch_shape, active_dims
        As for :class:`NTKKernel`.

    References
    ----------
    [P1] App. A.

    Examples
    --------
    >>> kernel = NNGPKernel(depth=2, activation="erf", layer_norm="every")
    >>> kernel.weight_var = 2.0
    >>> kernel(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).to_dense().shape
    torch.Size([2, 2])
    """

    kind: KernelKind = "nngp"
