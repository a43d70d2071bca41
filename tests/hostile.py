# ruff: noqa: E501 (a table: one hostile file a line)
"""Files from strangers: each would leave a mark (a folder of its own name) if anything in it ran."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import stat
import struct
import zipfile
from pathlib import Path

import torch
from torch import nn


class Mark:
    """Unpickled, it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self):
        return (os.mkdir, (self.place,))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("shift", torch.arange(2.0))

    def forward(self, x):
        return torch.tanh(self.linear(x)) + self.shift


def saved(path: Path, **options) -> Path:
    torch.export.save(torch.export.export(Model().eval(), (torch.zeros(3, 4),), **options), str(path))
    return path


def torched(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def altered(
    source: Path, out: Path, change=lambda name, data: data, added=(), compression=zipfile.ZIP_STORED
) -> Path:
    """The archive with members changed, removed (``None``) or added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w", compression) as new:
        root = old.namelist()[0].split("/")[0]
        for item in old.namelist():
            content = change(item.partition("/")[2], old.read(item))
            if content is not None:
                new.writestr(item, content)
        for item, content in added:
            new.writestr(item if isinstance(item, zipfile.ZipInfo) else f"{root}/{item}", content)
    return out


def in_json(member: str, change):
    """A change of one JSON member's plain data."""

    def of(name, data):
        if name != member:
            return data
        found = json.loads(data)
        change(found)
        return json.dumps(found).encode()

    return of


def everywhere(key: str, value):
    """A change that puts a value under a key, wherever the key stands in the program."""

    def walk(found):
        if isinstance(found, dict):
            for name in found:
                if name == key and isinstance(found[name], str):
                    found[name] = value
                else:
                    walk(found[name])
        elif isinstance(found, list):
            for item in found:
                walk(item)

    return in_json("models/model.json", walk)


def _first_input(found, name):
    text = json.dumps(found).replace('"x"', json.dumps(name))
    found.clear()
    found.update(json.loads(text))


def programs(folder: Path, marks: Path) -> dict[str, Path]:
    """Hostile and broken ``.pt2`` files by name."""
    plain = saved(folder / "plain.pt2")
    dynamic = saved(folder / "dynamic.pt2", dynamic_shapes={"x": {0: torch.export.Dim("b", min=2, max=100)}})
    weights, constants = (
        "data/weights/model_weights_config.json",
        "data/constants/model_constants_config.json",
    )
    text = "models/model.json"
    run = "__import__('os').mkdir({!r})"

    def first(found):
        return found["config"][next(iter(found["config"]))]

    def pickled_weight(name, data):
        if name == weights:
            return in_json(weights, lambda f: first(f).update(use_pickle=True))(name, data)
        return torched(Mark(marks / "weight")) if name == "data/weights/weight_0" else data

    def stored(place):
        entry = {"path_name": place, "is_param": False, "use_pickle": True, "tensor_meta": None}
        return in_json(constants, lambda f: f["config"].update(evil=entry))

    def node(found):
        return found["graph_module"]["graph"]["nodes"][0]

    def system(found):
        node(found)["target"] = "torch.os.mkdir"
        node(found)["inputs"] = [{"name": "path", "arg": {"as_string": str(marks / "target")}, "kind": 1}]

    def from_file(found):
        node(found)["target"] = "torch.ops.aten.from_file.default"

    def specification(kind, context):
        spec = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])
        return everywhere("in_spec", spec)

    def link(name):
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return info

    root = "plain"
    made = {
        "weight": (plain, pickled_weight, ()),
        "opaque": (plain, stored("opaque_obj_0"), [("data/constants/opaque_obj_0", pickle.dumps(Mark(marks / "opaque")))]),
        "nested": (plain, stored("opaque_obj_0/x"), [("data/constants/opaque_obj_0/x", pickle.dumps(Mark(marks / "nested")))]),
        "custom": (plain, stored("custom_obj_0"), [("data/constants/custom_obj_0", torched(Mark(marks / "custom")))]),
        "traversal": (plain, stored("../../x"), [("../../x", pickle.dumps(Mark(marks / "traversal")))]),
        "sample": (plain, lambda n, d: torched(Mark(marks / "sample")) if "sample_inputs" in n else d, ()),
        "sample_plain": (plain, lambda n, d: pickle.dumps(Mark(marks / "sample_plain")) if "sample_inputs" in n else d, ()),
        "legacy_weights": (plain, lambda n, d: None if n == weights else d, [("data/weights/model.pt", torched(Mark(marks / "legacy")))]),
        "expression": (dynamic, everywhere("expr_str", run.format(str(marks / "expression")) + " or Integer(3)"), ()),
        "expression_nested": (dynamic, everywhere("expr_str", f"Add(Integer(1), {run.format(str(marks / 'deep'))})"), ()),
        "expression_attribute": (dynamic, everywhere("expr_str", "Integer(1).__class__"), ()),
        "expression_power": (dynamic, everywhere("expr_str", "9**9**9**9"), ()),
        "expression_call": (dynamic, everywhere("expr_str", f"eval(Symbol({run.format(str(marks / 'call'))!r}))"), ()),
        "range": (dynamic, in_json(text, lambda f: f["range_constraints"].update({run.format(str(marks / "range")): {"min_val": 1, "max_val": 2}})), ()),
        "guards": (plain, in_json(text, lambda f: f.update(guards_code=[run.format(str(marks / "guards"))])), ()),
        "target": (plain, in_json(text, system), ()),
        "file_operator": (plain, in_json(text, from_file), ()),
        "placeholder": (plain, in_json(text, lambda f: _first_input(f, f"x={run.format(str(marks / 'name'))}")), ()),
        "specification": (plain, specification("collections.defaultdict", json.dumps({"default_factory_module": "antigravity", "default_factory_name": "geohash", "dict_context": []})), ()),
        "enum": (plain, specification("builtins.dict", json.dumps([{"__enum__": True, "fqn": "antigravity:fly", "name": "x"}])), ()),
        "compiled": (plain, lambda n, d: d, [("data/aotinductor/model/model.so", b"\x7fELF")]),
        "unknown_member": (plain, lambda n, d: d, [("data/other/thing", b"x")]),
        "absolute": (plain, lambda n, d: d, [(zipfile.ZipInfo("/etc/evil"), b"x")]),
        "link": (plain, lambda n, d: d, [(link(f"{root}/data/weights/weight_9"), b"/etc/passwd")]),
        "two_programs": (plain, lambda n, d: d, [("models/other.json", b"{}")]),
        "deep": (plain, lambda n, d: b"[" * 200_000 if n == text else d, ()),
        "not_json": (plain, lambda n, d: b"\xff\xfe{" if n == text else d, ()),
        "list": (plain, lambda n, d: b"[]" if n == text else d, ()),
        "huge_size": (plain, in_json(weights, lambda f: first(f)["tensor_meta"].update(sizes=[{"as_int": 1 << 40}])), ()),
        "negative": (plain, in_json(weights, lambda f: first(f)["tensor_meta"].update(storage_offset={"as_int": -8})), ()),
        "stride": (plain, in_json(weights, lambda f: first(f)["tensor_meta"].update(strides=[{"as_int": 1 << 20}, {"as_int": 1}])), ()),
        "dtype": (plain, in_json(weights, lambda f: first(f)["tensor_meta"].update(dtype=99)), ()),
        "missing_payload": (plain, lambda n, d: None if n == "data/weights/weight_0" else d, ()),
        "odd_bytes": (plain, lambda n, d: d[:-1] if n == "data/weights/weight_0" else d, ()),
        "big_endian": (plain, lambda n, d: b"big" if n == "byteorder" else d, ()),
    }  # fmt: skip
    files = {
        name: altered(source, folder / f"{name}.pt2", change, added)
        for name, (source, change, added) in made.items()
    }
    files["bomb"] = altered(
        plain,
        folder / "bomb.pt2",
        added=[("data/weights/weight_8", b"\0" * (1 << 24))],
        compression=zipfile.ZIP_DEFLATED,
    )
    files["overlap"] = overlapping(plain, folder / "overlap.pt2")
    for name, content in {
        "empty": b"",
        "text": b"print('accepted')",
        "cut": plain.read_bytes()[:1500],
    }.items():
        files[name] = folder / f"{name}.pt2"
        files[name].write_bytes(content)
    files["accepted"] = folder / "accepted.pt2"
    files["accepted"].write_bytes(pickle.dumps(Mark(marks / "accepted")))
    return files


def overlapping(source: Path, out: Path) -> Path:
    """An archive whose directory names one stored member a thousand times: small file, large contents."""
    data = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        largest = max(archive.infolist(), key=lambda i: i.file_size)
    root = largest.filename.split("/")[0]
    directory = b""
    for number in range(1000):
        name = f"{root}/data/weights/weight_{number}".encode()
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, largest.CRC, largest.file_size, largest.file_size,
            len(name), 0, 0, 0, 0, 0, largest.header_offset,
        ) + name  # fmt: skip
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1000, 1000, len(directory), len(data), 0)
    out.write_bytes(bytes(data) + directory + end)
    return out


def irregular(folder: Path) -> dict[str, Path]:
    """Paths that are no regular files, named as programs."""
    made = {
        name: folder / f"{name}.pt2"
        for name in ("pipe", "device", "link_to_device", "folder", "socket", "absent")
    }
    os.mkfifo(made["pipe"])
    made["device"] = Path("/dev/zero")
    made["link_to_device"].symlink_to("/dev/zero")
    made["folder"].mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(made["socket"]))
    server.close()
    return made
