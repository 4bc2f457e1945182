"""Workers that wait in different places of a step for long, as their heartbeats report it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import UNSET, UnsetType

from plesio.protocol.figures import Report, Within
from plesio.runtime.coordinator.unequal import Unequal

LEASE_S = 10.0


class Crew(dict[int, Any]):
    """Two workers that live and do not leave."""

    live = (0, 1)


def found_at(*reports: Report, line: str = "") -> float | None:
    """Seconds after which an error is made of the workers' unchanged reports, within ten leases."""
    crew = Crew({worker: SimpleNamespace(leaving=False) for worker in (0, 1)})
    ledger = SimpleNamespace(workers=SimpleNamespace(latest=lambda worker: reports[worker]))
    unequal = Unequal(cast("Any", crew), ledger=cast("Any", ledger))
    for now_s in range(1, 101):
        found = unequal.mixed_up(generation=0, now_s=float(now_s), lease_s=LEASE_S)
        if found is not None:
            assert line in found
            return float(now_s)
    return None


@pytest.mark.parametrize(("clock", "leases"), [(0, 1.5), (1, 3.0)])
def test_a_forward_pass_and_a_backward_pass_that_wait_for_each_other_are_an_error(clock: int, leases: float):
    line = "worker 1 is in the forward pass of step 1 while worker 0 is behind its backward pass"
    after_s = found_at(Report(within="step", clock=clock), Report(within="forward", clock=0), line=line)
    assert after_s is not None
    assert leases * LEASE_S < after_s <= leases * LEASE_S + 2


def test_evaluations_after_unequally_many_steps_wait_for_each_other_in_vain():
    line = "worker 1 evaluates after step 7 while worker 0 evaluates after step 8"
    after_s = found_at(Report(within="evaluation", clock=8), Report(within="evaluation", clock=7), line=line)
    assert after_s is not None
    assert 1.5 * LEASE_S < after_s <= 1.5 * LEASE_S + 2


@pytest.mark.parametrize("place", ["metric", UNSET])
def test_one_that_computes_the_metric_is_waited_for_as_long_as_it_takes(place: Within | UnsetType):
    assert found_at(Report(within=place, clock=8), Report(within="evaluation", clock=7)) is None


def test_workers_in_the_same_pass_wait_as_long_as_it_takes():
    assert found_at(Report(within="forward", clock=0), Report(within="forward", clock=0)) is None
