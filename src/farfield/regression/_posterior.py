"""What a kernel fit says at new inputs, and what it can never exceed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.geometry.spectrum import Eigenvalue
from farfield.kernels import KernelFunction
from farfield.regression import _bounds as bounds
from farfield.regression._cells import on_the_sphere
from farfield.regression._covariance import (
    Covariance,
    checked,
    cross,
    multiply,
    symmetric_product,
)
from farfield.regression._job import FitJob
from farfield.regression._pcg import relative
from farfield.regression._system import System

__all__ = ["Posterior"]


@dataclass(frozen=True)
class Posterior:
    r"""A kernel fitted to data; made by :func:`fit`.

    The mean is the function :math:`f = \sum_j \alpha_j\, k(\cdot, x_j)` with :math:`(K + sI)\alpha = y`, s =
    noise + jitter. With the NTK it is E f of the network of infinite width trained to the end by gradient
    flow (for s > 0: with the penalty s‖θ − θ₀‖² on its parameters), the expectation being over
    initializations; with the NNGP, the posterior of the untrained network as a Gaussian process.

    Attributes
    ----------
    weights
        α, shape (n,) or (n, k) like the targets, float64.
    energy
        αᵀKα, the squared RKHS norm of f, for each output. Rounded as it comes; bounds use an upper value.
    residual
        Largest ‖y − (K + sI)α‖/‖y‖ over the outputs, measured.
    noise, jitter
        What was added to the diagonal: asked for, and needed for Cholesky to succeed.
    solver
        ``"cholesky"`` or ``"pcg"``.
    """

    weights: Float[Tensor, "n ..."]
    energy: Float[Tensor, "*outputs"]
    residual: float
    noise: float
    jitter: float
    solver: str
    job: FitJob = field(repr=False)
    product: Tensor = field(repr=False)
    """Kα, shape (n, k)."""
    system: System = field(repr=False)

    @staticmethod
    def of(job: FitJob, system: System, weights: Tensor, product: Tensor) -> Posterior:
        """From α and Kα, both of shape (n, k), and the system they were solved with."""
        rest = job.y - product - system.shift * weights
        energy = (weights * product).sum(0)
        return Posterior(
            weights=weights[:, 0] if job.single else weights,
            energy=energy[0] if job.single else energy,
            residual=float(relative(rest, job.y).max()) if job.y.numel() else 0.0,
            noise=float(job.noise),
            jitter=system.shift - job.noise if system.shift != job.noise else 0.0,
            solver=job.solver,
            job=job.solved(),
            product=product,
            system=system,
        )

    @property
    def x(self) -> Float[Tensor, "n d"]:
        """The inputs of the fit."""
        return self.job.x

    @property
    def kernel(self) -> Covariance:
        """The kernel, as a function of inputs."""
        return self.job.kernel

    # ------------------------------------------------------------------ predictions

    def mean(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m ..."]:
        """Σ_j α_j k(x, x_j), in float64 and given in the dtype of ``x``; differentiable in ``x``.

        Cost: m·n kernel entries, a few rows at a time.
        """
        self._check(x)
        value = multiply(self.kernel, x.to(torch.float64), self.x, self._columns(self.weights), self.job.work)
        return self._shape(value).to(x.dtype)

    def variance(self, x: Float[Tensor, "m d"], over: str = "auto") -> Float[Tensor, " m"]:
        r"""The variance of f(x), the same for every output.

        ``"posterior"``: of a Gaussian process with this kernel, given the data,

        .. math:: k(x,x) - k_x^\top (K + sI)^{-1} k_x.

        ``"initializations"``: of the trained network over its random initializations, for the NTK Θ of a
        network with NNGP K: with :math:`\beta = (\Theta + sI)^{-1}\Theta_x`, the variance of :math:`f_0(x) -
        \beta^\top f_0(X)`,

        .. math:: K(x,x) + \beta^\top K \beta - 2\beta^\top K_x.

        Cost of an input: a solve with n², and for the second kind n²/2 NNGP entries for every 1024 inputs.

        Parameters
        ----------
        x
            Inputs.
        over
            One of the two; ``"auto"`` is the second for an NTK and the first for any other kernel.
        """
        self._check(x)
        trained = self.job.network is not None and self.job.kind == "ntk"
        if over == "auto":
            over = "initializations" if trained else "posterior"
        if over not in ("posterior", "initializations"):
            raise InvalidValueError(
                f"A variance is over 'posterior' or 'initializations' ('auto' chooses), got {over!r}."
            )
        if over == "initializations" and not trained:
            raise InvalidValueError(
                "The variance over initializations belongs to a trained network: fit the NTK of a NetworkKernel "
                "(kind='ntk'). For this kernel there is over='posterior'."
            )
        part = self._posterior_variance if over == "posterior" else self._initialization_variance
        with torch.no_grad():
            return cross(x.to(torch.float64), len(self.x), self.job.work, part).to(x.dtype)

    def slope(self, u: Float[Tensor, "m d"]) -> Float[Tensor, "m ..."]:
        """The limit of f(λu)/λ as λ → ∞, Σ_j α_j k̂(u, x_j): how fast the mean grows along directions. Zero
        with a LayerNorm.

        For the kernels of networks; see :meth:`farfield.kernels.NetworkKernel.slope`.
        """
        self._check(u)
        if self.job.network is None:
            raise InvalidValueError(
                "The growth of a mean is known for the kernels of networks, and this kernel is another."
            )
        weights = self._columns(self.weights)
        parts = [
            self.job.network.slope(part, self.x, self.job.kind) @ weights
            for part in u.to(torch.float64).split(self.job.work.height(len(self.x)))
        ]
        return self._shape(torch.cat(parts)).to(u.dtype)

    # ------------------------------------------------------------------ bounds

    def output_bound(
        self, x: Float[Tensor, "m d"] | None = None, name: str = "rkhs"
    ) -> Float[Tensor, "*any"]:
        r"""A number that the mean's absolute value exceeds at no input, or at the inputs given.

        For every input (``x`` left out), with C = sup k(x, x), A = K + sI and N inputs; ∞ if C is:

        ==============  ==========================================================================
        name            bound
        ==============  ==========================================================================
        ``rkhs``        √(C·αᵀKα), the default. Without noise √(C·yᵀK⁻¹y)
        ``tight``       the smallest known: the above with the readout's bias taken out of the kernel;
                        and, for up to 3 features behind a norm, cells on the sphere of directions
        ``eigenvalue``  √(C·N/λ_min)·max|y|; with noise 1/λ_min becomes max over μ ≥ λ_min of (μ − s)/μ²
        ``crude``       C·N·max|y|/λ_min, λ_min of A
        ``printed``     refused, see below
        ==============  ==========================================================================

        f = Σ α_j k(·, x_j) lies in the RKHS with ‖f‖² = αᵀKα, whatever α is, so |f(x)| = |⟨f, k(·,x)⟩| ≤
        ‖f‖√k(x,x) ≤ √(C·αᵀKα): this one holds for the α computed, converged or not, and is rounded up. The
        other two follow from it with y replaced by Aα as computed; their λ_min is as sure as
        :meth:`smallest_eigenvalue`.

        ``tight`` divides the sphere of directions, infinity included, until the bound is within a percent of the
        largest value met, or 10⁸ kernel entries are spent (some ten seconds); it holds either way.

        At inputs x (``rkhs`` only) the smaller of two numbers. ‖f‖√k(x,x); and, for any β (here β ≈ A⁻¹k_x) and
        r = k_x − Aβ,

        .. math:: |f(x)| = |k_x^\top\alpha| = |\beta^\top A\alpha + r^\top\alpha|
                  \le \sqrt{\beta^\top A\beta}\,\sqrt{\alpha^\top A\alpha} + \|r\|\,\|\alpha\|,

        by Cauchy–Schwarz in the inner product of A. Without noise it is √(yᵀK⁻¹y)·√(k_xᵀK⁻¹k_x), never above
        the first; with noise the product with A = K + sI is what is right, not that with K.

        All of it concerns E f. One trained network adds f₀(x) − k_xᵀA⁻¹f₀(X), of mean zero; see :meth:`variance`.

        ``printed`` is C·max|y|/(λ_min·N), as [P1]'s summary prints it. It is not a bound: an interpolating f
        is max|y| at some x_j, and for nearly orthogonal inputs, λ_min ≈ C, the formula gives max|y|/N. Asking
        for it raises.

        Parameters
        ----------
        x
            Inputs for a bound at each.
        name
            Which bound.

        Returns
        -------
        Tensor
            One number for each output, or for each input and output.

        References
        ----------
        [P1] §3, Theorem 3.2; the default is ours.

        Examples
        --------
        >>> from farfield import kernels, regression
        >>> x, y = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1)
        >>> f = regression.fit(k, x, y)
        >>> f.mean(x)
        tensor([ 1.0000, -1.0000], dtype=torch.float64)
        >>> smallest, C = f.smallest_eigenvalue().value, k.ntk(x)[0, 0]
        >>> round(float(C * y.abs().max() / (smallest * len(x))), 4)  # the printed formula, below |f(e₁)| = 1
        0.7608
        """
        name = bounds.named(name)
        if x is not None:
            if name != "rkhs":
                raise InvalidValueError(f"At given inputs there is the bound 'rkhs' only, not {name!r}.")
            self._check(x)
            with torch.no_grad():
                value = cross(x.to(torch.float64), len(self.x), self.job.work, self._bound_at, width=8)
            return self._shape(value)
        diagonal = self._diagonal()
        supremum = bounds.check_supremum(self.kernel.sup_diagonal(), diagonal)
        weights = self._columns(self.weights)
        if name == "rkhs":
            return self._outputs(
                bounds.rkhs(supremum, bounds.energy_above(self.kernel, weights, self.product, diagonal))
            )
        if name == "tight":
            best = bounds.beside_constant(self.kernel, supremum, weights, self.product, diagonal)
            if isinstance(self.kernel, KernelFunction):
                spare = (
                    bounds.slack(len(self.x), self.kernel)
                    * bounds.size(weights, diagonal)
                    * diagonal.max().sqrt()
                )
                found_cells = on_the_sphere(self.kernel, self.x, weights, spare)
                if found_cells is not None:
                    best = torch.minimum(best, found_cells.bound)
            return self._outputs(best)
        # In terms of the matrix as computed: entries off by a share ε move Aα by ε·size·√k, eigenvalues by ε·ΣK_ii.
        share, shift = bounds.slack(len(self.x), self.kernel), self.system.shift
        spare = share * bounds.size(weights, diagonal) * diagonal.max().sqrt()
        reached = (self.product + shift * weights).abs().amax(0) + spare
        found = self.smallest_eigenvalue()
        smallest = max(found.value - found.error - share * float(diagonal.sum()), shift)
        if name == "eigenvalue":
            return self._outputs(bounds.eigenvalue(supremum, len(self.x), smallest, shift, reached))
        return self._outputs(bounds.crude(supremum, len(self.x), smallest, reached))

    def smallest_eigenvalue(self) -> Eigenvalue:
        """λ_min of K + (noise + jitter)·I, with an error estimate.

        All eigenvalues up to n = 1000; above, Lanczos on the inverse where there is a Cholesky factor, which
        takes a few dozen solves of n², and Lanczos on the matrix where there is none, whose error may be as
        large as the eigenvalue.
        """
        return self.system.smallest_eigenvalue()

    # ------------------------------------------------------------------ how

    def _posterior_variance(self, x: Tensor) -> Tensor:
        b = checked(self.kernel, self.x, x)
        return (self.kernel.diagonal(x) - self.system.quadratic(b, self.job.tolerance)).clamp(min=0)

    def _initialization_variance(self, x: Tensor) -> Tensor:
        assert self.job.network is not None
        nngp = self.job.network.function("nngp")
        beta = self.system.solve(checked(self.kernel, self.x, x), self.job.tolerance)
        inner = (
            (beta * symmetric_product(nngp, self.x, beta, self.job.work)).sum(0) if len(x) else beta.sum(0)
        )
        outer = (beta * checked(nngp, self.x, x)).sum(0)
        return (nngp.diagonal(x) + inner - 2 * outer).clamp(min=0)

    def _bound_at(self, x: Tensor) -> Tensor:
        weights, diagonal = self._columns(self.weights), self._diagonal()
        own = self.kernel.diagonal(x).clamp(min=0)
        energy = bounds.energy_above(self.kernel, weights, self.product, diagonal)
        share, size = bounds.slack(len(weights), self.kernel), bounds.size(weights, diagonal)
        far = (energy * own[:, None]).sqrt()
        k = checked(self.kernel, self.x, x)
        # Any β gives a bound, so a rough one does where solving is dear.
        beta = self.system.solve(k, 1e-3)
        image = self.system.product(beta)
        rest = k - image - self.system.shift * beta
        inner = bounds.energy_above(self.kernel, beta, image, diagonal) + self.system.shift * (
            beta * beta
        ).sum(0)
        outer = energy + self.system.shift * (weights * weights).sum(0)
        rounding = share * size * (own.sqrt() + bounds.size(beta, diagonal))[:, None]
        near = (inner[:, None] * outer).sqrt() + rest.norm(dim=0)[:, None] * weights.norm(dim=0) + rounding
        return torch.minimum(far, near) * (1 + 1e-14)

    def _diagonal(self) -> Tensor:
        return self.kernel.diagonal(self.x).to(torch.float64)

    def _check(self, x: Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != self.x.shape[1] or not x.dtype.is_floating_point:
            raise InvalidValueError(
                f"Inputs are floating-point of shape (m, {self.x.shape[1]}), as in training; got {x.dtype} of shape "
                f"{tuple(x.shape)}."
            )

    def _columns(self, value: Tensor) -> Tensor:
        return value if value.dim() == 2 else value[:, None]

    def _shape(self, value: Tensor) -> Tensor:
        return value if self.weights.dim() == 2 else value[:, 0]

    def _outputs(self, value: Tensor) -> Tensor:
        return value if self.weights.dim() == 2 else value[0]
