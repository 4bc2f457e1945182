"""Training on a GPU comes to what it comes to on the CPU, under every policy; two workers may share one GPU."""

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule

from plesio.testing import LocalJob
from support.processes import on_processes

PROGRAM = Path(__file__).with_name("cuda_programs.py")
LIMIT_S = 120.0
SHARED = "workers share a GPU"
IN_STEP = (
    "bsp",
    "bsp,exchange=store",
    "bsp,compress=qsgd:8",
    "local_sgd:4",
    "delayed:2",
    "hier:bsp/local_sgd:4",
    "local_sgd:4,delay=2",
    "local_sgd:4,exchange=store",
    "diloco:4,fragments=2",
    "post_local_sgd:4,warmup=8",
    "switch:bsp/local_sgd:4@8",
    pytest.param(
        "fsdp",
        marks=pytest.mark.skipif(not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="torch 2.13"),
    ),
)
FREE = (
    "ssp:2",
    "ssp:2,update=delta",
    "asp",
    "asp,weight=inverse",
    "adaptive",
    "bsp,backup=1",
    "bsp,hook=fp16",
    "bsp,compress=powersgd:2",
    "switch:bsp/asp@8",
    "interruptible:local_sgd:4",
)

pytestmark = [pytest.mark.timeout(200), pytest.mark.cuda]


def together(function: str = "train", *, num_workers: int = 2, **arguments: Any) -> list[dict[str, Any]]:
    return on_processes(num_workers, PROGRAM, function, limit_s=LIMIT_S, **arguments)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("policy", IN_STEP)
def test_the_numbers_are_those_of_the_cpu(policy: str, num_workers: int, optimizer: str):
    on_gpu, on_cpu = (
        together(num_workers=num_workers, policy=policy, device=device, optimizer=optimizer)
        for device in ("cuda", "cpu")
    )
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu["devices"] == {"cuda"}
        assert gpu["steps"] == cpu["steps"]
        close = {"rel": 0.05, "abs": 0.02} if "qsgd" in policy else {"rel": 2e-3, "abs": 2e-4}
        assert gpu["parameters"] == pytest.approx(cpu["parameters"], **close)


@pytest.mark.parametrize("policy", FREE)
def test_policies_that_do_not_wait_learn_as_on_the_cpu(policy: str):
    on_gpu, on_cpu = (together(policy=policy, device=device) for device in ("cuda", "cpu"))
    assert on_gpu[0]["loss"] < 2 * on_cpu[0]["loss"] + 0.1


def test_a_shared_gpu_is_told_of_once():
    lines = together(policy="bsp", device="cuda")[0]["fallbacks"]
    assert len([line for line in lines if SHARED in line]) == len(lines) == 1


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("policy", ["bsp", "bsp,exchange=store", "local_sgd:4", "asp"])
def test_half_precision(policy: str, num_workers: int):
    told = together(num_workers=num_workers, policy=policy, device="cuda", half=True)
    assert told[0]["loss"] < 0.5


@pytest.mark.parametrize("policy", ["bsp", "bsp,exchange=store", "local_sgd:4"])
def test_a_compiled_network_is_the_same(policy: str):
    pytest.importorskip("triton")
    plain, compiled = (together(policy=policy, device="cuda", compiler=name) for name in (None, "inductor"))
    assert compiled[0]["parameters"] == pytest.approx(plain[0]["parameters"], rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("policy", ["bsp", "bsp,exchange=store", "local_sgd:4", "diloco:4"])
def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path, policy: str):
    whole = together(policy=policy, device="cuda", dropout=0.1, folder=str(tmp_path / "whole"))
    with LocalJob(2) as job:
        for rank in range(2):
            job.start(
                rank,
                PROGRAM,
                "train",
                policy=policy,
                device="cuda",
                dropout=0.1,
                folder=str(tmp_path / "cut"),
                stop_at=20,
            )
        job.wait(timeout_s=LIMIT_S)
    resumed = together(policy=policy, device="cuda", dropout=0.1, folder=str(tmp_path / "cut"))
    assert 0 < resumed[0]["steps"] < whole[0]["steps"]
    for one, other in zip(resumed, whole, strict=True):
        assert one["parameters"] == pytest.approx(other["parameters"], rel=1e-3, abs=1e-5)


def test_a_worker_that_is_lost_ends_no_run():
    with LocalJob(2) as job:
        job.start(0, PROGRAM, "train", policy="bsp", device="cuda")
        job.start(1, PROGRAM, "train", policy="bsp", device="cuda", stop_at=5)
        endings = job.wait(timeout_s=LIMIT_S)
    assert endings[0].error is None, endings[0].trace
    assert endings[0].value["loss"] < 0.5


@pytest.mark.parametrize("setting", ["1x2", "2x1", "1x2,schedule=gpipe,micro_batches=2"])
def test_a_grid(setting: str):
    on_gpu, on_cpu = (together("grid", setting=setting, device=device) for device in ("cuda", "cpu"))
    assert on_gpu[0]["parameters"] == pytest.approx(on_cpu[0]["parameters"], rel=2e-3, abs=2e-4)


def test_every_collective_goes_through_nccl():
    with LocalJob(1) as job:
        [ending] = job.run(PROGRAM, "collectives", timeout_s=LIMIT_S).values()
    assert ending.error is None, ending.trace
    assert ending.value["cuda"] == ending.value["cpu"]
    assert ending.value["aborted"] == "CutOffError"
