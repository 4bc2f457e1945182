from dataclasses import replace

import numpy as np
import pytest

from plesio.core.errors import ConfigError
from plesio_planning.sim.store import simulate_store
from plesio_planning.studies import parameter_server


def test_reference_values():
    """studies/reference.md, study 11."""
    answer = parameter_server()
    assert answer.total == pytest.approx(0.112, abs=0.0005)
    assert answer.times_s["ring"] == pytest.approx(6.97e-3, abs=0.005e-3)
    assert answer.total / answer.times_s["ring"] == pytest.approx(16.06, abs=0.005)
    tied = parameter_server(num_servers=256)
    assert tied.total / tied.times_s["ring"] == pytest.approx(1.004, abs=0.0005)


@pytest.mark.parametrize(("num_workers", "num_servers"), [(16, 1), (64, 16), (100, 7), (256, 256)])
def test_how_much_slower_and_what_is_used(num_workers: int, num_servers: int):
    answer = parameter_server(num_workers=num_workers, num_servers=num_servers)
    slower = num_workers / num_servers * num_workers / (num_workers - 1)
    assert answer.total / answer.times_s["ring"] == pytest.approx(slower)
    assert answer.used_share["server"] == pytest.approx(num_servers / (num_workers + num_servers))
    assert answer.used_share["ring"] == pytest.approx(1)


def test_sparse_updates_scale_with_density_until_indices_cost_more_than_zeros():
    dense = parameter_server().total
    assert parameter_server(density=0.01).total == pytest.approx(0.02 * dense)
    assert parameter_server(density=0.01, index_share=0.0).total == pytest.approx(0.01 * dense)
    assert parameter_server(density=0.7).total == dense


@pytest.mark.parametrize("pull", ["touched", "changed", "all"])
def test_the_break_even_density_is_where_server_and_ring_take_as_long(pull: str):
    model = parameter_server(pull=pull, num_servers=200).model  # type: ignore[arg-type]
    below = parameter_server(pull=pull, num_servers=200).sparse_below  # type: ignore[arg-type]
    assert 0 < below < 1
    assert replace(model, density=below).server_s == pytest.approx(model.ring_s)
    assert replace(model, density=0.9 * below).server_s < model.ring_s


def test_the_break_even_density_without_latency_is_a_formula():
    """2 · N/S · 2ρd/B = 2(N-1)/N · d/B."""
    assert parameter_server().sparse_below == pytest.approx(16 * 255 / 256**2 / 2)


def test_who_pulls_what_anybody_changed_pulls_nearly_all():
    changed = parameter_server(density=0.01, pull="changed")
    assert changed.model.pull_bytes == 700e6  # 1 - 0.99^256 = 92 % with as many indices: all is less
    assert parameter_server(density=0.01, pull="changed", num_workers=2).model.pull_bytes == pytest.approx(
        2 * (1 - 0.99**2) * 700e6
    )
    assert parameter_server(pull="all", num_servers=1).sparse_below == 0


def test_servers_beat_gathering_sparse_gradients_if_there_are_more_than_two():
    three = parameter_server(density=0.001, num_servers=3)
    assert three.times_s["server"] < three.times_s["gather"] < parameter_server(density=0.001, num_servers=1).total


@pytest.mark.parametrize("num_workers", [4, 12, 40])
def test_asynchronous_updates_come_as_fast_as_the_closed_queue_gives_them(num_workers: int):
    model = parameter_server(
        num_workers=num_workers, num_servers=4, latency_s=1e-4, gradient_bytes=1e8, bytes_per_s=1e9, compute_s=0.7
    ).model
    service_s = 1e-4 + 1e8 / 4 / 1e9
    alone_s = 0.7 + 2 * 4 * service_s
    num_steps = 200
    schedule = simulate_store(
        np.full((num_workers, num_steps), 0.7), service_s=service_s, latency_s=(alone_s - 0.7 - service_s) / 2
    )
    settled = np.sort(schedule.applied_s.ravel())[num_workers * num_steps // 4 : -num_workers * num_steps // 4]
    measured = (len(settled) - 1) / (settled[-1] - settled[0])
    assert model.asynchronous_per_s == pytest.approx(measured, rel=0.01)


def test_a_barrier_at_break_even_makes_both_as_fast():
    answer = parameter_server(num_servers=1)
    assert answer.asynchronous_from > 1
    at = replace(answer.model, barrier_factor=answer.asynchronous_from)
    assert at.asynchronous_per_s == pytest.approx(at.ring_per_s)
    assert parameter_server(latency_s=1e-4, num_servers=1).model.ring_per_s < answer.model.ring_per_s


def test_a_gradient_has_bytes() -> None:
    with pytest.raises(ConfigError, match="gradient_bytes is 0; write 1 "):
        parameter_server(gradient_bytes=0.0)
