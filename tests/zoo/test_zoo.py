"""Every model of the zoo gets the verdict it deserves, and the evidence stands up to independent checks."""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import pytest
import torch

from farfield.audit import Audit, audit
from farfield.growth import Kind, Status, Verdict
from zoo._catalogue import SPECIMENS, by_name
from zoo._probe import Runner, check_growth, check_plateau, probe
from zoo._specimen import Specimen

FAMILIES = [
    "mlp",
    "residual",
    "conv",
    "recurrent",
    "attention",
    "transformers",
    "rl",
    "science",
    "gates",
    "buggy",
]


def each(wanted=lambda specimen: True):
    """Parametrize over specimens; slow ones are marked."""
    return pytest.mark.parametrize(
        "name",
        [pytest.param(s.name, marks=[pytest.mark.nightly] if s.slow else []) for s in SPECIMENS if wanted(s)],
    )


def several_tensors(specimen: Specimen) -> bool:
    return bool(specimen.outputs or specimen.alone)


@functools.cache
def audited(name: str, seed: int = 0) -> tuple[Specimen, Any, Any, Audit]:
    """Specimen, model, inputs, audit; without rays, on which no verdict depends."""
    specimen = by_name(name)
    for package in specimen.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{name} needs the package {package}, which is not installed")
    model, inputs = specimen.build(seed)
    return specimen, model, inputs, audit(model, inputs, rays=0, name=name)


@functools.cache
def runner(name: str) -> Runner:
    _, model, inputs, _ = audited(name)
    return Runner(model, inputs)


def codes(result: Audit) -> set[str]:
    return {finding.code for finding in result.findings}


def worst(verdicts: list[Verdict]) -> str:
    found = {v.status for v in verdicts}
    return next(s.name for s in (Status.UNBOUNDED, Status.UNKNOWN, Status.BOUNDED) if s in found)


# ------------------------------------------------------------------------------------------------- the zoo itself


def test_the_zoo_is_large_and_varied():
    assert len(SPECIMENS) >= 60
    assert len({s.name for s in SPECIMENS}) == len(SPECIMENS)
    assert {s.family for s in SPECIMENS} == set(FAMILIES)
    for family in FAMILIES:
        assert {s.truth for s in SPECIMENS if s.family == family} == {"BOUNDED", "UNBOUNDED"}, family
    assert all(s.why for s in SPECIMENS)


@pytest.mark.parametrize("name", ["relu_mlp", "resnet", "lstm_all_states", "fno", "td3_twin_critics"])
def test_builders_repeat_themselves_and_leave_the_generator_alone(name):
    state = torch.get_rng_state()
    (one, _), (two, _) = by_name(name).build(3), by_name(name).build(3)
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


# ------------------------------------------------------------------------------------------------------- verdicts


@each()
def test_verdict(name):
    specimen, _, _, result = audited(name)
    assert result.verdict.name == specimen.truth, f"{specimen.why}\n{result.report}"


@each(several_tensors)
def test_verdict_per_output_and_per_input(name):
    specimen, _, _, result = audited(name)
    verdicts = result.report.verdicts
    if specimen.outputs:
        assert tuple(v.status.name for v in verdicts if v.input is None) == specimen.outputs, str(
            result.report
        )
    for key, truth in specimen.alone.items():
        assert worst([v for v in verdicts if v.input == key]) == truth, f"{key}\n{result.report}"


@each()
def test_findings(name):
    specimen, _, _, result = audited(name)
    unbounded = specimen.truth == "UNBOUNDED"
    found = codes(result)
    assert specimen.codes <= found, str(result)
    assert not specimen.absent & found, str(result)
    assert ("FF001" in found) == unbounded, str(result)
    if not unbounded:
        assert not found & {"FF002", "FF003", "FF007"}, str(result)


@each(lambda s: s.degree is not None)
def test_degree_of_growth(name):
    """The truth lies between what a witness proves from below and what the analysis proves from above."""
    specimen, _, _, result = audited(name)
    growths = [v.growth for v in result.report.verdicts if v.input is None]
    above = max(math.inf if g.kind is Kind.EXPONENTIAL else g.degree or 0.0 for g in growths)
    assert result.witness is not None
    assert result.witness.degree <= specimen.degree <= above, str(result.report)
    if specimen.degree <= 1.0:
        assert "FF007" not in codes(result), str(result)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
@each(lambda s: s.generic and not s.slow)
def test_verdict_with_other_weights(name, seed):
    specimen, _, _, result = audited(name, seed)
    assert result.verdict.name == specimen.truth, str(result.report)


# ------------------------------------------------------------------------------------------------------- evidence


@each(lambda s: s.truth == "UNBOUNDED")
def test_every_witness_grows_at_the_claimed_rate(name):
    _, _, _, result = audited(name)
    program = result.report.program
    seen = set()
    for verdict in result.report.verdicts:
        witness = verdict.witness
        if witness is None or id(witness) in seen:
            continue
        seen.add(id(witness))
        if verdict.input is not None:
            assert set(witness.directions) == {verdict.input}
        trouble = check_growth(
            runner(name),
            [spec.name for spec in program.inputs],
            witness.directions,
            program.outputs.index(witness.output),
            witness.index,
            witness.slope,
            witness.degree,
            witness.logarithms,
            witness.evidence[-1].radius,
        )
        assert not trouble, f"{witness}: {trouble}"
    assert seen


@each()
def test_what_is_called_bounded_stays_bounded(name):
    """64 directions, radii to 1e8, every output and input that some verdict calls bounded."""
    specimen, _, _, result = audited(name)
    program = result.report.program
    names = [spec.name for spec in program.inputs]
    tables: dict[str | None, torch.Tensor] = {}
    for verdict in result.report.verdicts:
        if verdict.status is not Status.BOUNDED or (verdict.input is not None and len(names) == 1):
            continue
        if verdict.input not in tables:
            moving = None if verdict.input is None else names.index(verdict.input)
            tables[verdict.input] = probe(runner(name), batched=specimen.batched, moving=moving)
        table = tables[verdict.input][:, program.outputs.index(verdict.output)]
        trouble = check_plateau(table, specimen.bound)
        assert not trouble, f"{verdict}: {trouble}"
        if verdict.input is None:
            # Constants are folded in the model's own float32: its rounding is the only slack.
            low, high = verdict.growth.interval
            slack = 1e-6 * max(1.0, float(table.abs().max()))
            assert low - slack <= float(table.min()) <= float(table.max()) <= high + slack, str(verdict)


# ------------------------------------------------------------------------------------------- the bugs people had


def finding(result: Audit, code: str):
    return next(f for f in result.findings if f.code == code)


@pytest.mark.parametrize(
    "name",
    [
        "flag_accepted_and_never_applied",
        "norm_built_and_never_called",
        "norm_called_and_result_dropped",
        "norm_in_training_mode_only",
    ],
)
def test_a_norm_that_was_asked_for_and_never_runs(name):
    _, _, _, result = audited(name)
    assert result.verdict is Status.UNBOUNDED
    found = finding(result, "FF005")
    assert "norm" in found.message
    if name == "flag_accepted_and_never_applied":
        assert "layer_norm" in found.message
    else:
        assert found.place.module_path == "norm"


def test_a_transformer_without_its_final_norm():
    _, _, _, result = audited("transformer_without_final_norm")
    assert result.verdict is Status.UNBOUNDED
    found = finding(result, "FF002")
    assert found.severity == "error"
    assert any("norm" in name for name in found.evidence["bypassed"])
    assert found.evidence["cut"], "it should say where one norm would close the path"


def test_a_norm_on_the_action_vector():
    _, _, _, result = audited("norm_on_the_action_vector")
    found = finding(result, "FF009")
    assert found.evidence["inputs"] == ["action"]
    assert found.place.module_path == "action_norm"
    _, _, _, clean = audited("critic_action_before_the_norm")
    assert "FF009" not in codes(clean)


# --------------------------------------------------------------------- the checks themselves can say no


def test_the_plateau_check_sees_growth():
    for name in ("relu_mlp", "symlog_mlp", "square_root_growth", "rezero"):
        table = probe(runner(name), batched=True)
        assert check_plateau(table[:, 0]) or name == "symlog_mlp"
    assert check_plateau(probe(runner("td3_actor"), batched=True)[:, 0], bound=0.5)


def test_the_growth_check_rejects_a_wrong_claim():
    _, _, _, result = audited("relu_mlp")
    witness, name = result.witness, result.report.program.inputs[0].name

    def trouble(
        direction=witness.direction, slope=witness.slope, degree=1.0, logarithms=0.0, model="relu_mlp"
    ):
        return check_growth(
            runner(model), [name], {name: direction}, 0, witness.index, slope, degree, logarithms, 1e8
        )

    assert not trouble()
    assert trouble(slope=1.001 * witness.slope)
    assert trouble(slope=-witness.slope)
    assert trouble(degree=2.0)
    assert trouble(degree=1.0, logarithms=1.0)
    assert trouble(direction=2.0 * witness.direction)
    assert trouble(direction=witness.direction.roll(1))
    assert trouble(model="tanh_mlp")


def test_an_audit_leaves_the_model_as_it_was():
    for name in ("batch_norm", "spectrally_normalized", "encoder_layer_pre_norm"):
        model, inputs = by_name(name).build(5)
        model.train()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        audit(model, inputs, rays=0)
        assert model.training
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), name


def test_inputs_by_name_in_any_order():
    model, (state, action) = by_name("critic_action_after_the_norm").build()
    for inputs in ({"state": state, "action": action}, {"action": action, "state": state}):
        result = audit(model, inputs, rays=1)
        assert {v.input: v.status.name for v in result.report.verdicts if v.input} == {
            "state": "BOUNDED",
            "action": "UNBOUNDED",
        }
