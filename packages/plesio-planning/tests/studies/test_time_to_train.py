from itertools import pairwise

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.estimate.estimate import estimate
from plesio_planning.studies import time_to_train

DAY_S = 86_400


def test_reference_values():
    """studies/reference.md, study 20."""
    answer = time_to_train()
    assert answer.ideal_s / DAY_S == pytest.approx(213, abs=0.5)
    assert answer.state_bytes == 16 * 70e9
    larger = time_to_train(cluster="2048xa100", tokens=2e12)
    assert larger.ideal_s / DAY_S == pytest.approx(38.0, abs=0.05)


def test_simulated_runs_agree_with_the_closed_form():
    answer = time_to_train(cluster="2048xa100", num_runs=20_000)
    low, high = answer.simulated_slowdown_ci95
    assert low < answer.total / answer.ideal_s < high
    quantiles = answer.simulated_s
    assert list(quantiles) == sorted(quantiles)
    assert quantiles[0] > answer.ideal_s


def test_the_interval_is_that_of_failures_and_of_the_utilisation():
    by_chance = time_to_train(step_error=0.0)
    assert by_chance.interval_s == pytest.approx((by_chance.simulated_s[5], by_chance.simulated_s[95]))
    low_s, high_s = time_to_train().interval_s
    assert low_s < by_chance.interval_s[0] < by_chance.total < by_chance.interval_s[1] < high_s


def test_more_devices_take_less_work_and_lose_more_of_it():
    runs = [point.goodput for point in time_to_train().by_devices.values()]
    assert all(before.work_s > after.work_s for before, after in pairwise(runs))
    assert all(before.share > after.share for before, after in pairwise(runs))


def test_the_utilisation_moves_the_run_the_most():
    answer = time_to_train()
    assert answer.sensitivities[0].name == "MFU"
    assert answer.sensitivities[0].low_s == pytest.approx(answer.total / 0.8, rel=2e-3)


def test_a_layout_gives_the_utilisation():
    answer = time_to_train(pace="layout", cluster="256xh100", tp=8, pp=4)
    given = time_to_train(cluster="256xh100", num_parameters=answer.state_bytes / 16, mfu=answer.mfu)
    # 6 N D leaves attention out and counts the embedding: a few percent for a model of 70 billion
    assert answer.ideal_s == pytest.approx(given.ideal_s, rel=0.1)
    assert answer.sensitivities[0].name == "peak FLOP/s"


@pytest.mark.parametrize("num_devices", [2048, 16_384])
def test_a_layout_takes_what_the_estimator_says(num_devices: int):
    shared = {"model": "llama-2-70b", "cluster": f"{num_devices}xa100", "tokens": 2e12, "tp": 8, "pp": 4}
    study = time_to_train(pace="layout", global_batch=1024, **shared)  # type: ignore[arg-type]
    training = estimate(global_batch=1024, **shared).training  # type: ignore[arg-type]
    assert study.goodput == training.goodput
    assert study.mfu == training.step.mfu


def test_a_layout_that_does_not_fit_is_refused_with_one_that_does():
    with pytest.raises(ConfigError, match=r"with tp = 4 fits into the memory of 256xa100 .*; write tp = 4 and pp = 2"):
        time_to_train(pace="layout", tp=4, pp=1)
    leaner = time_to_train(pace="layout", model="llama-3-8b", tp=1, pp=1, num_runs=2)
    assert "With 18 bytes a parameter it would need 84.1 GiB of a device's 80 GiB" in leaner.finding


def test_a_layout_is_computed_anew_for_each_number_of_devices():
    """At the utilisation of 2,048 devices, 16,384 would take an eighth of the time; in a layout they take a third."""
    asked = {"tokens": 2e12, "pace": "layout", "tp": 8, "pp": 4, "global_batch": 1024}
    answer = time_to_train(cluster="2048xa100", **asked)  # type: ignore[arg-type]
    alone = time_to_train(cluster="16384xa100", **asked)  # type: ignore[arg-type]
    there = answer.by_devices[16_384]
    assert there.goodput.work_s == alone.ideal_s
    assert there.goodput.work_s > 2.5 * answer.ideal_s / 8
    shares = [point.mfu for point in answer.by_devices.values()]
    assert shares == sorted(shares, reverse=True)


def test_a_layout_is_found_for_any_number_of_hosts():
    """Powers of two divide 1000 devices into 125 replicas at least, and 4 stages are not possible."""
    odd, even = (time_to_train(cluster=f"{number}xa100", pace="layout", num_runs=2) for number in (1000, 1024))
    assert odd.ideal_s == pytest.approx(1.024 * even.ideal_s, rel=0.04)


def test_an_interval_of_ones_own_is_no_better_than_the_best():
    best = time_to_train()
    own = time_to_train(checkpoint_interval_s=2 * 3600)
    assert own.goodput.interval_s == 2 * 3600
    assert own.total > best.total


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"mfu": 40.0}, "mfu is 40; write"),
        ({"num_parameters": 0.0}, "parameters is 0; write 1 "),
        ({"cluster": "many"}, 'as in "2048xh100"'),
        ({"num_runs": 1}, "num_runs is 1; write 2 "),
        ({"tokens": 1e16}, "write at most 237 for num_runs, a longer device_mtbf_s, or fewer tokens"),
        ({"device_mtbf_s": 12 * 3600, "num_runs": 2}, "num_runs of 2 take too long; write a longer device_mtbf_s, or"),
        ({"confidence": 90.0}, "confidence is 90; write more than 0, less than 1"),
        ({"pace": "layout", "tp": 7}, "write"),
        ({"cluster": "8xa100"}, "write a cluster of 14 devices or more"),
        ({"tp": 4}, "tp has no effect with a pace of mfu; leave it out, or write pace = layout"),
        ({"pace": "layout", "mfu": 0.3}, "mfu has no effect"),
        ({"checkpoint_interval_s": 0.0}, "checkpoint_interval_s is 0; write"),
        ({"device_mtbf_s": 600.0}, "write a longer device_mtbf_s"),
    ],
)
def test_impossible_inputs_are_refused(inputs: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        time_to_train(**inputs)  # type: ignore[arg-type]


def test_bits_for_bytes_are_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]):
    assert invoke(["study", "time-to-train", "--storage-bandwidth", "100 Gb/s"]) == 2
    assert 'write "100 Gbit/s" (bits) or "100 GB/s" (bytes)' in capsys.readouterr().err
