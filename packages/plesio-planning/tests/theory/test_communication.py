import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.all_reduce import busiest_rank_bytes
from plesio_planning.theory.communication import all_reduce_bytes, asynchronous_rate, best_num_workers, speedup
from plesio_planning.theory.parallelism import pipeline_bubble, zero_memory

times_s = st.floats(1e-3, 1e3)


@given(num_ranks=st.integers(1, 4096))
def test_a_ring_reaches_the_bound_of_all_all_reduces(num_ranks: int):
    bound = all_reduce_bytes(message_bytes=1e6, num_ranks=num_ranks)
    assert bound.value == pytest.approx(busiest_rank_bytes("ring", 1e6, num_ranks=num_ranks))
    assert bound.value < 2e6


@given(compute_s=times_s, communicate_s=times_s, workers=st.integers(1, 10**5))
def test_the_speedup_is_the_ratio_of_times_and_amdahls(compute_s: float, communicate_s: float, workers: int):
    bound = speedup(compute_s=compute_s, exchange_s=communicate_s, num_workers=workers)
    assert bound.value == pytest.approx((compute_s + communicate_s) / (compute_s / workers + communicate_s))
    serial = bound.also["serial share (Amdahl)"]
    assert bound.value == pytest.approx(1 / (serial + (1 - serial) / workers))
    assert bound.value <= min(workers, bound.also["limit for many workers"]) * (1 + 1e-9)


def test_without_communication_the_speedup_is_linear():
    bound = speedup(exchange_s=0.0, num_workers=64)
    assert (bound.value, bound.also["limit for many workers"]) == (64, math.inf)


@given(compute_s=times_s, latency_s=st.floats(1e-6, 1.0), factor=st.floats(0.1, 10))
def test_no_other_number_of_workers_is_faster(compute_s: float, latency_s: float, factor: float):
    bound = best_num_workers(compute_s=compute_s, latency_s=latency_s, messages_per_worker=2, message_bytes=0)
    workers = factor * bound.also["workers"]
    assert bound.value <= (compute_s / workers + 2 * latency_s * workers) * (1 + 1e-9)
    assert bound.parts["compute"] == pytest.approx(bound.parts["latency"])


@given(steps_s=st.lists(st.floats(0.1, 10), min_size=1, max_size=8))
def test_mean_staleness_is_the_other_workers(steps_s: list[float]):
    bound = asynchronous_rate(step_times_s=tuple(steps_s))
    rate = sum(1 / step_s for step_s in steps_s)
    mean = sum((rate * step_s - 1) / step_s for step_s in steps_s) / rate
    assert mean == pytest.approx(bound.also["mean staleness (updates)"], abs=1e-9)


def test_counted_updates_have_the_rate_and_the_staleness():
    """Periodic workers over 3000 s; the ends are worth one update of about 4000."""
    steps_s = (1.0, 1.3, 2.9)
    arrivals = sorted(
        (step_s * number, worker) for worker, step_s in enumerate(steps_s) for number in range(1, int(3000 / step_s))
    )
    last: dict[int, int] = {}
    staleness = []
    for version, (_, worker) in enumerate(arrivals):
        if worker in last:
            staleness.append(version - last[worker] - 1)
        last[worker] = version
    bound = asynchronous_rate(step_times_s=steps_s)
    assert len(arrivals) / 3000 == pytest.approx(bound.value, rel=2e-3)
    assert np.mean(staleness) == pytest.approx(2, rel=5e-3)


@pytest.mark.parametrize(
    ("micro_batches", "share"), [(1, 0.875), (2, 0.778), (4, 0.636), (8, 0.467), (16, 0.304), (32, 0.179)]
)
def test_bubbles_of_the_reference(micro_batches: int, share: float):
    """studies/reference.md, study 5."""
    assert pipeline_bubble(num_micro_batches=micro_batches).value == pytest.approx(share, abs=6e-4)
    also = pipeline_bubble(num_micro_batches=24).also
    assert (also["micro-batches for 90 % utilisation"], also["micro-batches for a bubble of 5 %"]) == (63, 133)


@given(stages=st.integers(1, 64), chunks=st.integers(1, 8))
def test_the_micro_batches_that_it_asks_for_are_just_enough(stages: int, chunks: int):
    def bubble(micro_batches: int) -> float:
        busy = micro_batches * chunks
        return (stages - 1) / (busy + stages - 1)

    needed = int(
        pipeline_bubble(pp=stages, num_micro_batches=stages, vpp=chunks).also["micro-batches for 90 % utilisation"]
    )
    assert bubble(needed) <= 0.1 + 1e-12
    assert needed == 1 or bubble(needed - 1) > 0.1


def test_interleaving_needs_whole_rounds():
    with pytest.raises(ConfigError, match="multiple of 8"):
        pipeline_bubble(pp=8, num_micro_batches=12, vpp=2)
    assert pipeline_bubble(pp=8, num_micro_batches=12).value == pytest.approx(7 / 19)


def test_zero_of_the_golden_examples():
    assert zero_memory(num_parameters=12e9, num_workers=8).value == pytest.approx(24e9)
    assert zero_memory(num_parameters=12e9, num_workers=6).value == pytest.approx(32e9)


@given(ranks=st.integers(2, 1024))
def test_each_stage_of_zero_shards_more(ranks: int):
    values = [zero_memory(num_workers=ranks, zero=stage).value for stage in range(4)]
    assert values == sorted(values, reverse=True)
    assert values[3] == pytest.approx(values[0] / ranks)
