"""What a network predicts after training, if it stays linear in its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.ntk._empirical import empirical_ntk
from farfield.ntk._model import ParameterFilter

__all__ = ["linearized_prediction"]


def linearized_prediction(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    x_test: Tensor,
    *,
    ridge: float = 0.0,
    parameters: ParameterFilter = None,
    memory: int | str = "4GB",
    batch: int = 256,
) -> Tensor:
    r"""f₀(x′) + Θ(x′, X) (Θ(X, X) + ridge·I)⁻¹ (y − f₀(X)): the network trained to the end, to first order.

    The minimum of ½ Σ (f(x) − y)² + ½ ridge ‖θ − θ₀‖² for f linear in θ around the model as it stands; with
    ridge 0, what gradient flow on the squared error converges to. Wide networks come close to it; how much the
    kernel turns while one trains (:func:`kernel_distance`) says how close.

    Parameters
    ----------
    model
        As for :func:`empirical_ntk`, at the parameters training starts from.
    x, y
        Training inputs (n, …) and targets of the shape of the model's output.
    x_test
        Inputs (m, …).
    ridge
        Added to the diagonal.
    parameters, memory
        As for :func:`empirical_ntk`; the kernel itself, (n·K)² numbers in float64, is not counted.
    batch
        Inputs that go through the model at once.

    Returns
    -------
    Tensor
        Of the shape of ``model(x_test)``.

    Raises
    ------
    InvalidValueError
        If the targets do not have the shape of the outputs, or the kernel is singular and there is no ridge.

    References
    ----------
    Lee et al., Wide neural networks of any depth evolve as linear models under gradient descent, 2019.

    Examples
    --------
    >>> net = nn.Linear(1, 1)  # linear already: this is least squares
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> linearized_prediction(net, x, 3 * x + 1, torch.tensor([[2.0]])).round(decimals=4)
    tensor([[7.]])
    """
    if ridge < 0:
        raise InvalidValueError(f"A ridge is not negative, got {ridge}.")
    with torch.no_grad():
        start = torch.cat([model(part) for part in x.split(batch)])
        far = torch.cat([model(part) for part in x_test.split(batch)])
    if y.shape != start.shape:
        raise InvalidValueError(
            f"Targets have the shape of the model's output, {tuple(start.shape)}; got {tuple(y.shape)}."
        )
    outputs = start[0].numel()
    kernel = empirical_ntk(model, x, outputs="full", parameters=parameters, memory=memory)
    cross = empirical_ntk(model, x_test, x, outputs="full", parameters=parameters, memory=memory)

    def flat(theta: Tensor) -> Tensor:
        rows, columns = theta.shape[:2]
        return theta.permute(0, 2, 1, 3).reshape(rows * outputs, columns * outputs).to(torch.float64)

    matrix = flat(kernel)
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    # λ_min is no larger than the smallest pivot, and entries are known to the kernel's rounding, not float64's.
    rounding = len(matrix) * torch.finfo(kernel.dtype).eps * matrix.diagonal().max()
    if int(failed) or (ridge == 0 and bool(factor.diagonal().square().min() <= rounding)):
        raise InvalidValueError(
            f"The kernel of {len(x)} inputs with {outputs} outputs each is singular to rounding: two inputs may be "
            "the same, or there are fewer parameters than numbers to fit. Give a ridge, such as 1e-6 of its largest "
            f"entry, {1e-6 * float(matrix.abs().max()):.1e}."
        )
    residual = (y - start).to(torch.float64).reshape(-1, 1)
    moved = flat(cross) @ torch.cholesky_solve(residual, factor)
    return far + moved.reshape(far.shape).to(far.dtype)
