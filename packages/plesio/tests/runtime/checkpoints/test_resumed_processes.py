"""Checkpoints of real processes: killed and resumed, to the bit where the policy is synchronous."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plesio.runtime.checkpoints.folder import read_manifest
from plesio.testing import Ending, LocalJob
from runtime.checkpoint_programs import NUM_EPOCHS, NUM_SAMPLES, assert_plain_torch_reads, checkpoints
from support.processes import values_of

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

PROGRAMS = Path(__file__).parent.with_name("checkpoint_programs.py")
TO_COMPARE = ("sha", "metrics", "samples", "steps", "clock", "rate")


def run(workers: int, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(workers) as job:
        return job.run(PROGRAMS, "train", timeout_s=100, **arguments)


@pytest.mark.parametrize(
    "policy", ["bsp", "diloco:4,fragments=2", "fsdp", pytest.param("local_sgd:4", marks=pytest.mark.slow)]
)
def test_a_killed_run_ends_as_if_nothing_had_happened(policy: str, tmp_path: Path):
    whole = values_of(run(2, policy=policy, folder=str(tmp_path / "whole")))
    endings = run(2, policy=policy, folder=str(tmp_path / "killed"), die_at=40, die=1, elastic=False)
    assert endings[1].exit_status == -9
    assert 0 < len(checkpoints(tmp_path / "killed")) < len(checkpoints(tmp_path / "whole"))
    again = values_of(run(2, policy=policy, folder=str(tmp_path / "killed")))
    assert_plain_torch_reads(checkpoints(tmp_path / "killed")[-1], "sgd")
    for one, other in zip(whole, again, strict=True):
        assert {name: one[name] for name in TO_COMPARE} == {name: other[name] for name in TO_COMPARE}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["asp", "ssp:4", "adaptive"])
def test_after_a_kill_every_sample_is_still_trained_on_once(policy: str, tmp_path: Path):
    run(3, policy=policy, folder=str(tmp_path), die_at=30, die=0, elastic=False)
    assert checkpoints(tmp_path)
    again = values_of(run(3, policy=policy, folder=str(tmp_path)))
    assert again[0]["samples"] == NUM_EPOCHS * NUM_SAMPLES
    last = Counter(index for one in again for index in one["seen"])
    assert all(number <= NUM_EPOCHS for number in last.values())
    assert len(again[0]["metrics"]) == NUM_EPOCHS


@pytest.mark.slow
def test_it_goes_on_with_fewer_workers(tmp_path: Path):
    run(3, policy="bsp", folder=str(tmp_path), die_at=20, die=2, elastic=False)
    again = values_of(run(2, policy="bsp", folder=str(tmp_path)))
    assert again[0]["samples"] == NUM_EPOCHS * NUM_SAMPLES
    assert again[0]["sha"] == again[1]["sha"]


def test_parts_are_cut_anew_for_other_workers(tmp_path: Path):
    """Two workers go on from the parts of three as they do under bsp from whole replicas."""
    folders = {policy: tmp_path / policy for policy in ("bsp", "fsdp")}
    for policy, folder in folders.items():
        run(3, policy=policy, folder=str(folder), die_at=20, die=2, elastic=False)
    # the kill may come before the latest checkpoint of one of them is whole
    common = set.intersection(*({path.name for path in checkpoints(folder)} for folder in folders.values()))
    assert common
    for path in (path for folder in folders.values() for path in checkpoints(folder)):
        if path.name not in common:
            shutil.rmtree(path)
    ends = {policy: values_of(run(2, policy=policy, folder=str(folder))) for policy, folder in folders.items()}
    for whole, cut in zip(ends["bsp"], ends["fsdp"], strict=True):
        assert cut["seen"] == whole["seen"]
        assert cut["metrics"] == pytest.approx(whole["metrics"], rel=1e-4)
    assert ends["fsdp"][0]["sha"] == ends["fsdp"][1]["sha"]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "name"), [("asp", "adamw"), ("bsp", "sgd"), ("fsdp", "adamw")])
def test_plain_torch_reads_it(policy: str, name: str, tmp_path: Path):
    values_of(run(2, policy=policy, folder=str(tmp_path), optimizer=name))
    assert_plain_torch_reads(checkpoints(tmp_path)[-1], name)


@pytest.mark.slow
def test_who_goes_on_without_a_lost_worker_goes_on_saving(tmp_path: Path):
    endings = run(3, policy="bsp", folder=str(tmp_path), die_at=20, die=0)
    assert endings[0].exit_status == -9
    finished = [endings[rank].value for rank in (1, 2)]
    assert all(one is not None and one["samples"] == NUM_EPOCHS * NUM_SAMPLES for one in finished), endings
    latest = read_manifest(checkpoints(tmp_path)[-1])
    assert latest.workers == (1, 2)
    assert latest.clock > 40
    again = values_of(run(2, policy="bsp", folder=str(tmp_path)))
    assert again[0]["samples"] == NUM_EPOCHS * NUM_SAMPLES
