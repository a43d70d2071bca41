"""A model as a program: typed nodes over registered operators.

Holds: ``capture`` (module, exported program, ``.pt2`` or ``.onnx`` file → ``Program``), the operator registry, the
reference interpreter, recognition of norms.
May import: calibration, errors, gaussian, _regular_file.
Never: judges what a program does far away.
"""

from __future__ import annotations

from farfield.graph._archive import read_program
from farfield.graph._capture import CaptureError, capture, open_model
from farfield.graph._compose import compose
from farfield.graph._describe import describe, linear_part
from farfield.graph._export import export_model
from farfield.graph._faithful import call_model, differs, spread_rows
from farfield.graph._fixed_sizes import with_fixed_sizes
from farfield.graph._inputs import example_inputs
from farfield.graph._interpret import compute_node
from farfield.graph._node import InputSpec, Node
from farfield.graph._prepare import set_serving, untouched, unwrapped
from farfield.graph._program import Program
from farfield.graph._restrict import FREE, over_ellipsoid, real_size
from farfield.graph._rules import RuleTable, last_uses, walk
from farfield.graph._runnable import Runnable, as_module, copied, in_memory
from farfield.graph._saved import export_for_any_rows, result_names, write_program
from farfield.graph._size import SymbolicSize
from farfield.graph._state import ModelState
from farfield.graph._unknown import OpaqueNodeError
from farfield.graph.onnx import OnnxModule, is_onnx, onnx_operator_names, read_onnx
from farfield.graph.operators import (
    Example,
    Facts,
    NormSpec,
    Operator,
    Sample,
    Target,
    operator,
    operator_names,
    operators,
    register_operator,
    unregister_operator,
)

__all__ = [
    "FREE",
    "CaptureError",
    "Example",
    "Facts",
    "InputSpec",
    "ModelState",
    "Node",
    "NormSpec",
    "OnnxModule",
    "OpaqueNodeError",
    "Operator",
    "Program",
    "RuleTable",
    "Runnable",
    "Sample",
    "SymbolicSize",
    "Target",
    "as_module",
    "call_model",
    "capture",
    "compose",
    "compute_node",
    "copied",
    "describe",
    "differs",
    "example_inputs",
    "export_for_any_rows",
    "export_model",
    "in_memory",
    "is_onnx",
    "last_uses",
    "linear_part",
    "onnx_operator_names",
    "open_model",
    "operator",
    "operator_names",
    "operators",
    "over_ellipsoid",
    "read_onnx",
    "read_program",
    "real_size",
    "register_operator",
    "result_names",
    "set_serving",
    "spread_rows",
    "unregister_operator",
    "untouched",
    "unwrapped",
    "walk",
    "with_fixed_sizes",
    "write_program",
]
