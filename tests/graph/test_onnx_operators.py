"""Every ONNX operator of the table computes what onnxruntime computes, on random shapes and attributes."""

import operator

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import onnx_cases
from farfield.graph._unknown import OpaqueNodeError
from farfield.graph.onnx import onnx_operator_names, read_onnx
from farfield.graph.onnx._values import IntVector
from farfield.graph.onnx.operators.arithmetic import _vectors

ALONE = {"ai.onnx.ml.ZipMap", "CumProd"}
"""Translated and checked elsewhere: a result that is no tensor, and an operator onnxruntime has no kernel for."""
SEEDS = (0, 1)
CASES = [c for seed in SEEDS for c in onnx_cases.cases(seed)]


def both(case, opset, folder):
    """What onnxruntime gives, and what the translation gives."""
    path = folder / "case.onnx"
    path.write_bytes(onnx_cases.model_of(case, opset).SerializeToString())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {f"x{k}": v for k, v in enumerate(case.inputs) if v is not None and k not in case.fixed}
    expected = session.run(None, given)
    with torch.no_grad():
        made = read_onnx(path)(*(torch.from_numpy(np.array(v)) for v in given.values()))
    return expected, list(made.values()) if isinstance(made, dict) else [made]


@pytest.mark.parametrize("case", CASES, ids=[f"{k}-{c}" for k, c in enumerate(CASES)])
def test_a_translation_gives_what_onnxruntime_gives(case, tmp_path):
    for opset in case.opsets:
        expected, made = both(case, opset, tmp_path)
        assert len(made) == len(expected)
        for ours, theirs in zip(made, expected, strict=True):
            assert tuple(ours.shape) == theirs.shape
            assert ours.numpy().dtype == theirs.dtype
            if theirs.dtype.kind == "f":
                scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)))
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=2e-6 * scale)
            else:
                np.testing.assert_array_equal(ours.numpy(), theirs)


def test_every_operator_of_the_table_has_a_case():
    tried = {f"{c.domain}.{c.op}" if c.domain else c.op for c in CASES}
    assert set(onnx_operator_names()) == tried | ALONE
    assert len(tried) >= 150


def test_a_wrong_translation_is_found(tmp_path, monkeypatch):
    """The comparison fails for a table that takes the hyperbolic tangent for the sigmoid."""
    from farfield.graph.onnx import _table

    monkeypatch.setitem(_table._TABLE, ("", "Sigmoid"), lambda a: torch.tanh(a.tensor(0)))
    case = next(c for c in CASES if c.op == "Sigmoid")
    expected, made = both(case, 18, tmp_path)
    assert not np.allclose(expected[0], made[0].numpy(), atol=1e-2)


_X = np.random.default_rng(5).normal(size=(2, 3, 4)).astype(np.float32)
OLD = {
    "softmax": ([("Softmax", {})], (7, 11, 12)),
    "softmax of an axis": ([("Softmax", {"axis": 0})], (9, 12)),
    "softmax of the last axis": ([("Softmax", {"axis": -1})], (11, 12)),
    "log of a softmax": ([("LogSoftmax", {})], (7, 12)),
    "hardmax": ([("Hardmax", {"axis": 1})], (7, 12)),
    "topk": ([("TopK", {"k": 3, "axis": 2})], (9,)),
    "slice": ([("Slice", {"starts": [1, 0], "ends": [3, -1], "axes": [2, 1]})], (9,)),
    "slice from the front": ([("Slice", {"starts": [0, 1], "ends": [1, 3]})], (7, 9)),
    "pad": ([("Pad", {"pads": [0, 1, 2, 0, 0, 1], "value": 3.0})], (7, 10)),
    "mirrored": ([("Pad", {"pads": [0, 1, 2, 0, 0, 1], "mode": "reflect"})], (10,)),
    "whether a size is": (
        [("Shape", {}), ("Cast", {"to": 9}), ("Cast", {"to": 7})],
        (13, 18),
    ),
    "sizes of 32 bits": ([("Shape", {}), ("Cast", {"to": 6}), ("Concat", {"axis": 0})], (13, 18)),
}


@pytest.mark.parametrize("name", OLD)
def test_a_file_of_an_older_operator_set_means_what_it_meant(name, tmp_path):
    """Softmax ran over an axis and all behind it; counts, places and margins were attributes."""
    steps, opsets = OLD[name]
    places = [f"v{k}" for k in range(len(steps) + 1)]
    for opset in opsets:
        nodes = [
            onnx.helper.make_node(op, [places[k]], [places[k + 1], *(["i"] if op == "TopK" else [])], **kinds)
            for k, (op, kinds) in enumerate(steps)
        ]
        given = onnx.helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, list(_X.shape))
        graph = onnx.helper.make_graph(nodes, "old", [given], [onnx.ValueInfoProto(name=places[-1])])
        sets = [onnx.helper.make_opsetid("", opset)]
        path = tmp_path / "old.onnx"
        path.write_bytes(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (theirs,) = session.run(None, {"v0": _X})
        ours = read_onnx(path)(torch.from_numpy(_X)).numpy()
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_statistics_of_every_place_are_no_statistics_of_channels(tmp_path):
    """BatchNormalization before operator set 9 may hold them; then the node is unknown."""
    nodes = [onnx.helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"], spatial=0)]
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 4])
    tensors = [onnx.numpy_helper.from_array(np.ones((3,), np.float32), n) for n in "sbmv"]
    graph = onnx.helper.make_graph(nodes, "old", [given], [onnx.ValueInfoProto(name="y")], tensors)
    path = tmp_path / "old.onnx"
    sets = [onnx.helper.make_opsetid("", 7)]
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())
    with pytest.raises(OpaqueNodeError, match="every place"):
        read_onnx(path)(torch.from_numpy(_X))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((2, 3), (5,), (10, 15)), ((4,), (1, 2, 3), (4, 8, 12)), ((2, 3), (4, 5), (8, 15)), ((7,), (2,), (14,))],
)
def test_sizes_are_computed_entry_by_entry_with_broadcasting(first, second, expected):
    parts = [IntVector(values, len(values) == 1) for values in (first, second)]
    made = _vectors(operator.mul, parts)
    assert made.values == expected and made.scalar is (len(expected) == 1)
    assert _vectors(operator.mul, [IntVector((1, 2)), IntVector((1, 2, 3))]) is None
