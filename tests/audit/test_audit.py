"""The audit as a whole: plain data, untouched models, names that cannot shadow each other, the pytest marker."""

import copy
import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.audit import assert_bounded, audit

pytest_plugins = ["pytester"]


def mlp(*middle):
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.ReLU(), nn.Linear(16, 1))


def test_to_dict_is_json_and_complete():
    data = json.loads(json.dumps(ff.audit(mlp().eval(), (torch.zeros(1, 6),), name="mine").to_dict()))
    assert data["verdict"] == "UNBOUNDED" and data["subject"]["name"] == "mine"
    assert data["subject"]["parameters"] == sum(p.numel() for p in mlp().parameters())
    assert {n["name"] for n in data["graph"]["nodes"]} >= {e for pair in data["graph"]["edges"] for e in pair}
    assert data["findings"][0]["code"] == "FF001"
    assert len(data["rays"]["series"]) == 7 and data["rays"]["series"][-1]["label"] == "witness"
    assert all(len(s["values"]) == len(data["rays"]["radii"]) for s in data["rays"]["series"])


def test_rays_of_a_bounded_model_are_flat_far_away_and_of_an_unbounded_one_are_not():
    bounded = audit(mlp(nn.LayerNorm(16)).eval(), (torch.zeros(1, 6),)).rays
    growing = audit(mlp().eval(), (torch.zeros(1, 6),)).rays
    for series in bounded["series"]:
        assert abs(series["values"][-1] - series["values"][-5]) <= 1e-3 * (1 + abs(series["values"][-1]))
    witness = growing["series"][-1]["values"]
    assert witness[-1] > 1e4


def test_the_model_is_left_as_it_was():
    model = mlp(nn.BatchNorm1d(16), nn.Dropout(0.5)).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    audit(model, (torch.zeros(2, 6),))
    assert model.training and all(m.training for m in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_same_audit_twice_is_the_same():
    model = mlp().eval()
    first, second = (audit(model, (torch.zeros(1, 6),)).to_dict() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_a_single_tensor_is_taken_as_the_only_input():
    assert audit(mlp(nn.LayerNorm(16)).eval(), torch.zeros(1, 6), rays=0).verdict.name == "BOUNDED"


def test_the_root_name_is_callable_whatever_was_imported_first():
    code = (
        "import {first}\n"
        "import farfield as ff, torch\n"
        "from torch import nn\n"
        "from farfield.audit import rule\n"
        "m = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1))\n"
        "assert ff.audit(m, torch.zeros(1, 3), rays=0).verdict.name == 'BOUNDED'\n"
        "assert ff.audit.rule('FF001').code == 'FF001'\n"
    )
    for first in ("farfield", "farfield.audit", "farfield.audit.rules"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(first=first)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_assert_bounded_says_where_and_what_to_do():
    assert assert_bounded(mlp(nn.LayerNorm(16)), torch.zeros(1, 6)).verdict.name == "BOUNDED"
    with pytest.raises(AssertionError) as caught:
        assert_bounded(mlp(), torch.zeros(1, 6))
    text = str(caught.value)
    assert text.startswith("The model is not proved bounded.")
    assert "Escape path" in text and "nn.LayerNorm(16)" in text and "FF001" in text


def test_assert_bounded_does_not_let_the_unknown_pass_unless_told_to():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x).cumprod(-1)

    with pytest.raises(AssertionError, match="UNKNOWN"):
        assert_bounded(Odd(), torch.zeros(1, 6))
    assert assert_bounded(Odd(), torch.zeros(1, 6), allow_unknown=True).verdict.name == "UNKNOWN"


def test_the_pytest_marker(pytester):
    pytester.makepyfile(
        """
        import pytest, torch
        from torch import nn

        @pytest.mark.bounded(input=(1, 4))
        def test_good():
            return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))

        @pytest.mark.bounded(input=(1, 4))
        def test_bad():
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        @pytest.fixture
        def width():
            return 8

        @pytest.mark.bounded
        def test_with_inputs_and_a_fixture(width):
            return nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width)), torch.zeros(1, 4)

        @pytest.mark.bounded(input=(1, 4))
        def test_forgets_to_return():
            pass
        """
    )
    installed = any(e.value == "farfield.pytest_plugin" for e in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "farfield.pytest_plugin"]  # from a checkout that is only on the path
    result = pytester.runpytest_subprocess(*plugin, "-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*UNBOUNDED*", "*returned None*"])
    said = [line for line in result.stdout.lines if "not proved bounded" in line and "FAILED" not in line]
    assert len(said) == 1  # once, and once more in pytest's own summary
    # Only what concerns the user: none of farfield's own frames.
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")
    result.stdout.no_fnmatch_line("*_assert.py*")


def test_assert_bounded_hides_its_own_frame(pytester):
    pytester.makepyfile(
        """
        import torch
        from torch import nn
        from farfield.audit import assert_bounded

        def test_bad():
            assert_bounded(nn.Linear(4, 1), torch.zeros(1, 4))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [">*assert_bounded(nn.Linear(4, 1), torch.zeros(1, 4))", "*not proved bounded*"]
    )
    result.stdout.no_fnmatch_line("*_assert.py*")


def test_one_tensor_given_for_two_inputs_does_not_make_them_one():
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x, y):
            return self.head(x - y)

    same = torch.zeros(1, 4)
    assert audit(Difference().eval(), (same, same), rays=0).verdict.name == "UNBOUNDED"


class _TwoInputs(nn.Module):
    def forward(self, a, b):
        return a.tanh() + b, b.tanh()


def test_progress_counts_every_verdict_and_ends_at_the_total():
    seen = []
    audit(
        _TwoInputs(), (torch.zeros(1, 3), torch.zeros(1, 3)), rays=0, progress=lambda *step: seen.append(step)
    )
    # Growth of all nodes, two outputs for each input and for both, the comparison with the module.
    assert seen == [(k, 8) for k in range(1, 9)]


def test_data_for_a_program_of_one_row():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    rows = torch.randn(50, 3)
    found = audit(torch.export.export(model, (rows[:1],)), rows, rays=0)
    assert found.verdict.name == "UNBOUNDED" and found.data["rows"] == 50


def test_columns_are_named():
    pandas = pytest.importorskip("pandas")
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, 5.0, 0.1]]))
    frame = pandas.DataFrame(torch.randn(20, 3).numpy(), columns=["temperature", "pressure", "flow"])
    found = audit(model, frame, rays=0)
    assert "mostly" in str(found) and "pressure" in str(found) and "pressure" in found.to_html()
    assert found.to_dict()["subject"]["columns"] == {"input": ["temperature", "pressure", "flow"]}
    assert "mostly" not in str(audit(model, torch.randn(20, 3), rays=0))
