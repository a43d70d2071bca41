"""Run every check, two jobs at a time on two cores, the cheapest first; then say what share of the time each took.

    python .ci/jobs.py [--before SECONDS] [STAGE …]

Stages come one after the other, and none after one that failed. In a stage a job starts as soon as the cores it needs
are free. ``--before`` is the time that was spent already, on installing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORES = 2
ACCEPTANCE = ROOT.parent / "shared" / "acceptance"
SHOWN = 20
"""Last lines of a job that went well."""


@dataclass(frozen=True)
class Job:
    """A command, and how many cores it is given. What holds a ratio of times gets all of them, and a second try."""

    name: str
    command: str
    cores: int = 1
    tries: int = 1


def pytest(name: str, options: str, cores: int = CORES) -> Job:
    """A run of pytest, in every tier with shapes checked."""
    return Job(
        name, f"FARFIELD_CHECK_SHAPES=1 python -m pytest -q {options} --junitxml=.ci/{name}.xml", cores
    )


def acceptance(names: str, cores: int = 1, tries: int = 1) -> list[Job]:
    """Scripts that check a release from outside, where they are at hand."""
    files = [ACCEPTANCE / f"{name}.py" for name in names.split()]
    return [Job(f.stem, f"python '{f}'", cores, tries) for f in files if f.exists()]


STAGES = {
    "judges": [
        Job("style", "ruff check . && ruff format --check ."),
        Job("types", "mypy"),
        Job("layers", "lint-imports"),
    ],
    # With shapes checked, as the tier full has them, so that nothing repeats these tests.
    "unit": [pytest("unit", "-n 2 --dist loadgroup -m unit")],
    "full": [
        pytest("full", "-n 2 --dist loadgroup -m 'full and not unit' --durations=15"),
        Job("site", "python -m sphinx -W --keep-going -q -b html docs docs/_build/html"),
        pytest("doctests", "--doctest-modules src/farfield -o testpaths= -p no:cacheprovider", cores=1),
        *acceptance(
            "a9_repair a3_certify a13_strangers a2_audit a6_learn a7_lnnet a8_trust a10_guard a11_onnx a12_rollout "
            "a22_faults"
        ),
        *acceptance("a1_gaussian_geometry"),
        *acceptance("a4_kernels a5_ntk", cores=CORES, tries=2),
    ],
}


class Running:
    """A job at work; what it prints goes to a file until it ends."""

    def __init__(self, job: Job, tries: int) -> None:
        self.job, self.tries, self.begun = job, tries, time.monotonic()
        self.said = Path(tempfile.mkdtemp()) / "said"
        with self.said.open("wb") as file:
            self.process = subprocess.Popen(
                job.command,
                shell=True,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def show(self, seconds: float) -> str:
        """Print how it ended, and return its last line."""
        lines = self.said.read_text(errors="replace").rstrip().splitlines() or [""]
        failed = self.process.returncode != 0
        print(f"\n== {self.job.name}: {'FAILED' if failed else 'passed'} in {seconds:.0f} s", flush=True)
        print("\n".join(lines if failed else lines[-SHOWN:]), flush=True)
        return lines[-1]


def run(stage: list[Job], spent: dict[str, float], last: dict[str, str]) -> bool:
    """Run the jobs of a stage; True if all went well."""
    waiting, running, well = [(job, job.tries) for job in stage], [], True
    while waiting or running:
        free = CORES - sum(r.job.cores for r in running)
        for item in [w for w in waiting if well]:
            if item[0].cores <= free:
                running.append(Running(*item))
                waiting.remove(item)
                free -= item[0].cores
        done = next((r for r in running if r.process.poll() is not None), None)
        if done is None:
            if not running:
                break
            time.sleep(0.2)
            continue
        running.remove(done)
        seconds = time.monotonic() - done.begun
        spent[done.job.name] = spent.get(done.job.name, 0.0) + seconds * done.job.cores / CORES
        last[done.job.name] = done.show(seconds)
        if done.process.returncode:
            if done.tries > 1:
                waiting.append((done.job, done.tries - 1))
            else:
                well = False
    return well


def main() -> int:
    """Run the stages named, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []])
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    begun, spent, last = time.monotonic(), {}, {}
    if options.before:
        spent["environment"] = options.before
    well = all(run(STAGES[name], spent, last) for name in options.stages or STAGES)
    whole = options.before + time.monotonic() - begun
    print(f"\n== {whole / 60:.1f} minutes; a job on one of {CORES} cores counts by its share of the machine")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{name:24}{seconds:7.0f} s {seconds / whole:6.1%}")
    for name in ("doctests", "unit", "full"):
        if name in last:
            print(last[name])
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
