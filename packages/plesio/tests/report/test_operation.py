"""How runs went from step to step, read from traces as runs leave them, and what is advised."""

import random
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import RunResult
from plesio.core.trace import Trace, TraceRecord
from plesio.report.operation import ComputeTimes, Exchanges, Operation, operation_of, read_operation
from plesio.report.operation_advice import operation_advice, operations_advice
from plesio.report.spans import RunTraces

STEPS = 120


def a_trace(worker: int, spans: Iterable[tuple[str, float]], *more: TraceRecord) -> Trace:
    """Spans one after the other; a step ends with each that is not computing."""
    records, at_s, clock = [], 0.0, 1
    for kind, duration_s in spans:
        records.append(TraceRecord(kind, at_s, duration_s, clock))
        at_s += duration_s
        clock += kind != "compute"
    return Trace(header={"worker": worker, "origin_s": 0.0, "policy": "bsp"}, records=(*records, *more))


def went(traces: Mapping[int, Trace], result: RunResult | None = None) -> Operation | None:
    return operation_of(RunTraces.of(list(traces.values())), result)


def steady(compute_s: float, wait_s: float = 0.0, communicate_s: float = 0.0) -> list[tuple[str, float]]:
    return [("compute", compute_s), ("wait", wait_s), ("communicate", communicate_s)] * STEPS


def a_result(num_bytes: int) -> RunResult:
    return RunResult(
        policy="bsp", task="t", world="virtual", seed=0, num_workers=2, status="finished", steps=2 * STEPS,
        samples=1, wall_s=1.0, bytes_sent_total=num_bytes,
    )  # fmt: skip


def test_shares_are_those_of_all_workers():
    operation = went({0: a_trace(0, steady(0.06, 0.01, 0.03)), 1: a_trace(1, steady(0.06, 0.03, 0.01))})
    assert operation is not None
    assert operation.compute_share == pytest.approx(0.6)
    assert operation.communicate_share == pytest.approx(0.2)
    assert operation.wait_share == pytest.approx(0.2)
    assert went({0: a_trace(0, [])}) is None


def test_a_run_of_less_than_a_second_is_not_judged_unless_its_seconds_are_modelled():
    short = {worker: a_trace(worker, [("compute", 0.004), ("communicate", 0.004)] * STEPS) for worker in range(2)}
    assert went(short) is None
    assert went(short, a_result(1)) is not None


def test_a_slow_worker_is_told_from_delays_that_pass():
    slow = went({n: a_trace(n, steady(0.03 if n == 2 else 0.01, 0.02)) for n in range(4)})
    assert slow is not None
    assert slow.steps is not None
    assert (slow.steps.slowest, slow.steps.own_ratio) == (2, pytest.approx(1))
    (text,) = (text for text in operation_advice(slow) if "p99" in text)
    assert "p99 of a step's computing is 3.0 times its p50 (30 ms against 10 ms)" in text
    assert "worker 2 takes 3.0 times as long" in text
    assert "no staleness bound mends" in text
    decoupled = replace(slow, policy="diloco:8,exchange=store,quorum=2,steps=dynamic")
    (text,) = (text for text in operation_advice(decoupled) if "p99" in text)
    assert "fewer steps for that already" in text
    assert "staleness bound" not in text
    rng = random.Random(0)
    times_s = {n: [rng.lognormvariate(-4.6, 0.3) for _ in range(STEPS)] for n in range(4)}
    passing = went(
        {n: a_trace(n, [one for each in durations for one in (("compute", each), ("wait", 0.005))])
         for n, durations in times_s.items()}
    )  # fmt: skip
    assert passing is not None
    (text,) = (text for text in operation_advice(passing) if "p99" in text)
    assert "delays that come and go" in text
    assert "ssp:4" in text


def test_nobody_is_warned_of_steps_that_nobody_waits_for():
    asynchronous = went({n: a_trace(n, steady(0.03 if n == 2 else 0.01)) for n in range(4)})
    assert asynchronous is not None
    assert asynchronous.steps is not None
    assert asynchronous.steps.ratio > 2
    assert operation_advice(asynchronous) == []


@pytest.mark.parametrize(("share", "warned"), [(0.29, False), (0.31, True), (0.45, True)])
def test_communication_is_warned_of_above_its_bound(share: float, warned: bool):
    operation = Operation(policy="bsp", compute_share=1 - share, communicate_share=share)
    texts = operation_advice(operation)
    assert any(text.startswith("Communication takes") for text in texts) == warned
    assert any("Workers compute for" in text for text in texts) == (share > 0.4)


def test_adaptive_is_not_advised_to_adapt():
    (text,) = operation_advice(Operation(policy="adaptive,store=off", compute_share=0.65, communicate_share=0.35))
    assert "adaptive has taken what pays" in text
    assert "local_sgd" not in text


@pytest.mark.parametrize(
    ("policy", "advised"),
    [
        ("bsp", "exchange more rarely (local_sgd:8), send less (compress=qsgd:8) or go on meanwhile (delay=1)."),
        (
            "local_sgd:8",
            "exchange more rarely (local_sgd:32), send less (compress=qsgd:8) or go on meanwhile (delay=1).",
        ),
        ("delayed:1,compress=qsgd:8", "exchange more rarely (local_sgd:8)."),
        ("local_sgd:32,delay=4,compress=qsgd:8", "already; a quicker network or a larger batch is left."),
        ("grid:2x2", "(delay=1)."),
    ],
)
def test_what_is_in_force_is_not_advised(policy: str, advised: str):
    (text,) = operation_advice(Operation(policy=policy, compute_share=0.65, communicate_share=0.35))
    assert text.endswith(advised)


def an_operation(policy: str, *, num_bytes: float, communicate_s: float, buckets: tuple[int, ...] = ()) -> Operation:
    exchanges = Exchanges(number=10, num_bytes=num_bytes, communicate_s=communicate_s, buckets_bytes=buckets)
    return Operation(policy=policy, compute_share=0.9, communicate_share=0.05, exchanges=exchanges)


def test_small_messages_at_a_slow_pace_are_told_with_the_quicker_ones():
    large = an_operation("bsp", num_bytes=1e6, communicate_s=0.01, buckets=(100_000, 900_000))
    small = an_operation("bsp,compress=topk:0.01", num_bytes=1e4, communicate_s=0.005)
    advice = operations_advice([large, small])
    assert list(advice) == ["bsp,compress=topk:0.01"]
    (text,) = advice["bsp,compress=topk:0.01"]
    assert "sends 10 kB a worker at 2 MB/s, where bsp sends 1 MB (of 2 buckets of 100 kB to 900 kB) at 100 MB/s" in text
    as_quick = an_operation("bsp,compress=qsgd:8", num_bytes=2.5e5, communicate_s=0.004)
    assert operations_advice([large, as_quick]) == {}
    hidden = an_operation("bsp,delay=1", num_bytes=1e4, communicate_s=0.0)
    assert operations_advice([large, hidden]) == {}


def test_bytes_of_an_exchange_are_a_workers():
    buckets = TraceRecord("buckets", 0.0, None, 1, {"num_bytes": [10, 20]})
    operation = went({n: a_trace(n, steady(0.01, 0.0, 0.002), buckets) for n in range(2)}, a_result(2 * STEPS * 1000))
    assert operation is not None
    assert operation.exchanges == Exchanges(number=STEPS, num_bytes=1000.0, communicate_s=0.002, buckets_bytes=(10, 20))
    assert operation.exchanges.bytes_per_s == pytest.approx(500_000)


@pytest.mark.parametrize(("last", "warned"), [(1.5, False), (6.0, True)])
def test_a_residual_that_grows_is_told(last: float, warned: bool):
    ratios = [1.0 + (last - 1.0) * place / 29 for place in range(30)]
    events = [TraceRecord("residual", 0.1 * place, None, place, {"ratio": each}) for place, each in enumerate(ratios)]
    less = [TraceRecord("residual", 0.1 * place, None, place, {"ratio": each / 2}) for place, each in enumerate(ratios)]
    unknown = TraceRecord("residual", 9.0, None, 99, {"ratio": None})
    operation = went({0: a_trace(0, steady(0.01), *less), 1: a_trace(1, steady(0.01), *events, unknown)})
    assert operation is not None
    assert operation.residuals == pytest.approx(ratios)
    texts = operation_advice(operation)
    assert [text.startswith("What compression keeps back grows: to 5.") for text in texts] == [True] * warned


def test_few_steps_have_no_percentiles():
    operation = went({0: a_trace(0, [("compute", 0.1), ("wait", 0.1)] * 10)})
    assert operation is not None
    assert operation.steps is None
    steps = ComputeTimes(p50_s=1.0, p99_s=1.5, medians_s={0: 1.0, 1: 1.0, 2: 1.1}, own_ratio=1.1)
    assert (steps.slowest, steps.ratio) == (2, 1.5)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four virtual workers on slow links, one of them slow; in full, and with a hundredth of each gradient."""
    folder = tmp_path_factory.mktemp("real")
    recipe, cluster, out = folder / "recipe.toml", folder / "cluster.toml", folder / "out"
    recipe.write_text(
        '[task]\nname = "digits"\n[run]\npolicies = ["bsp", "bsp,compress=topk:0.01"]\nseeds = [0]\nsamples = 3840\n'
        '[workers]\ncount = 4\nstep_time = { kind = "constant", mean = "16 ms" }\n'
        "[[workers.unequal]]\nrank = 3\nspeed = 0.5\n"
    )
    cluster.write_text(
        'hosts = 4\nmemory = "16 GiB"\n[local]\nlatency = "50 us"\nbandwidth = "2.4 GB/s"\n'
        '[nic]\nlatency = "10 ms"\nbandwidth = "20 Mbit/s"\n'
    )
    line = ["compare", str(recipe), "--world", "virtual", "--cluster", str(cluster), "--out", str(out)]
    assert invoke(line) == 0
    return out


def test_a_comparisons_page_has_the_advice_of_its_runs(real: Path):
    page = (real / "report.html").read_text(encoding="utf-8")
    assert ">Advice<" in page
    assert "Communication takes" in page
    assert "latency decides for messages of this size" in page
    assert "worker 3 takes 2.0 times as long" in page


def test_a_real_run_has_its_figures(real: Path):
    (full,) = (real / "runs").glob("bsp-seed0")
    (packed,) = (real / "runs").glob("bsp-compress*")
    whole, part = read_operation(full), read_operation(packed)
    assert whole is not None
    assert part is not None
    assert whole.residuals == ()
    assert len(part.residuals) == 32
    assert max(part.residuals) > 1
    assert whole.exchanges is not None
    assert part.exchanges is not None
    assert whole.exchanges.number == part.exchanges.number == 32
    assert part.exchanges.num_bytes < 0.1 * whole.exchanges.num_bytes


def test_the_same_is_said_in_the_terminal(real: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["compare", str(real.parent / "recipe.toml"), "--world", "virtual", "--cluster",
                   str(real.parent / "cluster.toml"), "--out", str(real), "--resume"]) == 0  # fmt: skip
    out = " ".join(capsys.readouterr().out.split())
    assert "bsp: Communication takes" in out
    assert "bsp,compress=topk:0.01: An exchange sends" in out


def test_a_runs_own_folder_has_advice_too(real: Path):
    (folder,) = (real / "runs").glob("bsp-seed0")
    assert invoke(["report", str(folder)]) == 0
    assert "Communication takes" in (folder / "report.html").read_text(encoding="utf-8")


def test_where_no_run_has_finished_nothing_is_advised(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = Path(shutil.copytree(real, tmp_path / "out")) / "results.json"
    results.write_text(results.read_text().replace('"status": "finished"', '"status": "failed"'))
    assert invoke(["report", str(results.parent)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("has no finished run, so it is not compared. Seed 0 failed and is left out.") == 2
    assert "Communication takes" not in out + (results.parent / "report.html").read_text(encoding="utf-8")
