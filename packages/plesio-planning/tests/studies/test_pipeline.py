from typing import Any

import pytest

from plesio.cli.commands import invoke
from plesio.core.charts import LineChart
from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.sim.pipeline_schedules import Schedule
from plesio_planning.studies import pipeline
from plesio_planning.studies.pipeline_answer import Pipeline
from plesio_planning.theory.parallelism import bubble_share, micro_batches_for


@pytest.fixture(scope="module")
def answer() -> Pipeline:
    return pipeline()


def test_reference_values(answer: Pipeline):
    """studies/reference.md, study 5."""
    expected = {1: 87.5, 2: 77.8, 4: 63.6, 8: 46.7, 16: 30.4, 32: 17.9}
    assert {m: round(100 * bubble_share(num_stages=8, num_micro_batches=m), 1) for m in expected} == expected
    by_doing = {p.num_micro_batches: p.bubble for p in answer.points if p.schedule in ("gpipe", "1f1b")}
    for m, percent in expected.items():
        assert round(100 * by_doing[m], 1) == percent
    assert bubble_share(num_stages=8, num_micro_batches=24) == pytest.approx(0.2258, abs=5e-5)
    assert bubble_share(num_stages=8, num_micro_batches=40) == pytest.approx(0.1489, abs=5e-5)
    assert micro_batches_for(0.1, num_stages=8) == 63
    assert micro_batches_for(0.05, num_stages=8) == 133
    assert pipeline(target_bubble=0.1, num_micro_batches=1).needed == 63
    assert pipeline(tp=1, num_micro_batches=1).layer_bytes["none"] == pytest.approx(2.87e9, abs=0.005e9)


def test_equal_stages_take_the_closed_form():
    answer = pipeline(forward_s=0.01, backward_s=0.02, recomputation="none")
    for point in answer.points:
        if point.recomputation == "none" and point.schedule in ("gpipe", "1f1b"):
            assert point.iteration_s == pytest.approx((point.num_micro_batches + 7) * 0.03)
        if point.recomputation == "none" and point.schedule == "interleaved":
            assert point.bubble == pytest.approx(
                bubble_share(num_stages=8, num_micro_batches=point.num_micro_batches, num_chunks=2)
            )


def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_there_are_stages(answer: Pipeline):
    for point in answer.points:
        if point.schedule == "gpipe":
            assert point.held == point.num_micro_batches
        if point.schedule == "1f1b":
            assert point.held == min(8, point.num_micro_batches)


def test_recomputing_trades_time_for_memory():
    none, selective, full = (
        pipeline(recomputation=kind, pp=2, num_micro_batches=2).at for kind in ("none", "selective", "full")
    )
    assert none.activation_bytes > selective.activation_bytes > full.activation_bytes
    assert none.iteration_s < selective.iteration_s < full.iteration_s
    assert full.iteration_s / none.iteration_s == pytest.approx(4 / 3)  # b = 2f: 3f become 4f


def test_the_frontier_is_not_beaten(answer: Pipeline):
    for point in answer.points:
        assert any(
            front.activation_bytes <= point.activation_bytes and front.micro_batch_s <= point.micro_batch_s * (1 + 1e-9)
            for front in answer.frontier
        )
    assert answer.fastest is not None
    assert answer.fastest.activation_bytes + answer.state_bytes <= answer.memory_bytes
    small = pipeline(memory_bytes=1e6, pp=2, num_micro_batches=2)
    assert small.fastest is None
    assert "nothing fits" in small.finding


def test_weights_and_optimizer_take_memory_that_the_schedule_does_not_change(answer: Pipeline):
    """GPT-3's 174 billion parameters without embeddings, 16 bytes each, on 64 devices."""
    assert answer.state_bytes == pytest.approx(96 * 12 * 12288**2 * 16 / 64)
    assert pipeline(memory_bytes=36e9, num_micro_batches=1).fastest is None
    less = pipeline(memory_bytes=36e9, num_micro_batches=1, bytes_per_parameter=2.0).fastest
    assert less is not None


def test_each_number_of_stages_has_its_own_micro_batches_for_the_target(answer: Pipeline):
    (chart,) = [each for each in answer.charts() if each.slug == "utilisation"]
    assert isinstance(chart, LineChart)
    assert list(chart.series[-1].x) == [57, 133, 285, 589]
    assert not chart.marks


def test_the_slowest_stage_and_sends_set_the_pace(answer: Pipeline):
    def iteration_s(**changes: Any) -> float:
        return pipeline(pp=2, num_micro_batches=8, **changes).at.iteration_s

    step_s = (0.073 + 0.146) * 1.01
    assert iteration_s(stage_weights=(1, 2)) > 8 * 2 * step_s > iteration_s()
    assert iteration_s(send_s=0.01) > iteration_s()
    for times_s in answer.unequal.values():
        assert times_s[0] < min(times_s[1:])


def test_chunks_are_whole_layers() -> None:
    with pytest.raises(ArgumentError, match=r"vpp is 64, .* 12 layers .* 96 over pp 8.*; write 6 or 12") as error:
        pipeline(vpp=64, schedule="interleaved")
    assert error.value.parameters == ("vpp", "num_layers", "pp")
    uneven = pipeline(vpp=64)
    assert {point.schedule for point in uneven.points}.isdisjoint({"interleaved"})
    with pytest.raises(ConfigError, match="write 4 or 6"):
        pipeline(vpp=5, schedule="interleaved", num_micro_batches=8)


@pytest.mark.parametrize(
    ("schedule", "pp", "num_micro_batches", "instead"),
    [
        ("interleaved", 8, 9, "a multiple of 8"),
        ("zbv", 8, 14, "15 or more"),
        ("interleaved", 192, 96, "a smaller --pp"),
    ],
)
def test_a_number_of_micro_batches_without_an_order_is_refused_by_its_option(
    schedule: Schedule, pp: int, num_micro_batches: int, instead: str, capsys: pytest.CaptureFixture[str]
):
    line = f"study pipeline --schedule {schedule} --pp {pp} --micro-batches {num_micro_batches} --layers {2 * pp}"
    assert invoke(line.split()) == 2
    said = f"--micro-batches is {num_micro_batches}, for which {schedule} has no order with the {pp} of --pp"
    assert f"{said}; write {instead}" in capsys.readouterr().err


def test_of_many_micro_batches_only_those_asked_for_are_simulated() -> None:
    answer = pipeline(pp=96, num_micro_batches=44)
    assert {one.num_micro_batches for one in answer.points} == {*(2**power for power in range(6)), 44}
    assert len(answer.tables()) > 1
    with pytest.raises(ConfigError, match="write at most 4096"):
        pipeline(num_micro_batches=5000)
