"""The comparison in benchmarks/grid: what its numbers and tables rest on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

GRID = Path(__file__).parents[4] / "benchmarks" / "grid"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as siblings; what they are called is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(GRID))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(GRID) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_a_grid_in_the_virtual_world_takes_the_time_of_the_simulated_schedule():
    from cases import GPIPE, ONE_F_ONE_B, OUR_1F1B, OUR_GPIPE
    from modelled import virtual_timing
    from networks import Shape

    for ours, theirs in ((OUR_GPIPE, GPIPE), (OUR_1F1B, ONE_F_ONE_B)):
        shape = Shape(stages=2)
        assert virtual_timing(ours, shape).period_s == pytest.approx(virtual_timing(theirs, shape).period_s, rel=1e-6)


def test_decoupled_stages_have_no_bubble_and_sequential_ones_all_but_one():
    from cases import DECOUPLED, SEQUENTIAL
    from modelled import virtual_timing
    from networks import Shape

    shape = Shape(stages=2)
    assert virtual_timing(SEQUENTIAL, shape).bubble == pytest.approx(0.5, abs=1e-6)
    assert virtual_timing(DECOUPLED[1], shape).bubble == pytest.approx(0.0, abs=1e-6)


def test_a_stage_that_straggles_now_and_then_takes_its_mean_time():
    from cases import DECOUPLED
    from measured_parts import uneven_shapes
    from modelled import virtual_timing

    found = virtual_timing(DECOUPLED[1], uneven_shapes(2)["one stage"])
    assert found.period_s == pytest.approx(0.022, rel=1e-6)  # one in twenty takes three times 20 ms


def test_a_paced_part_computes_what_its_layers_do():
    from networks import Pace, PacedPart

    part = PacedPart(Pace(0.0), width=4, repeat=2, outputs=3)
    given = torch.randn(5, 6, requires_grad=True)
    handed = part(given)
    plain = part.leave(torch.tanh(part.enter(given[:, :4])))
    assert torch.equal(handed, plain.repeat(1, 2))
    assert torch.allclose(
        torch.autograd.grad(handed.sum(), part.leave.weight)[0],
        2 * torch.autograd.grad(plain.sum(), part.leave.weight)[0],
    )


def test_a_pass_takes_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch):
    import networks

    slept, now = [], [0.0]

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 9))
        now[0] += seconds

    monkeypatch.setattr(networks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(networks.time, "sleep", sleep)
    pace = networks.Pace(0.01, slow=frozenset({1}), factor=3.0, period=2)
    part = networks.PacedPart(pace, width=4, repeat=1, outputs=4)
    for _ in range(2):
        part(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert slept == [0.01] * 3 + [0.03] * 3


def test_what_is_steady_is_counted_from_where_the_pipeline_is_full():
    from measured import steady

    found = steady([[0.0, 9.0, 10.0, 11.0], [0.0, 9.0, 11.0, 13.0]], warm=2, stage_s=1.0)
    assert (found.period_s, found.bubble) == (2.0, 0.5)


def test_the_tables_say_what_was_reached():
    from tables import criteria, tables

    def row(case: str, virtual_s: float | None, *real_s: float, **more: object) -> dict[str, object]:
        synchronous = case.startswith(("1F1B", "GPipe", "ZB-V"))
        return {
            "case": case, "runner": "torch" if synchronous else "plesio", "synchronous": synchronous, "stages": 2,
            "virtual_s": virtual_s, "real_s": list(real_s), **more,
        }  # fmt: skip

    rows = [
        row("sequential", 0.04, 0.05, 0.05), row("GPipe, m = 2", 0.03, 0.03), row("1F1B, m = 8", 0.0225, 0.03),
        row("ZB-V, m = 8", 0.02, 0.03), row("decoupled, delay 2", 0.02, 0.02, 0.03, 0.025),
    ]  # fmt: skip
    straggling = [
        {**row(case, seconds, where=where)}
        for case, times in (("1F1B, m = 8", (0.02, 0.025, 0.025)), ("decoupled, delay 2", (0.02, 0.025, 0.0205)))
        for where, seconds in zip(("even", "one stage", "any stage"), times, strict=True)
    ]
    found = {
        "throughput": {"rows": rows, "stage_s": 0.02},
        "links": {"settings": [{"latency_s": 0.001, "message_bytes": 1000, "rows": rows}]},
        "stragglers": {"rows": straggling, "of": 20, "factor": 3.0},
        "computing": {"rows": rows, "load": [0.0, 1.0]},
        "memory": {"rows": [{"case": "ZB-V", "bytes": [1, 2]}], "stage_weights_bytes": 1},
    }
    said = {what: (virtual, real) for what, virtual, real in criteria(found).rows}
    assert said["K = 2, sequential: 1.90x"] == ("2.00x", "2.00x")
    assert said["K = 2, ZB-V, m = 8: 1x"] == ("1.00x", "1.20x")
    assert said["100 Mbit/s, 1 ms, 1,000 bytes: 1.3x the best synchronous"] == ("1.00x", "1.20x")
    straggler = "K = 2, straggler in any stage, decoupled, delay 2 (plesio): at most half of 1F1B's loss"
    assert said[straggler] == ("2.4 % of 20.0 %", "–")
    assert len(tables(found)) == 7
