"""What holds for every network and every data set."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farfield import kernels
from farfield.engine import Checkpoint, TaskError, Tile, fingerprint, local
from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import activation, dual, dual_slope
from farfield.kernels import Activate, Dense, LayerNorm, NetworkKernel, Residual, RMSNorm

# Activations with cheap tables, so that every example may have variances of its own.
NAMES = ("relu", "leaky_relu", "abs", "identity", "relu_squared")
PLACES = (None, "first", "second", "last", "every")


@st.composite
def networks(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> dict[str, object]:
    """Settings of perceptrons of up to four hidden layers."""
    name = draw(st.sampled_from(names))
    depth = draw(st.integers(1, 2 if name == "relu_squared" else 4))
    place = draw(st.sampled_from(PLACES))
    return {
        "depth": depth,
        "activation": name,
        "layer_norm": "first" if place == "second" and depth == 1 else place,
        "order": draw(st.sampled_from(("pre", "post"))),
        "norm": draw(st.sampled_from(("layer", "rms"))),
        "weight_var": draw(st.sampled_from((0.5, 1.0, 2.0))),
        "bias_var": draw(st.sampled_from((0.0, 1e-4, 0.1, 3.0))),
    }


@st.composite
def data(draw: st.DrawFn, least: int = 1) -> Tensor:
    """Rows with near and exact duplicates, opposites and different lengths; none of zeros."""
    n, d = draw(st.integers(least, 7)), draw(st.integers(1, 5))
    x = torch.randn(
        n, d, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))), dtype=torch.float64
    )
    x = x * torch.logspace(0, draw(st.sampled_from((0, 1, 3))), n, dtype=torch.float64)[:, None]
    if n > 2:
        x[1] = x[0] * (1 + draw(st.sampled_from((0.0, 1e-12, 1e-6))))
    if n > 3:
        x[3] = -x[2]
    return x


def law(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """A property of twenty-five examples."""
    return lambda test: settings(max_examples=25)(given(*strategies)(test))


kinds = st.sampled_from(("nngp", "ntk"))


@law(networks(), data(), kinds)
def test_symmetric_and_positive_semidefinite(k, x, kind):
    k = kernels.mlp(**k)
    matrix = k.function(kind)(x)
    assert torch.equal(matrix, matrix.T)
    unit = matrix / torch.sqrt(torch.outer(matrix.diagonal(), matrix.diagonal()))
    assert torch.linalg.eigvalsh(unit).min() >= -1e-10 * len(x)
    assert torch.equal(matrix.diagonal(), k.diagonal(x, kind))


@law(networks(), data(), data(), kinds)
def test_transposed(k, x, y, kind):
    k = kernels.mlp(**k)
    width = min(x.shape[1], y.shape[1])
    x, y = x[:, :width].contiguous(), y[:, :width].contiguous()
    f = k.function(kind)
    assert _close(f(x, y), f(y, x).T, 1e-14, _size(k, kind, x, y))


@law(networks(), data(), kinds)
def test_a_matrix_is_its_pairs(k, x, kind):
    k = kernels.mlp(**k)
    f = k.function(kind)
    matrix = f(x, x.clone())
    assert _close(matrix, f(x), 1.1e-12)
    for i in range(len(x)):
        one = x[i : i + 1]
        assert _close(matrix[i : i + 1], f(one, x), 1e-14, _size(k, kind, one, x))


@law(networks(), data(2), kinds, st.sampled_from((40, 160, 2000)))
def test_tiled_is_untiled(k, x, kind, budget):
    k = kernels.mlp(**k)
    f = k.function(kind)
    assert _close(f(x, memory=max(budget, 160)), f(x, memory="1GB"), 1e-13)
    assert _close(f(x, x[:1], memory=max(budget, 160)), f(x, x[:1]), 1e-13, _size(k, kind, x, x[:1]))


@law(networks(), data(), kinds)
def test_compressed_is_layer_by_layer(k, x, kind):
    k = kernels.mlp(**k)
    plain = NetworkKernel(k.layers, compress=False)
    assert _close(k.function(kind)(x), plain.function(kind)(x), 2e-12)
    assert torch.allclose(k.diagonal(x, kind), plain.diagonal(x, kind), rtol=1e-14)


@law(networks(), data(), kinds)
def test_batches_are_loops(k, x, kind):
    k = kernels.mlp(**k)
    f = k.function(kind)
    batch = torch.stack([x, 2.0 * x.flip(0), x + 0.5])
    looped = torch.stack([f(part) for part in batch])
    assert _close(f(batch), looped, 2e-12)
    pairs = torch.stack([f(part, part[:1]) for part in batch])
    assert _close(f(batch, batch[:, :1]), pairs, 2e-12, _size(k, kind, batch, batch[:, :1]))
    assert torch.allclose(
        k.diagonal(batch, kind), torch.stack([k.diagonal(p, kind) for p in batch]), rtol=1e-14
    )


@law(networks(), data(), kinds)
def test_state_holds_the_same(k, x, kind):
    k = kernels.mlp(**k)
    state = k.state(x)
    value = state.nngp if kind == "nngp" else state.ntk
    assert _close(value, k.function(kind)(x), 2e-12)


@law(networks(("relu", "abs", "leaky_relu")), data(), kinds, st.sampled_from((1e-9, 0.3, 1e7)))
def test_no_bias_makes_scale_a_factor(k, x, kind, scale):
    """Positively homogeneous of degree one, or of degree zero behind a norm."""
    k = kernels.mlp(**k)
    free = NetworkKernel(tuple(Dense(a.weight_var, 0.0) if isinstance(a, Dense) else a for a in k.layers))
    f = free.function(kind)
    normed = any(a.cuts for a in k.layers)
    factor = 1.0 if normed else scale
    assert _close(f(scale * x, x), f(x) * factor, 2e-12, factor * _size(free, kind, x, x))


@law(networks(), data(), kinds)
def test_rotations_change_nothing(k, x, kind):
    k = kernels.mlp(**k)
    q, _ = torch.linalg.qr(
        torch.randn(x.shape[1], x.shape[1], generator=torch.Generator().manual_seed(0)).double()
    )
    f = k.function(kind)
    assert _close(f(x @ q), f(x), 1e-11)


@law(networks(), data(), kinds)
def test_single_precision_in_and_out(k, x, kind):
    k = kernels.mlp(**k)
    f = k.function(kind)
    single = f(x.float())
    assert single.dtype == torch.float32
    assert f(x.float(), x).dtype == torch.float64
    assert _close(single.double(), f(x.float().double()), 1.1e-6)
    assert torch.equal(single, single.T)


@law(networks(), data(), kinds)
def test_survives_pickling(k, x, kind):
    k = kernels.mlp(**k)
    again = pickle.loads(pickle.dumps(k))
    assert torch.equal(again.function(kind)(x), k.function(kind)(x))


def _close(a: Tensor, b: Tensor, relative: float, size: Tensor | None = None) -> bool:
    """Entries agree to a share of √(k(x, x) k(y, y)), by default from the diagonal of a square matrix."""
    if size is None:
        root = b.diagonal(dim1=-2, dim2=-1).sqrt()
        size = root.unsqueeze(-1) * root.unsqueeze(-2)
    return a.shape == b.shape and bool(((a - b).abs() <= relative * size).all())


def _size(k: NetworkKernel, kind: str, x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(k.diagonal(x, kind).unsqueeze(-1) * k.diagonal(y, kind).unsqueeze(-2))


def test_close_can_fail():
    x = torch.eye(3, dtype=torch.float64)
    assert _close(x * (1 + 1e-13), x, 1e-12)
    assert not _close(x * (1 + 1e-11), x, 1e-12)
    assert not _close(x * float("nan"), x, 1e-12)


# ------------------------------------------------------------------ smooth activations, once each


@pytest.mark.parametrize("name", ["gelu", "erf", "tanh"])
@pytest.mark.parametrize("place", [None, "first", "second"])
def test_laws_of_smooth_activations(name, place):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[1], x[3] = x[0] * (1 + 1e-9), -x[2]
    k = kernels.mlp(depth=2, activation=name, layer_norm=place, bias_var=0.1)
    plain = NetworkKernel(k.layers, compress=False)
    for kind in ("nngp", "ntk"):
        f = k.function(kind)
        matrix = f(x)
        assert torch.linalg.eigvalsh(matrix).min() > -1e-10 * matrix.trace()
        assert _close(matrix, plain.function(kind)(x), 2e-12)
        assert _close(f(x[:4], x[4:]), matrix[:4, 4:], 2e-12, _size(k, kind, x[:4], x[4:]))
        assert _close(f(x, memory=200), matrix, 1e-12)
        assert _close(f(torch.stack([x, x]))[1], matrix, 2e-12)


def test_a_part_of_the_data_has_the_same_kernel():
    """Tables cover the variances of the data at hand; another data set, another table, the same values."""
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wide = torch.cat([x, 30.0 * x])
    k = kernels.mlp(depth=2, activation="gelu", bias_var=0.1)
    assert _close(k.ntk(wide)[:5, :5], k.ntk(x), 1e-12)


# ------------------------------------------------------------------ tiles, memory maps, checkpoints


@pytest.mark.parametrize("place", [None, "first", "second"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_tiles_and_workers(place, dtype):
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    k = kernels.mlp(depth=2, layer_norm=place, bias_var=0.1)
    whole = k.ntk(x)
    assert torch.equal(whole, whole.T)
    assert torch.equal(whole, k.ntk(x, engine=local(2)))
    assert _close(whole, k.ntk(x, memory="100kB"), 1e-13 if dtype == torch.float64 else 1e-6)
    rows = torch.tensor([0, 255, 256, 599])
    assert _close(whole[rows][:, rows], k.ntk(x[rows]), 2e-12 if dtype == torch.float64 else 2e-6)


def test_into_a_memory_map(tmp_path):
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1)
    out = np.memmap(tmp_path / "k", np.float64, "w+", shape=(300, 300))
    back = k.ntk(x, out=out)
    assert back.data_ptr() == torch.from_numpy(out).data_ptr()
    assert np.array_equal(np.memmap(tmp_path / "k", np.float64, "r", shape=(300, 300)), k.ntk(x).numpy())
    rectangle = torch.empty(300, 7, dtype=torch.float64)
    assert k.nngp(x, x[:7], out=rectangle) is rectangle
    with pytest.raises(InvalidValueError, match="plain matrices"):
        k.ntk(x[None], out=rectangle)


@pytest.mark.parametrize("named", [True, False], ids=["Checkpoint", "folder"])
def test_goes_on_where_it_was(named, tmp_path):
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1)
    checkpoint = Checkpoint(tmp_path, fingerprint("ntk", x)) if named else tmp_path

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        k.ntk(x, checkpoint=checkpoint, progress=stop)
    kept = len(list(tmp_path.glob("*.result")))
    assert 3 <= kept < 6
    seen: list[int] = []
    matrix = k.ntk(x, checkpoint=checkpoint, progress=lambda done, total: seen.append(total))
    assert set(seen) == {6}
    assert torch.equal(matrix, k.ntk(x))
    if not named:  # the folder is known by kernel and inputs
        for other in (
            lambda: k.ntk(2 * x, checkpoint=tmp_path),
            lambda: k.nngp(x, checkpoint=tmp_path),
            lambda: kernels.mlp(depth=3, layer_norm="first", bias_var=0.1).ntk(x, checkpoint=tmp_path),
        ):
            with pytest.raises(InvalidValueError, match="another computation"):
                other()


@pytest.mark.parametrize("place", [None, "first", "second"])
def test_tile_tasks_survive_pickling(place):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    k = kernels.mlp(depth=2, layer_norm=place, bias_var=0.1)
    rows = k._rows(x)
    task = k._task("ntk", rows, rows, torch.float64)
    again, tile = pickle.loads(pickle.dumps(task)), Tile((0, 4), (1, 3))
    assert torch.equal(again(tile), task(tile))
    assert _close(task(tile), k.ntk(x)[:, 1:3], 2e-12, _size(k, "ntk", x, x[1:3]))


# ------------------------------------------------------------------ edges


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("compress", [True, False])
def test_no_rows_one_row_one_feature(place, compress):
    k = kernels.mlp(depth=2, layer_norm=place, bias_var=0.1, compress=compress)
    for dtype in (torch.float32, torch.float64):
        none, one = torch.empty(0, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype)
        assert k.ntk(none).shape == (0, 0)
        assert k.ntk(none, one).shape == (0, 1)
        assert k.nngp(one, none).shape == (1, 0)
        assert k.diagonal(none).shape == (0,)
        assert k.ntk(one).shape == (1, 1)
    x = torch.tensor([[1.0], [-1.0], [3.0]], dtype=torch.float64)
    assert torch.linalg.eigvalsh(k.ntk(x)).min() > -1e-12


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_rows_of_zeros(place, compress):
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    biased = kernels.mlp(depth=2, layer_norm=place, bias_var=0.1, compress=compress)
    assert torch.isfinite(biased.ntk(x)).all()
    free = kernels.mlp(depth=2, layer_norm=place, bias_var=0.0, compress=compress)
    if place is None:
        matrix = free.ntk(x)
        assert matrix[0].tolist() == [0.0, 0.0]
        assert matrix[1, 1] > 0
    else:
        with pytest.raises((InvalidValueError, TaskError), match="nothing to divide by"):
            free.ntk(x)
        with pytest.raises((InvalidValueError, TaskError), match="nothing to divide by"):
            free.ntk(x, x[1:])


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_any_size_of_input_with_the_norm_first(compress, bias):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    k = kernels.mlp(depth=3, layer_norm="first", bias_var=bias, compress=compress)
    far = kernels.mlp(depth=3, layer_norm="first", bias_var=bias, compress=compress).ntk(1e150 * x)
    for size in (1e200, 1e300):
        assert _close(k.ntk(size * x), far, 1e-13)
        assert torch.isfinite(k.ntk(size * x, x)).all()
    if bias == 0:
        assert _close(k.ntk(1e-250 * x), far, 1e-13)


@pytest.mark.parametrize("place", [None, "second"])
def test_too_large_without_it_is_an_error(place):
    k = kernels.mlp(depth=3, layer_norm=place, bias_var=0.1)
    for x in (torch.full((1, 2), 1e200, dtype=torch.float64), torch.full((1, 2), float("nan"))):
        with pytest.raises(InvalidValueError, match="not finite"):
            k.ntk(x)


def test_many_features_in_single_precision():
    """Unit vectors whose product exceeds one by rounding: no root of a negative number."""
    x = torch.randn(40, 20_000, generator=torch.Generator().manual_seed(0))
    k = kernels.mlp(depth=10, layer_norm="first", bias_var=0.0)
    for matrix in (k.ntk(x), k.ntk(x, x.clone()), k.ntk(x, -x)):
        assert torch.isfinite(matrix).all()
    assert _close(k.ntk(x, x.clone()), k.ntk(x), 1e-6)


def test_a_variance_changed_in_place_changes_the_kernel():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bias = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    for place in ("first", "second"):
        k = kernels.mlp(depth=3, layer_norm=place, bias_var=bias)
        for value in (0.1, 0.7):
            with torch.no_grad():
                bias.fill_(value)
                fresh = kernels.mlp(depth=3, layer_norm=place, bias_var=value).ntk(x)
                assert _close(k.ntk(x), fresh, 1e-13)
            assert _close(k.ntk(x).detach(), fresh, 2e-12)


def test_too_sharp_for_a_polynomial_goes_layer_by_layer():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for options in (
        {"activation": "abs", "layer_norm": "every", "order": "post", "depth": 40},
        {"activation": "erf", "layer_norm": "first", "weight_var": 3.0, "depth": 30},
    ):
        k = kernels.mlp(bias_var=1e-6, **options)
        with pytest.raises(PrecisionError, match="layer by layer"):
            k.table("ntk")
        assert _close(k.ntk(x), NetworkKernel(k.layers, compress=False).ntk(x), 1e-14)


def test_a_kernel_that_is_not_finite_says_so():
    k = kernels.mlp(activation="relu_squared", layer_norm="first", bias_var=1.0, depth=14)
    with pytest.raises(InvalidValueError, match="not finite"):
        k.ntk(torch.ones(2, 2, dtype=torch.float64))


def test_a_tangent_kernel_that_hardly_enters_is_compressed_too():
    """B(θ) is 1e-8 of A(θ) here, and was once their difference."""
    k = kernels.mlp(depth=10, layer_norm="every", order="post", bias_var=10.0)
    assert k.table("ntk").error < 1e-12
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert _close(k.ntk(x), NetworkKernel(k.layers, compress=False).ntk(x), 1e-12)


# ------------------------------------------------------------------ growth without a norm


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs", "identity"])
def test_slope_is_the_kernel_far_away(name, kind):
    generator = torch.Generator().manual_seed(3)
    u, x = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (2, 4))
    k = kernels.mlp(depth=3, activation=name, weight_var=1.3, bias_var=0.2)
    far = k.function(kind)(1e9 * u, x) / 1e9
    size = far.abs().max()
    assert _close(k.slope(u, x, kind), far, 1e-7, size)
    assert not _close(1.001 * k.slope(u, x, kind), far, 1e-4, size)


def test_a_space_without_a_norm_has_bounded_functions_too():
    """P1 says that its functions all grow without bound. With one feature there are two directions, and any three
    points have a combination whose slopes cancel along both; the same of targets for Theorem 3.1.
    """
    k = kernels.mlp(depth=2, bias_var=0.1)
    x = torch.tensor([[-1.0], [0.5], [2.0]], dtype=torch.float64)
    ends = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    slopes = k.slope(ends, x, "ntk")
    alpha = torch.linalg.svd(slopes).Vh[-1]
    near = torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None]
    far = torch.logspace(1, 7, 40, dtype=torch.float64)[:, None] * ends.T.reshape(1, 2)
    inside, outside = k.ntk(near, x) @ alpha, k.ntk(far.reshape(-1, 1), x) @ alpha
    assert float(inside.abs().max()) > 0.05 and float(outside.abs().max()) < 2.0
    # A function of the space that does grow, to compare with.
    other = torch.linalg.svd(slopes).Vh[0]
    assert float((k.ntk(far.reshape(-1, 1), x) @ other).abs().max()) > 1e6
    # Interpolating these very values, the posterior mean is the bounded function.
    targets = k.ntk(x) @ alpha
    torch.testing.assert_close(torch.linalg.solve(k.ntk(x), targets), alpha, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "layers",
    [
        (Dense(1.0, 0.1), LayerNorm(), Activate("relu"), Dense()),
        (RMSNorm(), Dense(1.0, 0.1), Activate("relu"), Dense()),
        (LayerNorm(), Dense(1.0, 0.1), Activate("relu"), Dense()),
    ],
    ids=["norm", "rms-inputs", "norm-inputs"],
)
def test_slope_is_zero_behind_a_norm(layers):
    u, x = torch.eye(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64).cumsum(-1)
    assert torch.equal(NetworkKernel(layers).slope(u, x), torch.zeros(3, 2, dtype=torch.float64))


# ------------------------------------------------------------------ the supremum of the diagonal


@law(networks(("relu", "leaky_relu", "abs")), data(), kinds)
def test_no_diagonal_exceeds_the_supremum(k, x, kind):
    k = kernels.mlp(**k)
    largest = k.sup_diagonal(kind)
    for scale in (1.0, 1e3, 1e8):
        assert k.diagonal(scale * x, kind).max() <= largest * (1 + 1e-12)


@pytest.mark.parametrize("name", ["relu", "gelu", "abs"])
@pytest.mark.parametrize("place", ["first", "second", "every"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_supremum_is_approached(name, place, order):
    k = kernels.mlp(depth=3, activation=name, layer_norm=place, order=order, bias_var=0.1)
    try:
        largest = k.sup_diagonal()
    except InvalidValueError:
        pytest.skip("refused with a reason")
    homogeneous = name in ("relu", "abs")
    sizes = torch.logspace(-3, 12 if homogeneous else 1.5, 200, dtype=torch.float64)
    found = float(k.diagonal(sizes[:, None]).max())
    assert found <= largest * (1 + 1e-12)
    if homogeneous or (place == "first" and order == "pre"):
        assert found > largest * (1 - 1e-6)


# ------------------------------------------------------------------ P1's whole family of activations


def _recursion(x: Tensor, n: float, depth: int, first: bool) -> tuple[Tensor, Tensor]:
    """NNGP and NTK of x₊ⁿ in correlations, from the duals: another way, good to about 1e-8 away from ρ = 1."""
    sigma = activation("power_relu", n=n)
    k = x @ x.T / x.shape[1] + 0.1
    theta = k.clone()
    for layer in range(depth):
        root = k.diagonal().sqrt()
        scale = torch.outer(root, root)
        rho = (k / scale).clamp(-1.0, 1.0).fill_diagonal_(1.0)
        if first and layer == 0:
            theta, scale = theta / scale, torch.ones_like(scale)
        unit = dual(sigma, 1.0)
        ones = torch.ones_like(rho)
        power = scale**n / unit
        slope = dual_slope(sigma, rho, ones) * scale ** (n - 1.0) / unit
        k = dual(sigma, rho, ones) * power + 0.1
        theta = k + slope * theta
    return k, theta


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("n", [0.6, 0.75, 1.25, 1.5, 1.75])
def test_every_degree_above_a_half_has_both_kernels(n, first):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    k = kernels.mlp(
        depth=2, activation=activation("power_relu", n=n), layer_norm="first" if first else None, bias_var=0.1
    )
    nngp, ntk = _recursion(x, n, 2, first)
    assert _close(k.nngp(x), nngp, 1e-8)
    assert _close(k.ntk(x), ntk, 1e-8)
    # The diagonal, where the slope has its branch, is exact, and so are pairs that are equal.
    torch.testing.assert_close(k.ntk(x).diagonal(), k.diagonal(x), rtol=1e-13, atol=0)
    twice = torch.cat([x, x * (1 + 1e-9), -x])
    assert float(torch.linalg.eigvalsh(k.ntk(twice)).min()) > -1e-10 * float(k.diagonal(twice).max())
    if first:
        assert float(k.diagonal(1e8 * x).max()) <= k.sup_diagonal() * (1 + 1e-12)
        assert float(k.diagonal(1e8 * x).max()) > k.sup_diagonal() * (1 - 1e-6)


def test_residual_networks_keep_the_laws():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[1], x[3] = x[0], -x[2]
    block = Residual((LayerNorm(), Activate("relu"), Dense(0.7, 0.1)))
    for layers in (
        (Dense(1.0, 0.1), block, block, LayerNorm(), Activate("relu"), Dense()),
        (Dense(1.0, 0.1), LayerNorm(), block, block, Dense()),
        (Dense(1.0, 0.1), block, block, Dense(1.0, 0.5)),
    ):
        k, plain = NetworkKernel(layers), NetworkKernel(layers, compress=False)
        for kind in ("nngp", "ntk"):
            matrix = k.function(kind)(x)
            assert torch.equal(matrix, matrix.T)
            assert torch.linalg.eigvalsh(matrix).min() > -1e-10 * matrix.trace()
            assert _close(matrix, plain.function(kind)(x), 2e-12)
            assert _close(k.function(kind)(x, x[2:4]), matrix[:, 2:4], 2e-12, _size(k, kind, x, x[2:4]))
            assert torch.equal(matrix.diagonal(), k.diagonal(x, kind))
