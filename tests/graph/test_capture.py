"""Capture: places, inputs and outputs, what is left untouched, what happens when tracing fails."""

import inspect
import time
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import CaptureError, OpaqueNodeError, Program, capture
from farfield.graph._prepare import quiet
from graph.models import Lambda, mlp
from graph.support import Function, assert_same

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Written so that each step stands on a line of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)
        self.unused = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.body(x)
        h = h + self.norm(h)
        h = torch.tanh(h)
        return self.head(h) + self.head(h * 2)


def line_of(text: str) -> int:
    lines, start = inspect.getsourcelines(Net)
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_nodes_know_their_module():
    program = capture(Net(), X)
    places = [(n.op, n.module_path, n.module_type) for n in program.nodes if n.role == "operation"]
    assert places == [
        ("linear", "body.0", "Linear"),
        ("relu", "body.1", "ReLU"),
        ("layer_norm", "norm", "LayerNorm"),
        ("add", "", "Net"),
        ("tanh", "", "Net"),
        ("linear", "head", "Linear"),
        ("mul", "", "Net"),
        ("linear", "head", "Linear"),
        ("add", "", "Net"),
    ]
    assert program.modules["unused"] == "LayerNorm"
    assert "unused" not in {node.module_path for node in program.nodes}


def test_nodes_know_their_source_line():
    program = capture(Net(), X)
    (tanh,) = program.find("tanh")
    (norm,) = program.find("layer_norm")
    assert tanh.source == f"{__file__}:{line_of('torch.tanh(h)')}"
    assert norm.source == f"{__file__}:{line_of('self.norm(h)')}"
    assert program.find("relu")[0].source == f"{__file__}:{line_of('self.body(x)')}"
    assert tanh.place == f"{tanh.name} ({tanh.source})"
    assert norm.place == f"norm ({norm.source})"


def test_constants_share_storage_and_know_their_names():
    model = Net()
    program = capture(model, X)
    parameters = dict(model.named_parameters())
    used = {program.constant_names[name]: tensor for name, tensor in program.constants.items()}
    assert set(used) == {name for name in parameters if not name.startswith("unused")}
    assert all(tensor.data_ptr() == parameters[name].data_ptr() for name, tensor in used.items())


def test_transposed_weights_are_views():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 2))

        def forward(self, x):
            return x @ self.weight

    model = Product()
    program = capture(model, X)
    (linear,) = program.find("linear")
    weight = program.constants[linear.inputs[1]]
    assert weight.shape == (2, 6)
    assert weight.data_ptr() == model.weight.data_ptr()
    assert linear.inputs[2] is None


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights_fold_to_a_linear_layer(wrap):
    model = wrap(nn.Linear(6, 4)).double().eval()
    program = capture(model, X.double())
    operations = [n for n in program.nodes if n.role == "operation"]
    assert [n.op for n in operations] == ["linear"]
    weight = operations[0].inputs[1]
    torch.testing.assert_close(program.constants[weight], model.weight.detach())
    assert "original" in program.constant_names[weight]


def test_positional_encodings_and_masks_fold():
    def forward(m, x):
        mask = torch.triu(torch.full((5, 5), float("-inf"), dtype=x.dtype), diagonal=1)
        t = torch.arange(5, dtype=x.dtype)[:, None] / 10
        return nn.functional.scaled_dot_product_attention(x + torch.sin(t), x, x, attn_mask=mask)

    program = capture(Lambda(forward), torch.randn(2, 5, 4))
    assert [n.op for n in program.nodes if n.role == "operation"] == ["add", "attention"]


def test_large_constants_are_not_folded():
    program = capture(Function(lambda x: x.sum() + torch.ones(3000, 3000).cumsum(0)), X)
    assert program.find("full", "cumsum")
    assert sum(t.numel() for t in program.constants.values()) < 10


def test_inputs_have_kinds():
    def forward(m, ids, mask, x):
        return m.embed(ids) * mask[..., None] + x

    model = Lambda(forward, embed=nn.Embedding(9, 4))
    inputs = (torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 5, 4))
    program = capture(model, inputs)
    assert [spec.kind for spec in program.inputs] == ["integer", "boolean", "real"]
    name = program.inputs[2].name
    assert capture(model, inputs, kinds={name: "bounded"}).inputs[2].kind == "bounded"
    with pytest.raises(InvalidValueError, match="doesn't have"):
        capture(model, inputs, kinds={"nobody": "bounded"})


def test_inputs_may_be_nested_and_named():
    class Nested(nn.Module):
        def forward(self, state, scale=None):
            return {"sum": state["a"] + state["b"][0] * scale, "parts": (state["a"], [state["b"][0]])}

    inputs = {"state": {"a": X, "b": [X + 1, None]}, "scale": X[:, :1]}
    program = capture(Nested(), inputs)
    assert [spec.name for spec in program.inputs] == ["state_a", "state_b_0", "scale"]
    assert program.outputs == ("output_sum", "output_parts_0", "output_parts_1_0")
    values = program.evaluate(inputs["state"], inputs["scale"])
    torch.testing.assert_close(values["output_sum"].float(), X + (X + 1) * X[:, :1])


def test_a_batch_of_one_stays_open_and_can_be_fixed():
    model = mlp(nn.LayerNorm(16))
    assert isinstance(capture(model, X[:1]).inputs[0].shape[0], str)
    assert capture(model, X[:1], dynamic_batch=False).inputs[0].shape == (1, 6)
    wide = torch.randn(7, 6)
    torch.testing.assert_close(
        capture(model, X[:1]).evaluate(wide)["output"].float(), model(wide).detach(), rtol=1e-5, atol=1e-5
    )


def test_sizes_that_the_model_fixes_stay_fixed():
    program = capture(Function(lambda x: x.reshape(3, 6) + torch.ones(3, 1)), X)
    assert program.inputs[0].shape == (3, 6)


class Careless(nn.Module):
    """Keeps what it computes, fills a list and counts its calls."""

    def __init__(self):
        super().__init__()
        self.last, self.history, self.layer = None, [], nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(()))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        self.last = self.layer(x)
        self.history.append(self.last)
        self.calls += 1
        return self.dropout(self.last) * self.calls


@pytest.mark.parametrize("prefer", ["export", "fx", "modules"])
def test_capture_leaves_the_model_as_it_was(prefer):
    model = Careless().train()
    model.layer.eval()
    grad = torch.is_grad_enabled()
    fast = torch.backends.mha.get_fastpath_enabled()
    program = capture(model, X, prefer=prefer)
    assert (model.training, model.layer.training, model.dropout.training) == (True, False, True)
    assert model.last is None
    assert model.history == []
    assert model.calls == 0
    assert torch.is_grad_enabled() is grad
    assert torch.backends.mha.get_fastpath_enabled() is fast
    if program.capture == "export":
        assert any("calls" in text for text in program.unseen)
    with torch.no_grad():
        assert model(X).shape == (3, 6)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.other = nn.LayerNorm(6), nn.LayerNorm(6)

    def forward(self, x):
        return {"y": self.norm(x) if x.sum() > 0 else self.other(x)}


def test_branching_on_values_gives_an_opaque_program():
    program = capture(Branching(), X.abs())
    assert program.capture == "modules"
    assert [text.split()[0] for text in program.unseen] == ["torch.export", "torch.fx", "Nothing"]
    assert [node.op for node in program.nodes] == ["input", "unknown", "identity"]
    assert program.inputs[0].name == "x"
    assert program.outputs == ("output_y",)
    (body,) = program.find("unknown")
    assert body.attributes["executed"] == ("norm", "")
    assert program.modules["other"] == "LayerNorm"
    with pytest.raises(OpaqueNodeError, match="register_operator"):
        program.evaluate(X)


@pytest.fixture
def library():
    """Two custom operators: one that tracing can't run without data, one that it can."""
    with torch.library._scoped_library("farfield_test", "FRAGMENT") as scope:
        for name in ("blind", "seen"):
            scope.define(f"{name}(Tensor x, float scale=3.0) -> Tensor")
            scope.impl(name, lambda x, scale=3.0: x * scale, "CPU")
        torch.library.register_fake(
            "farfield_test::seen", lambda x, scale=3.0: torch.empty_like(x), lib=scope
        )
        yield torch.ops.farfield_test


class Custom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return torch.relu_(self.function(self.fc(x)))


def test_an_operator_nobody_registered_is_unknown_and_keeps_its_inputs(library):
    model = Custom(library.seen).double()
    program = capture(model, X.double())
    (unknown,) = program.find("unknown")
    (linear,) = program.find("linear")
    assert program.capture == "export"
    assert unknown.target == "farfield_test.seen.default"
    assert unknown.inputs == (linear.name,)
    with torch.no_grad():
        assert_same(program, (X.double(),), model(X.double()))


def test_tracing_takes_over_where_export_fails(library):
    model = Custom(library.blind).double()
    program = capture(model, X.double())
    assert program.capture == "fx"
    assert program.unseen[0].startswith("torch.export failed")
    assert [n.op for n in program.nodes if n.role == "operation"] == ["linear", "unknown", "relu"]
    assert program.find("linear")[0].module_path == "fc"
    assert {program.constant_names[n] for n in program.constants} == {"fc.weight", "fc.bias"}
    assert all(p.data_ptr() in {t.data_ptr() for t in program.constants.values()} for p in model.parameters())
    with torch.no_grad():
        assert_same(program, (X.double(),), model(X.double()))


def test_a_condition_is_both_branches_and_a_choice():
    def forward(m, x):
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t + 1, (x,)) + x

    program = capture(Lambda(forward), X)
    assert program.find("where") and not program.find("unknown")
    for x in (X.double().abs(), -X.double().abs()):
        torch.testing.assert_close(program.evaluate(x)["output"], torch.where(x.sum() > 0, x * 2, x + 1) + x)


def test_loops_are_unknown_too():
    def forward(m, x):
        while_loop = torch._higher_order_ops.while_loop
        return while_loop(lambda t: t.sum() < 10, lambda t: (t + 1,), (x,))[0] + x

    program = capture(Lambda(forward), X)
    (unknown,) = program.find("unknown")
    assert unknown.operands
    with pytest.raises(OpaqueNodeError):
        program.evaluate(X)


def test_a_number_read_out_of_a_tensor_is_still_a_dependency():
    program = capture(Function(lambda x: torch.ones(2, dtype=x.dtype) * x.sum().item()), X.double())
    assert [n.op for n in program.nodes if n.role == "operation"] == ["sum", "item", "mul"]
    assert program.inputs[0].name in nx.ancestors(program.to_networkx(), "output")
    torch.testing.assert_close(
        program.evaluate(X.double())["output"], torch.ones(2).double() * X.double().sum()
    )


def test_random_draws_are_never_constants():
    program = capture(Function(lambda x: x + torch.randn(3, 6, dtype=x.dtype)), X)
    assert program.find("random")
    first, second = (program.evaluate(X)["output"] for _ in range(2))
    assert not torch.equal(first, second)


def test_exported_programs_and_files(tmp_path: Path):
    model = Net().double().eval()
    with quiet():
        exported = torch.export.export(model, (X.double(),))
        torch.export.save(exported, tmp_path / "net.pt2")
    direct = capture(model, X.double(), dynamic_batch=False)
    for source in (exported, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        program = capture(source)
        assert [n.op for n in program.nodes] == [n.op for n in direct.nodes]
        assert program.modules["norm"] == "LayerNorm"
        assert "unused" in program.modules
        with torch.no_grad():
            assert_same(program, (X.double(),), model(X.double()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_wrappers_are_looked_through():
    model = mlp()
    plain = capture(model, X)
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        program = capture(wrapped, X)
        assert [n.module_path for n in program.nodes] == [n.module_path for n in plain.nodes]


def test_errors_teach(tmp_path: Path):
    with pytest.raises(CaptureError, match=r"Linear itself fails on the example inputs \(\(3, 6\)\)"):
        capture(nn.Linear(4, 4), X)
    with pytest.raises(CaptureError, match="no file"):
        capture(tmp_path / "absent.pt2")
    (tmp_path / "weights.pt2").write_bytes(b"not a program")
    with pytest.raises(CaptureError, match="checkpoints hold weights only"):
        capture(tmp_path / "weights.pt2")
    with pytest.raises(InvalidValueError, match="a tuple of positional arguments"):
        capture(nn.Linear(6, 2), 3)
    with pytest.raises(CaptureError, match="returns no tensor"):
        capture(Function(lambda x: None), X)
    assert issubclass(CaptureError, FarfieldError)


def test_nothing_is_said_on_the_way(capfd, recwarn):
    capture(Branching(), X.abs())
    capture(nn.LSTM(6, 3), torch.randn(4, 1, 6))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_dropout_that_is_on_in_eval_mode_is_seen():
    program = capture(Function(lambda x: nn.functional.dropout(x, 0.5, training=True)), X)
    (node,) = program.find("dropout")
    assert node.attributes["train"] is True
    assert node.attributes["p"] == 0.5


def test_a_call_that_only_looks_like_an_operator_is_unknown():
    program = capture(Function(lambda x: nn.functional.alpha_dropout(x, 0.5, training=True)), X)
    (node,) = program.find("unknown")
    assert node.inputs == (program.inputs[0].name,)
    assert not program.find("dropout")


def test_programs_are_values():
    program = capture(Net(), X)
    assert isinstance(program, Program)
    with pytest.raises(AttributeError):
        program.nodes = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        program.nodes[0].op = "relu"  # type: ignore[misc]


@pytest.mark.nightly
def test_a_large_transformer_is_captured_quickly_and_without_copies():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(30_000, 768), encoder, nn.Linear(768, 8))
    assert sum(p.numel() for p in model.parameters()) > 1e8
    start = time.process_time()
    program = capture(model, torch.randint(30_000, (1, 16)))
    assert time.process_time() - start < 40
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    copied = [t for t in program.constants.values() if t.untyped_storage().data_ptr() not in owned]
    assert sum(t.numel() for t in copied) < 1e5
    assert len(program.find("layer_norm")) == 25
    assert len(program.find("attention")) == 12


class _Complement(nn.Module):
    def forward(self, input):  # noqa: A002 - as in many a forward
        return (1 - input) * torch.tensor([1.0, 2.0, 3.0])


class _Contraction(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, input):  # noqa: A002
        rest = torch.addcmul(input.sum(-1, keepdim=True), input[:, :1], input[:, 1:2])
        return torch.einsum("bi,io->bo", input, self.weight) + rest.clamp(min=0)


@pytest.mark.parametrize(
    ("model", "operations"),
    [(_Complement(), {"sub", "mul"}), (_Contraction(), {"linear", "sum", "slice", "mul", "add", "relu"})],
)
def test_only_what_is_not_registered_is_taken_apart(monkeypatch, model, operations):
    """Torch takes ten times as long to decompose a small program as a whole as to capture it."""

    def refused(self, *args, **kwargs):
        raise AssertionError("decomposed as a whole")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", refused)
    program = capture(model, torch.zeros(2, 3))
    assert program.capture == "export" and not program.unseen
    assert [spec.name for spec in program.inputs] == ["input"]
    assert isinstance(program.inputs[0].shape[0], str)
    assert operations <= {node.op for node in program.nodes}
    assert all(node.source for node in program.nodes if node.role == "operation")
    x = torch.randn(4, 3)
    assert torch.allclose(program.evaluate(x, dtype=None)["output"], model(x), atol=1e-6)


class _ByKeywordOnly(nn.Module):
    def forward(self, *, obs):
        return obs.tanh()


def test_a_forward_by_keyword_only_says_what_to_pass():
    with pytest.raises(
        CaptureError, match=r"by keyword only: from Python, pass them as a dictionary, \{'obs': …\}"
    ):
        capture(_ByKeywordOnly(), (torch.zeros(1, 3),))
    assert capture(_ByKeywordOnly(), {"obs": torch.zeros(1, 3)}).outputs
