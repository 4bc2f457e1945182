"""Every example runs as its docstring says, and its output has what it is there to show."""

import random
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import torch

from plesio.core.results import read_results
from plesio.policies import Policy
from support.frameworks import RAY_QUIET
from support.processes import on_processes
from support.schedules.machine_laws import Laws, random_steps

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 100.0
TRAIN_SAMPLES = 1797 - 360


def run(*command: str, limit_s: float = DEADLINE_S) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-out accuracy ([0-9.]+)", output)]


class Example:
    """Runs an example as a script, in this process: importing torch takes longer than most of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, name: str, *arguments: str) -> str:
        path = EXAMPLES / name
        self._monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return self._capsys.readouterr().out


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    return Example(monkeypatch, capsys)


def rows(output: str) -> dict[str, list[str]]:
    """The table that an example prints, less its head: the cells by the policy in the first column."""
    table = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[1:]]
    return {first: cells for first, *cells in table}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_docstring_says_how_to_start_it(path: Path):
    assert f"    python examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]
    assert path.name in Path(__file__).read_text(encoding="utf-8"), "no test runs it"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_page_of_examples_has_it(path: Path):
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert f'--8<-- "examples/{path.name}"' in page


def test_a_grid_by_itself_is_ordinary_training(example: Example):
    output = example("grid_digits.py", "--epochs", "3")
    assert accuracies(output)[-1] > 0.85, output


@pytest.mark.slow
def test_a_grid_of_four(tmp_path: Path):
    command = [sys.executable, "-m", "plesio", "run", "--grid", "2x2", str(EXAMPLES / "grid_digits.py")]
    output = run(*command, "--epochs", "4", "--trace", str(tmp_path))
    assert accuracies(output)[-1] > 0.85, output
    (result,) = read_results(tmp_path / "results.json")
    assert (result.policy, result.num_workers, result.samples) == ("grid:2x2", 4, 4 * TRAIN_SAMPLES)


def test_an_island_by_itself_is_ordinary_training():
    # in a process of its own, whose default process group it makes
    found = re.search(r"accuracy ([0-9.]+)", run(sys.executable, str(EXAMPLES / "islands.py")))
    assert found is not None
    assert float(found[1]) > 0.9


@pytest.mark.slow
def test_islands():
    command = [sys.executable, "-m", "plesio", "run", "--workers", "4", "--island", "2", "--policy", "asp"]
    found = re.search(r"2 islands, accuracy ([0-9.]+)", run(*command, str(EXAMPLES / "islands.py")))
    assert found is not None
    assert float(found[1]) > 0.8


@pytest.mark.slow
def test_digits_alone(tmp_path: Path):
    output = run(sys.executable, str(EXAMPLES / "train_digits.py"), "--epochs", "4", "--trace", str(tmp_path))
    assert len(accuracies(output)) == 4
    assert accuracies(output)[-1] > 0.8, output
    (result,) = read_results(tmp_path / "results.json")
    assert (result.status, result.num_workers, result.samples) == ("finished", 1, 4 * TRAIN_SAMPLES)


@pytest.mark.slow
def test_digits_with_two_workers(tmp_path: Path):
    policy = "ssp:4"
    launch = (sys.executable, "-m", "plesio", "run", "--workers", "2", str(EXAMPLES / "train_digits.py"))
    output = run(*launch, "--policy", policy, "--epochs", "4", "--trace", str(tmp_path))
    assert len(accuracies(output)) == 4, "rank 0 alone prints"
    assert accuracies(output)[-1] > 0.8, output
    (result,) = read_results(tmp_path / "results.json")
    assert (result.policy, result.status, result.num_workers) == (policy, "finished", 2)
    assert result.samples == 4 * TRAIN_SAMPLES
    assert len(result.workers) == 2
    assert all(worker.steps > 0 for worker in result.workers)
    assert len(result.evaluations) == 4


def by_two(name: str, *arguments: str) -> str:
    """Run an example on two workers that are forked, which saves their imports; return what the first one prints."""
    first, second = on_processes(2, __file__, "printed", limit_s=DEADLINE_S, name=name, arguments=arguments)
    assert second == "", "rank 0 alone prints"
    return first


def printed(*, name: str, arguments: tuple[str, ...]) -> str:
    sys.argv = [str(EXAMPLES / name), *arguments]
    with redirect_stdout(StringIO()) as output:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return output.getvalue()


def test_accelerate_with_two_workers():
    output = by_two("accelerate_digits.py", "--policy", "ssp:4", "--epochs", "2")
    assert len(accuracies(output)) == 2
    assert accuracies(output)[-1] > 0.8, output


def test_accelerate_in_virtual_time_is_refused_in_one_line(tmp_path: Path):
    simulate = (sys.executable, "-m", "plesio", "simulate", str(EXAMPLES / "accelerate_digits.py"), "--workers", "2")
    done = subprocess.run(
        [*simulate, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    *progress, line = done.stderr.splitlines()
    assert "error" not in "".join(progress).lower()  # a busy machine has more of them
    assert line.startswith("plesio: error: Accelerate has one state in a process, and virtual workers are in one: run")
    assert not any(tmp_path.iterdir())


def test_transformers_with_two_workers():
    output = by_two("transformers_bytes.py", "--policy", "local_sgd:4", "--epochs", "0.5")
    (perplexity,) = re.findall(r"perplexity per byte ([0-9.]+)", output)
    assert float(perplexity) < 30, "256 is knowing nothing"


def test_lightning_with_two_workers():
    output = by_two("lightning_digits.py", "--devices", "2", "--policy", "ssp:4", "--epochs", "3")
    assert "after 69 steps" in output, output
    assert accuracies(output)[-1] > 0.8, output


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_ray_with_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "plesio[ray]"')
    with tempfile.TemporaryDirectory(prefix="ray-") as home:  # the paths of sockets must be short
        for name, value in {**RAY_QUIET, "RAY_TMPDIR": home}.items():
            monkeypatch.setenv(name, value)
        options = ["--policy", "ssp:4", "--epochs", "2", "--storage", str(tmp_path)]
        output = run(sys.executable, str(EXAMPLES / "ray_digits.py"), *options, limit_s=600.0)
    assert accuracies(output)[-1] > 0.8, output
    state = torch.load(output.split()[-1] + "/model.pt", weights_only=True)
    assert state["0.weight"].shape == (64, 64)


def test_a_task_of_ones_own(example: Example):
    assert example("my_task.py") == "the task can be trained\n"


TRAINS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "cnn_digits.py": (r"held-out accuracy ([0-9.]+), learning rate 0.0000", lambda accuracy: accuracy > 0.6),
    "gpt_bytes.py": (r"perplexity per byte ([0-9.]+)", lambda perplexity: perplexity < 20),
    "recommender.py": (r"area under the curve ([0-9.]+)", lambda area: area > 0.65),
}
"""The line of its last evaluation, and what is good after two epochs."""


def trained(name: str, output: str) -> bool:
    figure, good = TRAINS[name]
    lines = output.splitlines()
    assert len([line for line in lines if "epoch" in line]) == 2
    found = re.search(figure, next(line for line in reversed(lines) if "epoch 2" in line))
    return found is not None and good(float(found[1]))


@pytest.mark.parametrize("name", TRAINS)
def test_it_trains_alone(example: Example, name: str):
    output = example(name, "--epochs", "2")
    assert trained(name, output), output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cnn_digits.py", ["--policy", "local_sgd:4"]),
        ("gpt_bytes.py", ["--policy", "bsp", "--bf16"]),
        ("recommender.py", ["--policy", "bsp"]),
        ("recommender.py", ["--policy", "ssp:4,update=delta"]),
    ],
)
def test_it_trains_with_two_workers(name: str, arguments: list[str]):
    output = by_two(name, "--epochs", "2", *arguments)
    assert trained(name, output), output


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINS)
def test_it_trains_in_virtual_time(name: str, tmp_path: Path):
    simulate = (sys.executable, "-m", "plesio", "simulate", str(EXAMPLES / name), "--workers", "2")
    output = run(*simulate, "--step-time", "10 ms", "--out", str(tmp_path / "run"), "--", "--epochs", "2")
    assert trained(name, output), output


def test_asynchronous_workers_do_not_wait_for_the_slow_one(example: Example):
    found = rows(example("unequal_workers.py", "bsp", "asp"))
    assert float(found["asp"][0]) < 0.6 * float(found["bsp"][0])
    steps = [int(number) for number in found["asp"][-1].split()]
    assert steps[3] < 0.5 * min(steps[:3])


def test_racks_send_less_between_each_other(example: Example):
    found = rows(example("two_racks.py", "bsp", "hier:bsp/local_sgd:4"))
    everywhere, racks = (found[policy] for policy in ("bsp", "hier:bsp/local_sgd:4"))
    assert float(racks[-1]) < 0.3 * float(everywhere[-1])
    assert float(racks[0]) < 0.5 * float(everywhere[0])


def test_a_bound_helps_on_a_fast_network_and_a_period_on_a_slow_one(example: Example):
    found = rows(example("virtual_sweep.py"))
    slow_s, fast_s = (
        {policy: float(cells[place].split(",")[0]) for policy, cells in found.items()} for place in (0, 1)
    )
    assert fast_s["ssp:4"] < 0.8 * fast_s["ssp:0"]
    assert slow_s["ssp:4,period=4"] < 0.6 * slow_s["ssp:4"]
    assert fast_s["ssp:4,period=4"] > 0.9 * fast_s["ssp:4"]


def test_a_run_is_explained(example: Example, tmp_path: Path):
    output = example("explain_run.py", str(tmp_path))
    assert "It began under bsp" in output
    assert "local_sgd" in output
    assert "What it changed" in (tmp_path / "explain.html").read_text(encoding="utf-8")


def test_an_estimate_has_its_parts(example: Example):
    output = example("estimate_run.py")
    assert "MFU" in output
    assert re.search(r"of \d+ layouts the fastest has", output)
    shares = [float(share) for share in re.findall(r"^  \w.*? +([0-9.]+)%$", output, flags=re.MULTILINE)]
    assert len(shares) == 5
    assert 90 < sum(shares) <= 100.5


def test_near_the_median_a_slow_worker_holds_up_nobody(example: Example):
    output = example("own_policy.py")
    waiting = {spec: float(share) for spec, share in re.findall(r"^(\S+) .* (\d+)%", output, flags=re.M)}
    assert waiting["near_median"] < 10 < 40 < waiting["ssp:4"]


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_a_policy_of_ones_own_keeps_the_laws_of_policies(ahead: int):
    near_median: Callable[..., Policy] = runpy.run_path(str(EXAMPLES / "own_policy.py"))["NearMedian"]
    for seed in range(300):
        Laws(near_median(ahead=ahead)).play(random_steps(random.Random(seed)))
