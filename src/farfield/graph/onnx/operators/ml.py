"""The operators of ``ai.onnx.ml`` that networks and their pipelines use."""

from __future__ import annotations

from typing import Any

import torch

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError
from farfield.graph.onnx.operators.norm import unit

__all__: list[str] = []

_ML = "ai.onnx.ml"


def _floats(values: Any) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float32)


@onnx_operator("Scaler", domain=_ML)
def _scaler(a: Arguments) -> Any:
    x = a.tensor(0)
    offset, scale = a.attribute("offset"), a.attribute("scale")
    out = x.to(torch.float32)
    out = out if offset is None else out - _floats(offset)
    return out if scale is None else out * _floats(scale)


@onnx_operator("Normalizer", domain=_ML)
def _normalizer(a: Arguments) -> Any:
    x, kind = a.tensor(0).to(torch.float32), a.attribute("norm", "MAX")
    if kind in ("L1", "L2"):
        return unit(x, int(kind[1]), -1)
    size = x.amax(-1, keepdim=True)
    return torch.where(size == 0, x, x / torch.where(size == 0, torch.ones_like(size), size))


@onnx_operator("Imputer", domain=_ML)
def _imputer(a: Arguments) -> Any:
    x = a.tensor(0)
    if x.is_floating_point():
        filled = _floats(a.attribute("imputed_value_floats")).to(x.dtype)
        missing = a.attribute("replaced_value_float", 0.0)
        test = torch.isnan(x) if missing != missing else x == missing
    else:
        filled = torch.tensor(list(a.attribute("imputed_value_int64s")), dtype=x.dtype)
        test = x == a.attribute("replaced_value_int64", 0)
    return torch.where(test, filled, x)


@onnx_operator("Binarizer", domain=_ML)
def _binarizer(a: Arguments) -> Any:
    x = a.tensor(0)
    return (x > a.attribute("threshold", 0.0)).to(x.dtype)


@onnx_operator("ArrayFeatureExtractor", domain=_ML)
def _array_feature_extractor(a: Arguments) -> Any:
    x, index = a.tensor(0), a.tensor(1).to(torch.int64).reshape(-1)
    picked = torch.index_select(x, x.ndim - 1, index)
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@onnx_operator("FeatureVectorizer", domain=_ML)
def _feature_vectorizer(a: Arguments) -> Any:
    parts = [x.to(torch.float32) for x in a.tensors()]
    parts = [x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(1, -1) for x in parts]
    widths = a.attribute("inputdimensions") or [p.shape[1] for p in parts]
    return torch.cat([p[:, :w] for p, w in zip(parts, widths, strict=True)], 1)


@onnx_operator("ZipMap", domain=_ML)
def _zip_map(a: Arguments) -> Any:
    return a.tensor(0)


@onnx_operator("LabelEncoder", domain=_ML)
def _label_encoder(a: Arguments) -> Any:
    x = a.tensor(0)
    keys = a.attribute("keys_int64s") or a.attribute("keys_floats")
    values = a.attribute("values_int64s")
    other: Any = a.attribute("default_int64", -1)
    kind = torch.int64
    if values is None:
        values, other, kind = a.attribute("values_floats"), a.attribute("default_float", -0.0), torch.float32
    if not keys or values is None:
        raise UnsupportedOnnxError("a LabelEncoder of texts")
    out = torch.full_like(x, other, dtype=kind)
    for key, value in zip(reversed(keys), reversed(values), strict=True):
        out = torch.where(x == key, torch.tensor(value, dtype=kind), out)
    return out


def _post(scores: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "NONE":
        return scores
    if kind == "SOFTMAX":
        return torch.softmax(scores, -1)
    if kind == "LOGISTIC":
        return torch.sigmoid(scores)
    raise UnsupportedOnnxError(f"post_transform={kind}")


@onnx_operator("LinearRegressor", domain=_ML)
def _linear_regressor(a: Arguments) -> Any:
    x, targets = a.tensor(0).to(torch.float32), a.attribute("targets", 1)
    weight = _floats(a.attribute("coefficients")).reshape(targets, -1)
    bias = a.attribute("intercepts")
    scores = torch.nn.functional.linear(x, weight, None if bias is None else _floats(bias))
    return _post(scores, a.attribute("post_transform", "NONE"))


@onnx_operator("LinearClassifier", domain=_ML)
def _linear_classifier(a: Arguments) -> Any:
    x = a.tensor(0).to(torch.float32)
    labels = a.attribute("classlabels_ints")
    if not labels:
        raise UnsupportedOnnxError("a LinearClassifier of texts")
    bias = a.attribute("intercepts")
    flat = _floats(a.attribute("coefficients"))
    rows = len(bias) if bias else len(labels)
    if rows != len(labels):
        raise UnsupportedOnnxError("a LinearClassifier with fewer rows of coefficients than classes")
    raw = torch.nn.functional.linear(x, flat.reshape(rows, -1), None if bias is None else _floats(bias))
    scores = _post(raw, a.attribute("post_transform", "NONE"))
    return torch.tensor(list(labels))[torch.argmax(raw, -1)], scores
