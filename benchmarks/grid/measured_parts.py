"""The parts of the comparison: each gives its numbers as JSON takes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cases import (
    CASES,
    DECOUPLED,
    GPIPE,
    INTERLEAVED,
    NARROW_INTERLEAVED,
    ONE_F_ONE_B,
    OUR_1F1B,
    OUR_GPIPE,
    OUR_WIDE_GPIPE,
    SEQUENTIAL,
    TWO_BW,
    WIDE_GPIPE,
    ZBV,
    Case,
)
from learning import MICRO_BATCH, TARGET, learn_all
from memory import held_by_case, network_bytes
from modelled import NO_LINK, between_hosts, virtual_timing
from networks import Shape

from measured import Timing, hosts_of, measure_in_turns
from plesio.cost.link import Link
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.ranks import Ranks

SLOW_LINKS = ((50e-6, 100_000), (5e-3, 62_500))
"""Latency in seconds, and bytes of a message, over 100 Mbit/s."""
SLOW_BYTES_PER_S = 12.5e6
ON_LINKS = (SEQUENTIAL, WIDE_GPIPE, OUR_WIDE_GPIPE, ONE_F_ONE_B, OUR_1F1B, INTERLEAVED, ZBV, TWO_BW, *DECOUPLED)
UNEVEN = (OUR_GPIPE, OUR_1F1B, TWO_BW, *DECOUPLED)
"""Whose stragglers are modelled; those of torch's schedules are measured only."""
STRAGGLES, FACTOR = 20, 3.0
COMPUTING = Shape(stages=2, stage_s=0.0, width=512, depth=4, batch=512)
HOLDING = Shape(stages=4, stage_s=0.0, width=512, depth=4, batch=256)
SEEDS, EPOCHS = (0, 1, 2), 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly it is measured."""

    repeats: int
    quick: bool

    def some(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Return the cases that are looked at."""
        few = (SEQUENTIAL, ONE_F_ONE_B, OUR_1F1B, DECOUPLED[1])
        return [case for case in cases if case in few] if self.quick else cases


def _row(case: Case, stages: int, modelled: Timing | None, measured: Sequence[Timing]) -> dict[str, Any]:
    return {
        "case": case.words(stages),
        "runner": case.runner,
        "synchronous": case.synchronous,
        "stages": stages,
        "virtual_s": None if modelled is None else modelled.period_s,
        "real_s": [timing.period_s for timing in measured],
    }


def throughput(plan: Plan) -> Mapping[str, Any]:
    """Paced stages of 20 ms, messages of no account."""
    rows = []
    for stages in (2,) if plan.quick else (2, 3, 4):
        shape, cases = Shape(stages=stages), plan.some(CASES)
        with Ranks(stages) as ranks:
            measured = measure_in_turns(cases, shape, ranks=ranks, repeats=plan.repeats, counted=48)
        rows += [_row(case, stages, virtual_timing(case, shape), measured[case]) for case in cases]
    return {"rows": rows, "stage_s": Shape(stages=2).stage_s}


def links(plan: Plan) -> Mapping[str, Any]:
    """100 Mbit/s between stages on hosts of their own."""
    stages, settings = (2 if plan.quick else 4), []
    reason = why_no_namespaces()
    for latency_s, num_bytes in SLOW_LINKS[:1] if plan.quick else SLOW_LINKS:
        link = Link(latency_s=latency_s, bytes_per_s=SLOW_BYTES_PER_S)
        shape, cases = Shape(stages=stages, message_bytes=num_bytes), plan.some(ON_LINKS)
        measured: Mapping[Case, Sequence[Timing]] = {case: [] for case in cases}
        if reason is None:
            with hosts_of(between_hosts(stages, link)) as ranks:
                measured = measure_in_turns(cases, shape, ranks=ranks, repeats=min(3, plan.repeats), counted=48)
        rows = [_row(case, stages, virtual_timing(case, shape, link=link), measured[case]) for case in cases]
        settings.append({"latency_s": latency_s, "message_bytes": shape.handed_bytes, "rows": rows})
    return {"settings": settings, "why_not_real": reason}


def uneven_shapes(stages: int) -> dict[str, Shape]:
    """One pass in twenty is slow: always the same stage's, or each stage's in its turn."""
    slow = frozenset({7})
    return {
        "even": Shape(stages=stages),
        "one stage": Shape(
            stages=stages,
            slow=tuple(slow if stage == stages // 2 else frozenset() for stage in range(stages)),
            factor=FACTOR,
            period=STRAGGLES,
        ),
        "any stage": Shape(
            stages=stages,
            slow=tuple(frozenset({STRAGGLES * stage + 7}) for stage in range(stages)),
            factor=FACTOR,
            period=STRAGGLES * stages,
        ),
    }


def stragglers(plan: Plan) -> Mapping[str, Any]:
    """One pass in twenty takes three times as long."""
    rows: list[dict[str, Any]] = []
    for stages in (2,) if plan.quick else (2, 4):
        for where, shape in uneven_shapes(stages).items():
            modelled = plan.some(UNEVEN)
            rows += [{**_row(case, stages, virtual_timing(case, shape), ()), "where": where} for case in modelled]
    stages = 2 if plan.quick else 4
    cases = plan.some((ONE_F_ONE_B, OUR_1F1B, *DECOUPLED))
    with Ranks(stages) as ranks:
        for where, shape in uneven_shapes(stages).items():
            found = measure_in_turns(cases, shape, ranks=ranks, repeats=min(3, plan.repeats), counted=80)
            rows += [{**_row(case, stages, None, found[case]), "where": where} for case in cases]
    return {"rows": rows, "of": STRAGGLES, "factor": FACTOR}


def computing(plan: Plan) -> Mapping[str, Any]:
    """Two stages on two cores, which compute all the time."""
    cases = plan.some((SEQUENTIAL, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZBV, *DECOUPLED))
    with Ranks(COMPUTING.stages) as ranks:
        measured = measure_in_turns(cases, COMPUTING, ranks=ranks, repeats=plan.repeats, counted=16)
    return {"rows": [_row(case, 2, None, measured[case]) for case in cases], "shape": asdict(COMPUTING) | {"slow": []}}


def memory(plan: Plan) -> Mapping[str, Any]:
    """Measure the memory of each stage beside the network's weights."""
    stages = HOLDING.stages
    cases = plan.some((SEQUENTIAL, GPIPE, WIDE_GPIPE, ONE_F_ONE_B, INTERLEAVED, ZBV, TWO_BW, *DECOUPLED))
    rows = [{"case": case.words(stages), "bytes": held_by_case(case, HOLDING)} for case in cases]
    weights = network_bytes(HOLDING) // stages
    return {"rows": rows, "stage_weights_bytes": weights}


def learning(plan: Plan) -> Mapping[str, Any]:
    """Digits on four stages of 20 ms."""
    cases = plan.some((SEQUENTIAL, DECOUPLED[1])) if plan.quick else None
    options: dict[str, Any] = {} if cases is None else {"cases": cases}
    found = learn_all(seeds=SEEDS[:1] if plan.quick else SEEDS, epochs=1 if plan.quick else EPOCHS, **options)
    rows = [
        {
            "case": case.words(4),
            "rate": one["rate"],
            "micro_batches": case.micro_batches(4),
            "synchronous": case.synchronous,
            "curves": [asdict(curve) for curve in one["curves"]],
            "seconds_to_target": [curve.to_target(TARGET) for curve in one["curves"]],
        }
        for case, one in found.items()
    ]
    timed = (*CASES, NARROW_INTERLEAVED)  # with few micro-batches it is the fastest that learns as GPipe does
    periods = {case.words(4): virtual_timing(case, Shape(stages=4), link=NO_LINK).period_s for case in timed}
    return {"rows": rows, "target": TARGET, "micro_batch": MICRO_BATCH, "periods_s": periods}


PARTS: Mapping[str, Callable[[Plan], Mapping[str, Any]]] = {
    "throughput": throughput,
    "links": links,
    "stragglers": stragglers,
    "computing": computing,
    "memory": memory,
    "learning": learning,
}
