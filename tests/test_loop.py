"""The loop itself: tiers that name real files, unit tests that may do little, what is chosen near a change."""

import subprocess

import pytest

import durations
import near
import tiers
from farfield import Budget
from waiting import until


def test_every_name_in_the_tables_is_a_folder_or_file():
    for name in [*tiers.UNIT, *tiers.FULL, *tiers.FAMILIES]:
        assert (near.TESTS / name).exists(), name
    assert len({*tiers.UNIT, *tiers.FULL}) == len(tiers.UNIT) + len(tiers.FULL)


@pytest.mark.parametrize(
    ("file", "marks", "tier"),
    [
        ("gaussian/test_dual.py", {"parametrize"}, "unit"),
        ("gaussian/test_dual.py", {"full"}, "full"),
        ("gaussian/test_dual.py", {"full", "nightly"}, "nightly"),
        ("engine/test_ray.py", {"unit"}, "full"),
        ("somewhere/test_new.py", set(), "full"),
    ],
)
def test_a_test_is_of_its_files_tier_or_a_later_one(file, marks, tier):
    assert tiers.of_test(tiers.of_file(file), marks) == tier


def test_one_worker_takes_a_family_and_only_that():
    assert tiers.family("zoo/test_zoo.py", {"name": "relu_mlp", "seed": 1}) == "name relu_mlp"
    assert tiers.family("zoo/test_zoo.py", {}) is None
    assert tiers.family("certify/test_checker.py", {"x": 1}) == "certify/test_checker.py"
    assert tiers.family("gaussian/test_dual.py", {"name": "relu"}) is None


def test_a_unit_test_that_does_too_much_fails():
    """This file is one of them, so it is refused here what is refused there."""
    with pytest.raises(pytest.fail.Exception, match="starts a process: mark it"):
        subprocess.run(["true"], check=True)
    with pytest.raises(pytest.fail.Exception, match="searches within a budget"):
        Budget(steps=1).start()


@pytest.mark.full
def test_any_other_test_may():
    assert subprocess.run(["true"], check=True).returncode == 0
    assert not Budget(steps=1).start().over


def test_waiting_ends_with_what_it_waits_for():
    looks = iter([False, False, 3])
    assert until(lambda: next(looks)) == 3
    with pytest.raises(AssertionError, match="has ended"):
        until(lambda: False, alive=lambda: False)
    assert until(lambda: True, alive=lambda: False)


# ------------------------------------------------------------------ near a change


@pytest.mark.full
def test_a_change_of_a_lower_room_chooses_its_tests_and_those_above():
    rooms, above, choice = near.choose(["src/farfield/certify/intervals/_infinite.py"])
    assert rooms == {"farfield.certify.intervals"}
    assert {"farfield.certify", "farfield.repair", "farfield.cli"} <= above
    assert not {"farfield.gaussian", "farfield.graph", "farfield.growth"} & above
    assert "certify/intervals/test_contract.py" in choice.own and "test_house.py" in choice.own
    assert "gaussian/test_dual.py" not in {*choice.own, *choice.above}
    assert all(tiers.of_file(name) == "unit" for name in choice.above)
    assert not choice.own.keys() & choice.above.keys()


@pytest.mark.full
def test_a_change_at_the_bottom_reaches_everything_that_stands_on_it():
    rooms, above, choice = near.choose(["src/farfield/graph/operators/shape.py"])
    assert rooms == {"farfield.graph.operators"} and {"farfield.growth", "farfield.audit"} <= above
    assert "graph/test_operators.py" in choice.own and "growth/test_contract.py" in choice.above
    assert "farfield.kernels" not in above


def test_a_changed_test_or_page_is_run_itself():
    _, _, choice = near.choose(["tests/nn/test_mlp.py", "docs/audit.md"])
    assert choice.own == {"nn/test_mlp.py": "changed itself", "test_code_blocks.py": "runs docs/audit.md"}
    assert not choice.above


def test_nothing_near_is_said():
    rooms, above, choice = near.choose(["LICENSE"])
    assert not rooms and not above and not choice.own and not choice.above


def test_the_choice_is_printed_with_its_reasons(capsys):
    near.report(
        "Whole", {"nn/test_mlp.py": "tests x", "nn/test_norms.py": "tests x", "test_house.py": "a rule"}
    )
    assert capsys.readouterr().out == "Whole: 3 files\n  nn: mlp norms  (tests x)\n  tests: house  (a rule)\n"


# ------------------------------------------------------------------ where the time goes


def test_of_many_cases_of_one_kind_the_others_run_one_tier_later():
    """Names in the table are those of functions, and cases are spread evenly."""
    for name, share in tiers.SAMPLED.items():
        path, function = name.split("::")
        assert f"def {function}(" in (near.TESTS / path).read_text(encoding="utf-8"), name
        assert [tiers.in_sample(name, k) for k in range(share + 1)] == [True, *[False] * (share - 1), True]
    assert all(tiers.in_sample("another.py::test", k) for k in range(5))


def test_durations_are_counted_by_folder_and_function(tmp_path):
    report = tmp_path / "run.xml"
    rows = [("tests.gaussian.test_dual", "test_a[1]", 1.5), ("tests.gaussian.test_dual", "test_a[2]", 0.5)]
    rows += [("tests.test_house", "test_b", 2.0), ("tests.engine.test_ray", "test_c", 4.0)]
    cases = "".join(f'<testcase classname="{c}" name="{n}" time="{t}"/>' for c, n, t in rows)
    skipped = '<testcase classname="tests.test_house" name="test_d" time="9"><skipped/></testcase>'
    report.write_text(f"<testsuites><testsuite>{cases}{skipped}</testsuite></testsuites>")
    text = durations.tables(report)
    assert "4 tests, 8 seconds of one core." in text
    assert "| gaussian | 2 | 2 | 2 | 25.0% |" in text and "| engine | 1 | 0 | 4 | 50.0% |" in text
    assert "| `gaussian/test_dual.py::test_a` | 2 | 2.0 | 25.0% |" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{durations.BEGIN}\nold\n{durations.END}\nafter\n")
    durations.write(text, page)
    assert page.read_text() == f"before\n{durations.BEGIN}\n{text}\n{durations.END}\nafter\n"
