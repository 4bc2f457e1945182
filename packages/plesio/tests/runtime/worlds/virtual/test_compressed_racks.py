"""Compressed exchanges between racks, against flat local SGD and against training written out by hand.

The reducer by itself, and the bytes, are in `packages/plesio/tests/runtime/worker/compression/test_rack_reducer.py`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.policies import parse_policy
from plesio.runtime.worlds.virtual import Simulation
from support import noted_training
from support.by_hand import ByHand, flat_of, parameters_of
from support.noted_training import (
    IN_FLOAT32,
    NUM_FEATURES,
    NUM_SAMPLES,
    Worker,
    assert_processes_train_what_virtual_workers_do,
    build,
)
from support.problems import Problem
from support.workers import cluster_of_racks, racks_of, workers_of

EQUAL, UNEQUAL, THREE = (2, 2), (3, 2), (2, 2, 2)
"""Workers of each rack."""
TEXTS = ["fp16", "bf16+feedback", "topk:0.2", "topk:0.2+no_feedback", "randk:0.2", "qsgd:8", "qsgd:4+feedback",
         "powersgd:1"]  # fmt: skip


def run(policy: str, *, sizes: Sequence[int] = EQUAL, **options: Any) -> Simulation[Worker]:
    """Train on virtual workers in racks of these sizes."""
    return noted_training.run(policy, cluster=cluster_of_racks(sizes), num_workers=sum(sizes), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compress", TEXTS)
@pytest.mark.parametrize(
    ("outer", "sizes"),
    [
        pytest.param("local_sgd:4", (1, 1), marks=pytest.mark.slow),
        pytest.param("local_sgd:4,delay=2", (1, 1), marks=pytest.mark.slow),
        pytest.param("local_sgd:3", (1, 1, 1), marks=pytest.mark.slow),
        ("local_sgd:3,delay=1", (1, 1, 1)),
    ],
)
def test_racks_of_one_worker_are_flat_local_sgd_to_the_bit(outer: str, sizes: Sequence[int], compress: str):
    outer = f"{outer},compress={compress}"
    racks, flat = (workers_of(run(policy, sizes=sizes)) for policy in (f"hier:bsp/{outer}", outer))
    for mine, theirs in zip(racks, flat, strict=True):
        assert mine.batches == theirs.batches
        assert all(torch.equal(one, other) for one, other in zip(mine.after, theirs.after, strict=True))
        assert torch.equal(mine.final, theirs.final)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sizes",
    [pytest.param(EQUAL, marks=pytest.mark.slow), UNEQUAL, pytest.param(THREE, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize("compress", TEXTS)
def test_a_rack_is_equal_to_the_bit_after_every_step_and_racks_where_they_have_averaged(
    compress: str, sizes: Sequence[int]
):
    policy = parse_policy(f"hier:bsp/local_sgd:3,compress={compress}")
    workers, racks = workers_of(run(policy.spec, sizes=sizes)), racks_of(sizes)
    num_steps = len(workers[0].batches)
    for step in range(num_steps + 1):
        states = [[*worker.after, worker.final][step] for worker in workers]
        for rack in racks:
            assert all(torch.equal(states[rank], states[rack[0]]) for rank in rack)
        averaged = step == num_steps or policy.exchanges_at(step + 1)
        assert all(torch.equal(states[0], states[rack[0]]) == averaged for rack in racks[1:]), step


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL, pytest.param(THREE, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "outer",
    [
        "local_sgd:1",
        pytest.param("local_sgd:4", marks=pytest.mark.slow),
        "local_sgd:4,delay=2",
        pytest.param("local_sgd:3,delay=3", marks=pytest.mark.slow),
    ],
)
def test_it_is_the_training_written_out_by_hand(outer: str, sizes: Sequence[int]):
    policy = parse_policy(f"hier:bsp/{outer},compress=topk:0.2+guard:1000")
    simulation = run(policy.spec, sizes=sizes)
    assert simulation.runs[0].fallbacks == (), "by hand nothing is flushed"
    workers = workers_of(simulation)
    hand = ByHand(policy, build, sizes=sizes, data=Problem(NUM_SAMPLES, NUM_FEATURES))
    expected = flat_of(hand.train(workers))
    for worker in workers:
        torch.testing.assert_close(worker.final, expected, **IN_FLOAT32)
    in_full = workers_of(run(f"hier:bsp/{outer}", sizes=sizes))[0].final
    assert float((expected - in_full).abs().max()) > 1e-3, "or it says nothing"


@pytest.mark.parametrize("compress", ["topk:0.2", "qsgd:4", "powersgd:1"])
def test_buffers_are_sent_in_full(compress: str):
    """A running variance that is sent late and added up could become negative."""
    workers = workers_of(run(f"hier:bsp/local_sgd:4,compress={compress}", batch_norm=True))
    for worker in workers:
        mean, variance, _ = worker.buffers
        assert torch.isfinite(mean).all()
        assert (variance > 0).all()
        assert torch.equal(mean, workers[0].buffers[0])
        assert torch.equal(variance, workers[0].buffers[1])


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=str)
@pytest.mark.parametrize("delay", [0, 2])
def test_a_delta_that_is_not_finite_is_refused_and_its_rack_goes_back_to_the_base(delay: int, sizes: Sequence[int]):
    second = racks_of(sizes)[1]

    def poison(session: plesio.Session, model: nn.Module) -> None:
        if session.rank in second and session.clock == 7:
            with torch.no_grad():
                parameters_of(model)[-1].fill_(float("inf"))  # in one slice of two

    simulation = run(f"hier:bsp/local_sgd:4,delay={delay},compress=topk:0.2", sizes=sizes, before_step=poison)
    assert {int(rank) for rank in simulation.runs[0].refused_updates} == set(second)
    workers = workers_of(simulation)
    for worker in workers:
        assert torch.isfinite(worker.final).all()
        assert torch.equal(worker.final, workers[0].final)


def test_what_guards_do_is_told_for_each_rail(tmp_path: Path):
    [result] = run("hier:bsp/local_sgd:2,compress=topk:0.05+guard:0.5", trace=tmp_path).runs
    assert len(result.fallbacks) == 2
    for rail in (1, 2):
        [line] = [line for line in result.fallbacks if f" exchanges on rail {rail} of 2 were sent in full, " in line]
        assert line.startswith("topk:0.05+guard:0.5: ")
    lines = [json.loads(text) for text in (tmp_path / "trace-1.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in lines if line.get("k") == "flush"} == {"guard", "settle"}
    [figures] = [line for line in lines if line.get("k") == "compression"]
    assert figures["spec"] == "topk:0.05+guard:0.5"
    assert 0 < figures["sent_bytes"] < figures["uncompressed_bytes"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("compress", "share"),
    [("fp16", 1 / 2), ("qsgd:8", 8.07 / 32), ("qsgd:4", 4.26 / 32), ("topk:0.01+no_feedback", 0.41 / 32)],
)
def test_only_what_crosses_racks_shrinks(compress: str, share: float):
    """Scales of QSGD's buckets are 0.06 and 0.25 bits a number; places of top-k's are 9 bits each."""
    width = 5000
    fixed, plain, sent = (
        run(f"hier:bsp/local_sgd:{outer}", hidden=width, dtype=torch.float32).runs[0]
        for outer in ("1000", "1", f"1,compress={compress}")
    )
    # beside the exchanges there are the first broadcast and the reports, which the run with a single one has too
    once = fixed.bytes_sent_cross_rack - 2 * 4 * (7 * width + 1)
    shrunk = (sent.bytes_sent_cross_rack - once) / (plain.bytes_sent_cross_rack - once)
    assert shrunk == pytest.approx(share, rel=0.02)
    within, within_sent = (result.bytes_sent_total - result.bytes_sent_cross_rack for result in (plain, sent))
    assert within_sent == pytest.approx(within, rel=0.005)


@pytest.mark.slow
def test_processes_on_two_hosts_train_what_virtual_workers_do():
    """Gradients are added in another order, and codecs send float32."""
    outer = ("compress=qsgd:8", "delay=2,compress=topk:0.2", "compress=powersgd:1", "delay=4,compress=fp16")
    tolerances = {f"hier:bsp/local_sgd:4,{options}": 1e-6 for options in outer}
    assert_processes_train_what_virtual_workers_do(tolerances, virtually=run, workers_per_host=2)
