import re
import subprocess
import sys
from pathlib import Path

import pytest

from plesio.core.results import read_results

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 100.0
TRAIN_SAMPLES = 1797 - 360


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-out accuracy ([0-9.]+)", output)]


@pytest.mark.slow
def test_digits_alone(tmp_path: Path):
    output = run(sys.executable, str(EXAMPLES / "train_digits.py"), "--epochs", "4", "--trace", str(tmp_path))
    assert len(accuracies(output)) == 4
    assert accuracies(output)[-1] > 0.8, output
    (result,) = read_results(tmp_path / "results.json")
    assert (result.status, result.num_workers, result.samples) == ("finished", 1, 4 * TRAIN_SAMPLES)


def test_digits_with_two_workers(tmp_path: Path):
    policy = "ssp:4"
    launch = (sys.executable, "-m", "plesio.cli.main", "run", "--workers", "2", str(EXAMPLES / "train_digits.py"))
    output = run(*launch, "--policy", policy, "--epochs", "4", "--trace", str(tmp_path))
    assert len(accuracies(output)) == 4, "rank 0 alone prints"
    assert accuracies(output)[-1] > 0.8, output
    (result,) = read_results(tmp_path / "results.json")
    assert (result.policy, result.status, result.num_workers) == (policy, "finished", 2)
    assert result.samples == 4 * TRAIN_SAMPLES
    assert len(result.workers) == 2
    assert all(worker.steps > 0 for worker in result.workers)
    assert len(result.evaluations) == 4
