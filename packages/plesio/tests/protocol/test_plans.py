import json

import hypothesis.strategies as st
from hypothesis import given

from plesio.core.records import from_values, to_values
from plesio.protocol.plans import Remainder, Span
from plesio.runtime.coordinator.leases import LeaseRecords


def positions(remainder: Remainder) -> list[tuple[int, int]]:
    return [(one.epoch, at) for spans in remainder.by_epoch() for one in spans for at in range(one.start, one.stop)]


@given(st.integers(1, 12), st.integers(1, 40), st.lists(st.integers(0, 9), max_size=5))
def test_what_is_done_is_taken_off_the_front(num_samples: int, budget: int, done: list[int]) -> None:
    whole = Remainder(num_samples=num_samples, num_fresh=budget)
    left, taken = whole, 0
    for number in done:
        number = min(number, len(left))
        left, taken = left.after(number), taken + number
    assert positions(left) == positions(whole)[taken:]
    assert len(left) == budget - taken
    assert from_values(json.loads(json.dumps(to_values(left))), Remainder) == left


@given(st.data())
def test_leases_leave_what_nobody_has_finished(data: st.DataObject) -> None:
    """Through any order of leases and finishes, what was finished and what is left are the plan, each sample once."""
    spans = (Span(0, 2, 5), Span(0, 7, 9))
    plan = Remainder(num_samples=10, spans=spans, epoch=1, num_fresh=data.draw(st.integers(0, 25)))
    dealing = data.draw(st.sampled_from(["guided", "fixed"]))
    book = LeaseRecords.of(plan, batch_size=2, workers=[0, 1], dealing=dealing, num_workers={})
    finished: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 12))):
        worker = data.draw(st.integers(0, 1))
        block = book.lease(worker)
        if block is not None:
            number = data.draw(st.integers(0, block.num_samples))
            book.finish(worker, block.id, number)
            finished += [(block.epoch, at) for at in range(block.start, block.start + number)]
        book.validate()
    book.release(0)
    book.release(1)
    left = book.remainder()
    assert sorted(finished + positions(left)) == positions(plan)
    assert [span for one in left.by_epoch() for span in one] == sorted(span for one in left.by_epoch() for span in one)
