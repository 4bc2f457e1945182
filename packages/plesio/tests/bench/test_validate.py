from pathlib import Path
from typing import Any

import pytest

from bench.kept_progress import KeptProgress
from plesio.advisor import ModelSizes
from plesio.bench import calibrate as calibrating
from plesio.bench import validate as validating
from plesio.bench.advise_probe import Probed
from plesio.bench.recipe import Recipe, make_recipe
from plesio.bench.validate import Workload, matrix, validate, validate_script
from plesio.core.errors import ConfigError, PlesioError
from plesio.core.predictions import Prediction
from plesio.core.results import Environment, RunResult, Staleness, WorkerTimes
from plesio.cost.calibration import Calibration, SizeCurve

QUADRATIC = Workload(task="quadratic", batch_size=16)


def calibration(*_: Any, **__: Any) -> Calibration:
    curve = SizeCurve.of({1: 0.001, 10: 0.002, 100: 0.003})
    return Calibration(
        task="quadratic",
        batch_size=16,
        num_parameters=1_000,
        num_workers=4,
        num_cores=2,
        cores=2.0,
        gradient=curve,
        gradient_cv=0.1,
        memory=curve,
        step_s=0.001,
        all_reduce=curve,
        worker=curve,
        server=curve,
        message_s=0.0002,
        exchange=curve,
        environment=Environment(plesio="1", python="3", torch="2", numpy="2", platform="L", cpu="c", num_cpus=2),
    )


def made_up_runs(recipe: Recipe, *, world: str = "process", status: Any = "finished", **_: Any) -> list[RunResult]:
    """The virtual world says 10 % more throughput, 5 points more waiting, and two thirds of the staleness."""
    factor = 1.1 if world == "virtual" else 1.0
    wait_s = 5.5 if world == "virtual" else 5.0
    return [
        _run(policy, seed, world=world, factor=factor, wait_s=wait_s, status=status)
        for policy in recipe.run.policies
        for seed in recipe.run.seeds
    ]


def _run(policy: str, seed: int, *, world: Any, factor: float, wait_s: float, status: Any) -> RunResult:
    worker = WorkerTimes(
        worker=0,
        compute_s=10.0 - wait_s,
        wait_s=wait_s,
        communicate_s=0.0,
        steps=320,
        samples=5120,
        peak_memory_bytes=0,
    )
    return RunResult(
        policy=policy,
        task="quadratic",
        world=world,
        seed=seed,
        num_workers=4,
        status=status,
        error=None if status == "finished" else "the disk is full",
        steps=320,
        samples=5120,
        wall_s=10.0,
        samples_per_s=(500.0 + seed) * factor,
        metric_name="suboptimality",
        metric_goal="min",
        final_metric=0.2,
        bytes_sent_total=2_000_000,
        workers=(worker,),
        staleness=Staleness.of({2: 100} if world == "virtual" else {3: 100}),
    )


def by_name(predictions: list[Prediction], policy: str) -> dict[str, Prediction]:
    return {one.quantity: one for one in predictions if one.setting["policy"] == policy}


def test_rows_are_medians_over_seeds_with_a_trivial_baseline_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(validating, "run_comparison", made_up_runs)
    monkeypatch.setattr(validating, "calibrate", calibration)
    settings = matrix(
        policies=("bsp", "ssp:4,period=3", "asp", "local_sgd:8"),
        seeds=(0, 2),
        workloads=[QUADRATIC],
        step_times=("30 ms", "60 ms"),
    )
    predictions = validate(settings, out=tmp_path, progress=KeptProgress())
    assert {one.setting["step_time"] for one in predictions} == {"30 ms", "60 ms"}
    first = [one for one in predictions if one.setting["step_time"] == "30 ms"]
    bsp, ssp, asp, local = (by_name(first, policy) for policy in ("bsp", "ssp:4,period=3", "asp", "local_sgd:8"))
    assert bsp["throughput"].measured == pytest.approx(501)
    assert bsp["throughput"].error == pytest.approx(0.1)
    assert bsp["wait share"].error == pytest.approx(5)
    assert "staleness" not in bsp
    assert "staleness" not in local
    assert ssp["staleness"].error == pytest.approx(-1 / 3)
    # 4 workers of 16 samples: all at the slow one's 90 ms; or three of 30 ms and it
    assert bsp["throughput"].baseline == pytest.approx(64 / 0.09)
    assert asp["throughput"].baseline == pytest.approx(16 * (3 / 0.03 + 1 / 0.09))
    assert bsp["wait share"].baseline == pytest.approx(0.5)
    assert asp["wait share"].baseline == pytest.approx(0)
    # 4,000 bytes of parameters: each of 320 steps sends 2 * 3/4 of them, or pushes and pulls, or an eighth
    assert bsp["bytes"].baseline == pytest.approx(320 * 6_000)
    assert asp["bytes"].baseline == pytest.approx(320 * 8_000)
    assert local["bytes"].baseline == pytest.approx(320 * 6_000 / 8)
    assert ssp["bytes"].baseline == pytest.approx(320 * 8_000 / 3)
    assert asp["final suboptimality"].scale == "relative"


def test_a_run_that_failed_is_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validating, "run_comparison", lambda *args, **kw: made_up_runs(*args, **kw, status="failed"))
    monkeypatch.setattr(validating, "calibrate", calibration)
    with pytest.raises(PlesioError, match="bsp, seed 0, in the virtual world failed: the disk is full"):
        validate(matrix(policies=["bsp"], seeds=(0,), workloads=[QUADRATIC]), out=tmp_path, progress=KeptProgress())


@pytest.mark.parametrize(
    ("policies", "seeds", "message"),
    [
        (["bsp"], [-1], "^--seeds is -1; write 0 or more$"),
        (["bsp"], [], "^--seeds is empty; write one or more$"),
        (["bsp"], [0, 0], "^--seeds: 0 is there 2 times; write it once$"),
        (["bps"], [0], '^--policies: unknown policy "bps"; did you mean "bsp"'),
        ([], [0], "^--policies is empty; write one or more$"),
    ],
)
def test_a_matrix_that_cannot_be_run_is_refused_as_a_whole(policies: list[str], seeds: list[int], message: str):
    with pytest.raises(ConfigError, match=message):
        matrix(policies=policies, seeds=seeds)


@pytest.mark.slow
def test_both_worlds_do_the_same_runs_and_finished_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibrating, "REPEATS", 10)
    monkeypatch.setattr(calibrating, "GRADIENT_S", 0.2)
    settings = matrix(
        policies=("bsp", "asp"),
        seeds=(0,),
        workloads=[Workload(task="digits", batch_size=16)],
        step_times=("40 ms",),
        num_rounds=10,
    )
    progress = KeptProgress()
    first = validate(settings, out=tmp_path, progress=progress)
    assert len(progress.labels) == 4
    throughput = by_name(first, "bsp")["throughput"]
    assert throughput.measured < throughput.baseline  # steps of 120 ms, and what exchanging takes
    assert throughput.predicted < throughput.baseline
    assert by_name(first, "bsp")["bytes"].error == pytest.approx(0, abs=0.1)
    again = KeptProgress()
    assert validate(settings, out=tmp_path, progress=again) == first
    assert "started" not in {how for how, _ in again.calls}


def test_a_script_is_predicted_by_a_probe_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Recipe] = []

    def runs(recipe: Recipe, **arguments: Any) -> list[RunResult]:
        seen.append(recipe)
        return made_up_runs(recipe, **arguments)

    monkeypatch.setattr(validating, "run_comparison", runs)
    monkeypatch.setattr(validating.os, "sched_getaffinity", lambda pid: {0, 1})
    (script := tmp_path / "train.py").touch()
    recipe = make_recipe(
        {"task": {"name": str(script)}, "run": {"policies": ["bsp", "asp"]}, "workers": {"count": 4}},
        folder=tmp_path,
        where="here",
    )
    sizes = ModelSizes(shapes=((100, 10),), optimizer_bytes=0, activation_bytes=0, block_bytes=0)
    probed = Probed(
        name="train.py",
        sizes=sizes,
        has_store=True,
        shares_moments=True,
        batch_size=16,
        gradient_s=0.01,
        metric_s=0.0,
        sample_s=0.001,
    )
    predictions = validate_script(
        recipe, probed, out=tmp_path / "out", progress=KeptProgress(), on_remark=lambda line: None
    )
    process, virtual = (recipe.workers.step_time_of(0) for recipe in seen)
    assert process is None
    assert virtual is not None
    assert virtual.distribution().mean_s == pytest.approx(0.02)  # four workers take turns on two cores
    bsp = by_name(predictions, "bsp")
    assert bsp["throughput"].error == pytest.approx(0.1)
    assert bsp["throughput"].baseline == pytest.approx(64 / 0.02)
    assert bsp["bytes"].baseline == pytest.approx(320 * 6_000)
    assert {one.setting["workers"] for one in predictions} == {"4"}
