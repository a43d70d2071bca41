"""An ONNX file is data: what it says is checked, and what can't be read safely is refused with the reason."""

import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import onnx_files
from farfield._regular_file import UnsafeFileError
from farfield.errors import FarfieldError, MissingExtraError
from farfield.graph import CaptureError, capture, read_onnx
from farfield.graph.onnx import onnx_example
from farfield.graph.onnx._wire import fields, length_delimited, read_frame, varint


def words(text):
    return text.split()


NAMES = words(
    """cycle undefined twice twin no_output huge small_huge negative type wide_input text_input sequence_input
    long_name traversal absolute backslash symlink linked_folder absent no_location pipe folder drive beyond before
    no_number short old functions sparse empty text cut utf8 two_graphs zeros is_pipe is_folder is_absent"""
)


@functools.cache
def gallery():
    return onnx_files.hostile(Path(tempfile.mkdtemp()) / "models")


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_is_refused_with_the_reason(name):
    with pytest.raises(FarfieldError) as refused:
        onnx_example(read_onnx(gallery()[name]))
    assert 20 < len(str(refused.value)) < 700
    with pytest.raises(CaptureError):
        capture(gallery()[name])


def test_every_hostile_file_is_tried():
    assert set(gallery()) == set(NAMES)


def test_a_good_file_is_read(tmp_path):
    path = tmp_path / "small.onnx"
    path.write_bytes(onnx_files.small().SerializeToString())
    module = read_onnx(path)
    x = torch.randn(3, 4)
    w, b, v = (torch.tensor(numpy_helper.to_array(t)) for t in onnx_files.small().graph.initializer)
    torch.testing.assert_close(module(x), torch.relu(x @ w + b) @ v)
    assert [name for name, _ in module.named_children()] == ["first", "bend", "last"]
    assert {name for name, _ in module.named_parameters()} == {"w", "b", "v"}
    torch.testing.assert_close(module(x=x), module(x))


def test_an_input_without_a_shape_is_no_scalar(tmp_path):
    """x − mean(x) of one number is 0; of a row it grows."""
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=1),
        onnx.helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "open", ends[:1], ends[1:])
    path = tmp_path / "open.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(CaptureError, match="no shape for its input 'x'"):
        capture(path)
    assert len(capture(path, torch.zeros(2, 4)).inputs[0].shape) == 2


def test_damaged_bytes_never_do_more_than_raise(tmp_path):
    """Bytes changed at random: the file is read, or refused by an error of ours."""
    plain = onnx_files.small().SerializeToString()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.onnx"
    refused = 0
    for _ in range(400):
        data = bytearray(plain)
        for place in rng.integers(0, len(data), size=int(rng.integers(1, 6))):
            data[place] = int(rng.integers(256))
        cut = int(rng.integers(1, len(data))) if rng.uniform() < 0.2 else len(data)
        path.write_bytes(bytes(data[:cut]))
        try:
            onnx_example(read_onnx(path))
        except FarfieldError:
            refused += 1
    assert refused > 50


def test_weights_beside_the_file_are_mapped(tmp_path):
    model, path = onnx_files.small(), tmp_path / "small.onnx"
    expected = numpy_helper.to_array(model.graph.initializer[0])
    onnx.save(model, path, save_as_external_data=True, location="sub.bin", size_threshold=100)
    module = read_onnx(path)
    np.testing.assert_array_equal(module.get_parameter("w").detach().numpy(), expected)
    before = (tmp_path / "sub.bin").read_bytes()
    with torch.no_grad():
        module.get_parameter("w").zero_()
    assert (tmp_path / "sub.bin").read_bytes() == before


def test_large_tensors_are_never_parsed():
    """What goes to protobuf is small whatever the weights weigh: the way past its limit of 2 GB."""
    data = onnx_files.small().SerializeToString()
    frame = read_frame(data)
    assert len(data) - len(frame.message) >= 4 * 4 * 80
    start, length = frame.payloads[0]
    assert data[start : start + length] == onnx_files.small().graph.initializer[0].raw_data


def test_without_onnx_the_command_is_named(tmp_path, monkeypatch):
    path = tmp_path / "small.onnx"
    path.write_bytes(onnx_files.small().SerializeToString())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'farfield\[onnx\]'"):
        read_onnx(path)


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Tile", "Expand", "Range", "HannWindow"])
def test_a_constant_larger_than_memory_is_never_made(operator, tmp_path):
    """A few bytes that stand for terabytes: nothing is allocated when the file is read."""
    size = 1 << 40
    given = {
        "ConstantOfShape": [np.array([size])],
        "Tile": [np.ones(2, np.float32), np.array([size])],
        "Expand": [np.ones(1, np.float32), np.array([size])],
        "Range": [np.array(0), np.array(size), np.array(1)],
        "HannWindow": [np.array(size)],
    }[operator]
    model = onnx_files.small()
    for k, value in enumerate(given):
        model.graph.initializer.append(numpy_helper.from_array(value, f"c{k}"))
    names = [f"c{k}" for k in range(len(given))]
    model.graph.node.insert(0, onnx.helper.make_node(operator, names, ["big"], name="big"))
    model.graph.output.append(onnx.ValueInfoProto(name="big"))
    path = tmp_path / "big.onnx"
    path.write_bytes(model.SerializeToString())
    module = read_onnx(path)
    assert "big" in dict(module.named_children())
    assert sum(t.numel() for t in module.state_dict().values()) < 1000


def test_fields_of_every_wire_type_are_stepped_over():
    """Numbers, eight bytes, bytes by length, four bytes; and nothing else."""
    fixed = varint(2 << 3 | 1) + bytes(8) + varint(4 << 3 | 5) + bytes(4)
    data = varint(1 << 3) + varint(300) + fixed + length_delimited(3, b"abc")
    found = list(fields(data, 0, len(data)))
    assert [(f.number, f.kind) for f in found] == [(1, 0), (2, 1), (4, 5), (3, 2)]
    assert [f.end - f.start for f in found] == [2, 8, 4, 3] and found[-1].end == len(data)
    for kind in (3, 4, 6, 7):
        with pytest.raises(UnsafeFileError, match=f"wire type {kind}"):
            list(fields(varint(1 << 3 | kind) + bytes(8), 0, 9))
    with pytest.raises(UnsafeFileError, match="reaches beyond"):
        list(fields(fixed[:-1], 0, len(fixed) - 1))
