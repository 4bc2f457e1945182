import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError, DataError
from plesio.core.results import Environment
from plesio.cost.calibration import Calibration, SizeCurve

SIZES = (4_000.0, 40_000.0, 400_000.0, 4_000_000.0)
NUM_PARAMETERS = 100_000
"""0.4 MB."""


def line(intercept: float, slope: float, sizes: tuple[float, ...] = SIZES) -> SizeCurve:
    return SizeCurve.of({size: intercept + slope * size for size in sizes})


def calibration(*, exchange: SizeCurve | None = None) -> Calibration:
    return Calibration(
        task="digits",
        batch_size=32,
        num_parameters=NUM_PARAMETERS,
        num_workers=4,
        num_cores=2,
        cores=1.8,
        gradient=line(1e-3, 1e-4, (8.0, 16.0, 32.0)),
        gradient_cv=0.1,
        memory=line(4e8, 1e4, (8.0, 16.0, 32.0)),
        step_s=0.5e-3,
        all_reduce=line(3e-3, 1.5e-9),
        worker=line(1.5e-3, 0.5e-9),
        server=line(1e-3, 0.25e-9),
        message_s=0.2e-3,
        exchange=exchange or line(2.9e-3, 0.75e-9),
        environment=Environment(
            plesio="1", python="3", torch="2", numpy="2", platform="Linux", cpu="a processor", num_cpus=2
        ),
    )


def test_an_exchange_costs_what_was_measured():
    measured = calibration()
    costs = measured.costs(32)
    size = 4 * NUM_PARAMETERS
    worker_s = 2 * costs.pack(size) + costs.step_s
    server_s = costs.serve(size) + costs.serve(0)
    assert worker_s == pytest.approx(measured.worker.fit.at(size))
    assert server_s == pytest.approx(measured.server.fit.at(size))
    way_s = 2 * measured.cluster().local.latency_s
    assert worker_s + server_s + way_s == pytest.approx(measured.exchange.fit.at(size))
    assert way_s == pytest.approx(0.4e-3)
    assert costs.all_reduce(1_000_000) == pytest.approx(4.5e-3)
    assert costs.gradient_s == pytest.approx(4.2e-3)
    assert costs.pack(size, further=True) - costs.pack(size) == pytest.approx(0.1e-3 - costs.pack_s)
    assert costs.cores == 1.8


def test_processors_that_overlap_are_waited_for_only_as_long_as_it_took():
    measured = calibration(exchange=line(1.5e-3, 0.3e-9))
    costs = measured.costs(32)
    size = 4 * NUM_PARAMETERS
    waited_s = 2 * costs.pack(size) + costs.step_s + costs.serve(size) + costs.serve(0)
    assert waited_s == pytest.approx(measured.exchange.fit.at(size))
    assert measured.cluster().local.latency_s == 0


def test_elsewhere_everyone_has_a_core_and_links_of_the_cluster():
    costs = calibration().costs(64, where="apart")
    assert costs.cores is None
    assert costs.all_reduce(1_000) is None
    assert costs.gradient_s == pytest.approx(7.4e-3)
    assert costs.pack_s == calibration().costs(64).pack_s


def test_on_a_testbed_a_collective_takes_what_it_takes_here_besides_its_links():
    costs = calibration().costs(64, where="testbed")
    assert costs.all_reduce(1_000) is None
    assert costs.collective_s == pytest.approx(calibration().all_reduce.fit.intercept)
    assert replace(costs, collective_s=0.0) == calibration().costs(64, where="apart")


def test_this_machine_has_room_for_as_many_as_are_asked_for():
    assert calibration().cluster().num_slots == 4
    assert calibration().cluster(7).num_slots == 7


def test_of_another_task_model_or_number_of_workers_is_refused():
    calibration().check_task("digits", num_parameters=NUM_PARAMETERS)
    with pytest.raises(ConfigError, match="of task digits, and not of stdlib_lm; plesio lab calibrate stdlib_lm"):
        calibration().check_task("stdlib_lm", num_parameters=NUM_PARAMETERS)
    with pytest.raises(ConfigError, match="a model with 100,000 parameters, this digits has 7"):
        calibration().check_task("digits", num_parameters=7)
    calibration().check_workers(4)
    with pytest.raises(ConfigError, match="of 4 workers on one machine, not of 8"):
        calibration().check_workers(8)


def test_survives_a_file(tmp_path: Path):
    path = tmp_path / "new" / "calibration.json"
    calibration().write(path)
    assert Calibration.read(path) == calibration()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("gradient"), "is no calibration: Object missing required field `gradient`"),
        (lambda data: data.update(schema=99), "is no calibration of schema 1"),
        (
            lambda data: data["worker"].pop("fit"),
            r"missing required field `fit` - at `\$.worker`; plesio lab calibrate makes one",
        ),
        (lambda data: data["worker"]["fit"].pop("slope"), "slope"),
        (lambda data: data["environment"].update(more=1), "unknown field `more`"),
        (lambda data: data.update(cores="4"), r"is no calibration: Expected `float`, got `str` - at `\$.cores`"),
        (lambda data: data["worker"]["points"].append([1, 2, 3]), "is no calibration"),
    ],
)
def test_a_garbled_file_is_one_clear_line(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str):
    path = tmp_path / "calibration.json"
    calibration().write(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match=message) as caught:
        Calibration.read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path):
    with pytest.raises(DataError, match="plesio lab calibrate writes one"):
        Calibration.read(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("no JSON")
    with pytest.raises(DataError, match="cannot read the calibration"):
        Calibration.read(tmp_path / "text.json")
    with pytest.raises(DataError, match="cannot write the calibration"):
        calibration().write(tmp_path / "text.json" / "calibration.json")
