"""Runs over several sites: what an exchange a step costs there, and what local steps do."""

import math
from dataclasses import replace

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    Layout,
    RunOverSites,
    Sites,
    Training,
    estimate_training,
    extra_tokens,
    find_model,
    loss_penalty,
    parse_machine,
    run_over_sites,
)

LAYOUT = Layout(tp=8, dp=32, zero=1, sequence_parallel=True, recomputation="full")
SITES = Sites(num_sites=4, site_bytes_per_s=1.25e9)


def training(model: str = "llama-3-8b", *, layout: Layout = LAYOUT) -> Training:
    machine = parse_machine(f"{layout.num_devices}xh100")
    return estimate_training(find_model(model), layout, machine, global_batch=512, tokens=1e12)


def over(**changes: object) -> RunOverSites:
    return run_over_sites(training(), replace(SITES, **changes))  # type: ignore[arg-type]


def test_an_exchange_every_step_takes_what_a_ring_over_the_links_takes():
    plain = over(site_latency_s=0.0).ways[0]
    num_bytes = 4 * training().model.num_parameters
    assert plain.step_bytes == pytest.approx(1.5 * num_bytes)
    ring_s = plain.step_bytes / 1.25e9
    assert plain.waiting_s < ring_s
    assert plain.step_s == pytest.approx(ring_s, rel=0.1)  # nothing else takes long


def test_local_steps_wait_only_for_what_does_not_fit_behind_them():
    local = over().ways[1]
    assert local.waiting_s == 0
    assert local.hiding_bytes_per_s < 1.25e9
    # at just the bandwidth that hides nothing waits, and below it something does
    enough = over(site_latency_s=0.0, site_bytes_per_s=1.001 * over(site_latency_s=0.0).ways[1].hiding_bytes_per_s)
    assert enough.ways[1].waiting_s == 0
    scarce = over(site_latency_s=0.0, site_bytes_per_s=0.5 * enough.ways[1].hiding_bytes_per_s)
    assert scarce.ways[1].waiting_s > 0
    blocking = over(overlapped_steps=0, num_fragments=1, exchange_bits=32)
    assert blocking.ways[1].waiting_s == pytest.approx(SITES.exchange_s(4 * training().model.num_parameters) / 100)


def test_one_local_step_of_whole_gradients_is_an_exchange_every_step():
    found = over(local_steps=1, num_fragments=1, exchange_bits=32, overlapped_steps=0)
    plain, local = found.ways
    assert local.step_bytes == plain.step_bytes
    assert local.more_tokens == 1
    assert local.waiting_s == pytest.approx(plain.waiting_s, rel=0.05)  # plain hides a part behind a backward pass


def test_fewer_exchanges_send_less_and_cost_more_tokens():
    ways = [over(local_steps=steps).ways[1] for steps in (30, 100, 500)]
    assert [way.step_bytes for way in ways] == sorted((way.step_bytes for way in ways), reverse=True)
    assert [way.more_tokens for way in ways] == sorted(way.more_tokens for way in ways)
    assert all(1 < way.more_tokens <= way.most_more_tokens for way in ways)


def test_the_loss_is_that_of_streaming_diloco():
    """Douillard et al. 2025, tables 1 and 4: C4 loss of data parallelism and of Streaming DiLoCo, to two digits."""
    published = {(35e6, 30): 0.02, (35e6, 100): 0.05, (100e6, 30): 0.02, (100e6, 100): 0.03}
    for (parameters, steps), penalty in published.items():
        assert loss_penalty(parameters, local_steps=steps) == pytest.approx(penalty, abs=0.014)
    assert loss_penalty(1e9, local_steps=100) < loss_penalty(1e8, local_steps=100)
    # the loss with so many tokens is as high as it was without the penalty
    more = extra_tokens(1e12, 0.01)
    assert 410.7 / (more * 1e12) ** 0.28 + 0.01 == pytest.approx(410.7 / 1e12**0.28)
    assert extra_tokens(1e12, 10.0) == math.inf


def test_sites_fail_alone():
    plain, local = over().ways
    assert local.goodput > plain.goodput


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_sites": 2}, "write their site_bytes_per_s = 10 Gbit/s"),
        ({"local_steps": 10}, "write num_sites = 2 or more"),
        ({"num_sites": 2, "site_bytes_per_s": 1e9, "local_steps": 4}, "of 4 local_steps; write no more than these"),
    ],
)
def test_sites_that_cannot_be_are_refused(given: dict[str, float], message: str):
    with pytest.raises(ConfigError) as refused:
        Sites(**given)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_a_machine_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="3 sites do not divide the 32 replicas"):
        over(num_sites=3)
    with pytest.raises(ConfigError, match="would not have whole hosts"):
        run_over_sites(training(layout=Layout(dp=8, zero=3)), replace(SITES, num_sites=2))
