"""Models that are not what they seem: rows in another order, noise, batches that mix, layers of several dtypes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from farfield.errors import FarfieldError, InvalidValueError
from farfield.ntk import NTKOperator, empirical_ntk, layer_contributions, linearized_prediction, sketch_ntk
from farfield.ntk._factors import Outer
from farfield.ntk._gram import contract
from farfield.ntk._model import Selection, track
from farfield.ntk._plan import plan
from ntk_models import distance, reference

METHODS = ("auto", "layerwise", "jacobian", "ntvp")


class Does(nn.Module):
    """Whatever is given, with the modules and parameters given."""

    def __init__(self, does, **parts):
        super().__init__()
        self.does = does
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.does(self, x)


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def parameter(*shape, dtype=torch.float64):
    return nn.Parameter(numbers(*shape, seed=3, dtype=dtype))


def linears(seed, names):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: nn.Linear(4, 4).double() for name in names}


def agree(model, x, tolerance=1e-10):
    for outputs in ("trace", "full"):
        truth = reference(model, x, outputs=outputs)
        for method in METHODS:
            found = empirical_ntk(model, x, outputs=outputs, method=method)
            assert found.dtype == truth.dtype
            assert distance(found, truth) < tolerance, (outputs, method)


# ------------------------------------------------------------------ rows in another order


def _by_list(h):
    return h[list(range(len(h)))[::-1]]


def _by_copy(h):
    return torch.zeros_like(h).index_copy_(0, torch.arange(len(h) - 1, -1, -1), h)


def _by_parts(h):
    return torch.cat([*h.split(1)][::-1])


def _by_product(h):
    return torch.eye(len(h), dtype=h.dtype).flip(0) @ h


@pytest.mark.parametrize("turn", [_by_list, _by_copy, _by_parts, _by_product])
def test_rows_that_are_put_into_another_order_and_back(turn):
    layers = linears(0, "abc")
    agree(Does(lambda s, x: s.c(turn(s.b(turn(s.a(x))).relu())), **layers), numbers(4, 4))
    # Softmax: the sum of the outputs has no gradient that could tell.
    agree(Does(lambda s, x: turn(s.b(turn(s.a(x))).relu()).softmax(1), **layers), numbers(4, 4))


@pytest.mark.parametrize("turn", [_by_parts, _by_product])
def test_rows_moved_where_most_have_no_gradient(turn):
    """Of three inputs the first and last die in the ReLU; the middle one stays and tells nothing of them."""
    layers, x = linears(0, "abc"), numbers(4, 4)
    with torch.no_grad():
        layers["b"].weight.copy_(layers["a"].weight.inverse())
        layers["b"].bias.copy_(-layers["b"].weight @ layers["a"].bias - 5)  # b(a(x)) = x − 5
    x[1] += 10
    agree(Does(lambda s, x: s.c(turn(s.b(turn(s.a(x))).relu())), **layers), x)


def test_a_last_layer_of_zeros_goes_through_as_a_batch():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)).double()
    nn.init.zeros_(model[3].weight)
    x = numbers(3, 2, 4)
    with torch.no_grad():
        found = plan(model, track(model, None), Selection("trace"), x)
        alike = plan(model, track(model, None), Selection("trace"), x[:1].expand(3, -1, -1))
    assert not found.moved, "no gradient reaches the convolution, but its rows are those of the inputs"
    assert alike.moved, "rows that are alike and have no gradient say nothing"
    agree(model, x)


def test_rows_that_stay_go_through_as_a_batch():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)).double()
    with torch.no_grad():
        found = plan(model, track(model, None), Selection("trace"), numbers(3, 2, 4))
    assert not found.moved and not found.opaque


# ------------------------------------------------------------------ no function of one input


@pytest.mark.parametrize(
    "does",
    [
        lambda s, x: s.b((s.a(x) + torch.randn(5)).relu()),
        lambda s, x: s.b((s.a(x) - s.a(x).mean(0)).tanh()),
        lambda s, x: s.b(F.batch_norm(s.a(x).reshape(len(x), 1, 5), None, None, training=True).flatten(1)),
    ],
)
def test_noise_and_batches_that_mix_are_refused(does):
    model, x = Does(does, a=nn.Linear(4, 5), b=nn.Linear(5, 2)).eval(), numbers(3, 4).float()
    for method in METHODS:
        with pytest.raises(InvalidValueError, match=r"random, or mixes.*own input alone"):
            empirical_ntk(model, x, method=method)
    for call in (NTKOperator, sketch_ntk, layer_contributions):
        with pytest.raises(InvalidValueError, match="random, or mixes"):
            call(model, x)
    with pytest.raises(InvalidValueError, match="random, or mixes"):
        empirical_ntk(model, x[:1], x[1:])


@pytest.mark.parametrize("does", [lambda s, x: s.a(x).sum(), lambda s, x: s.a(x).T])
def test_outputs_that_are_not_one_for_each_input(does):
    with pytest.raises(InvalidValueError, match=r"one for each input; this one gives"):
        empirical_ntk(Does(does, a=nn.Linear(4, 2)), torch.ones(3, 4))


def test_outputs_of_pure_rounding_are_welcome():
    """A model less its own start: zero up to the order of a sum."""
    model = Does(lambda s, x: s.a(x) - (x @ s.start.T + s.shift), a=nn.Linear(300, 2))
    model.start, model.shift = model.a.weight.detach().clone(), model.a.bias.detach().clone()
    x = numbers(3, 300).float()
    assert distance(empirical_ntk(model, x), reference(model, x)) < 1e-5


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Flatten()),
    ],
)
def test_training_mode_that_changes_the_model_is_refused(model):
    before = [b.clone() for b in model.train().buffers()]
    with pytest.raises(InvalidValueError, match=r"in training mode changes.*model\.eval\(\)"):
        empirical_ntk(model, torch.ones(2, 1, 4))
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    assert empirical_ntk(model.eval(), numbers(2, 1, 4).float()).shape == (2, 2)


# ------------------------------------------------------------------ what the rules had not seen


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dimension", [1, 2])
def test_several_pictures_of_one_input(dimension, groups):
    kind = nn.Conv1d if dimension == 1 else nn.Conv2d
    shape = (4,) * dimension
    model = Does(
        lambda s, x: s.b(s.a(x.flatten(0, 1)).relu().flatten(1)).reshape(len(x), -1),
        a=kind(2, 4, 3, groups=groups), b=nn.Linear(4 * 2**dimension, 2),
    )  # fmt: skip
    agree(model.double(), numbers(3, 5, 2, *shape))


@pytest.mark.parametrize(
    "meets", [lambda z, w: z * w, lambda z, w: torch.tanh(z + w), lambda z, w: torch.tanh(w * z)]
)
def test_real_parameters_that_meet_complex_numbers(meets):
    model = Does(
        lambda s, x: torch.fft.irfft(meets(torch.fft.rfft(s.a(x)), s.w), n=6),
        a=nn.Linear(6, 6).double(), w=parameter(4),
    )  # fmt: skip
    agree(model, numbers(3, 6))


def test_complex_parameters_are_refused():
    model = Does(lambda s, x: (x * s.w).real, w=nn.Parameter(torch.ones(3, dtype=torch.complex64)))
    with pytest.raises(
        InvalidValueError, match=r"real parameters, and w is torch\.complex64.*view_as_complex"
    ):
        empirical_ntk(model, torch.ones(2, 3))


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_layers_of_two_dtypes(first):
    second = torch.float64 if first == torch.float32 else torch.float32
    model = Does(
        lambda s, x: s.b(s.a(x).to(second).tanh()),
        a=nn.Linear(4, 5).to(first), b=nn.Linear(5, 2).to(second),
    )  # fmt: skip
    x = numbers(3, 4).to(first)
    agree(model, x, 1e-6)
    truth = reference(model, x, outputs="full").permute(0, 2, 1, 3).reshape(6, 6)
    v = numbers(6)
    found = NTKOperator(model, x) @ v
    assert found.dtype == torch.float64 and distance(found, truth @ v) < 1e-5
    assert sketch_ntk(model, x, directions=4).value.dtype == torch.float64


def test_autocast():
    def does(s, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return s.b(s.norm(s.a(x)).relu().flatten(1))

    model = Does(does, a=nn.Conv1d(2, 4, 3), norm=nn.GroupNorm(2, 4), b=nn.Linear(16, 2))
    agree(model, numbers(3, 2, 6).float(), 0.05)


def test_nothing_else_requires_a_gradient_and_the_rest_is_not_used():
    model = Does(lambda s, x: s.a(x), a=nn.Linear(4, 2).requires_grad_(False), spare=nn.Linear(2, 2))
    for method in METHODS:
        assert not empirical_ntk(model, torch.ones(2, 4), method=method).any()
    assert not (NTKOperator(model, torch.ones(2, 4)) @ torch.ones(4)).any()


def test_checkpoints_within_the_model():
    inner = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.ReLU())
    model = Does(
        lambda s, x: s.b(checkpoint(s.inner, s.a(x), use_reentrant=False)),
        a=nn.Linear(4, 5), inner=inner, b=nn.Linear(5, 2),
    ).double()  # fmt: skip
    x = numbers(3, 4)
    for method in ("jacobian", "ntvp"):
        assert distance(empirical_ntk(model, x, method=method), reference(model, x)) < 1e-10
    with pytest.raises(FarfieldError, match=r"checkpointing off, or use method='jacobian'"):
        empirical_ntk(model, x, method="layerwise")


# ------------------------------------------------------------------ arguments, tiles, estimates


@pytest.mark.parametrize("outputs", [[0], True, 1.0, (0.0,)])
def test_an_index_that_is_no_number(outputs):
    for call in (empirical_ntk, NTKOperator, sketch_ntk):
        with pytest.raises((InvalidValueError, TypeError), match=r"whole number|outputs"):
            call(nn.Linear(4, 3), torch.ones(2, 4), outputs=outputs)


def test_operators_of_nothing():
    for x, batch in ((torch.ones(0, 4), 1), (torch.ones(2, 4), 0)):
        with pytest.raises(InvalidValueError, match="n ≥ 1, and batch ≥ 1"):
            NTKOperator(nn.Linear(4, 3), x, batch=batch)


def test_the_shape_of_out():
    model, x = nn.Linear(4, 3), numbers(2, 4).float()
    with pytest.raises(InvalidValueError, match=r"\(K, K, n, m\).*here \(3, 3, 2, 2\), got \(2, 2, 3, 3\)"):
        empirical_ntk(model, x, outputs="full", out=torch.empty(2, 2, 3, 3))
    with pytest.raises(InvalidValueError, match=r"\(n, m\): here \(2, 2\), got \(3, 3\)"):
        empirical_ntk(model, x, out=torch.empty(3, 3))


@pytest.mark.parametrize("value", [2.0, torch.full((3,), 2.0), (2.0, 1)])
def test_tiles_of_a_model_with_another_setting_are_refused(tmp_path, value):
    def scaled(s, x):
        return s.a(x) * (s.scale[0] if isinstance(s.scale, tuple) else s.scale)

    model, x = Does(scaled, a=nn.Linear(4, 3)), torch.ones(2, 4)
    model.scale = value
    first = empirical_ntk(model, x, checkpoint=tmp_path)
    assert torch.equal(empirical_ntk(model, x, checkpoint=tmp_path), first)
    model.scale = (3.0, 1) if isinstance(value, tuple) else value * 10
    with pytest.raises(InvalidValueError, match="another computation"):
        empirical_ntk(model, x, checkpoint=tmp_path)


def test_the_same_input_twice_is_singular_in_single_precision_too():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    x = numbers(4, 4).float()
    twice, y = torch.cat([x, x[:1]]), torch.tensor([[0.0], [1.0], [0.0], [1.0], [5.0]])
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(InvalidValueError, match="singular to rounding"):
            linearized_prediction(model.to(dtype), twice.to(dtype), y.to(dtype), x.to(dtype))
        ridged = linearized_prediction(model, twice.to(dtype), y.to(dtype), x.to(dtype), ridge=1e-3)
        assert abs(float(ridged[0]) - 2.5) < 0.05


def test_gradients_are_not_formed_where_they_do_not_fit():
    n, k, t, p, q = 2, 10, 14, 30, 40
    term = Outer(numbers(n, k, 1, t, p), numbers(n, 1, 1, t, q, seed=1))
    largest = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, kinds, args=(), kwargs=None):
            y = func(*args, **(kwargs or {}))
            if isinstance(y, torch.Tensor):
                largest.append(y.untyped_storage().nbytes())
            return y

    found = {}
    for room in (1 << 28, 20_000):
        largest.clear()
        with Watch():
            found[room] = contract({"w": [term]}, {"w": [term]}, trace=True, room=room)
        found[room, "bytes"] = max(largest)
    gradient = k * p * q * 8
    assert found[1 << 28, "bytes"] >= gradient > 20_000, "forming pays, where there is room"
    assert found[20_000, "bytes"] < gradient
    assert distance(found[20_000], found[1 << 28]) < 1e-12


def test_sketches_in_half_precision():
    model = nn.Linear(400, 40).half()
    x = numbers(3, 400).half()
    found = sketch_ntk(model, x, directions=300, generator=torch.Generator().manual_seed(0))
    truth = reference(model.float(), x.float())
    assert found.value.dtype == found.standard_error.dtype == torch.float16
    assert ((found.value.float() - truth).abs() < 5 * found.standard_error.float()).all()
    ideal = truth.diagonal() * (2 / 40 / 300) ** 0.5
    assert (found.standard_error.diagonal().float() / ideal - 1).abs().max() < 0.3
