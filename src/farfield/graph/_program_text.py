"""The text of an exported program, checked word by word before torch sees it.

torch turns this text into objects by ``sympy.sympify`` (which evaluates Python), by ``getattr`` chains from the
module ``torch``, by importing modules that a tree specification names, and by writing node names into source code
that it runs. So nothing reaches torch that is not on the lists here: expressions follow a grammar of integers, names,
+ − · // % min max; operators are ATen's; names are identifiers; containers are tuples, lists and dictionaries.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from farfield._regular_file import UnsafeFileError

__all__ = ["checked_program"]

DEEPEST = 200
LONGEST_EXPRESSION = 4000
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_PATH = re.compile(r"[A-Za-z0-9_\-]{1,255}(\.[A-Za-z0-9_\-]{1,255})*")
_ATEN = re.compile(r"torch\.ops\.(aten|prims)\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FUNCTIONS = _words(
    """Add Mul Min Max Mod PythonMod FloorDiv CleanDiv CeilDiv TruncToInt FloorToInt CeilToInt ToFloat IntTrueDiv
    Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan And Or Not"""
)
_SIMPLE = _words(
    """_operator.add _operator.sub _operator.mul _operator.floordiv _operator.truediv _operator.mod _operator.pow
    _operator.neg _operator.pos _operator.abs _operator.eq _operator.ne _operator.lt _operator.le _operator.gt
    _operator.ge _operator.and_ _operator.or_ _operator.not_ _operator.getitem
    torch.sym_float torch.sym_int torch.sym_max torch.sym_min torch.sym_not torch.sym_ite torch.sym_sum
    torch._sym_sqrt math.ceil math.floor math.trunc math.sqrt
    torch.ops.higher_order.wrap_with_set_grad_enabled torch.ops.higher_order.wrap_with_autocast"""
)
_CONTAINERS = frozenset(["builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"])
_PLAIN_TEXT = frozenset(["as_string", "as_strings", "torch_version", "stack_trace", "nn_module_stack"])
_NAMED_BY_KEY = frozenset(["tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"])
_KEPT_METADATA = ("stack_trace", "nn_module_stack")
_CODE = frozenset(["as_custom_obj", "custom_obj_name", "class_fqn", "as_script_object"])


def checked_program(text: bytes) -> bytes:
    """The same program without what is not needed, as JSON that torch may read.

    Raises
    ------
    UnsafeFileError
        With the first thing in it that is on no list.
    """
    try:
        program = json.loads(text)
    except RecursionError:
        raise UnsafeFileError("The program is nested too deeply.") from None
    except ValueError as error:
        raise UnsafeFileError(f"The program is not JSON: {error}.") from error
    if not isinstance(program, dict) or not isinstance(program.get("graph_module"), dict):
        raise UnsafeFileError("The program has no graph.")
    program["guards_code"] = []
    program["graph_module"]["metadata"] = {}
    calls = program["graph_module"].get("module_call_graph")
    # Of modules inside only the names are kept: how they are called matters to nobody here.
    program["graph_module"]["module_call_graph"] = [
        entry if not place else {"fqn": entry.get("fqn", ""), "signature": None}
        for place, entry in enumerate(calls if isinstance(calls, list) else [])
        if isinstance(entry, dict)
    ]
    for name in program.get("range_constraints") or {}:
        _expression(name, "a range constraint")
    return json.dumps(_checked(program, "", 0)).encode()


def _checked(value: Any, key: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise UnsafeFileError("The program is nested too deeply.")
    if isinstance(value, dict):
        if key == "metadata":
            value = {k: v for k, v in value.items() if k in _KEPT_METADATA and isinstance(v, str)}
        if key == "custom_obj_values" and value:
            raise UnsafeFileError("The program uses objects that are stored as code or pickles.")
        for name in value:
            if name in _CODE and value[name] is not None:
                raise UnsafeFileError(
                    f"The program holds {name!r}: an object that is stored as code or a pickle."
                )
            if key in _NAMED_BY_KEY or key == "as_string_to_argument":
                _match(_IDENTIFIER, name, "a name")
        return {name: _checked(item, name, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, key, depth + 1) for item in value]
    return _text(value, key) if isinstance(value, str) else value


def _text(value: str, key: str) -> str:
    if key in _PLAIN_TEXT:
        return value
    if key == "type":  # of a device: what was exported elsewhere is read into main memory
        return "cpu"
    rule = _RULES.get(key)
    if rule is None:
        raise UnsafeFileError(
            f"The program holds a text under {key!r}, which is none that is known: {value[:60]!r}."
        )
    rule(value, f"{key!r} of the program")
    return value


def _match(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value) or "__" in value.split(".")[0][:2]:
        raise UnsafeFileError(f"{what} is not a plain name: {value[:60]!r}.")


def _name(value: str, what: str) -> None:
    if value:
        _match(_IDENTIFIER, value, what)


def _not_finite(value: str, what: str) -> None:
    """What JSON has no number for, as torch writes it."""
    if value not in ("Infinity", "-Infinity", "NaN"):
        raise UnsafeFileError(f"{what} is no number: {value[:60]!r}.")


def _qualified(value: str, what: str) -> None:
    if value and not _PATH.fullmatch(value):
        raise UnsafeFileError(f"{what} is not a dotted name: {value[:60]!r}.")


def _verifier(value: str, what: str) -> None:
    if value not in ("TRAINING", "ATEN", "EDGE"):
        raise UnsafeFileError(f"{what} is a dialect that is not known: {value[:60]!r}.")


def _operator(value: str, what: str) -> None:
    """Only operators of torch itself that compute: no attribute of another module, no file, no code."""
    found = _ATEN.fullmatch(value)
    if found is None:
        if value not in _SIMPLE:
            raise UnsafeFileError(f"The program calls {value[:80]!r}, which is no operator of torch's own.")
        return
    packet = getattr(getattr(torch.ops, found[1]), found[2], None)
    overload = getattr(packet, found[3], None)
    schema = getattr(overload, "_schema", None)
    if schema is None:
        raise UnsafeFileError(f"This torch ({torch.__version__}) has no operator {value!r}.")
    if any("file" in argument.name or "path" in argument.name for argument in schema.arguments):
        raise UnsafeFileError(f"The program calls {value!r}, which opens files.")


def _expression(value: str, what: str) -> None:
    """Integers, names, + − · // % and min, max, plain or as sympy writes them: the grammar of sizes."""
    if len(value) <= LONGEST_EXPRESSION and value.isascii():
        try:
            tree = ast.parse(value.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = None
        if tree is not None and _is_size(tree):
            return
    raise UnsafeFileError(f"{what} is more than integers, names, + − * // % min and max: {value[:80]!r}.")


def _is_size(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int) and abs(value) < 1 << 63
        case ast.Name(id=name):
            return (
                bool(_IDENTIFIER.fullmatch(name)) and not name.startswith("_") and name not in dir(builtins)
            )
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_size(operand)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _is_power(left, right)
        case ast.BinOp(
            op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), left=left, right=right
        ):
            return _is_size(left) and _is_size(right)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=assumed):
            plain = all(isinstance(k.value, ast.Constant) and type(k.value.value) is bool for k in assumed)
            return plain and bool(_IDENTIFIER.fullmatch(name))
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _is_size(number) and not isinstance(number, ast.Call | ast.Name)
        case ast.Call(func=ast.Name(id="Pow"), args=[left, right], keywords=[]):
            return _is_power(left, right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and all(_is_size(argument) for argument in args)
    return False


def _is_power(base: ast.AST, exponent: ast.AST) -> bool:
    """A small power: 9**9**9 would keep sympy busy for ever."""
    if isinstance(exponent, ast.Call) and getattr(exponent.func, "id", "") == "Integer" and exponent.args:
        exponent = exponent.args[0]
    small = isinstance(exponent, ast.Constant) and type(exponent.value) is int and exponent.value <= 8
    constant = not any(
        isinstance(n, ast.Name) and n.id not in _FUNCTIONS | {"Integer", "Pow"} for n in ast.walk(base)
    )
    return _is_size(base) and small and not (constant and not isinstance(base, ast.Constant))


def _specification(value: str, what: str) -> None:
    """A tree of tuples, lists and dictionaries of texts: other kinds make torch import what they name."""
    if not value:
        return
    try:
        tree = json.loads(value)
    except (ValueError, RecursionError):
        raise UnsafeFileError(f"{what} is not JSON.") from None
    nodes = [tree[1]] if isinstance(tree, list) and len(tree) == 2 else [None]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, Mapping) or not isinstance(node.get("children_spec"), list):
            raise UnsafeFileError(f"{what} is no tree specification.")
        nodes += node["children_spec"]
        context = node.get("context")
        plain = context in (None, "null", "[]") or (isinstance(context, str) and _texts(context))
        if node.get("type") not in (None, *_CONTAINERS) or not plain:
            raise UnsafeFileError(
                f"{what} holds a container of the type {str(node.get('type'))[:60]!r}, which is not a tuple, list or "
                "dictionary with texts as keys."
            )


def _texts(context: str) -> bool:
    try:
        keys = json.loads(context)
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, list) and all(isinstance(k, str | int) for k in keys)


_RULES: dict[str, Callable[[str, str], None]] = {
    "expr_str": _expression,
    "target": _operator,
    "as_operator": _operator,
    "in_spec": _specification,
    "out_spec": _specification,
    "verifiers": _verifier,
    **dict.fromkeys(("as_float", "as_floats", "as_float_lists"), _not_finite),
    **dict.fromkeys(("name", "as_name", "user_input_name", "forward_arg_names", "as_sym_int"), _name),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "fqn"), _qualified),
}
