import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import DataError
from plesio.core.results import (
    Environment,
    Evaluation,
    Level,
    LossPoint,
    MemorySplit,
    RunResult,
    Staleness,
    Utilisation,
    WorkerTimes,
    read_results,
    write_results,
)

RUN = RunResult(
    policy="ssp:4",
    task="digits",
    world="process",
    seed=3,
    num_workers=2,
    status="failed",
    error="worker 1 was lost",
    steps=10,
    samples=80,
    wall_s=1.5,
    bytes_sent={"ipc": 12, "tcp": 3},
    bytes_sent_total=15,
    workers=(
        WorkerTimes(
            worker=0, compute_s=1.0, wait_s=0.25, communicate_s=0.25, steps=6, samples=48, peak_memory_bytes=2**28
        ),
    ),
    staleness=Staleness.of({0: 5, 3: 1}),
    lost_workers=(1,),
    refused_updates={"1": {"not_finite": 2}},
    decisions=({"clock": 4, "reason": "because"},),
    fallbacks=("tracing stopped",),
    evaluations=(Evaluation(samples=40, at_s=0.7, metric=0.9),),
    losses=(LossPoint(clock=3, at_s=0.1, loss=2.0),),
    environment=Environment(
        plesio="0.1", python="3.11", torch="2", numpy="2", platform="Linux", cpu="x", num_cpus=2, commit=None
    ),
)


def test_what_is_written_is_read_back(tmp_path: Path):
    path = tmp_path / "results.json"
    write_results(path, [RUN, RUN])
    assert read_results(path) == [RUN, RUN]
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_what_was_measured_is_read_back_and_older_files_lack_it(tmp_path: Path):
    level = Level(mean=0.5, p95=0.9)
    used = Utilisation(
        cpu=level, host_cpu=level, memory_bytes=level, sent_bytes_per_s=level, received_bytes_per_s=level
    )
    memory = MemorySplit(
        device="cpu",
        peak_bytes=1000,
        before_bytes=500,
        parameters_bytes=100,
        gradients_bytes=100,
        optimizer_bytes=50,
        activations_bytes=200,
        other_bytes=20,
        cached_bytes=None,
        reused_bytes=30,
    )
    assert memory.rest_bytes == 60
    worker = dataclasses.replace(RUN.workers[0], memory=memory, utilisation=used)
    run = dataclasses.replace(RUN, workers=(worker,))
    path = tmp_path / "results.json"
    write_results(path, [run, RUN])
    assert read_results(path) == [run, RUN]
    new, old = (run["workers"][0].keys() for run in json.loads(path.read_text())["runs"])
    assert new - old == {"memory", "utilisation"}


def test_values_that_json_lacks_come_back_as_nan(tmp_path: Path):
    path = tmp_path / "results.json"
    lossy = LossPoint(clock=1, at_s=0.5, loss=math.inf)
    write_results(path, [RunResult.from_json({**RUN.to_json(), "losses": [{"clock": 1, "at_s": 0.5, "loss": None}]})])
    [run] = read_results(path)
    assert math.isnan(run.losses[0].loss)
    assert run.losses[0].clock == lossy.clock
    json.loads(path.read_text(), parse_constant=pytest.fail)


WORKER = RUN.to_json()["workers"][0]


def changed(**fields: object) -> str:
    return json.dumps({"schema_version": 1, "runs": [{**RUN.to_json(), **fields}]})


def test_a_reader_never_sees_half_a_file(tmp_path: Path):
    path = tmp_path / "results.json"
    write_results(path, [RUN])
    bad = RunResult.from_json(RUN.to_json())
    object.__setattr__(bad, "decisions", (object(),))
    with pytest.raises(TypeError):
        write_results(path, [bad])
    assert read_results(path) == [RUN]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not a results file"),
        ("[]", "schema version None"),
        ('{"schema_version": 99, "runs": []}', "schema version 99"),
        ('{"schema_version": 1}', "no list of runs"),
        ('{"schema_version": 1, "runs": [{"policy": "bsp"}]}', "not a run"),
        ('{"schema_version": 1, "runs": [3]}', "not a run"),
        (changed(workers=[{**WORKER, "colour": 1}]), r"unknown field `colour` - at `\$.workers\[...\]`"),
        (changed(steps="10"), r"Expected `int`, got `str` - at `\$.steps`"),
        (changed(environment={"plesio": "0.1"}), r"missing required field `python` - at `\$.environment`"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_results(path)


def test_missing_file_says_what_writes_it(tmp_path: Path):
    with pytest.raises(DataError, match="plesio compare"):
        read_results(tmp_path / "results.json")


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 50), min_size=1))
def test_staleness_is_that_of_the_updates_one_by_one(counts: dict[int, int]):
    each = sorted(tau for tau, number in counts.items() for _ in range(number))
    staleness = Staleness.of(counts)
    assert sum(staleness.counts) == len(each)
    assert staleness.mean == pytest.approx(sum(each) / len(each))
    assert staleness.max == each[-1]
    for share, quantile in ((0.5, staleness.p50), (0.95, staleness.p95)):
        assert sum(tau <= quantile for tau in each) >= share * len(each)
        assert sum(tau < quantile for tau in each) < share * len(each)
