"""Regressors by the exact kernels of networks of infinite width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from farfield import kernels, regression
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import (
    BaseEstimator,
    MultiOutputMixin,
    RegressorMixin,
    check_is_fitted,
    validate_data,
)

__all__ = ["InfiniteWidthRegressor", "NNGPRegressor", "NTKRegressor"]


@dataclass(eq=False, repr=False)
class InfiniteWidthRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What every estimator here shares: the network, the scaling of data, the bounds of what was fitted."""

    kind: ClassVar[kernels.KernelKind]

    depth: int = 2
    activation: Any = "relu"
    layer_norm: Any = "first"
    order: Literal["pre", "post"] = "pre"
    norm: Literal["layer", "rms"] = "layer"
    weight_var: float = 1.0
    bias_var: float = 0.1
    noise: float = 0.0
    standardize: bool = True

    def _network(self) -> kernels.NetworkKernel:
        return kernels.mlp(
            depth=self.depth,
            activation=self.activation,
            layer_norm=self.layer_norm,
            order=self.order,
            norm=self.norm,
            weight_var=self.weight_var,
            bias_var=self.bias_var,
        )

    def _fitted(self) -> regression.Posterior | regression.NystromPosterior:
        raise NotImplementedError

    def _checked(self, X: Any, y: Any, *, reset: bool = True) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True, reset=reset)
        return X, np.asarray(y, dtype=np.float64)

    def _scale(self, X: Array, y: Array) -> None:
        self.input_scaling_ = Scaling.of(X, standardize=self.standardize)
        self.target_scaling_ = Scaling.of(y, standardize=self.standardize)

    def _inputs(self, X: Any) -> torch.Tensor:
        """Checked, standardized, as a tensor."""
        check_is_fitted(self, "kernel_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        bounded = np.isfinite(self.kernel_.sup_diagonal(self.kind))
        return torch.from_numpy(self.input_scaling_.apply_far(X) if bounded else self.input_scaling_.apply(X))

    def predict(self, X: Any) -> Array:
        """The mean at X, shape (n_queries,) or (n_queries, n_outputs) as the targets had it."""
        inputs = self._inputs(X)
        return self.target_scaling_.invert(self._fitted().mean(inputs).numpy())

    def output_range(self, X: Any) -> Array:
        """[low, high] of the prediction at each input, inside ``output_range_``: its shape and an axis of two."""
        inputs = self._inputs(X)
        return self._range(self._fitted().output_bound(inputs).numpy())

    @property
    def output_range_(self) -> Array:
        """[low, high] that no prediction leaves at any input, shape (2,) or (n_outputs, 2); ±∞ without a norm."""
        check_is_fitted(self, "kernel_")
        return self._range(self._fitted().output_bound().numpy())

    def _range(self, bound: Array) -> Array:
        """The interval about the targets' offset, in the units of the data, widened by the rounding of both."""
        offset, half = self.target_scaling_.offset, self.target_scaling_.scale * bound
        half = half + _ROUNDING * (np.abs(offset) + half)
        return np.stack([offset - half, offset + half], -1)


_ROUNDING = 1e-14
"""Share by which offset and scale may be rounded."""


@dataclass(eq=False, repr=False)
class _ExactRegressor(InfiniteWidthRegressor):
    """One system for all the data, solved by regression.fit."""

    solver: Literal["auto", "cholesky", "pcg"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    jitter: float | Literal["auto"] = "auto"
    tolerance: float = 1e-6
    engine: Any = "auto"
    memory: int | str = "auto"

    def fit(self, X: Any, y: Any) -> _ExactRegressor:
        """Fit to inputs of shape (n, d) and targets of shape (n,) or (n, n_outputs); returns itself."""
        X, y = self._checked(X, y)
        network = self._network()
        self._scale(X, y)
        self.posterior_ = regression.fit(
            network,
            torch.from_numpy(self.input_scaling_.apply(X)),
            torch.from_numpy(self.target_scaling_.apply(y)),
            kind=self.kind,
            noise=self.noise,
            jitter=self.jitter,
            solver=self.solver,
            precision=self.precision,
            tolerance=self.tolerance,
            engine=self.engine,
            memory=self.memory,
        )
        self.kernel_ = network
        return self

    def _fitted(self) -> regression.Posterior:
        posterior: regression.Posterior = self.posterior_
        return posterior

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at X, and with ``return_std`` its standard deviation beside it.

        Returns
        -------
        ndarray or tuple of two
            Shape (n_queries,) or (n_queries, n_outputs), as the targets had it. Of what it is the standard
            deviation stands with the class.
        """
        mean = super().predict(X)
        if not return_std:
            return mean
        spread = self._fitted().variance(self._inputs(X)).sqrt().numpy()
        scale = self.target_scaling_.scale
        return mean, (spread[:, None] * scale if mean.ndim == 2 else spread * scale)

    def slope(self, U: Any) -> Array:
        """How fast predictions grow: the limit of predict(λu)/λ as λ → ∞, for directions u, one a row, in your units.

        Zero with a norm. Without one for activations with φ(ax) = aφ(x), a > 0, exact; see
        :meth:`farfield.regression.Posterior.slope`.
        """
        check_is_fitted(self, "kernel_")
        U = validate_data(self, U, dtype=np.float64, reset=False)
        directions = torch.from_numpy(U / self.input_scaling_.scale)
        value: Array = self.target_scaling_.scale * self._fitted().slope(directions).numpy()
        return value


class NTKRegressor(_ExactRegressor):
    r"""The network of infinite width, trained to the end by gradient flow, as a scikit-learn regressor.

    .. math:: \mathbb E f(x) = \Theta(x, X)\,(\Theta(X, X) + \sigma^2 I)^{-1} y

    the mean over initializations. ``predict(X, return_std=True)`` gives beside it the standard deviation over
    initializations: how much networks trained on these data differ. Exact; by Cholesky 8n² bytes and n³/3
    operations. For more rows than memory holds see ``solver`` and :class:`NystromNTKRegressor`.

    Parameters
    ----------
    depth, activation, layer_norm, order, norm, weight_var, bias_var
        The network, as for :func:`farfield.kernels.mlp`. Without a norm (``layer_norm=None``) predictions grow
        without limit.
    noise
        Variance of the targets' noise, in units of their variance where they are standardized; 0 interpolates.
    standardize
        Whether inputs and targets are brought to mean 0 and variance 1, column by column. Predictions and bounds
        are in the data's units all the same.
    solver, precision, jitter, tolerance, engine, memory
        As for :func:`farfield.regression.fit`.

    Attributes
    ----------
    output_range_
        [low, high], which no prediction leaves at any input, near or far: ±√(C·αᵀKα) with the targets' offset and
        scale. Proved for every real input; a bound is not a claim of accuracy. Infinite without a norm.
    kernel_, posterior_
        The :class:`farfield.kernels.NetworkKernel` and the :class:`farfield.regression.Posterior`, the latter in
        standardized units.
    input_scaling_, target_scaling_
        Their offset and scale.
    n_features_in_, feature_names_in_
        As in every estimator.

    References
    ----------
    [P1] §3.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 9)[:, None]
    >>> model = NTKRegressor(depth=2, layer_norm="first").fit(X, np.sin(X[:, 0]))
    >>> model.predict([[0.5], [1e9]]).round(3)
    array([0.479, 0.838])
    >>> model.output_range_.round(3)
    array([-1.823,  1.823])
    """

    kind: ClassVar[kernels.KernelKind] = "ntk"


class NNGPRegressor(_ExactRegressor):
    r"""The Gaussian process that a network of infinite width is before training, as a scikit-learn regressor.

    .. math:: \mu(x) = K(x, X)\,(K(X, X) + \sigma^2 I)^{-1} y

    ``predict(X, return_std=True)`` gives beside it the posterior standard deviation of f, without the noise.

    Parameters
    ----------
    depth, activation, layer_norm, order, norm, weight_var, bias_var, noise, standardize
        As for :class:`NTKRegressor`, and so are the attributes.
    solver, precision, jitter, tolerance, engine, memory
        As for :func:`farfield.regression.fit`.

    References
    ----------
    [P1] App. A.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 9)[:, None]
    >>> model = NNGPRegressor(layer_norm="every", noise=1e-4).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[0.5], [1e9]], return_std=True)
    >>> std.round(3)
    array([0.008, 0.073])
    """

    kind: ClassVar[kernels.KernelKind] = "nngp"
