"""A run that is resumed goes on as if nothing had happened, to the bit: every policy, from every checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster, Link
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal
from plesio.runtime.checkpoints.folder import read_manifest
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from runtime.checkpoint_programs import NUM_EPOCHS, NUM_SAMPLES, assert_plain_torch_reads, checkpoints, train

SIXTEEN_BITS: dict[str, Any] = {"dtype": "bfloat16"}
SCALED: dict[str, Any] = {"scale": 1024.0}
SPEEDS = (1.0, 0.6, 0.9, 1.1)
ON_COLLECTIVE = (
    "bsp",
    "fsdp",
    "delayed:1",
    "local_sgd:4",
    "local_sgd:8,delay=4",
    "local_sgd:4,inner_rate=0.5,momentum=0.5",
)
OUTER = ("diloco:4", "diloco:8,fragments=2,delay=2", "diloco:4,compress=qsgd:4+feedback")
COMPRESSED = ("bsp,compress=powersgd:2", "bsp,compress=qsgd:8", "local_sgd:4,compress=topk:0.1")
ON_STORE = (
    "asp",
    "ssp:4",
    "ssp:3,period=2",
    "asp,update=delta",
    "asp,delay=1",
    "ssp:3,period=3,delay=2",
    "diloco:4,exchange=store,quorum=2",
    "diloco:4,exchange=store,delay=2",
    "diloco:4,exchange=store,fragments=2,late=heloco,compress=topk:0.3",
    "asp,compress=qsgd:4+feedback",
    "bsp,exchange=store",
    "bsp,backup=1",
    "local_sgd:4,exchange=store",
)
CHANGING = ("switch:bsp/asp@10", "switch:asp/bsp@10", "switch:bsp/hier:bsp/ssp:2@10/bsp@16", "adaptive")
BY_RACKS = ("hier:bsp/local_sgd:4", "hier:bsp/ssp:2")


def cluster(workers: int) -> Cluster:
    link = Link(latency_s=1e-4, bytes_per_s=1e6)
    racks = 2 if workers == 4 else 1
    return Cluster(name="c", hosts=workers, workers_per_host=1, cores_per_host=1, racks=racks, nic=link, uplink=link)


def run(
    policy: str, *, folder: Path | None, workers: int = 4, faults: Sequence[Fault] = (), **arguments: Any
) -> list[dict[str, Any]]:
    def work(job: VirtualJob) -> dict[str, Any]:
        rank = job.place.rank
        pacer = Pacer(
            step_time=LogNormal(mean_s=0.02, cv=0.4), speed=SPEEDS[rank], seed=5, worker=rank, clock=job.clock
        )
        return train(policy=policy, folder=None if folder is None else str(folder), pacer=pacer, **arguments)

    done = simulate(work, num_workers=workers, cluster=cluster(workers), faults=faults).values()
    return [one for one in done if one is not None]


def alike(one: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that must be equal to the bit."""
    return {name: value for name, value in one.items() if name not in ("seen", "wall_s", "fallbacks")}


ALWAYS = (
    "bsp",
    "diloco:8,fragments=2,delay=2",
    "diloco:4,exchange=store,fragments=2,late=heloco,compress=topk:0.3",
    "local_sgd:8,delay=4",
    "ssp:4",
    "adaptive",
    "hier:bsp/ssp:2",
)
OTHERS = [
    policy for policy in (*ON_COLLECTIVE, *OUTER, *COMPRESSED, *ON_STORE, *CHANGING, *BY_RACKS) if policy not in ALWAYS
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("policy", "every"),
    [
        *((policy, 3) for policy in ALWAYS),
        *(pytest.param(policy, 1, marks=pytest.mark.slow) for policy in (*ALWAYS, *OTHERS)),
    ],
)
def test_from_every_checkpoint_a_run_ends_as_it_did(policy: str, every: int, tmp_path: Path):
    # where steps are everybody's own, a schedule by steps differs between workers, and must not when they step together
    rate_at = None if policy.startswith("switch:") else 12
    whole = run(policy, folder=tmp_path / "whole", rate_at=rate_at)
    found = checkpoints(tmp_path / "whole")
    assert found
    for path in found[::every]:
        again = run(policy, folder=tmp_path / "again", resume=str(path), rate_at=rate_at)
        assert [alike(one) for one in again] == [alike(one) for one in whole], path.name
        assert again[0]["wall_s"] == pytest.approx(whole[0]["wall_s"], rel=1e-2)
        for one, other in zip(whole, again, strict=True):
            assert other["seen"] == one["seen"][len(one["seen"]) - len(other["seen"]) :]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_checkpoint_comes_where_all_stop_first(workers: int, tmp_path: Path):
    run("bsp", folder=tmp_path, workers=workers)
    assert read_manifest(checkpoints(tmp_path)[0]).clock == 10


@pytest.mark.parametrize(("policy", "every"), [("bsp", 20), ("local_sgd:4", 24), ("local_sgd:4,delay=2", 10)])
def test_steps_between_two_checkpoints_are_those_asked_for_where_all_stop_after_so_many(
    policy: str, every: int, tmp_path: Path
):
    run(policy, folder=tmp_path, workers=2, every=f"{every} steps")
    first, *_ = found = checkpoints(tmp_path)
    clocks = [read_manifest(path).clock for path in found]
    assert clocks[0] == every
    if "delay" not in policy:
        assert clocks == list(range(every, clocks[-1] + 1, every))
        run(policy, folder=tmp_path / "again", workers=2, every=f"{every} steps", resume=str(first))
        assert [read_manifest(path).clock for path in checkpoints(tmp_path / "again")] == clocks[1:]


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("policy", ["bsp", "asp", "local_sgd:4,moments=mean"])
def test_adam_s_state_is_saved_too_and_plain_torch_reads_it(policy: str, tmp_path: Path):
    folder = tmp_path / "whole"
    whole = run(policy, folder=folder, optimizer="adamw", workers=2)
    again = run(policy, folder=tmp_path / "again", optimizer="adamw", workers=2, resume=str(checkpoints(folder)[0]))
    assert [alike(one) for one in again] == [alike(one) for one in whole]
    assert_plain_torch_reads(checkpoints(folder)[-1], "adamw")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "precision"),
    [
        ("bsp", SIXTEEN_BITS),
        ("asp", SCALED),
        ("switch:local_sgd:2/bsp@10", SCALED),
        *(pytest.param(policy, SIXTEEN_BITS, marks=pytest.mark.slow) for policy in ("asp", "local_sgd:4")),
        *(pytest.param(policy, SCALED, marks=pytest.mark.slow) for policy in ("bsp", "local_sgd:4")),
        pytest.param("switch:local_sgd:2/bsp@10", SIXTEEN_BITS, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_half_precision_is_resumed_to_the_bit(policy: str, precision: dict[str, Any], tmp_path: Path):
    """Parameters of 16 bits, and a loss scale that overflows on one worker in every eighth step."""
    rate_at = None if policy.startswith("switch:") else 12
    whole = run(policy, folder=tmp_path / "whole", rate_at=rate_at, **precision)
    own_scales = "scale" in precision and "bsp" not in policy
    assert (len({one["scaler"].get("scale") for one in whole}) > 1) == own_scales
    for path in checkpoints(tmp_path / "whole")[::2]:
        again = run(policy, folder=tmp_path / "again", resume=str(path), rate_at=rate_at, **precision)
        assert [alike(one) for one in again] == [alike(one) for one in whole], path.name


def test_who_goes_on_without_a_lost_worker_goes_on_saving(tmp_path: Path):
    rest = run("bsp", folder=tmp_path, workers=3, faults=[Fault(at_s=0.3, worker=0, kind="lose")])
    assert [one["samples"] for one in rest] == [NUM_EPOCHS * NUM_SAMPLES] * 2
    latest = read_manifest(checkpoints(tmp_path)[-1])
    assert latest.workers == (1, 2)
    assert latest.clock > 40
    again = run("bsp", folder=tmp_path, workers=2)
    assert again[0]["samples"] == NUM_EPOCHS * NUM_SAMPLES


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "policy", ["bsp", "asp", *(pytest.param(it, marks=pytest.mark.slow) for it in ("local_sgd:4", "adaptive"))]
)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_with_other_numbers_of_workers_each_sample_is_still_trained_on_once(policy: str, workers: int, tmp_path: Path):
    whole = run(policy, folder=tmp_path / "whole", workers=3)
    path = checkpoints(tmp_path / "whole")[0]
    again = run(policy, folder=tmp_path / "again", workers=workers, resume=str(path))
    after = sum(len(one["seen"]) for one in again)
    assert 0 < after < NUM_EPOCHS * NUM_SAMPLES
    assert again[0]["samples"] == NUM_EPOCHS * NUM_SAMPLES == whole[0]["samples"]


def test_a_run_without_checkpoints_is_refused_a_save(tmp_path: Path):
    def work(_job: VirtualJob) -> None:
        model = torch.nn.Linear(2, 1)
        session = plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with session, pytest.raises(ConfigError, match="has no checkpoints"):
            session.save()

    simulate(work, num_workers=2, cluster=cluster(2)).values()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    run("bsp", folder=tmp_path)
    with pytest.raises(ConfigError, match="is of a run with policy bsp, and this one has asp"):
        run("asp", folder=tmp_path)
