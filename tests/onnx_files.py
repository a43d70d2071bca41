"""ONNX files from strangers: each is damaged, lies about itself, or points where it should not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small(rows: int | str = "n") -> onnx.ModelProto:
    """x → Gemm → Relu → MatMul → y, with a weight of more than a kilobyte."""
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.normal(size=(4, 80)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.normal(size=80).astype(np.float32), "b"),
        numpy_helper.from_array(rng.normal(size=(80, 1)).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["a"], name="bend"),
        helper.make_node("MatMul", ["a", "v"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 1])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def outside(model: onnx.ModelProto, location: str, **entries: object) -> onnx.ModelProto:
    """The first weight said to lie in another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


def changed(change) -> onnx.ModelProto:
    model = small()
    change(model.graph)
    return model


def _cycle(graph) -> None:
    graph.node[1].input[0] = "y"


def _undefined(graph) -> None:
    graph.node[1].input[0] = "nothing"


def _twice(graph) -> None:
    graph.node[1].output[0] = "h"


def _twin(graph) -> None:
    graph.initializer.add().CopyFrom(graph.initializer[1])


def _no_output(graph) -> None:
    graph.output[0].name = "nothing"


def _huge(graph) -> None:
    graph.initializer[0].dims[:] = [1 << 40, 1 << 40]


def _small_huge(graph) -> None:
    graph.initializer[1].dims[:] = [1 << 40]


def _negative(graph) -> None:
    graph.initializer[0].dims[:] = [-4, -80]


def _type(graph) -> None:
    graph.initializer[0].data_type = 99


def _wide_input(graph) -> None:
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 45


def _text_input(graph) -> None:
    graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def _sequence_input(graph) -> None:
    graph.input[0].type.Clear()
    graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1


def _long_name(graph) -> None:
    graph.node[0].name = "x" * 5000


def hostile(folder: Path) -> dict[str, Path]:
    """Name → a file that is refused."""
    folder.mkdir(exist_ok=True)
    secret = folder.parent / "secret.bin"
    secret.write_bytes(bytes(4 * 4 * 80))
    (folder / "inside.bin").write_bytes(bytes(4 * 4 * 80))
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe.bin")
    plain = small().SerializeToString()
    renamed = plain.replace(b"bend", b"be\xff\xfe")
    old, functions, sparse = small(), small(), small()
    old.opset_import[0].version = 5
    functions.functions.add(name="f", domain="d")
    sparse.graph.sparse_initializer.add()
    models = {
        "cycle": changed(_cycle), "undefined": changed(_undefined), "twice": changed(_twice), "twin": changed(_twin),
        "no_output": changed(_no_output), "huge": changed(_huge), "small_huge": changed(_small_huge),
        "negative": changed(_negative), "type": changed(_type), "wide_input": changed(_wide_input),
        "text_input": changed(_text_input), "sequence_input": changed(_sequence_input),
        "long_name": changed(_long_name),
        "traversal": outside(small(), "../secret.bin"), "absolute": outside(small(), str(secret)),
        "backslash": outside(small(), "..\\secret.bin"), "symlink": outside(small(), "link.bin"),
        "linked_folder": outside(small(), "linked/secret.bin"), "absent": outside(small(), "nothing.bin"),
        "no_location": outside(small(), ""), "pipe": outside(small(), "pipe.bin"),
        "folder": outside(small(), "."), "drive": outside(small(), "c:secret.bin"),
        "beyond": outside(small(), "inside.bin", offset=16, length=4 * 4 * 80),
        "before": outside(small(), "inside.bin", offset=-16), "no_number": outside(small(), "inside.bin", offset="x"),
        "short": outside(small(), "inside.bin", length=8),
        "old": old, "functions": functions, "sparse": sparse,
    }  # fmt: skip
    contents = {name: model.SerializeToString() for name, model in models.items()}
    contents |= {
        "empty": b"",
        "text": b"this is not a model at all",
        "cut": plain[: len(plain) // 2],
        "utf8": renamed,
        "two_graphs": plain + plain,
        "zeros": bytes(4096),
    }
    paths = {}
    for name, content in contents.items():
        paths[name] = folder / f"{name}.onnx"
        paths[name].write_bytes(content)
    paths["is_pipe"] = folder / "is_pipe.onnx"
    os.mkfifo(paths["is_pipe"])
    paths["is_folder"] = folder / "is_folder.onnx"
    paths["is_folder"].mkdir()
    paths["is_absent"] = folder / "is_absent.onnx"
    return paths
