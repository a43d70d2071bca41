"""Reading a ``.pt2`` file without running anything in it.

``torch.export.load`` unpickles weights, constants and sample inputs and evaluates symbolic expressions, so code in a
file from a stranger runs. Here the archive is opened by hand. Members that are not known, compressed, linked,
duplicated or larger than the file are refused, and so is every pickle. Tensors are read as raw bytes, mapped from the
file. The program's text is checked word by word (``_program_text``) before torch's own deserializer builds the graph.
Sample inputs are never read: the program says the shapes.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._regular_file import UnsafeFileError, open_regular
from farfield.graph._program_text import checked_program

__all__ = ["read_program"]

MOST_MEMBERS = 200_000
LONGEST_TEXT = 1 << 30
"""Bytes of the program's text and of each table of tensors."""
_MODEL = r"(?P<model>[A-Za-z0-9_\-]{1,100})"
_MEMBERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id|version|\.format_version",
        rf"models/{_MODEL}\.json",
        (
            rf"data/weights/{_MODEL}_weights_config\.json|data/constants/(?P<constants>[A-Za-z0-9_\-]{{1,100}})"
            r"_constants_config\.json"
        ),
        r"data/weights/weight_\d{1,9}|data/constants/tensor_\d{1,9}",
        r"data/sample_inputs/[A-Za-z0-9_\-]{1,100}\.pt",
        r"extra/[A-Za-z0-9_.\-]{1,200}",
    )
)
_TENSOR_PICKLES = frozenset(
    [
        "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "collections OrderedDict",
        # Of a tensor with notes on it, as torch.export makes on an example with a size that is Dim.DYNAMIC.
        "torch._tensor _rebuild_from_type_v2", "torch Tensor",
    ]
)  # fmt: skip
_WAY_OUT = (
    "If you trust whoever made the file, --trust reads it with torch.export.load, which can run code in it."
)


def read_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """The exported program in a ``.pt2`` file; nothing in the file is run.

    Weights are mapped from the file, so a model costs memory only as it is used.

    Raises
    ------
    UnsafeFileError
        With what in the file can't be read safely.
    """
    try:
        with open_regular(path) as file:
            return _read(file)
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{os.fspath(path)!r} is refused. {error} {_WAY_OUT}") from error


def _read(file: BinaryIO) -> ExportedProgram:
    members = _members(file)
    models = [name for name in members if name.startswith("models/")]
    if len(models) != 1:
        raise UnsafeFileError(f"A .pt2 file holds one program; this one holds {len(models)}.")
    model = Path(models[0]).stem
    for name in members:
        if name.startswith("data/sample_inputs/"):
            _refuse_code(name, _bytes(file, members[name], LONGEST_TEXT))
    order = _bytes(file, members["byteorder"], 16) if "byteorder" in members else b"little"
    if order != b"little":
        raise UnsafeFileError(
            f"The tensors are stored in the byte order {order!r}; only little-endian is read."
        )
    text = checked_program(_bytes(file, members[models[0]], LONGEST_TEXT))
    size = os.fstat(file.fileno()).st_size
    # A private map: what a program writes into its weights stays in memory.
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    tensors = {
        kind: _tensors(file, mapped, members, f"data/{kind}/", f"{model}_{kind}_config.json")
        for kind in ("weights", "constants")
    }
    return _deserialized(text, tensors["weights"], tensors["constants"])


def _members(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Member name, without the archive's own folder → (offset of its bytes, length)."""
    size = os.fstat(file.fileno()).st_size
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, NotImplementedError, struct.error, ValueError) as error:
        raise UnsafeFileError(f"It is not a .pt2 file, which is a zip archive: {error}.") from error
    infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        raise UnsafeFileError(f"The archive has {len(infos):,} members; at most {MOST_MEMBERS:,} are read.")
    if sum(info.file_size for info in infos) > size:
        raise UnsafeFileError(
            "The archive's members are larger together than the file: it would unpack to more."
        )
    found: dict[str, tuple[int, int]] = {}
    roots = set()
    for info in infos:
        root, _, name = info.filename.partition("/")
        roots.add(root)
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.compress_size != info.file_size
            or info.flag_bits & 1
        ):
            raise UnsafeFileError(
                f"The member {info.filename[:80]!r} is compressed or encrypted; torch stores plainly."
            )
        if info.external_attr >> 28 == 0xA:
            raise UnsafeFileError(f"The member {info.filename[:80]!r} is a link.")
        if name in found or len(roots) > 1:
            raise UnsafeFileError(
                f"The member {info.filename[:80]!r} occurs twice, or lies in a second folder."
            )
        if not any(pattern.fullmatch(name) for pattern in _MEMBERS):
            raise UnsafeFileError(
                f"The archive holds {info.filename[:80]!r}, which is code, a pickle or not known."
            )
        found[name] = (_start(file, info, size), info.file_size)
    return found


def _start(file: BinaryIO, info: zipfile.ZipInfo, size: int) -> int:
    """Where a member's bytes begin: behind its local header, whose lengths are its own."""
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise UnsafeFileError(f"The member {info.filename[:80]!r} has no header where the archive says.")
    name, extra = struct.unpack("<HH", header[26:30])
    start = info.header_offset + 30 + name + extra
    if start + info.file_size > size:
        raise UnsafeFileError(f"The member {info.filename[:80]!r} ends behind the end of the file.")
    return int(start)


def _bytes(file: BinaryIO, place: tuple[int, int], limit: int) -> bytes:
    start, length = place
    if length > limit:
        raise UnsafeFileError(f"A member has {length:,} bytes where at most {limit:,} are read.")
    file.seek(start)
    return file.read(length)


def _refuse_code(name: str, data: bytes) -> None:
    """Raise if a pickle of sample inputs names anything but tensors. It is looked at, never loaded."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            pickles = [n for n in inner.namelist() if n.endswith("data.pkl")]
            texts = [inner.read(n) for n in pickles if inner.getinfo(n).file_size <= 1 << 24]
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, RuntimeError) as error:
        raise UnsafeFileError(
            f"The member {name!r} holds sample inputs that are no tensors: {error}."
        ) from error
    if len(texts) != 1:
        raise UnsafeFileError(f"The member {name!r} holds no sample inputs that can be looked through.")
    recent: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(texts[0]):
            if isinstance(argument, str):
                recent = [*recent[-1:], argument]
            called = argument if operation.name in ("GLOBAL", "INST") else None
            if operation.name == "STACK_GLOBAL":
                called = " ".join(recent)
            if called is not None and not _is_tensor(str(called)):
                raise UnsafeFileError(
                    f"The sample inputs in {name!r} are a pickle that calls {str(called)[:60].replace(' ', '.')!r}."
                )
    except UnsafeFileError:
        raise
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise UnsafeFileError(f"The sample inputs in {name!r} are a damaged pickle: {error}.") from error


def _is_tensor(called: str) -> bool:
    module, _, name = called.partition(" ")
    storage = module == "torch" and (
        name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)
    )
    return called in _TENSOR_PICKLES or storage


def _tensors(
    file: BinaryIO, mapped: mmap.mmap, members: Mapping[str, tuple[int, int]], folder: str, table: str
) -> dict[str, Any]:
    """Qualified name → tensor over the file's own bytes; names that share a payload share storage."""
    if folder + table not in members:
        raise UnsafeFileError(f"The archive has no {folder + table!r}: it was written by an older torch.")
    try:
        config = json.loads(_bytes(file, members[folder + table], LONGEST_TEXT))["config"]
        entries = dict(config.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnsafeFileError(f"{folder + table!r} is no table of tensors.") from error
    found: dict[str, Any] = {}
    payloads: dict[tuple[str, torch.dtype], Tensor] = {}
    for name, entry in entries.items():
        what = f"The tensor {str(name)[:80]!r}"
        try:
            place, meta = str(entry["path_name"]), entry["tensor_meta"]
            if entry["use_pickle"] or meta is None:
                raise UnsafeFileError(f"{what} is stored as a pickle.")
            dtype = _dtype(meta["dtype"])
            sizes, strides = ([_number(v) for v in meta[key]] for key in ("sizes", "strides"))
            offset = _number(meta["storage_offset"])
        except UnsafeFileError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UnsafeFileError(f"{what} is described wrongly: {error!r}.") from error
        if folder + place not in members:
            raise UnsafeFileError(f"{what} names the payload {place[:80]!r}, which is not there.")
        flat = payloads.setdefault((place, dtype), _payload(mapped, members[folder + place], dtype))
        last = offset + sum((s - 1) * t for s, t in zip(sizes, strides, strict=False) if s > 0)
        if len(sizes) != len(strides) or (0 not in sizes and not 0 <= last < flat.numel()):
            raise UnsafeFileError(f"{what} reaches beyond its payload.")
        tensor = flat.as_strided(sizes, strides, offset)
        found[str(name)] = nn.Parameter(tensor, requires_grad=False) if entry.get("is_param") else tensor
    return found


def _payload(mapped: mmap.mmap, place: tuple[int, int], dtype: torch.dtype) -> Tensor:
    start, length = place
    count = length // dtype.itemsize
    if count * dtype.itemsize != length:
        raise UnsafeFileError("A tensor's bytes do not divide into numbers of its type.")
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if start % dtype.itemsize:
        return torch.frombuffer(bytearray(mapped[start : start + length]), dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start)


def _dtype(code: Any) -> torch.dtype:
    from torch._export.serde import serialize

    table: Mapping[int, torch.dtype] = {int(k): v for k, v in serialize._SERIALIZE_TO_TORCH_DTYPE.items()}
    if code not in table:
        raise UnsafeFileError(f"A tensor has the type {str(code)[:20]!r}, which is not known.")
    return table[code]


def _number(value: Any) -> int:
    number = value["as_int"]
    if type(number) is not int or not 0 <= number < 1 << 60:
        raise ValueError(f"a size or stride is {str(number)[:40]}")
    return number


def _deserialized(text: bytes, weights: dict[str, Any], constants: dict[str, Any]) -> ExportedProgram:
    """The graph, by torch's own deserializer, from text that was checked and tensors that were read."""
    try:
        from torch._export.serde import serialize

        artifact = serialize.SerializedArtifact(text, weights, constants, None)  # type: ignore[arg-type]
    except (ImportError, TypeError) as error:
        raise UnsafeFileError(
            f"This torch ({torch.__version__}) offers no way to read a program without unpickling; use 2.13 or newer."
        ) from error
    try:
        return serialize.deserialize(artifact)
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise UnsafeFileError(
            f"This torch ({torch.__version__}) can't read the program: {type(error).__name__}: {first}."
        ) from error
