"""Nothing in a file runs, whichever way it is opened; what can't be read safely is refused with the reason."""

import functools
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import hostile
from farfield._regular_file import UnsafeFileError, read_json
from farfield.errors import FarfieldError
from farfield.graph import capture, read_program
from farfield.graph._program_text import _expression


@functools.cache
def gallery():
    folder = Path(tempfile.mkdtemp())
    marks = folder / "marks"
    marks.mkdir()
    return marks, hostile.programs(folder, marks), hostile.irregular(folder)


def words(text):
    return text.split()


NAMES = words(
    """weight opaque nested custom traversal sample sample_plain legacy_weights expression expression_nested
    expression_attribute expression_power expression_call range target file_operator placeholder specification enum
    compiled unknown_member absolute link two_programs deep not_json list huge_size negative stride dtype
    missing_payload odd_bytes big_endian bomb overlap empty text cut accepted"""
)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_program_is_refused_and_nothing_runs(name):
    marks, files, _ = gallery()
    before = set(sys.modules)
    with pytest.raises(UnsafeFileError) as refused:
        read_program(files[name])
    assert not list(marks.iterdir())
    assert "antigravity" not in set(sys.modules) - before
    assert "--trust" in str(refused.value)
    assert len(str(refused.value)) < 700
    with pytest.raises(FarfieldError):
        capture(str(files[name]))
    assert not list(marks.iterdir())


def test_every_hostile_program_is_tried():
    _, files, _ = gallery()
    assert set(files) == {*NAMES, "guards"}


def test_guards_are_left_out():
    """Code that guards a program's inputs is not needed: it is dropped, and the rest is read."""
    marks, files, _ = gallery()
    program = read_program(files["guards"])
    program.module()(torch.zeros(3, 4))
    assert not list(marks.iterdir())


@pytest.mark.parametrize("name", ["pipe", "device", "link_to_device", "folder", "socket", "absent"])
def test_what_is_no_regular_file_is_refused_at_once(name):
    _, _, paths = gallery()
    with pytest.raises(UnsafeFileError):
        read_program(paths[name])
    with pytest.raises(FarfieldError):
        capture(str(paths[name]))


class Shared(nn.Module):
    """Tied weights, a buffer, several types, an empty tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.turned = nn.Parameter(torch.randn(3, 2))
        self.register_buffer("whole", torch.arange(3))
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x, *, scale):
        y = torch.relu(self.first(x["a"])) + self.second(x["b"][0]) * scale
        return {"y": y @ self.turned + self.whole[:2], "size": self.nothing.sum()}


@pytest.mark.parametrize("dynamic", [None, torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC], ids=str)
def test_a_good_program_is_read_as_torch_reads_it(tmp_path, dynamic):
    torch.manual_seed(0)
    model = Shared().eval()
    args, kwargs = ({"a": torch.randn(4, 3), "b": [torch.randn(4, 3)]},), {"scale": torch.randn(())}
    batch = {0: dynamic}  # torch notes on the example, and writes into the file, that a size is DYNAMIC
    shapes = {"x": {"a": batch, "b": [batch]}, "scale": None} if dynamic else None
    torch.export.save(torch.export.export(model, args, kwargs, dynamic_shapes=shapes), tmp_path / "m.pt2")
    ours = read_program(tmp_path / "m.pt2")
    theirs = torch.export.load(tmp_path / "m.pt2")
    assert str(ours.graph) == str(theirs.graph)
    assert ours.range_constraints == theirs.range_constraints
    for name, tensor in theirs.state_dict.items():
        assert torch.equal(ours.state_dict[name], tensor)
    expected = model(*args, **kwargs)
    got = ours.module()(*args, **kwargs)
    assert torch.equal(got["y"], expected["y"])


def test_sizes_computed_from_sizes_are_read(tmp_path):
    class Sizes(nn.Module):
        def forward(self, x):
            n = x.shape[0]
            return torch.cat([x, x.new_ones(2 * n + 1, 2)]).mean() + torch.arange(n * n).sum() + (n - 3) % 5

    batch = {0: torch.export.Dim("b", min=4, max=64)}
    exported = torch.export.export(Sizes(), (torch.zeros(8, 2),), dynamic_shapes={"x": batch})
    torch.export.save(exported, tmp_path / "m.pt2")
    x = torch.randn(10, 2)
    assert torch.equal(read_program(tmp_path / "m.pt2").module()(x), Sizes()(x))


def test_weights_are_mapped_and_private(tmp_path):
    """Writing into a weight changes neither the file nor what another reader sees."""
    path = hostile.saved(tmp_path / "m.pt2")
    content = path.read_bytes()
    program = read_program(path)
    with torch.no_grad():
        next(iter(program.parameters())).fill_(7.0)
    assert path.read_bytes() == content
    assert not bool((next(iter(read_program(path).parameters())) == 7.0).any())


@pytest.mark.parametrize(
    "text",
    ["s0", "3", "-2*s0 + 7", "s0//2 % 5", "Max(1, s0)", "Mul(Integer(2), Symbol('s3', positive=True, integer=True))",
     "FloorDiv(Symbol('s1', integer=True), Integer(4))", "Pow(Symbol('s1', integer=True), Integer(2))", "s0**2"],
)  # fmt: skip
def test_sizes_are_expressions(text):
    _expression(text, "a size")


@pytest.mark.parametrize(
    "text",
    ["", "__import__('os')", "s0.__class__", "exec", "open('x')", "s0 if s0 else 1", "[1]", "lambda: 1", "'a'", "1.5",
     "2**10000", "Pow(Integer(9), Pow(Integer(9), Integer(9)))", "f'{1}'", "(s0:=3)", "s0;s1", "Symbol(s0)",
     "1" * 5000,
     "Symbol('a', commutative=print)", "Integer('3')", "Max(*s0)", "ﬀ", "s0\n"  + "+" * 3],
)  # fmt: skip
def test_nothing_else_is(text):
    with pytest.raises(UnsafeFileError):
        _expression(text, "a size")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"{", b""])
def test_damaged_json_is_one_sentence(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UnsafeFileError, match=r"JSON|nested"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_bytes(b"1" * 20)
    with pytest.raises(UnsafeFileError, match="bytes"):
        read_json(tmp_path / "y.json", limit=10)
