"""Which tests run when: a tier for every file of tests, by folder.

- ``unit``: after every change, in two minutes. No fit, no search for a certificate, no other process, no page, no
  real data; ``conftest.py`` refuses the first three. Shapes are not checked, unless ``FARFIELD_CHECK_SHAPES=1``.
- ``full``: before a change lands, what is ``unit`` included. Seeds are fixed.
- ``nightly``: the rest: seeds that rotate by date, large sizes, every experiment, whole tables of combinations.

``pytest -m unit``, ``-m full`` (what ``pytest`` alone does) and ``-m nightly`` choose. A test can be marked to belong
to a later tier than its file: ``@pytest.mark.full``, ``@pytest.mark.nightly``.
"""

from pathlib import PurePosixPath

TIERS = ("unit", "full", "nightly")
UNIT = (
    "audit/test_structure.py",
    "certify/intervals/test_bounds.py", "certify/intervals/test_contract.py", "certify/test_balls.py",
    "engine/test_blocks.py", "engine/test_engine.py", "engine/test_schedule.py", "engine/test_tile.py",
    "gaussian", "geometry", "graph", "growth", "kernels", "lnnet",
    "monitor/test_isometry.py",
    "nn", "ntk", "papers/test_pages.py",
    "regression/test_cells.py", "regression/test_spectrum.py",
    "report/test_certificate_html.py", "report/test_index.py",
    "test_help.py", "test_house.py", "test_loop.py", "test_words.py",
)  # fmt: skip
"""Folders and files under ``tests`` whose tests are unit tests."""
FULL = (
    "gaussian/test_angular.py",
    "graph/test_capture.py", "graph/test_faithful.py", "graph/test_models.py", "graph/test_recognition.py",
    "growth/test_kinds_people_meet.py", "growth/test_large.py", "growth/test_open_weights.py",
    "growth/test_random_graphs.py", "growth/test_ranges.py",
    "kernels/test_gpytorch.py", "kernels/test_gradients.py", "kernels/test_laws.py", "kernels/test_monte_carlo.py",
    "kernels/test_precision.py",
    "ntk/test_tiles.py",
)  # fmt: skip
"""Folders and files in those that are not."""


def of_file(path):
    """The tier of a file, given by its path under ``tests``: the table's longest entry that it begins with."""
    parts = PurePosixPath(path).parts
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in FULL:
            return "full"
        if name in UNIT:
            return "unit"
    return "full"


def of_test(file_tier, marks):
    """The tier of a test: its file's, or a later one that a mark of its own names."""
    return max([file_tier, *(TIERS[TIERS.index(m)] for m in marks if m in TIERS)], key=TIERS.index)


SAMPLED = {
    "audit/test_odd_models.py::test_a_verdict_and_a_report": 2,
    "certify/intervals/test_bounds.py::test_a_point_has_almost_no_width": 2,
    "certify/intervals/test_contract.py::test_no_evaluation_leaves_its_interval": 2,
    "certify/intervals/test_models.py::test_models": 2,
    "certify/test_balls.py::test_no_point_of_a_cell_in_the_ball_exceeds_its_bound": 2,
    "certify/test_cells.py::test_box_domains": 2,
    "certify/test_cells.py::test_no_value_passes_its_bound": 3,
    "certify/test_nested.py::test_no_input_leaves_the_bound": 2,
    "certify/test_penalty.py::test_bounds_hold_everywhere": 2,
    "certify/test_programs.py::test_bounds_hold_and_are_close": 2,
    "certify/test_regions.py::test_no_value_of_the_region_leaves_its_bounds": 2,
    "certify/test_soundness.py::test_no_input_leaves_the_bounds": 2,
    "engine/test_ray.py::test_on_a_cluster": 3,
    "gaussian/test_angular.py::test_a_range_against_the_dual": 2,
    "gaussian/test_angular.py::test_one_variance_against_the_dual": 2,
    "geometry/test_bounds.py::test_lemma_b6": 2,
    "geometry/test_bounds.py::test_parallel_pairs_stay_degenerate_under_every_activation": 2,
    "graph/test_faithful.py::test_the_module_itself_is_not_told_apart": 2,
    "graph/test_models.py::test_program_equals_model": 2,
    "growth/test_analysis.py::test_claims_about_functions_are_never_contradicted": 2,
    "journeys/test_models.py::test_an_answer_or_a_refusal_in_words": 3,
    "kernels/test_gradients.py::test_by_one_set_of_inputs": 2,
    "kernels/test_gradients.py::test_by_variances": 2,
    "kernels/test_monte_carlo.py::test_within_five_standard_errors": 3,
    "kernels/test_precision.py::test_at_depth_fifty": 3,
    "kernels/test_precision.py::test_single_precision_to_six_digits": 3,
    "kernels/test_precision.py::test_to_twelve_digits": 3,
    "monitor/test_far_field.py::test_the_slope_is_the_horizons_and_that_of_evaluation": 3,
    "programs/test_programs.py::test_operations_alone": 2,
    "programs/test_programs.py::test_random_programs": 2,
    "zoo/test_zoo.py::test_degree_of_growth": 3,
    "zoo/test_zoo.py::test_findings": 3,
    "zoo/test_zoo.py::test_verdict": 3,
    "zoo/test_zoo.py::test_what_is_called_bounded_stays_bounded": 3,
}
"""Tables of many cases of one kind: one case in so many runs in its file's tier, the others one tier later."""


def in_sample(name, number):
    """Whether a function's case runs in its file's tier, by its number among the cases."""
    return number % SAMPLED.get(name, 1) == 0


FAMILIES = {
    "zoo/test_zoo.py": "name",
    "journeys/test_journeys.py": "source",
    "gaussian/test_scalar_functions.py": "label",
    "growth/test_contract.py": "name",
    "certify/intervals/test_contract.py": "name",
    "graph/test_operators.py": "",
    "graph/test_facts.py": "",
    "graph/test_archive.py": "",
    "graph/test_onnx_files.py": "",
    "certify/test_checker.py": "",
    "certify/test_nested.py": "",
    "geometry/test_mean_field.py": "",
    "report/test_results.py": "",
}
"""Files whose tests share what is costly to make: all of the file's tests, or those with one value of a parameter."""


def family(path, parameters):
    """The group of tests that one worker takes, or None where a test shares nothing."""
    shared = FAMILIES.get(path)
    if shared == "":
        return path
    if shared is None or shared not in parameters:
        return None
    return f"{shared} {parameters[shared]}"
