"""The tangent kernel on landmarks, for data that are seen once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from farfield import kernels, regression
from farfield.errors import InvalidValueError
from farfield.learn._kernel_regressors import InfiniteWidthRegressor
from farfield.learn._scaling import Array
from farfield.learn._sklearn import check_is_fitted, check_random_state

__all__ = ["NystromNTKRegressor"]

_CANDIDATES = 10
"""Rows that compete for a landmark's place, for each: choosing among all would cost as much as the fit."""


@dataclass(eq=False, repr=False)
class NystromNTKRegressor(InfiniteWidthRegressor):
    r"""Kernel regression with the NTK of infinite width on m landmarks z, from one pass over the data.

    .. math:: f = \sum_j w_j\,\Theta(\cdot, z_j), \qquad
              (\Theta_{mn}\Theta_{nm} + \sigma^2\Theta_{mm})\,w = \Theta_{mn}\,y

    Memory m², whatever the number of rows; n·m kernel entries and about n·m² operations. ``partial_fit`` takes the
    rows in pieces: landmarks and the scaling of inputs and targets are those of its first piece, which should be a
    fair sample of n_landmarks rows or more. After it the system is solved when a prediction or a bound is asked for.

    Parameters
    ----------
    depth, activation, layer_norm, order, norm, weight_var, bias_var
        The network, as for :func:`farfield.kernels.mlp`.
    noise
        Variance σ² of the targets' noise, in units of their variance where they are standardized.
    standardize
        Whether inputs and targets are brought to mean 0 and variance 1.
    n_landmarks
        m; fewer where the data have fewer rows, or no more to say.
    selection
        How landmarks are chosen from a random sample of 10·m rows: ``"greedy"`` (pivoted Cholesky) or ``"uniform"``.
    precision
        Precision of features and their products, ``"float64"`` or ``"float32"``.
    memory
        Budget for the features of a chunk of rows.
    random_state
        An int or a ``numpy.random.RandomState``, for the sample of rows.

    Attributes
    ----------
    output_range_, kernel_, input_scaling_, target_scaling_, n_features_in_, feature_names_in_
        As for :class:`NTKRegressor`. The bound holds for the function fitted, however few the landmarks.
    landmarks_
        z, standardized, shape (m, n_features).
    posterior_
        The :class:`farfield.regression.NystromPosterior` in standardized units.

    References
    ----------
    [P1] §3 for the kernel and the bound.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 500)[:, None]
    >>> model = NystromNTKRegressor(n_landmarks=50, random_state=0)
    >>> for part in np.array_split(np.random.default_rng(0).permutation(500), 5):
    ...     _ = model.partial_fit(X[part], np.sin(X[part, 0]))
    >>> bool(model.score(X, np.sin(X[:, 0])) > 0.9999)
    True
    """

    kind: ClassVar[kernels.KernelKind] = "ntk"

    noise: float = 1e-3
    n_landmarks: int = 500
    selection: str = "greedy"
    precision: str = "float64"
    memory: int | str = "256MB"
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> NystromNTKRegressor:
        """Fit to inputs (n, d) and targets (n,) or (n, n_outputs), forgetting what came before; returns itself."""
        X, y = self._checked(X, y)
        self._begin(X, y)
        self._take(X, y)
        self._fitted()
        return self

    def partial_fit(self, X: Any, y: Any) -> NystromNTKRegressor:
        """Take some more rows; returns itself. The first ones give landmarks and scaling."""
        first = not hasattr(self, "kernel_")
        X, y = self._checked(X, y, reset=first)
        if first:
            self._begin(X, y)
        self._take(X, y)
        return self

    def _begin(self, X: Array, y: Array) -> None:
        dtypes = {"float64": torch.float64, "float32": torch.float32}
        if self.n_landmarks < 1 or self.precision not in dtypes:
            raise InvalidValueError(
                f"There is at least one landmark, and the precision is 'float64' or 'float32'; got "
                f"n_landmarks={self.n_landmarks!r} and precision={self.precision!r}."
            )
        network = self._network()
        self._scale(X, y)
        draw = check_random_state(self.random_state)
        sample = np.sort(draw.permutation(len(X))[: _CANDIDATES * self.n_landmarks])
        rows = torch.from_numpy(self.input_scaling_.apply(X[sample]))
        self.landmarks_ = regression.landmarks(
            network.function(self.kind),
            rows,
            min(self.n_landmarks, len(rows)),
            method=self.selection,
            generator=torch.Generator().manual_seed(int(draw.randint(2**31 - 1))),
        ).numpy()
        self._sums = regression.Nystrom(
            network,
            torch.from_numpy(self.landmarks_),
            kind=self.kind,
            dtype=dtypes[self.precision],
            memory=self.memory,
        )
        self.kernel_ = network

    def _take(self, X: Array, y: Array) -> None:
        inputs = torch.from_numpy(self.input_scaling_.apply(X))
        self._sums.partial_fit(inputs, torch.from_numpy(self.target_scaling_.apply(y)))
        self._posterior: regression.NystromPosterior | None = None

    def _fitted(self) -> regression.NystromPosterior:
        if self._posterior is None:
            self._posterior = self._sums.solve(self.noise)
        return self._posterior

    @property
    def posterior_(self) -> regression.NystromPosterior:
        """The fit to the rows seen so far."""
        check_is_fitted(self, "kernel_")
        return self._fitted()
