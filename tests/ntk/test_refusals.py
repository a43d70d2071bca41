"""What has no kernel is refused, with the reason and what to do."""

import errno
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from farfield.engine import TaskError
from farfield.errors import FarfieldError, InvalidValueError, UnknownNameError
from farfield.ntk import NTKOperator, choose_method, empirical_ntk, layer_contributions, sketch_ntk
from ntk_models import build, distance, reference
from shape_checking import as_users_run_it

X = torch.ones(2, 4)


class Calls(nn.Module):
    """A Linear layer, then whatever is given."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        return self.then(self.layer(x))


@pytest.mark.parametrize(
    ("model", "place", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)), r"1 \(Dropout\)", "random"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
            r"1 \(BatchNorm1d\)",
            "depends on the other inputs",
        ),
        (nn.Sequential(nn.Linear(4, 2), nn.RReLU()), r"1 \(RReLU\)", "random slopes"),
        (nn.LSTM(4, 2, num_layers=2, dropout=0.2), r"the model \(LSTM\)", "random"),
        (nn.MultiheadAttention(4, 2, dropout=0.2), r"the model \(MultiheadAttention\)", "random"),
    ],
)
def test_training_mode(model, place, reason):
    model.train()
    for call in (empirical_ntk, choose_method, layer_contributions, sketch_ntk, NTKOperator):
        with pytest.raises(InvalidValueError, match=rf"{place}.*{reason}.*model\.eval\(\)"):
            call(model, X)
    assert model.training


def test_batch_norm_without_running_statistics_is_refused_in_either_mode():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False))
    for mode in (True, False):
        with pytest.raises(InvalidValueError, match="no running statistics"):
            empirical_ntk(model.train(mode), X)


@pytest.mark.parametrize(
    "then",
    [
        lambda h: F.dropout(h, 0.3),
        lambda h: F.alpha_dropout(h, 0.3, training=True),
        lambda h: F.rrelu(h, training=True),
        lambda h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], dropout_p=0.2),
    ],
)
def test_dropout_without_a_module(then):
    with pytest.raises(InvalidValueError, match="dropout switched on"):
        empirical_ntk(Calls(then).eval(), X)


def test_training_mode_that_changes_nothing_is_welcome():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.LayerNorm(3), nn.Linear(3, 1)).train()
    assert distance(empirical_ntk(model, X), reference(model, X)) < 1e-5
    assert empirical_ntk(Calls(lambda h: F.dropout(h, 0.3, training=False)), X).shape == (2, 2)


@pytest.mark.parametrize("then", [lambda h: (h, h), lambda h: {"logits": h}, lambda h: [h]])
def test_outputs_that_are_not_a_tensor(then):
    kind = type(then(1)).__name__
    for call in (empirical_ntk, NTKOperator, sketch_ntk):
        with pytest.raises(InvalidValueError, match=f"returns a {kind}.*Wrap"):
            call(Calls(then).eval(), X)


def test_parameters():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    with pytest.raises(InvalidValueError, match="passes the filter"):
        empirical_ntk(model, X, parameters=lambda name, p: False)
    with pytest.raises(InvalidValueError, match="passes the filter"):
        empirical_ntk(model, X, parameters=[])
    with pytest.raises(UnknownNameError, match=r"no parameter.*'2'.*Known: 0\.bias"):
        empirical_ntk(model, X, parameters=["0", "2"])
    with pytest.raises(UnknownNameError, match=r"'0\.wei'.*Did you mean '0\.weight'"):
        empirical_ntk(model, X, parameters="0.wei")
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(InvalidValueError, match=r"none requires a gradient\.$"):
        empirical_ntk(model, X)
    with pytest.raises(InvalidValueError, match="none requires a gradient"):
        empirical_ntk(nn.ReLU(), X)


def test_names_prefixes_and_the_other_names_of_shared_parameters():
    model, x, _ = build("gpt_tied")
    whole = empirical_ntk(model, x, parameters="blocks")
    assert distance(whole, reference(model, x, chosen=lambda n: n.startswith("blocks."))) < 1e-10
    assert torch.equal(empirical_ntk(model, x, parameters=["blocks"]), whole)
    tied = reference(model, x, chosen=lambda n: n == "words.weight")
    for name in ("words", "head", "head.weight"):
        assert distance(empirical_ntk(model, x, parameters=name), tied) < 1e-10


@pytest.mark.parametrize("outputs", [3, -4, (0, 0), ()])
def test_an_index_that_is_not_there(outputs):
    model = nn.Linear(4, 3)
    for call in (empirical_ntk, NTKOperator, sketch_ntk):
        with pytest.raises(InvalidValueError, match=r"an output has shape \(3,\)"):
            call(model, X, outputs=outputs)


def test_negative_indices_count_from_the_end():
    model, x, _ = build("layer_norm_affine")
    for method in ("layerwise", "jacobian", "ntvp"):
        assert (
            distance(empirical_ntk(model, x, outputs=-1, method=method), reference(model, x, outputs=2))
            < 1e-10
        )


def test_words_and_methods():
    model = nn.Linear(4, 3)
    with pytest.raises(InvalidValueError, match="'full', 'trace', 'sum'"):
        empirical_ntk(model, X, outputs="diagonal")
    with as_users_run_it(), pytest.raises(InvalidValueError, match=r"one of auto, layerwise.*sketch_ntk"):
        empirical_ntk(model, X, method="sketch")
    with pytest.raises(InvalidValueError, match="memory size"):
        empirical_ntk(model, X, memory="much")
    with pytest.raises(InvalidValueError, match="acts on all outputs"):
        NTKOperator(model, X, outputs="trace")


def test_inputs():
    model = nn.Linear(4, 3)
    with pytest.raises(InvalidValueError, match="n ≥ 1"):
        empirical_ntk(model, X[:0])
    with pytest.raises(InvalidValueError, match="n ≥ 1"):
        empirical_ntk(model, torch.tensor(1.0))
    with pytest.raises(InvalidValueError, match="same kind of input"):
        empirical_ntk(model, X, torch.ones(2, 5))
    operator = NTKOperator(model, X)
    with pytest.raises(InvalidValueError, match=r"6 columns \(2 inputs × 3 outputs\)"):
        operator @ torch.ones(5)


def test_where_the_result_goes(tmp_path):
    model = nn.Linear(4, 3)
    with pytest.raises(InvalidValueError, match=r"\.npy"):
        empirical_ntk(model, X, out=tmp_path / "kernel.bin")
    empirical_ntk(model, X, out=tmp_path / "kernel.npy")
    with pytest.raises(InvalidValueError, match=r"holds a float32 array of shape \(2, 2\)"):
        empirical_ntk(model, torch.ones(3, 4), out=tmp_path / "kernel.npy")
    with pytest.raises(InvalidValueError, match="bfloat16"):
        empirical_ntk(model.bfloat16(), X.bfloat16(), out=tmp_path / "other.npy")


def test_an_error_of_the_model_itself_is_passed_on():
    def fails(h):
        raise KeyError("deep inside")

    with pytest.raises(KeyError, match="deep inside"):
        empirical_ntk(Calls(fails), X)
    for method in ("layerwise", "jacobian", "ntvp"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            empirical_ntk(nn.Linear(5, 1), X, method=method)


class Chooses(nn.Module):
    """Which layer is used depends on the input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return torch.cat([(self.first if z.sum().item() > 0 else self.second)(z[None]) for z in x])


def test_control_flow_on_data_is_refused_where_it_changes_the_calls():
    model, x = Chooses().double(), torch.tensor([[1.0, 2, 0, 1], [-1, -1, -2, 0.5], [3, 0, 0, 0]]).double()
    with pytest.raises(
        (TaskError, FarfieldError), match=r"control flow depends on the data.*method='jacobian'"
    ):
        empirical_ntk(model, x, method="layerwise")
    truth = reference(model, x)
    for method in ("jacobian", "ntvp"):
        assert distance(empirical_ntk(model, x, method=method), truth) < 1e-10


def test_parameters_that_no_output_depends_on():
    model, x, _ = build("unused_parameter")
    for method in ("layerwise", "jacobian", "ntvp", "auto"):
        value = empirical_ntk(model, x, parameters="spare", method=method)
        assert value.shape == (4, 4) and not value.any()
        full = empirical_ntk(model, x, parameters="spare", method=method, outputs="full")
        assert full.shape == (4, 4, 2, 2) and not full.any()
    assert layer_contributions(model, x, parameters="spare") == {}


def test_a_full_disk_is_seen_before_the_work(tmp_path, monkeypatch):
    """A mapped file has no space of its own until it is written to, and the process would die of that."""

    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    model, out = nn.Linear(4, 2), tmp_path / "kernel.npy"
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InvalidValueError, match=r"takes .* in .*kernel.npy.*No space left"):
        empirical_ntk(model, X, out=out)
    assert not out.exists()


def test_the_space_is_taken(tmp_path):
    out = tmp_path / "kernel.npy"
    empirical_ntk(nn.Linear(4, 2), X, out=out)
    assert out.stat().st_blocks * 512 >= out.stat().st_size


class WritesBack(nn.Module):
    """A layer's input changed after the layer has seen it: autograd can't train this."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h += self.second(h)
        return self.last(h)


class WorksInPlace(WritesBack):
    """In-place operations on layers' outputs, which autograd allows."""

    def forward(self, x):
        h = torch.relu_(self.first(x).mul_(2.0))
        return self.last(self.second(h).sigmoid_() + h).tanh_()


def test_a_layer_whose_input_is_written_to_is_refused():
    with pytest.raises(InvalidValueError, match="writes in place"):
        empirical_ntk(WritesBack(), torch.randn(5, 3))


def test_in_place_operations_on_outputs_change_nothing():
    model, x = WorksInPlace().double(), torch.randn(5, 3, dtype=torch.float64)
    kernels = [empirical_ntk(model, x, method=m) for m in ("layerwise", "jacobian", "ntvp")]
    for other in kernels[1:]:
        torch.testing.assert_close(kernels[0], other, rtol=1e-12, atol=1e-12)
