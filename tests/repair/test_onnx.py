"""A path to an ``.onnx`` file is taken wherever a model is; a repaired file is served by onnxruntime."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import farfield as ff
import onnx_files
from farfield.audit import assert_bounded, audit_all
from farfield.certify import CertificateError, model_hash
from farfield.cli._app import app
from farfield.errors import InvalidValueError
from farfield.graph import capture, read_onnx
from farfield.graph.onnx._wire import fields
from farfield.growth import horizon


def session(path):
    made = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: made.run(None, {made.get_inputs()[0].name: np.asarray(x)})[0]


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.onnx"
    path.write_bytes(onnx_files.small().SerializeToString())
    return path


@pytest.fixture
def normed(tmp_path):
    """x → MatMul → LayerNormalization → Relu → MatMul, in one variable."""
    rng = np.random.default_rng(1)

    def tensor(name, *shape):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("LayerNormalization", ["h", "g", "c"], ["z"], name="norm"),
        helper.make_node("Relu", ["z"], ["a"], name="bend"),
        helper.make_node("MatMul", ["a", "v"], ["y"], name="last"),
    ]
    path = tmp_path / "normed.onnx"
    tensors = [tensor("w", 1, 6), tensor("g", 6), tensor("c", 6), tensor("v", 6, 1)]
    path.write_bytes(_model(nodes, ["n", 1], ["n", 1], tensors).SerializeToString())
    return path


def _model(nodes, given, returned, tensors=(), opset=18, kind=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", kind, returned)],
        tensors,
    )
    sets = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("house", 1),
    ]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


ROWS = np.random.default_rng(2).normal(size=(600, 4)).astype(np.float32)


def test_audit_takes_a_path_and_names_nodes(plain, normed):
    found = ff.audit(plain)
    assert found.verdict.name == "UNBOUNDED"
    assert "first" in str(found.report.verdicts[0].paths[0])
    assert found.subject["name"] == str(plain)
    assert ff.audit(str(normed)).verdict.name == "BOUNDED"
    assert assert_bounded(normed).verdict.name == "BOUNDED"


def test_capture_keeps_the_batch_open_and_names_nodes(plain):
    program = capture(plain)
    assert [str(d) for d in program.node(program.outputs[0]).shape][1:] == ["1"]
    assert not isinstance(program.inputs[0].shape[0], int)
    assert {node.module_path for node in program.nodes if node.role == "operation"} == {
        "first",
        "bend",
        "last",
    }
    assert {node.module_type for node in program.nodes if node.module_path == "first"} == {"Gemm"}


def test_a_certificate_binds_to_the_content(normed, tmp_path):
    certificate = ff.certify(normed, time_budget=1.0)
    assert ff.verify_certificate(normed, certificate)
    values = session(normed)(np.linspace(-1e4, 1e4, 999, dtype=np.float32)[:, None])
    assert float(certificate.lower) <= values.min() + 1e-4 and values.max() - 1e-4 <= float(certificate.upper)
    hashes = {model_hash(capture(normed, dynamic_batch=False)) for _ in range(2)}
    assert hashes == {certificate.model_hash}
    model = onnx.load(normed)
    weight = numpy_helper.to_array(model.graph.initializer[3]).copy()
    weight[0, 0] = np.nextafter(weight[0, 0], np.float32(9))
    model.graph.initializer[3].CopyFrom(numpy_helper.from_array(weight, "v"))
    other = tmp_path / "other.onnx"
    other.write_bytes(model.SerializeToString())
    with pytest.raises(CertificateError):
        ff.verify_certificate(other, certificate)


def test_a_value_of_unknown_size_is_unknown_and_no_error(tmp_path):
    """A loop that may change its value's shape: what a MatMul makes of it can't be said, whatever follows."""
    names = ("number", "goes_on", "state", "still", "next")
    kinds = (TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.FLOAT)
    ends = [
        helper.make_tensor_value_info(n, k, None if k == TensorProto.FLOAT else [])
        for n, k in zip(names, kinds, strict=True)
    ]
    inside = [
        helper.make_node("Add", ["state", "x"], ["next"]),
        helper.make_node("Identity", ["goes_on"], ["still"]),
    ]
    body = helper.make_graph(inside, "body", ends[:3], ends[3:])
    nodes = [
        helper.make_node("Loop", ["count", "yes", "x"], ["h"], body=body, name="again"),
        helper.make_node("MatMul", ["h", "w"], ["z"], name="last"),
        helper.make_node("Tanh", ["z"], ["y"], name="bend"),
    ]
    tensors = [
        numpy_helper.from_array(np.array(v), n)
        for n, v in (("count", 3), ("yes", True), ("w", np.ones((4, 1), np.float32)))
    ]
    path = tmp_path / "again.onnx"
    path.write_bytes(_model(nodes, ["n", 4], None, tensors).SerializeToString())
    found = ff.audit(path)
    assert found.verdict.name == "UNKNOWN"
    assert any("Loop" in note for note in capture(path).unseen)


@pytest.mark.parametrize("kind", ["L1", "L2", "1", "2"])
def test_rows_divided_by_their_norm_are_bounded(kind, tmp_path):
    """The Normalizer of scikit-learn's pipelines, and LpNormalization."""
    first = helper.make_node("Normalizer", ["x"], ["z"], domain="ai.onnx.ml", norm=kind, name="norm")
    if kind.isdigit():
        first = helper.make_node("LpNormalization", ["x"], ["z"], axis=1, p=int(kind), name="norm")
    tensors = [numpy_helper.from_array(np.ones((4, 1), np.float32), "w")]
    nodes = [first, helper.make_node("MatMul", ["z", "w"], ["y"], name="last")]
    path = tmp_path / "norm.onnx"
    path.write_bytes(_model(nodes, ["n", 4], ["n", 1], tensors).SerializeToString())
    assert ff.audit(path).verdict.name == "BOUNDED"
    rows = np.concatenate([ROWS[:5], np.zeros((1, 4), np.float32), np.full((1, 4), 1e-25, np.float32)])
    ours = read_onnx(path)(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(ours[:6], session(path)(rows)[:6], atol=1e-6)
    assert np.abs(ours).max() <= 2.0


FORMS = {
    "rms norm": "s = Mul(x, x); m = ReduceMean(s); v = Add(eps, m); r = Sqrt(v); q = Div(one, r); y = Mul(q, x)",
    "sigmoid": "n = Neg(x); e = Exp(n); d = Add(one, e); y = Div(one, d)",
    "softplus": "a = Abs(x); n = Neg(a); p = Softplus(n); g = Greater(n, top); y = Where(g, n, p)",
}


@pytest.mark.parametrize("name", FORMS)
def test_what_exporters_make_of_norms_and_activations_is_recognized(name, tmp_path):
    """1/x as a quotient, constants on the left, a threshold by hand."""
    nodes = []
    for line in FORMS[name].split("; "):
        made, _, call = line.partition(" = ")
        op, _, inputs = call.rstrip(")").partition("(")
        kinds = {"axes": [-1], "keepdims": 1} if op == "ReduceMean" else {}
        nodes.append(helper.make_node(op, inputs.split(", "), [made], name=f"the_{made}", **kinds))
    constants = {"one": np.float32(1), "eps": np.array([1e-5], np.float32), "top": np.float32(20)}
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    path = tmp_path / "form.onnx"
    path.write_bytes(_model(nodes, ["n", 4], ["n", 4], tensors, opset=17).SerializeToString())
    assert ff.audit(path).verdict.name == "BOUNDED"
    ours = read_onnx(path)(torch.from_numpy(ROWS)).detach().numpy()
    np.testing.assert_allclose(ours, session(path)(ROWS), rtol=1e-5, atol=1e-6)


def test_the_horizon_of_a_file(plain):
    directions = torch.eye(4)
    found = horizon(plain, directions)
    far = session(plain)((directions * 1e6).numpy())
    np.testing.assert_allclose(found.slope.numpy(), far / 1e6, rtol=1e-4, atol=1e-5)


def test_a_guard_of_a_file(plain):
    guarded = ff.guard(plain, torch.from_numpy(ROWS))
    with torch.no_grad():
        output, score = guarded(torch.from_numpy(ROWS[:5]))
    np.testing.assert_allclose(output.numpy(), session(plain)(ROWS[:5]), rtol=1e-4, atol=1e-5)
    assert float(score.max()) <= 1.0
    with pytest.raises(InvalidValueError, match="holds weights"):
        ff.guard("model.pt", torch.from_numpy(ROWS))


@pytest.mark.parametrize("method", ["auto", "soft", "features", "range"])
def test_a_repaired_file_is_served(plain, tmp_path, method):
    out = tmp_path / "fixed.onnx"
    repaired = ff.repair(plain, ROWS, method=method)
    repaired.save(out)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    before, after = session(plain), session(out)
    assert (before(ROWS) == after(ROWS)).mean() >= 0.99
    odd = [np.full((1, 4), value, np.float32) for value in (np.inf, np.nan)]
    far = np.concatenate([ROWS * 1e6, ROWS * 30, *odd])
    with torch.no_grad():
        expected = repaired.model(torch.from_numpy(far)).numpy()
    np.testing.assert_allclose(after(far), expected, rtol=1e-3, atol=1e-3 * np.abs(before(ROWS)).max())
    assert np.isfinite(after(far)).all()
    assert ff.audit(out).verdict.name == "BOUNDED"


def test_the_rest_of_a_repaired_file_is_byte_for_byte_as_it_was(plain, tmp_path):
    out = tmp_path / "fixed.onnx"
    ff.repair(plain, ROWS).save(out)
    old, new = plain.read_bytes(), out.read_bytes()

    def parts(data):
        top = {f.number: f for f in fields(data, 0, len(data))}
        graph = [data[f.begin : f.end] for f in fields(data, top[7].start, top[7].end)]
        return [data[f.begin : f.end] for f in top.values() if f.number != 7], graph

    (outer_old, graph_old), (outer_new, graph_new) = parts(old), parts(new)
    assert outer_old == outer_new
    names = [n.name for n in onnx.load(plain).graph.node]
    kept = [n for n in onnx.load(out).graph.node if n.name in names]
    assert [(n.op_type, len(n.input)) for n in kept] == [("Gemm", 3), ("Relu", 1), ("MatMul", 2)]
    changed = [part for part in graph_old if part not in graph_new]
    assert len(changed) <= 3  # the nodes that read the input, are capped, or give the output
    assert not any(len(part) > 1000 for part in changed)
    assert {i.name for i in onnx.load(out).graph.input} == {"x"}
    assert {o.name for o in onnx.load(out).graph.output} == {"y"}


def test_weights_beside_the_file_go_along(plain, tmp_path):
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other.mkdir()
    onnx.save(
        onnx.load(plain), folder / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=100
    )
    ff.repair(folder / "m.onnx", ROWS).save(other / "m.onnx")
    assert (other / "m.bin").read_bytes() == (folder / "m.bin").read_bytes()
    assert (session(other / "m.onnx")(ROWS) == session(plain)(ROWS)).mean() >= 0.99
    with pytest.raises(InvalidValueError, match="exists already"):
        ff.repair(folder / "m.onnx", ROWS).save(other / "again.onnx")


def test_a_file_that_changed_is_not_written_over(plain, tmp_path):
    repaired = ff.repair(plain, ROWS, method="range")
    plain.write_bytes(onnx_files.small(7).SerializeToString())
    with pytest.raises(InvalidValueError, match="changed"):
        repaired.save(tmp_path / "fixed.onnx")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_is_written_to_onnx(dtype, tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    rows = torch.from_numpy(ROWS).to(dtype)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(dtype)
    fixed = ff.repair(module.eval(), rows)
    fixed.save(tmp_path / "fixed.onnx")
    ran = session(tmp_path / "fixed.onnx")
    for given in (rows[:1], rows[:7], 1e6 * rows[:7]):
        with torch.no_grad():
            own = fixed.model(given).numpy()
        assert abs(ran(given.numpy()) - own).max() <= 8 * torch.finfo(dtype).eps * (1 + abs(own).max())
    assert ff.audit(tmp_path / "fixed.onnx").verdict.name == "BOUNDED"


def _value(name, sizes, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, sizes)


def _loop():
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["s", "s"], ["t"])],
        "body",
        [_value("i", [], TensorProto.INT64), _value("c", [], TensorProto.BOOL), _value("s", None)],
        [_value("d", [], TensorProto.BOOL), _value("t", None)],
    )
    steps = numpy_helper.from_array(np.array(3), "steps")
    node = helper.make_node("Loop", ["steps", "", "x"], ["y"], name="around", body=body)
    return _model([node], ["n", 3], ["n", 3], [steps])


def _branch():
    one = helper.make_graph([helper.make_node("Identity", ["x"], ["p"])], "a", [], [_value("p", ["n", 3])])
    two = helper.make_graph([helper.make_node("Neg", ["x"], ["q"])], "b", [], [_value("q", ["n", 3])])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["t"], to=TensorProto.BOOL),
        helper.make_node("If", ["t"], ["y"], name="either", then_branch=one, else_branch=two),
    ]
    return _model(nodes, ["n", 3], ["n", 3])


def _stranger():
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["h"], name="odd", domain="house"),
        helper.make_node("Relu", ["h"], ["y"], name="bend"),
    ]
    return _model(nodes, ["n", 3], ["n", 3])


def _texts():
    classes = helper.make_tensor("classes", TensorProto.STRING, [2], [b"cat", b"dog"])
    nodes = [
        helper.make_node("ArgMax", ["x"], ["k"], axis=1, keepdims=0),
        helper.make_node("Gather", ["classes", "k"], ["y"], name="named"),
    ]
    return _model(nodes, ["n", 3], ["n"], [classes], kind=TensorProto.STRING)


@pytest.mark.parametrize(
    ("model", "operator", "place"),
    [
        (_loop, "Loop", "around"),
        (_branch, "If", "either"),
        (_stranger, "house.Frobnicate", "odd"),
        (_texts, "Gather", "named"),
    ],
)
def test_what_has_no_translation_is_unknown_at_its_node(model, operator, place, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    found = ff.audit(path)
    assert found.verdict.name == "UNKNOWN"
    said = " ".join(found.subject["unseen"])
    assert f"{place}: the ONNX operator {operator} has no translation" in said
    assert place in json.dumps(
        found.to_dict()["verdicts"] if "verdicts" in found.to_dict() else found.to_dict()
    )


def test_open_sizes_are_chosen_and_said(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    path = tmp_path / "model.onnx"
    path.write_bytes(_model(nodes, ["n", "time", 3], ["n", 2], [weight], opset=17).SerializeToString())
    found = ff.audit(path)
    assert found.verdict.name == "BOUNDED"
    assert any("'time' is 8" in line for line in found.subject["unseen"])
    assert ff.audit(path, torch.zeros(2, 5, 3)).verdict.name == "BOUNDED"


def test_zip_map_and_running_products(tmp_path):
    path = tmp_path / "model.onnx"
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    path.write_bytes(_model([zipped], ["n", 3], ["n", 3]).SerializeToString())
    x = torch.randn(4, 3)
    torch.testing.assert_close(read_onnx(path)(x), x)
    axis = numpy_helper.from_array(np.array(1), "axis")
    path.write_bytes(
        _model(
            [helper.make_node("CumProd", ["x", "axis"], ["y"])], ["n", 3], ["n", 3], [axis]
        ).SerializeToString()
    )
    torch.testing.assert_close(read_onnx(path)(x), torch.cumprod(x, 1))


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_the_commands_take_files(plain, normed, tmp_path):
    assert run("audit", plain).exit_code == 1
    assert run("audit", normed).exit_code == 0
    assert run("certify", normed, "--time", "1", "--out", tmp_path / "cert.json").exit_code == 0
    assert run("verify", tmp_path / "cert.json", normed).exit_code == 0
    np.save(tmp_path / "rows.npy", ROWS)
    done = run("repair", plain, "--data", tmp_path / "rows.npy", "--out", tmp_path / "fixed.onnx")
    assert done.exit_code == 0, done.output
    assert run("audit", tmp_path / "fixed.onnx").exit_code == 0
    assert isinstance(run("audit", tmp_path / "absent.onnx").exception, InvalidValueError)


def test_many_files(plain, normed, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no")
    table = {Path(row.path).name: row for row in audit_all(tmp_path).rows}
    assert table["plain.onnx"].verdict == "UNBOUNDED"
    assert table["normed.onnx"].verdict == "BOUNDED"
    assert table["broken.onnx"].error


def test_a_pipeline_of_scikit_learn(tmp_path):
    """Fitted, exported, repaired, served: at least 99 % of the rows to the last bit, bounded everywhere."""
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    path, out = tmp_path / "pipeline.onnx", tmp_path / "fixed.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sixty steps are few
        fitted = make_pipeline(
            StandardScaler(), MLPRegressor(hidden_layer_sizes=(24, 24), max_iter=20, random_state=0)
        )
        path.write_bytes(to_onnx(fitted.fit(ROWS, ROWS[:, 0] * ROWS[:, 1]), ROWS[:1]).SerializeToString())
        sorter = make_pipeline(
            StandardScaler(), MLPClassifier(hidden_layer_sizes=(8,), max_iter=20, random_state=0)
        )
        sorter.fit(ROWS, (ROWS[:, 0] > 0).astype(np.int64) + (ROWS[:, 1] > 1))
        classifier = to_onnx(sorter, ROWS[:1], options={"zipmap": False})
    ff.repair(path, ROWS).save(out)
    before, after = session(path), session(out)
    assert (before(ROWS) == after(ROWS)).mean() >= 0.99
    assert np.abs(after(ROWS * 1e6)).max() < 2 * np.abs(before(ROWS)).max()
    assert ff.audit(out).verdict.name == "BOUNDED"
    path.write_bytes(classifier.SerializeToString())
    with torch.no_grad():
        ours = read_onnx(path)(torch.from_numpy(ROWS))
    runtime = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for theirs, mine in zip(runtime.run(None, {"X": ROWS}), ours.values(), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-5)
    assert ff.audit(path).verdict.name == "BOUNDED"


def test_nodes_called_as_their_values_keep_their_names_to_themselves(plain, tmp_path):
    """onnxruntime refuses two nodes of one name; tf2onnx calls a node as what it makes."""
    model = onnx.load(plain)
    for node in model.graph.node:
        node.name = node.output[0]
    path, out = tmp_path / "called.onnx", tmp_path / "fixed.onnx"
    path.write_bytes(model.SerializeToString())
    ff.repair(path, ROWS).save(out)
    assert (session(path)(ROWS) == session(out)(ROWS)).mean() > 0.9
    names = [node.name for node in onnx.load(out).graph.node]
    assert len(set(names)) == len(names)


def test_a_repaired_file_that_was_changed_is_repaired_again(plain, tmp_path):
    """The nodes put in take no name that the file has, those of an earlier repair among them."""
    once, more, twice = (tmp_path / f"{name}.onnx" for name in ("once", "more", "twice"))
    ff.repair(plain, ROWS).save(once)
    model = onnx.load(once)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2), np.float32), "extra"))
    model.graph.node.append(helper.make_node("MatMul", ["x", "extra"], ["second"], name="second"))
    model.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, ["n", 2]))
    more.write_bytes(model.SerializeToString())
    assert ff.audit(more).verdict.name == "UNBOUNDED"
    ff.repair(more, ROWS).save(twice)
    assert ff.audit(twice).verdict.name == "BOUNDED"
    made = onnxruntime.InferenceSession(str(twice), providers=["CPUExecutionProvider"])
    far = made.run(None, {"x": ROWS * np.float32(1e9)})
    assert all(np.abs(value).max() < 1e3 for value in far)


def test_a_file_of_the_oldest_formats_is_repaired(tmp_path):
    """Up to version 3 of the format every initializer is an input of the graph: new constants are nodes instead."""
    model = onnx_files.small()
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    model.ir_version = 3
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 9))
    path, out = tmp_path / "old.onnx", tmp_path / "fixed.onnx"
    path.write_bytes(model.SerializeToString())
    ff.repair(path, ROWS).save(out)
    assert ff.audit(out).verdict.name == "BOUNDED"
    assert [v.name for v in onnx.load(out).graph.input] == [v.name for v in model.graph.input]
    assert (session(path)(ROWS) == session(out)(ROWS)).mean() > 0.9
    assert np.abs(session(out)(ROWS * np.float32(1e9))).max() < 1e3
