"""ONNX nodes with random attributes and shapes: what onnxruntime computes, to hold translations against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML, MS = "ai.onnx.ml", "com.microsoft"
OPSETS = (18, 22)
"""Operator sets each case runs in, unless it says otherwise."""


@dataclass(frozen=True)
class Case:
    """One node: operator, inputs (arrays; ``None`` left out), which of them the file fixes, attributes."""

    op: str
    inputs: tuple[Any, ...]
    fixed: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    opsets: tuple[int, ...] = OPSETS
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.op}-{self.seed}"


def model_of(case: Case, opset: int) -> onnx.ModelProto:
    """The case as a model of one node."""
    names = [f"x{k}" if v is not None else "" for k, v in enumerate(case.inputs)]
    made = [f"y{k}" for k in range(case.outputs)]
    node = helper.make_node(
        case.op, names, made, name=f"the_{case.op}", domain=case.domain, **case.attributes
    )
    inputs, initializers = [], []
    for k, value in enumerate(case.inputs):
        if value is None:
            continue
        if k in case.fixed:
            initializers.append(numpy_helper.from_array(value, names[k]))
        else:
            code = helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(names[k], code, list(value.shape)))
    outputs = [onnx.ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph([node], "case", inputs, outputs, initializers)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 3), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


class Draw:
    """Random shapes and entries, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed

    def size(self, low: int = 2, high: int = 6) -> int:
        return int(self.rng.integers(low, high))

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(rank))

    def real(self, *shape: int, scale: float = 1.5) -> np.ndarray:
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def unit(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-0.95, 0.95, size=shape).astype(np.float32)

    def positive(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(0.1, 3.0, size=shape).astype(np.float32)

    def whole(self, *shape: int, low: int = -5, high: int = 9, kind: Any = np.int64) -> np.ndarray:
        return self.rng.integers(low, high, size=shape).astype(kind)

    def truth(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(size=shape) < 0.5

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def byte(value: int) -> np.ndarray:
    return np.array(value, dtype=np.uint8)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def cases(seed: int) -> list[Case]:
    """One case (or a few) for every operator, with shapes and attributes that the seed draws."""
    return [
        Case(**{"seed": seed, **part})
        for family in (
            unary,
            binary,
            linear,
            norms,
            pools,
            reductions,
            shapes,
            indices,
            created,
            recurrent,
            bits,
            learned,
            rest,
        )
        for part in family(Draw(seed * 100 + 7))
    ]


def case(op, *inputs, fixed=(), outputs=1, domain="", opsets=OPSETS, **attributes) -> dict[str, Any]:
    return {
        "op": op,
        "inputs": inputs,
        "fixed": tuple(fixed),
        "attributes": attributes,
        "outputs": outputs,
        "domain": domain,
        "opsets": opsets,
    }


def unary(d: Draw) -> list[dict[str, Any]]:
    s = d.shape(d.size(1, 5))
    anywhere = [
        "Abs",
        "Atan",
        "Asinh",
        "Ceil",
        "Cos",
        "Cosh",
        "Erf",
        "Exp",
        "Floor",
        "Identity",
        "Neg",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softsign",
        "Softplus",
        "Tanh",
        "Relu",
        "HardSwish",
        "Selu",
        "Elu",
        "Celu",
        "LeakyRelu",
        "HardSigmoid",
        "ThresholdedRelu",
    ]
    out = [case(op, d.real(*s)) for op in anywhere]
    out += [case(op, d.unit(*s)) for op in ("Acos", "Asin", "Atanh", "Tan")]
    out += [case(op, d.positive(*s)) for op in ("Log", "Sqrt", "Reciprocal")]
    odd = d.real(*s)
    odd.reshape(-1)[0], odd.reshape(-1)[-1] = np.inf, -np.inf
    missing = d.real(*s)
    missing.reshape(-1)[0] = np.nan
    x = d.real(3, 4, 5)
    return [
        *out,
        case("Acosh", 1 + d.positive(*s)),
        case("Abs", d.whole(*s)),
        case("Neg", d.whole(*s)),
        case("Round", floats(0.5, 1.5, 2.5, -0.5, -1.5)),
        case("IsNaN", missing),
        case("IsInf", odd),
        case("IsInf", odd, detect_negative=0),
        case("IsInf", odd, detect_positive=0),
        case("Not", d.truth(*s)),
        case("BitwiseNot", d.whole(*s)),
        case("Mish", d.real(*s)),
        case("Gelu", d.real(*s), opsets=(20, 22)),
        case("Gelu", d.real(*s), opsets=(20, 22), approximate="tanh"),
        case("Elu", d.real(*s), alpha=0.7),
        case("Celu", d.real(*s), alpha=1.3),
        case("Selu", d.real(*s), alpha=1.2, gamma=0.9),
        case("LeakyRelu", d.real(*s), alpha=0.3),
        case("HardSigmoid", d.real(*s), alpha=0.3, beta=0.4),
        case("ThresholdedRelu", d.real(*s), alpha=0.4),
        case("PRelu", d.real(2, 3, 4), d.real(3, 1)),
        case("PRelu", d.real(*s), d.real(1)),
        case("Shrink", d.real(*s), lambd=0.6, bias=0.2),
        case("Shrink", d.real(*s)),
        case("Clip", d.real(*s), floats(-0.5).reshape(()), floats(0.8).reshape(()), fixed=(1, 2)),
        case("Clip", d.real(*s), None, floats(0.3).reshape(())),
        case("Clip", d.whole(*s), ints(-2).reshape(()), ints(3).reshape(()), fixed=(1, 2)),
        *[
            case(op, x, axis=axis)
            for op in ("Softmax", "LogSoftmax", "Hardmax")
            for axis in (-1, d.pick(0, 1))
        ],
        case("Dropout", d.real(*s)),
        case("Dropout", d.real(*s), outputs=2),
        case("Swish", d.real(*s), opsets=(24,)),
        case("Swish", d.real(*s), opsets=(24,), alpha=0.7),
        case("QuickGelu", d.real(*s), domain=MS),
        case("Gelu", d.real(*s), domain=MS),
        case("FastGelu", d.real(2, 4), d.real(4), domain=MS),
        case("BiasGelu", d.real(2, 4), d.real(4), domain=MS),
    ]


def binary(d: Draw) -> list[dict[str, Any]]:
    s = d.shape(3)
    row, column = (s[2],), (s[1], 1)
    out = [
        case(op, d.real(*s), d.real(*d.pick(s, row, column)))
        for op in [
            "Add",
            "Sub",
            "Mul",
            "Max",
            "Min",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "Equal",
        ]
    ]
    out += [
        case(op, d.whole(*s), d.whole(*row))
        for op in [
            "Add",
            "Sub",
            "Mul",
            "Max",
            "Min",
            "Greater",
            "Equal",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
        ]
    ]
    out += [case(op, d.truth(*s), d.truth(*row)) for op in ("And", "Or", "Xor", "Equal")]
    return [
        *out,
        case("Div", d.real(*s), d.positive(*row)),
        case("Div", d.whole(*s), d.whole(*row, low=1, high=5)),
        case("Div", d.whole(*s), ints(-3)),
        case("Mod", d.whole(*s), d.whole(*row, low=1, high=5)),
        case("Mod", d.whole(*s), ints(-4)),
        case("Mod", d.real(*s), d.positive(*row), fmod=1),
        case("Pow", d.positive(*s), d.real(*row)),
        case("Pow", d.real(*s), floats(2.0), fixed=(1,)),
        case("Pow", d.real(*s), floats(3.0).reshape(()), fixed=(1,)),
        case("Pow", d.positive(*s), floats(0.5), fixed=(1,)),
        case("Pow", d.real(*s), ints(2)),
        case(
            "BitShift",
            d.whole(*s, low=0, kind=np.uint8),
            d.whole(*row, low=0, high=4, kind=np.uint8),
            direction="LEFT",
        ),
        case(
            "BitShift",
            d.whole(*s, low=0, high=200, kind=np.uint32),
            d.whole(*row, low=0, high=4, kind=np.uint32),
            direction="RIGHT",
        ),
        case("Max", d.real(*s), d.real(*row), d.real(*column)),
        case("Min", d.real(*s), d.real(*row), d.real(1)),
        case("Sum", d.real(*s), d.real(*row), d.real(*column)),
        case("Mean", d.real(*s), d.real(*row), d.real(*column)),
        case("Where", d.truth(*s), d.real(*row), d.real(*s)),
        case("Where", d.truth(*column), d.whole(*s), d.whole(1)),
    ]


def linear(d: Draw) -> list[dict[str, Any]]:
    n, k, m, b = d.size(), d.size(), d.size(), d.size()
    x1, x2, x3 = d.real(2, 4, 11), d.real(2, 4, 9, 8), d.real(2, 4, 6, 7, 5)
    sd = {"strides": [d.pick(1, 2), d.pick(1, 2)], "dilations": [d.pick(1, 2), 1]}
    return [
        case("MatMul", d.real(n, k), d.real(k, m)),
        case("MatMul", d.real(b, n, k), d.real(k, m), fixed=(1,)),
        case("MatMul", d.real(b, 1, n, k), d.real(3, k, m)),
        case("MatMul", d.real(k), d.real(k, m)),
        case("Gemm", d.real(n, k), d.real(k, m), d.real(m)),
        case("Gemm", d.real(n, k), d.real(m, k), d.real(m), fixed=(1, 2), transB=1),
        case("Gemm", d.real(k, n), d.real(m, k), d.real(n, m), transA=1, transB=1, alpha=0.7, beta=1.3),
        case("Gemm", d.real(n, k), d.real(k, m)),
        case("Gemm", d.real(n, k), d.real(k, m), d.real(n, 1), alpha=2.0),
        case("Gemm", d.real(n, k), d.real(k, m), d.real(1)),
        case("Einsum", d.real(b, n, k), d.real(b, k, m), equation="bij, bjk -> bik"),
        case("Einsum", d.real(n, k), d.real(k), equation="ij,j->i"),
        case("Det", d.real(3, 4, 4)),
        case("Conv", x1, d.real(3, 4, 3), d.real(3), pads=[1, 2], strides=[2]),
        case("Conv", x2, d.real(6, 2, 3, 2), d.real(6), group=2, pads=[1, 0, 1, 1], **sd),
        case("Conv", x2, d.real(3, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
        case("Conv", x2, d.real(3, 4, 2, 2), auto_pad="SAME_LOWER"),
        case("Conv", x2, d.real(3, 4, 3, 3), auto_pad="VALID"),
        case("Conv", x3, d.real(2, 4, 2, 3, 2), d.real(2)),
        case("ConvTranspose", x1, d.real(4, 3, 3), d.real(3), strides=[2], pads=[1, 0]),
        case(
            "ConvTranspose",
            x2,
            d.real(4, 2, 3, 2),
            d.real(4),
            group=2,
            strides=[2, 2],
            pads=[1, 0, 1, 1],
            output_padding=[1, 0],
        ),
        case("ConvTranspose", x2, d.real(4, 3, 3, 3), dilations=[2, 1], strides=[1, 2]),
        case("ConvTranspose", x2, d.real(4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
        case("ConvTranspose", x2, d.real(4, 3, 3, 3), output_shape=[18, 16], strides=[2, 2]),
        case(
            "MatMulInteger",
            d.whole(n, k, low=0, high=200, kind=np.uint8),
            d.whole(k, m, low=0, high=200, kind=np.uint8),
            byte(7),
            byte(3),
        ),
        case(
            "ConvInteger",
            d.whole(1, 2, 5, 5, low=0, high=200, kind=np.uint8),
            d.whole(3, 2, 3, 3, low=0, high=200, kind=np.uint8),
            byte(7),
            pads=[1, 1, 1, 1],
        ),
        case("FusedMatMul", d.real(b, n, k), d.real(b, m, k), domain=MS, transB=1, alpha=0.5),
    ]


def norms(d: Draw) -> list[dict[str, Any]]:
    c, x = 4, d.real(2, 4, 5, 3)
    return [
        case(
            "BatchNormalization",
            x,
            d.real(c),
            d.real(c),
            d.real(c),
            d.positive(c),
            fixed=(1, 2, 3, 4),
            epsilon=d.pick(1e-5, 1e-3),
        ),
        case("InstanceNormalization", x, d.real(c), d.real(c), epsilon=1e-3),
        case("LayerNormalization", x, d.real(3), d.real(3), fixed=(1, 2)),
        case("LayerNormalization", x, d.real(5, 3), None, axis=2, epsilon=1e-3),
        case("LayerNormalization", x, d.real(3), d.real(3), outputs=3),
        case("GroupNormalization", x, d.real(c), d.real(c), opsets=(21, 22), num_groups=2),
        case("RMSNormalization", x, d.real(3), opsets=(23,)),
        case("RMSNormalization", x, d.real(5, 3), opsets=(23,), axis=2, epsilon=1e-3),
        case("SimplifiedLayerNormalization", x, d.real(3), axis=-1, epsilon=1e-4),
        case(
            "SkipLayerNormalization",
            d.real(2, 3, 8),
            d.real(2, 3, 8),
            d.real(8),
            d.real(8),
            d.real(8),
            domain=MS,
            epsilon=1e-4,
        ),
        case(
            "SkipSimplifiedLayerNormalization",
            d.real(2, 3, 8),
            d.real(2, 3, 8),
            d.real(8),
            domain=MS,
            epsilon=1e-4,
        ),
        case("LpNormalization", x, axis=d.pick(1, -1), p=d.pick(1, 2)),
        case("LRN", x, size=3, alpha=0.2, beta=0.6, bias=1.5),
        case("LRN", x, size=5),
        case("MeanVarianceNormalization", x, axes=[0, 2, 3]),
    ]


def pools(d: Draw) -> list[dict[str, Any]]:
    x1, x2, x3 = d.real(2, 3, 11), d.real(2, 3, 9, 8), d.real(1, 2, 6, 5, 7)
    out = []
    for op in ("MaxPool", "AveragePool", "LpPool"):
        out += [
            case(op, x1, kernel_shape=[3], strides=[2]),
            case(op, x2, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
            case(op, x3, kernel_shape=[2, 2, 3], strides=[1, 2, 2]),
            case(op, x2, kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
            case(op, x2, kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
        ]
    return [
        *out,
        case("MaxPool", x2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        case("MaxPool", x2, kernel_shape=[2, 2], dilations=[2, 2]),
        case("MaxPool", d.whole(1, 2, 5, 5, kind=np.int8), kernel_shape=[2, 2]),
        case("AveragePool", x2, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        case("AveragePool", x2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opsets=(22,)),
        case("AveragePool", x2, kernel_shape=[3, 2], dilations=[2, 1], opsets=(22,)),
        case("LpPool", x2, kernel_shape=[2, 3], p=3),
        case("GlobalAveragePool", x2),
        case("GlobalMaxPool", x3),
        case("GlobalLpPool", x2, p=d.pick(1, 2), opsets=(18, 21)),
    ]


def reductions(d: Draw) -> list[dict[str, Any]]:
    names = [
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    ]
    x = d.positive(3, 4, 5)
    axes = d.pick([1], [0, 2], [-1])
    out = [case(op, x, ints(*axes), fixed=(1,), keepdims=d.pick(0, 1)) for op in names]
    out += [
        case(op, x, opsets=(13, 17), axes=axes, keepdims=d.pick(0, 1)) for op in names if op != "ReduceSum"
    ]
    out += [case(op, x, keepdims=0) for op in names]
    out += [case(op, x, ints(*axes), fixed=(1,), opsets=(13, 17)) for op in ("ReduceSum",)]
    y = d.real(3, 4, 5)
    return [
        *out,
        case("ReduceSum", d.whole(3, 4), ints(1), fixed=(1,)),
        case("ReduceMax", d.whole(3, 4), ints(0), fixed=(1,)),
        case("ReduceSum", x, fixed=(), noop_with_empty_axes=1),
        *[case(op, y, axis=d.pick(0, 1, -1), keepdims=d.pick(0, 1)) for op in ("ArgMax", "ArgMin")],
        *[
            case(op, d.whole(3, 6, low=0, high=2).astype(np.float32), axis=1, select_last_index=1)
            for op in ("ArgMax", "ArgMin")
        ],
        *[
            case("CumSum", y, ints(1).reshape(()), fixed=(1,), reverse=r, exclusive=e)
            for r in (0, 1)
            for e in (0, 1)
        ],
        case("TopK", y, ints(2), fixed=(1,), outputs=2, axis=d.pick(0, 1, -1)),
        case("TopK", y, ints(3), fixed=(1,), outputs=2, largest=0),
    ]


def shapes(d: Draw) -> list[dict[str, Any]]:
    x, x4 = d.real(3, 4, 6), d.real(2, 8, 4, 6)
    return [
        case("Shape", x),
        case("Shape", x, start=1, end=-1),
        case("Size", x),
        case("Reshape", x, ints(2, -1), fixed=(1,)),
        case("Reshape", x, ints(0, 2, -1), fixed=(1,)),
        case("Reshape", x, ints(-1), fixed=(1,)),
        case("Flatten", x4),
        case("Flatten", x4, axis=d.pick(0, 2, 3, -1)),
        case("Transpose", x4, perm=[0, 2, 3, 1]),
        case("Transpose", x),
        case("Squeeze", d.real(1, 4, 1, 3), ints(0, 2), fixed=(1,)),
        case("Squeeze", d.real(1, 4, 1, 3)),
        case("Unsqueeze", x, ints(0, -1), fixed=(1,)),
        case("Concat", x, d.real(3, 2, 6), axis=1),
        case("Concat", x, x, axis=-1),
        case("Split", x, outputs=2, num_outputs=2, axis=1),
        case("Split", x, ints(1, 5), fixed=(1,), outputs=2, axis=2),
        case("Split", d.real(7, 2), outputs=3, num_outputs=3),
        case("Slice", x, ints(1, 0), ints(3, 4), ints(1, 2), ints(1, 2), fixed=(1, 2, 3, 4)),
        case("Slice", x, ints(-1), ints(-(2**40)), ints(2), ints(-2), fixed=(1, 2, 3, 4)),
        case("Slice", x, ints(1), ints(2**40), fixed=(1, 2)),
        case("Expand", d.real(3, 1), ints(2, 1, 6), fixed=(1,)),
        case("Tile", d.real(2, 3), ints(2, 3), fixed=(1,)),
        case("Pad", x, ints(1, 0, 2, 0, 1, 1), floats(0.5).reshape(()), fixed=(1, 2)),
        case("Pad", x, ints(0, 1, 2, 0, 2, 1), fixed=(1,), mode="reflect"),
        case("Pad", x, ints(1, 1, 2, 0, 2, 1), fixed=(1,), mode="edge"),
        case("Pad", x, ints(1, 1, 2, 0, 2, 1), fixed=(1,), mode="wrap", opsets=(19, 22)),
        case("Pad", x, ints(1, -1, 2, 0), None, ints(0, 2), fixed=(1, 3)),
        case("DepthToSpace", x4, blocksize=2),
        case("DepthToSpace", x4, blocksize=2, mode="CRD"),
        case("SpaceToDepth", x4, blocksize=2),
        case("CenterCropPad", x, ints(5, 3), fixed=(1,), axes=[0, 2]),
        case("CenterCropPad", x, ints(2, 7, 4), fixed=(1,)),
        case("Trilu", d.real(4, 5)),
        case("Trilu", d.real(2, 4, 5), ints(-1).reshape(()), fixed=(1,), upper=0),
        case("ReverseSequence", d.real(5, 3, 2), ints(5, 1, 3), time_axis=0, batch_axis=1),
        case("ReverseSequence", d.real(3, 5), ints(5, 1, 3), time_axis=1, batch_axis=0),
    ]


def indices(d: Draw) -> list[dict[str, Any]]:
    x = d.real(5, 4, 3)
    return [
        case("Gather", x, d.whole(2, 3, low=-4, high=4), axis=1),
        case("Gather", d.real(6, 3), d.whole(2, 4, low=0, high=6), fixed=(0,)),
        case("Gather", x, ints(2).reshape(()), fixed=(1,), axis=-1),
        case("Gather", x, ints(0, 2), fixed=(1,), axis=2),
        case("GatherElements", x, d.whole(2, 4, 3, low=-5, high=5), axis=0),
        case("GatherND", x, d.whole(6, 2, low=-4, high=4)),
        case("GatherND", x, d.whole(5, 2, 1, low=0, high=4), batch_dims=1),
        case("ScatterElements", x, np.argsort(d.real(3, 4, 3), 0), d.real(3, 4, 3), axis=0),
        *[
            case("ScatterElements", x, d.whole(2, 4, 3, low=0, high=5), d.real(2, 4, 3), axis=0, reduction=r)
            for r in ("add", "mul", "max", "min")
        ],
        case("ScatterND", x, ints(0, 3).reshape(2, 1), d.real(2, 4, 3)),
        *[
            case("ScatterND", x, d.whole(3, 2, low=0, high=4), d.real(3, 3), reduction=r)
            for r in ("add", "mul", "max", "min")
        ],
        case("OneHot", d.whole(2, 3, low=-4, high=5), ints(4), floats(0.2, 0.9), fixed=(1,)),
        case("OneHot", d.whole(2, 3, low=0, high=4), ints(4), floats(0.0, 1.0), fixed=(1, 2), axis=1),
        case("Compress", x, np.array([True, False, True, True]), fixed=(1,), axis=1),
    ]


def created(d: Draw) -> list[dict[str, Any]]:
    tensor = numpy_helper.from_array(d.real(2, 3), "value")
    return [
        case("Constant", value=tensor),
        case("Constant", value_float=1.5),
        case("Constant", value_ints=[1, 2, 3]),
        case("ConstantOfShape", ints(2, 3), fixed=(0,)),
        case("ConstantOfShape", ints(3), fixed=(0,), value=numpy_helper.from_array(ints(7), "v")),
        case("Range", ints(1).reshape(()), ints(9).reshape(()), ints(2).reshape(()), fixed=(0, 1, 2)),
        case(
            "Range",
            floats(0.5).reshape(()),
            floats(3.0).reshape(()),
            floats(0.5).reshape(()),
            fixed=(0, 1, 2),
        ),
        case("EyeLike", d.real(3, 5), k=d.pick(-1, 0, 1)),
        case("EyeLike", d.real(3, 3), dtype=TensorProto.INT64),
        case("Cast", d.real(2, 3), to=TensorProto.INT64),
        case("Cast", d.whole(2, 3), to=TensorProto.FLOAT),
        case("Cast", d.real(2, 3), to=TensorProto.DOUBLE),
        case("Cast", d.real(2, 3), to=TensorProto.BOOL),
        case("CastLike", d.real(2, 3), ints(1)),
    ]


def recurrent(d: Draw) -> list[dict[str, Any]]:
    t, b, i, h = 5, 2, d.size(), d.size()
    out = []
    for direction in ("forward", "reverse", "bidirectional"):
        n = 2 if direction == "bidirectional" else 1

        def weights(g, n=n):
            return (
                d.real(t, b, i),
                d.real(n, g * h, i, scale=0.6),
                d.real(n, g * h, h, scale=0.6),
                d.real(n, 2 * g * h, scale=0.6),
            )

        out += [
            case("LSTM", *weights(4), fixed=(1, 2, 3), outputs=3, hidden_size=h, direction=direction),
            case("GRU", *weights(3), outputs=2, hidden_size=h, direction=direction),
            case("GRU", *weights(3), outputs=2, hidden_size=h, direction=direction, linear_before_reset=1),
            case("RNN", *weights(1), outputs=2, hidden_size=h, direction=direction),
        ]
    return [
        *out,
        case(
            "LSTM",
            d.real(t, b, i),
            d.real(1, 4 * h, i),
            d.real(1, 4 * h, h),
            None,
            None,
            d.real(1, b, h),
            d.real(1, b, h),
            outputs=3,
            hidden_size=h,
        ),
        case("RNN", d.real(t, b, i), d.real(1, h, i), d.real(1, h, h), hidden_size=h, activations=["Relu"]),
        case(
            "GRU",
            d.real(t, b, i),
            d.real(1, 3 * h, i),
            d.real(1, 3 * h, h),
            None,
            None,
            d.real(1, b, h),
            outputs=2,
            hidden_size=h,
        ),
    ]


def bits(d: Draw) -> list[dict[str, Any]]:
    x = d.real(3, 4)
    u8, one, zero = d.whole(3, 4, low=0, high=255, kind=np.uint8), floats(0.03).reshape(()), byte(100)
    conv = (
        d.whole(1, 2, 5, 5, low=0, high=255, kind=np.uint8),
        floats(0.02).reshape(()),
        byte(120),
        d.whole(3, 2, 3, 3, low=0, high=255, kind=np.uint8),
        floats(0.01).reshape(()),
        byte(128),
        floats(0.05).reshape(()),
        byte(110),
    )
    return [
        case("QuantizeLinear", x, one, zero),
        case("QuantizeLinear", x, d.positive(4) / 20, d.whole(4, kind=np.int8), axis=1),
        case("QuantizeLinear", x, one),
        case("DequantizeLinear", u8, one, zero),
        case(
            "DequantizeLinear", d.whole(3, 4, kind=np.int8), d.positive(3), d.whole(3, kind=np.int8), axis=0
        ),
        case("DequantizeLinear", d.whole(3, 4, kind=np.int32), one),
        case("DynamicQuantizeLinear", x, outputs=3),
        case(
            "QLinearMatMul",
            u8,
            one,
            zero,
            d.whole(4, 5, low=0, high=255, kind=np.uint8),
            floats(0.01).reshape(()),
            byte(90),
            floats(0.2).reshape(()),
            byte(120),
        ),
        case("QLinearConv", *conv, pads=[1, 1, 1, 1]),
        case("QLinearConv", *conv, d.whole(3, low=-900, high=900, kind=np.int32)),
    ]


def learned(d: Draw) -> list[dict[str, Any]]:
    x = d.real(4, 3)
    holes = x.copy()
    holes[0, 1] = np.nan
    return [
        case("Scaler", x, domain=ML, offset=[0.1, -0.3, 2.0], scale=[1.5, 0.5, 2.0]),
        case("Scaler", d.whole(4, 3), domain=ML, offset=[1.0], scale=[0.5]),
        *[case("Normalizer", x, domain=ML, norm=n) for n in ("L1", "L2")],
        case("Normalizer", d.positive(4, 3), domain=ML, norm="MAX"),
        case(
            "Imputer",
            holes,
            domain=ML,
            imputed_value_floats=[1.0, 2.0, 3.0],
            replaced_value_float=float("nan"),
        ),
        case("Imputer", d.whole(4, 3), domain=ML, imputed_value_int64s=[7], replaced_value_int64=2),
        case("Binarizer", x, domain=ML, threshold=0.2),
        case("ArrayFeatureExtractor", x, ints(2, 0), domain=ML),
        case("ArrayFeatureExtractor", floats(3, 4, 5), ints(2, 0), domain=ML),
        case("FeatureVectorizer", x, d.real(4, 2), domain=ML, inputdimensions=[3, 2]),
        case(
            "LabelEncoder",
            d.whole(5, low=0, high=4),
            domain=ML,
            keys_int64s=[1, 2],
            values_int64s=[10, 20],
            default_int64=-3,
        ),
        case(
            "LinearRegressor",
            x,
            domain=ML,
            coefficients=[0.5, 1.0, -1.0, 2.0, 0.1, 0.3],
            intercepts=[0.2, 0.4],
            targets=2,
        ),
        case(
            "LinearClassifier",
            x,
            domain=ML,
            outputs=2,
            coefficients=[0.5, 1.0, -1.0, 2.0, 0.1, 0.3, -1.0, 0.7, 0.2],
            intercepts=[0.2, 0.4, -0.1],
            classlabels_ints=[4, 5, 6],
            post_transform="SOFTMAX",
        ),
    ]


def rest(d: Draw) -> list[dict[str, Any]]:
    x = d.real(1, 2, 5, 6)
    modes = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    out = [
        case(
            "Resize",
            x,
            None,
            floats(1, 1, d.pick(1.6, 2.0), 0.7),
            fixed=(2,),
            mode=m,
            coordinate_transformation_mode=c,
        )
        for m in ("nearest", "linear", "cubic")
        for c in modes
    ]
    out += [
        case("Resize", x, None, None, ints(1, 2, 8, 4), fixed=(3,), mode=m, nearest_mode=n)
        for m, n in (
            ("nearest", "floor"),
            ("nearest", "ceil"),
            ("nearest", "round_prefer_ceil"),
            ("linear", "floor"),
            ("cubic", "floor"),
        )
    ]
    q, kv = d.real(2, 4, 5, 8), (d.real(2, 2, 5, 8), d.real(2, 2, 5, 8))
    grid = d.unit(1, 4, 3, 2)
    logs = np.log(np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=np.float32))
    return [
        *out,
        *[
            case("GridSample", x, grid, opsets=(20, 22), mode=m, padding_mode=p, align_corners=a)
            for m in ("linear", "nearest", "cubic")
            for p, a in (("zeros", 0), ("border", 1), ("reflection", 0))
        ],
        case(
            "AffineGrid",
            d.real(2, 2, 3),
            ints(2, 3, 4, 5),
            fixed=(1,),
            opsets=(20, 22),
            align_corners=d.pick(0, 1),
        ),
        case("Col2Im", d.real(1, 2 * 4, 12), ints(4, 5), ints(2, 2), fixed=(1, 2)),
        case("Col2Im", d.real(1, 2 * 4, 25), ints(4, 5), ints(2, 2), fixed=(1, 2), pads=[1, 0, 1, 1]),
        case("Attention", q, q, q, opsets=(23,)),
        case("Attention", q, *kv, opsets=(23,), scale=0.3),
        case(
            "Attention",
            d.real(2, 5, 16),
            d.real(2, 6, 16),
            d.real(2, 6, 16),
            opsets=(23,),
            q_num_heads=4,
            kv_num_heads=4,
        ),
        case("Attention", q, q, q, opsets=(23,), is_causal=1),
        case("Attention", q, q, q, d.real(5, 5), opsets=(23,)),
        case("Attention", q, q, q, opsets=(23,), softcap=0.7),
        case("RotaryEmbedding", d.real(2, 3, 5, 8), d.unit(2, 5, 4), d.unit(2, 5, 4), opsets=(23,)),
        case(
            "RotaryEmbedding",
            d.real(2, 3, 5, 8),
            d.unit(7, 4),
            d.unit(7, 4),
            d.whole(2, 5, low=0, high=7),
            opsets=(23,),
            interleaved=1,
        ),
        case("DFT", d.real(2, 6, 1), opsets=(17, 19)),
        case("DFT", d.real(2, 6, 2), None, ints(1).reshape(()), fixed=(2,), opsets=(20, 22)),
        case("DFT", d.real(2, 6, 1), opsets=(17,), onesided=1),
        case("DFT", d.real(2, 6, 2), opsets=(17,), inverse=1),
        *[
            case(op, ints(9).reshape(()), fixed=(0,), periodic=p)
            for op in ("HannWindow", "HammingWindow", "BlackmanWindow")
            for p in (0, 1)
        ],
        case("NegativeLogLikelihoodLoss", logs, ints(1, 2)),
        case("SoftmaxCrossEntropyLoss", d.real(4, 3), d.whole(4, low=0, high=3), outputs=2),
        case(
            "SoftmaxCrossEntropyLoss", d.real(4, 3), d.whole(4, low=0, high=3), d.positive(3), reduction="sum"
        ),
    ]
