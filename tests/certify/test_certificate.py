"""The certificate: invariants, JSON without loss, words that stay true, and a digest that nothing escapes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from farfield.certify._certificate import FORMAT, Certificate, model_hash
from farfield.certify._text import digits
from farfield.errors import InvalidValueError, MissingExtraError
from farfield.graph import capture


def certificate(**changes):
    lower = torch.tensor([[-2.0000000000000004, -1.0, -math.inf]], dtype=torch.float64)
    upper = torch.tensor([[3.0, -1.0, math.inf]], dtype=torch.float64)
    low = torch.tensor([[-1.0, -1.0, 0.1]], dtype=torch.float64)
    high = torch.tensor([[0.5, -1.0, 0.1]], dtype=torch.float64)
    side = [{"point": [0.1, 1e300], "direction": None, "value": v} for v in (-1.0, -1.0, 0.1)]
    other = [{"point": None, "direction": [1.0, 0.0], "value": v} for v in (0.5, -1.0, 0.1)]
    fields = {
        "lower": lower,
        "upper": upper,
        "attained_lower": low,
        "attained_upper": high,
        "witnesses": (side, other),
        "method": "dual",
        "assumptions": ("Token ids are those of the example.",),
        "model_hash": "ab" * 32,
        "input_shape": ((1, 2),),
        "input_dtype": ("float64",),
        "float_limit": 1e19,
        "proofs": ({"kind": "dual", "multipliers": [0.1, math.inf]},),
        "seconds": 1.5,
        "provenance": {"seed": 0},
    }
    return Certificate(**{**fields, **changes})


def bounded(**changes):
    one = torch.ones(2, dtype=torch.float64)
    return certificate(
        lower=-2 * one, upper=2 * one, attained_lower=-one, attained_upper=one, witnesses=((), ()), **changes
    )


def test_tightness_and_bounded():
    made = certificate()
    assert made.tightness.tolist() == [[pytest.approx(5 / 1.5), 1.0, math.inf]]
    assert not made.bounded and bounded().bounded
    assert made.tightness.dtype == torch.float64


def test_json_keeps_every_bit(tmp_path):
    made = certificate(domain={"kind": "box", "lower": [-math.inf, 0.1], "upper": [0.1, math.inf]})
    path = tmp_path / "cert.json"
    made.save(path)
    text = path.read_text()
    assert "Infinity" not in text and "NaN" not in text
    data = json.loads(text)
    assert data["format"] == FORMAT
    assert data["lower"] == [-2.0000000000000004, -1.0, "-inf"] and data["upper"] == [3.0, -1.0, "inf"]
    again = Certificate.load(path)
    assert again.to_dict() == made.to_dict()
    assert torch.equal(again.lower, made.lower) and torch.equal(again.upper, made.upper)
    assert again.lower.shape == (1, 3)
    assert again.proofs[0]["multipliers"] == [0.1, math.inf]
    assert again.domain["lower"] == [-math.inf, 0.1]
    assert again.witnesses[1][0] == {"point": None, "direction": [1.0, 0.0], "value": 0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": torch.tensor([[-0.5, -1.0, 0.0]])}, "flat output 0 lower is -0.5 and attained_lower -1.0"),
        ({"upper": torch.tensor([[3.0, -1.0, 0.0]])}, "refutes the bound"),
        ({"attained_lower": torch.tensor([[0.6, -1.0, 0.1]])}, "attained_upper"),
        ({"attained_upper": torch.tensor([[math.nan, -1.0, 0.1]])}, "nan"),
        ({"lower": torch.tensor([-3.0, -1.0, -9.0])}, "one shape"),
        ({"witnesses": ([], [{}])}, "two lists"),
        ({"domain": {"kind": "ball"}}, "halfspace"),
        ({"domain": {"kind": "box", "lower": [0.0]}}, "halfspace"),
        ({"domain": {"kind": "box", "lower": [1.0], "upper": [0.0]}}, "no lower end above"),
        ({"domain": {"kind": "box", "lower": [1.0], "upper": [2.0, 3.0]}}, "as many"),
    ],
)
def test_what_breaks_an_invariant_is_refused(changes, message):
    with pytest.raises(InvalidValueError, match=message):
        certificate(**changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "other/1"),
        ("shape", [7]),
        ("shape", [float("inf")]),
        ("shape", [10**400]),
        ("input_shape", [[float("inf")]]),
        ("lower", ["x"]),
        ("witnesses", None),
        ("witnesses", 3),
        ("domain", 7),
        ("method", "magic"),
        ("method", []),
    ],
)
def test_malformed_data_are_refused(key, value):
    data = {**certificate().to_dict(), key: value}
    from shape_checking import as_users_run_it

    with as_users_run_it(), pytest.raises(InvalidValueError):
        Certificate.from_dict(data)
    del data[key]
    with pytest.raises(InvalidValueError):
        Certificate.from_dict(data)


@pytest.mark.parametrize(("key", "value"), [("within", [1]), ("within", 5), ("arithmetic", 3)])
def test_malformed_optional_data_are_refused(key, value):
    with pytest.raises(InvalidValueError):
        Certificate.from_dict({**certificate().to_dict(), key: value})


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="can't be read"):
        Certificate.load(tmp_path / "absent.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InvalidValueError, match="JSON"):
        Certificate.load(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(InvalidValueError, match="list"):
        Certificate.load(tmp_path / "b.json")


def test_words_promise_bounded_and_nothing_more():
    text = str(bounded())
    assert "not a claim of accuracy" in text and "real arithmetic" in text and "tightness 2" in text
    assert "Token ids" in text and "1e19" in text
    assert "not bounded" in str(certificate())
    many = torch.arange(20, dtype=torch.float64)
    text = str(Certificate(many - 2, many + 2, many - 1, many + 1))
    assert "12 more" in text and len(text.splitlines()) < 14


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_printed_bounds_still_hold(value):
    assert float(digits(value, -1)) <= value <= float(digits(value, 1))
    if abs(value) > 1e-290:
        assert math.isclose(float(digits(value, 1)), value, rel_tol=3e-5)


def test_model_card_is_markdown_one_can_paste():
    card = bounded(output="out|put", assumptions=("a*b <script>",)).model_card("c.json", "pkg:make")
    assert "| out\\|put\\[0\\] | -2 | 2 | -1 | 1 | 2 |" in card
    assert "<script>" not in card.replace("\\<script\\>", "")
    assert (
        "farfield verify c.json pkg:make" in card and "ab" * 32 in card and "not a claim of accuracy" in card
    )
    assert "Not every output is bounded" in certificate().model_card()
    rows = torch.zeros(100, dtype=torch.float64)
    assert "and 68 more" in Certificate(rows - 1, rows + 1, rows, rows).model_card()


def test_embedding_keeps_tensors_and_metadata(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    tensors = {"w": torch.randn(3, 2), "h": torch.ones(2, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt", "mine": "yes"})
    made = certificate()
    made.embed(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    with safetensors.safe_open(tmp_path / "b.safetensors", framework="pt") as stored:
        metadata = stored.metadata()
        assert all(torch.equal(stored.get_tensor(k), t) for k, t in tensors.items())
    assert metadata["mine"] == "yes" and metadata["format"] == "pt"
    assert metadata["farfield.model_hash"] == made.model_hash
    assert json.loads(metadata["farfield.lower"])[0] == -2.0000000000000004
    assert all(isinstance(v, str) for v in made.to_safetensors_metadata().values())
    with pytest.raises(InvalidValueError, match="no file"):
        made.embed(tmp_path / "none.safetensors", tmp_path / "b.safetensors")


def test_embedding_without_safetensors_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"farfield\[certify\]"):
        certificate().embed(tmp_path / "a", tmp_path / "b")


# ------------------------------------------------------------------ the digest


class Net(nn.Module):
    def __init__(self, eps=1e-5, swap=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.n, self.b = nn.Linear(3, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 2)
        self.unused = nn.Linear(2, 2)
        self.swap = swap

    def forward(self, x):
        h = self.n(self.a(x))
        return self.b(torch.relu(h) - h if not self.swap else h - torch.relu(h))


def digest(model, example=None, **options):
    return model_hash(capture(model, torch.zeros(1, 3) if example is None else example, **options))


@pytest.mark.parametrize("dynamic", [True, False])
def test_digest_is_stable_across_captures_and_processes(dynamic):
    here = digest(Net(), dynamic_batch=dynamic)
    assert here == digest(Net().train(), torch.randn(1, 3), dynamic_batch=dynamic)
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
        "import torch, test_certificate as t\n"
        "torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(2, 2),))\n"
        f"print(t.digest(t.Net(), dynamic_batch={dynamic}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


@pytest.mark.parametrize("name", ["a.weight", "a.bias", "n.weight", "n.bias", "b.weight", "b.bias"])
def test_one_ulp_of_any_weight_changes_the_digest(name):
    model = Net()
    before = digest(model)
    with torch.no_grad():
        entries = model.get_parameter(name).view(-1)
        entries[-1] = torch.nextafter(entries[-1], torch.tensor(9.0))
    assert digest(model) != before


def test_digest_sees_the_mathematics_and_not_the_names():
    before = digest(Net())
    others = [Net(eps=1e-6), Net(swap=True), Net().double(), Net()]
    examples = [None, None, torch.zeros(1, 3, dtype=torch.float64), torch.zeros(2, 3)]
    found = [digest(m, x, dynamic_batch=x is None) for m, x in zip(others, examples, strict=True)]
    assert len({before, *found}) == 5
    with torch.no_grad():
        model = Net()
        model.unused.weight.zero_()
    assert digest(model) == before
    inner = nn.Sequential(Net())
    assert digest(inner) == before
