import json
from pathlib import Path

import numpy as np
import pytest

from plesio.cli.commands import invoke
from plesio.core.charts import LineChart
from plesio.core.errors import ConfigError, DataError
from plesio.core.results import LossPoint, RunResult, write_results
from plesio_planning.studies import determinism
from plesio_planning.studies.models.determinism import Determinism
from plesio_planning.studies.reduction_order import order_effect, sums_by_order
from plesio_planning.studies.trajectories import distances, first_difference, read_trajectory


@pytest.fixture(scope="module")
def answer() -> Determinism:
    return determinism()


def test_reference_values(answer: Determinism):
    """studies/reference.md, study 19."""
    assert set(sums_by_order((1e30, -1e30, 1.0)).values()) == {0.0, 1.0}
    effect = answer.orders[-1]
    assert effect.num_ranks == 64
    assert effect.differing == pytest.approx(0.86, abs=0.005)
    assert effect.largest == pytest.approx(1.3e-5, abs=0.05e-5)


def test_two_ranks_commute_and_wide_sums_do_not_care(answer: Determinism):
    tensors = np.random.default_rng(1).standard_normal((2, 1000)).astype(np.float32)
    assert order_effect(tensors).differing == 0
    shares = [one.differing for one in answer.orders]
    assert shares == sorted(shares)
    assert max(one.differing_in_64 for one in answer.orders) < 1e-4


def test_sources_differ_where_they_must(answer: Determinism):
    by_name = {one.name: one for one in answer.comparisons}
    assert by_name["the same again"].strict is None
    assert by_name["random, in 64 bits"].strict is None
    for name in ("reverse order", "random order", "samples in turn", "half the ranks"):
        one = by_name[name]
        assert one.strict is not None
        assert one.strict.distance.step == 0
        assert one.relative[0] < 1e-6
        assert one.relaxed is None or one.relaxed.distance.step > 10
    for name in ("another data seed", "another initial seed"):
        relaxed = by_name[name].relaxed
        assert relaxed is not None
        assert relaxed.distance.step == 0


def test_a_calm_training_does_not_part():
    calm = determinism(learning_rate=0.05, num_elements=100, num_steps=100)
    (reverse,) = (one for one in calm.comparisons if one.name == "reverse order")
    assert reverse.relaxed is None


def _runs(tmp_path: Path, *, changed: tuple[int, int] | None) -> tuple[Path, Path]:
    weights = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    biases = np.ones((5, 2), np.float32)
    np.savez(tmp_path / "one.npz", weights=weights, biases=biases, step=10 * np.arange(5))
    if changed is not None:
        weights = weights.copy()
        weights[changed] = np.nextafter(weights[changed], np.float32(9))
    np.savez(tmp_path / "other.npz", weights=weights, biases=biases, step=10 * np.arange(5))
    return tmp_path / "one.npz", tmp_path / "other.npz"


def test_the_first_difference_of_two_files_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one, other = _runs(tmp_path, changed=(3, 2))
    found = determinism(first=str(one), second=str(other)).comparisons[0]
    assert found.strict is not None
    assert (found.strict.distance.step, found.strict.distance.tensor, found.strict.place) == (30, "weights", (2,))
    assert found.strict.distance.last_place == found.strict.distance.differing == 0.25
    assert found.relaxed is None
    assert invoke(["study", "determinism", "--first", str(one), "--second", str(other)]) == 0
    assert "The runs differ first in step 30, weights" in capsys.readouterr().out


def test_files_that_are_the_same_are_said_to_be(tmp_path: Path):
    one, other = _runs(tmp_path, changed=None)
    answer = determinism(first=str(one), second=str(other))
    assert answer.finding == "The runs are the same to the bit in all 5 steps."
    assert answer.total == 0


def test_zero_of_either_sign_differs_strictly_and_nan_equals_nan():
    one = {0: {"a": np.array([0.0, np.nan])}}
    other = {0: {"a": np.array([-0.0, np.nan])}}
    (distance,) = distances(one, other)
    assert distance.differing == 0.5
    assert distance.relative == 0
    found = first_difference(one, other, tier="strict", tolerance=0.0)
    assert found is not None
    assert first_difference(one, other, tier="relaxed", tolerance=0.0) is None


def test_a_tensor_or_step_that_one_run_lacks_is_a_difference():
    one, other = {0: {"a": np.zeros(2)}, 1: {"a": np.zeros(2)}}, {0: {"a": np.zeros(2)}}
    found = first_difference(one, other, tier="relaxed", tolerance=1.0)
    assert found is not None
    assert (found.distance.step, found.second) == (1, "nothing")
    reshaped = first_difference(one, {0: {"a": np.zeros((2, 1))}}, tier="relaxed", tolerance=1.0)
    assert reshaped is not None
    assert (reshaped.first, reshaped.second) == ("float64 [2]", "float64 [2, 1]")


def test_results_and_traces_of_runs_are_read(tmp_path: Path):
    for name, loss, version in (("one", 0.5, 7), ("other", 0.25, 8)):
        (tmp_path / name).mkdir()
        run = RunResult(
            policy="bsp",
            task="digits",
            world="process",
            seed=0,
            num_workers=2,
            status="finished",
            steps=2,
            samples=8,
            wall_s=1.0,
            losses=(LossPoint(clock=1, at_s=0.1, loss=2.0), LossPoint(clock=2, at_s=0.1 + loss, loss=loss)),
            parameters_sha256=name,
        )
        write_results(tmp_path / name / "results.json", [run])
        lines = [
            {"schema": 1, "worker": 0, "origin_s": 0.0},
            {"k": "compute", "t": loss, "d": 0.1, "c": 1},
            {"k": "push", "t": 0.2, "c": 1, "version": 3},
            {"k": "push", "t": 0.3, "c": 2, "version": version},
        ]
        (tmp_path / name / "trace-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, step, tensor in (("results.json", 2, "bsp, seed 0: loss"), ("trace-0.jsonl", 2, "push")):
        found = determinism(first=str(tmp_path / "one" / file), second=str(tmp_path / "other" / file)).comparisons[0]
        assert found.strict is not None
        assert (found.strict.distance.step, found.strict.distance.tensor) == (step, tensor)


def test_files_that_are_none_are_refused(tmp_path: Path):
    (tmp_path / "text.npz").write_text("no arrays")
    np.savez(tmp_path / "ragged.npz", a=np.zeros(2), b=np.zeros(3))
    for path in (tmp_path / "text.npz", tmp_path / "ragged.npz", tmp_path / "run.csv"):
        with pytest.raises(ConfigError):
            read_trajectory(path)
    with pytest.raises(DataError):
        read_trajectory(tmp_path / "results.json")
    for name in ("none.npz", "none.jsonl"):
        with pytest.raises(ConfigError if name.endswith(".npz") else DataError) as refused:
            read_trajectory(tmp_path / name)
        assert str(refused.value).count(name) == 1
        assert f"{name}: No such file or directory" in str(refused.value)


def test_no_samples_are_refused_and_what_is_identical_is_not_drawn() -> None:
    with pytest.raises(ConfigError, match="write"):
        determinism(global_batch=0)
    answer = determinism(num_elements=1000, num_steps=10)
    parting = answer.charts()[0]
    assert isinstance(parting, LineChart)
    apart = {one.name for one in answer.comparisons if any(one.relative)}
    assert {one.name for one in parting.series} <= apart
