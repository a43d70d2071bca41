"""ONNX files: read as data, translated node by node to torch.

Holds: ``read_onnx`` (path → module), ``write_spliced`` (a file with nodes put in), the table of ONNX operators.
May import: errors, graph, _regular_file.
Never: executes anything in a file, or judges what a model does.
"""

from __future__ import annotations

from farfield.graph.onnx._module import OnnxModule
from farfield.graph.onnx._read import is_onnx, onnx_example, open_onnx, open_sizes, read_onnx
from farfield.graph.onnx._unknown import unknown_reason
from farfield.graph.onnx._write import Addition, Splice, write_spliced
from farfield.graph.onnx.operators import onnx_operator_names

__all__ = [
    "Addition",
    "OnnxModule",
    "Splice",
    "is_onnx",
    "onnx_example",
    "onnx_operator_names",
    "open_onnx",
    "open_sizes",
    "read_onnx",
    "unknown_reason",
    "write_spliced",
]
