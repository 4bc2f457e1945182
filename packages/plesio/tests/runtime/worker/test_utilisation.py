import pytest

from plesio.core.results import Level
from plesio.runtime.worker.utilisation import (
    MOST_SAMPLES,
    SAMPLE_S,
    CounterReading,
    HostCounters,
    UtilisationGauge,
)


class MadeUpCounters:
    """Half a core of this process, three quarters of the machine, 1 kB/s out and 3 kB/s in; memory that grows."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_read = 0

    def read(self) -> CounterReading:
        self.num_read += 1
        return CounterReading(
            cpu_s=0.5 * self.now_s,
            host_busy_s=1.5 * self.now_s,
            host_s=2 * self.now_s,
            sent_bytes=round(1000 * self.now_s),
            received_bytes=round(3000 * self.now_s),
            memory_bytes=self.now_s,
        )


def run(*, step_s: float, num_steps: int) -> tuple[UtilisationGauge, MadeUpCounters, int]:
    counters = MadeUpCounters()
    gauge = UtilisationGauge(counters)
    num_samples = 0
    for step in range(num_steps):
        counters.now_s = step * step_s
        num_samples += gauge.stepped(counters.now_s) is not None
    return gauge, counters, num_samples


@pytest.mark.parametrize("step_s", [0.005, 3.0])
def test_rates_are_those_of_the_time_between_samples(step_s: float):
    found = run(step_s=step_s, num_steps=4000)[0].summary()
    assert found is not None
    assert (found.cpu.mean, found.host_cpu.mean) == pytest.approx((0.5, 0.75))
    assert (found.sent_bytes_per_s.p95, found.received_bytes_per_s.p95) == pytest.approx((1000, 3000), rel=1e-6)
    assert found.memory_bytes.p95 == pytest.approx(0.95 * 4000 * step_s, rel=0.1)
    assert found.gpu is None


def test_short_steps_are_sampled_now_and_then():
    _, counters, num_samples = run(step_s=0.005, num_steps=1000)
    assert num_samples <= 5.0 / SAMPLE_S
    assert counters.num_read == num_samples + 1


def test_a_long_run_has_few_samples_and_the_same_figures():
    hour_s, day_s = 3600.0, 86_400.0
    short, day = (run(step_s=0.5, num_steps=int(length_s / 0.5)) for length_s in (hour_s, day_s))
    assert day[2] < short[2] + 5 * MOST_SAMPLES  # half of them more each time that the run is twice as long
    found = day[0].summary()
    assert found is not None
    assert found.cpu == Level(mean=pytest.approx(0.5), p95=pytest.approx(0.5))
    assert found.memory_bytes.mean == pytest.approx(day_s / 2, rel=0.01)


def test_no_sample_no_summary():
    assert UtilisationGauge(MadeUpCounters()).summary() is None


def test_this_process_has_worked():
    reading = HostCounters("cpu").read()
    assert 0 < reading.cpu_s <= reading.host_busy_s <= reading.host_s
    assert reading.memory_bytes > 2**20
    assert reading.gpu_memory_bytes is None
