import numpy as np
import pytest

from plesio.advisor.candidates import candidates
from plesio.advisor.curve import ProgressCurve
from plesio.advisor.failures import FailureModel
from plesio.advisor.memory import memory_need
from plesio.advisor.price import price
from plesio.cost.placement import all_reduce_on
from support.advisor import situation


def test_a_step_of_bsp_is_its_computing_and_a_ring():
    at = situation("4x1gbe")
    ring_s = all_reduce_on(at.cluster, range(4), at.num_bytes)
    assert price("bsp", at).step_s == pytest.approx(0.02 + ring_s)
    assert price("fsdp", at).step_s == pytest.approx(0.02 + 1.5 * ring_s)
    assert price("local_sgd:8", at).step_s == pytest.approx(0.02 + ring_s / 8)
    assert price("delayed:1", at).step_s == pytest.approx(max(0.02, ring_s))


def test_a_slow_worker_is_waited_for_but_not_on_the_store():
    at = situation("4x1gbe", slow=3.0, parameters=1000)
    assert price("bsp", at).step_s > 0.06
    rate = 3 / 0.02 + 1 / 0.06
    assert price("asp", at).step_s == pytest.approx(4 / rate, rel=0.05)
    assert price("adaptive", at).step_s == pytest.approx(4 / rate, rel=0.05)


def test_a_backup_worker_saves_the_wait_and_costs_a_workers_samples():
    at = situation("4x1gbe", slow=3.0, parameters=1000)
    assert price("bsp,backup=1", at).step_s == pytest.approx(0.02 * 4 / 3, rel=0.1)
    assert price("bsp,backup=1", at).servers is not None


@pytest.mark.parametrize("policy", ["ssp:3", "asp", "bsp,exchange=store", "local_sgd:4,exchange=store"])
def test_every_policy_on_the_store_is_priced_on_servers(policy: str):
    at = situation("4x1gbe")
    found = price(policy, at)
    assert found.servers is not None
    assert found.exchange_s != price("bsp", at).exchange_s, "the ring's"


def test_racks_are_priced_where_there_are_some():
    at = situation("2-racks", num_workers=16)
    for one in candidates(has_racks=True, has_store=True, shares_moments=True):
        assert 0 < price(one.spec, at).step_s < 10


def test_more_servers_take_what_meets_on_one():
    large = price("ssp:3", situation("4x1gbe", parameters=5_000_000))
    assert large.servers == 4
    assert price("bsp", situation("4x1gbe")).servers is None


@pytest.mark.parametrize(
    ("spec", "copies"),
    [("bsp", 3), ("delayed:1", 4), ("local_sgd:8", 4), ("local_sgd:8,delay=4", 5), ("local_sgd:8,moments=mean", 5)],
)
def test_memory_is_replica_optimizer_and_copies(spec: str, copies: int):
    at = situation()
    assert memory_need(spec, at).total == copies * at.num_bytes + at.sizes.activation_bytes


def test_a_sharded_replica_needs_an_nth_and_two_blocks():
    at = situation()
    assert memory_need("fsdp", at).total == 3 * at.num_bytes / 4 + 2 * at.sizes.block_bytes + at.sizes.activation_bytes


def test_elastic_workers_lose_less_to_failures_than_a_gang():
    failures = FailureModel(mtbf_s=600.0, num_workers=16, state_bytes=1e9)
    assert 1 < failures.slowdown("asp") < failures.slowdown("bsp")
    assert failures.slowdown("bsp") < failures.slowdown("fsdp")
    assert FailureModel(mtbf_s=5.0, num_workers=16).slowdown("bsp") == float("inf")


def test_how_long_a_run_went_on_has_no_say_in_when_it_came_to_a_level():
    samples = np.arange(1, 401) * 100.0
    noise = 0.01 * np.sin(37 * samples)
    points = 1 - np.exp(-samples / 3000) + noise
    curve = ProgressCurve(samples, samples / 1000, points)
    short = ProgressCurve(samples[:100], samples[:100] / 1000, points[:100])
    true = -3000 * np.log(0.3)
    assert curve.samples_to(0.7) == pytest.approx(true, rel=0.03)
    assert short.samples_to(0.7) == pytest.approx(curve.samples_to(0.7), rel=0.01)
