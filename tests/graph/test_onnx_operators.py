"""Every ONNX operator of the table computes what onnxruntime computes, on random shapes and attributes."""

import numpy as np
import onnxruntime
import pytest
import torch

import onnx_cases
from farfield.graph.onnx import onnx_operator_names, read_onnx

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
