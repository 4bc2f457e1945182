import contextlib
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from plesio.core.errors import DataError
from plesio.cost.kineto import KinetoTrace, TracedCollective, read_kineto


def event(name: str, ts: float, dur: float, *, cat: str = "user_annotation", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", ts, dur)


def read(tmp_path: Path, events: list[Any], **more: Any) -> KinetoTrace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", **more, "traceEvents": events}))
    return read_kineto(path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_steps_of_a_real_trace(tmp_path: Path, name: str):
    model = torch.nn.Linear(16, 16)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
        for _ in range(5):
            model(torch.ones(8, 16)).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / name))
    trace = read_kineto(tmp_path / name)
    assert len(trace.durations_s) == 3
    assert all(0 < duration_s < 60 for duration_s in trace.durations_s)
    assert trace.median_s == sorted(trace.durations_s)[1]
    assert (trace.collectives, trace.num_untimed, trace.overlap) == ((), 0, None)


_RANK = """
import sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
rank, folder, shapes = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "shapes"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
when = schedule(wait=1, warmup=1, active=3)
with profile(activities=[ProfilerActivity.CPU], schedule=when, record_shapes=shapes) as profiler:
    for _ in range(5):
        dist.all_reduce(torch.ones(100, 10))
        dist.all_reduce(torch.ones(7, dtype=torch.bfloat16), async_op=True).wait()
        dist.all_gather([torch.ones(30), torch.ones(30)], torch.ones(30))
        dist.reduce_scatter_tensor(torch.ones(30), torch.ones(60))
        dist.broadcast(torch.ones(5, dtype=torch.int64), 0)
        dist.barrier()
        profiler.step()
profiler.export_chrome_trace(f"{folder}/{rank}.json")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["shapes", "no shapes"])
def test_gloo_collectives_of_two_real_ranks(tmp_path: Path, shapes: str):
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            command = [sys.executable, "-W", "ignore", "-c", _RANK, str(rank), str(tmp_path), shapes]
            ranks.append(stack.enter_context(subprocess.Popen(command)))
            stack.callback(ranks[-1].kill)
        assert [process.wait(timeout=60) for process in ranks] == [0, 0]
    for rank in range(2):
        trace = read_kineto(tmp_path / f"{rank}.json")
        assert len(trace.durations_s) == 3
        found = sorted((one.operation, one.num_bytes or 0, one.num_ranks) for one in trace.collectives)
        sent = [("all_gather", 240), ("all_reduce", 14), ("all_reduce", 4000), ("barrier", 0), ("broadcast", 40)]
        sent.append(("all_reduce", 240))  # the reduce-scatter
        assert found == sorted((name, size if shapes == "shapes" else 0, 2) for name, size in sent for _ in range(3))
        if shapes != "shapes":
            assert all((one.num_bytes == 0) == (one.operation == "barrier") for one in trace.collectives)


def test_steps_are_summarised(tmp_path: Path):
    gpu = event("ProfilerStep#2", 5, 900, cat="gpu_user_annotation")
    trace = read(tmp_path, [step(3, 100, 300), step(2, 0, 100), gpu, step(4, 400, 200)])
    assert trace.durations_s == (100e-6, 300e-6, 200e-6)
    assert trace.median_s == 200e-6
    assert trace.cv == pytest.approx(0.5)  # standard deviation 100, mean 200
    assert read(tmp_path, [step(2, 0, 100)]).cv is None


NCCL = {"dtype": "BFloat16", "Group size": 8, "Process Group Name": "0", "Process Group Description": "default_pg"}


def nccl(name: str, nelems: int, out: int) -> dict[str, Any]:
    """Arguments of both a kernel and its launch, as torch 2.4 and later write them."""
    return {"Collective name": name, "In msg nelems": nelems, "Out msg nelems": out, **NCCL}


def kernel(name: str, ts: float, dur: float, *, device: int = 0, **args: Any) -> dict[str, Any]:
    return event(name, ts, dur, cat="kernel", device=device, stream=7, **args)


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def test_nccl_is_timed_by_its_kernels_only(tmp_path: Path):
    sent = nccl("allreduce", 1000, 1000)
    trace = read(
        tmp_path,
        [
            step(2, 0, 1000),
            event("record_param_comms", 10, 50, cat="cpu_op", **{"External id": 5}, **sent),
            event("nccl:all_reduce", 12, 40),
            event("nccl:all_reduce", 100, 300, cat="gpu_user_annotation"),
            kernel(ALL_REDUCE, 100, 300, **sent),
            event("record_param_comms", 70, 50, cat="cpu_op", **nccl("wait", 0, 0)),
        ],
    )
    all_reduce = TracedCollective(operation="all_reduce", num_bytes=2000, num_ranks=8, duration_s=300e-6)
    assert trace.collectives == (all_reduce,)
    assert trace.num_untimed == 0


@pytest.mark.parametrize(
    ("name", "args", "operation", "num_bytes"),
    [
        (ALL_GATHER, nccl("_allgather_base", 100, 800), "all_gather", 1600),
        (ALL_GATHER, nccl("allgather_into_tensor_coalesced", 100, 800), "all_gather", 1600),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
            nccl("_reduce_scatter_base", 800, 100),
            "reduce_scatter",
            1600,
        ),
        (SEND_RECV, nccl("all_to_allv", 80, 80), "all_to_all", 160),
        (SEND_RECV, nccl("send", 80, 80), "send", 160),
        (ALL_REDUCE, nccl("barrier", 0, 0), "barrier", 0),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {"External id": 5}, "all_reduce", 2000),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {"External id": 6}, "all_reduce", None),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", {}, "broadcast", None),
        (SEND_RECV, {}, SEND_RECV, None),
        (ALL_REDUCE, {**nccl("allreduce", 8, 8), "dtype": "Quaternion"}, "all_reduce", None),
    ],
)
def test_what_nccl_sent(tmp_path: Path, name: str, args: dict[str, Any], operation: str, num_bytes: int | None):
    launch = event("record_param_comms", 1, 2, cat="cpu_op", **{"External id": 5}, **nccl("allreduce", 1000, 1000))
    (found,) = read(tmp_path, [step(2, 0, 1000), launch, kernel(name, 10, 20, **args)]).collectives
    assert (found.operation, found.num_bytes, found.duration_s) == (operation, num_bytes, 20e-6)


def test_collectives_without_their_kernels_are_counted_not_timed(tmp_path: Path):
    names = ("allreduce", "wait", "allreduce")
    launches = [event("record_param_comms", 10, 50, cat="cpu_op", **nccl(name, 8, 8)) for name in names]
    trace = read(tmp_path, [step(2, 0, 1000), *launches])
    assert (trace.collectives, trace.num_untimed, trace.overlap) == ((), 2, None)


@pytest.mark.parametrize(
    ("compute", "overlap"),
    [
        ([], 0.0),
        ([(0, 100)], 0.0),
        ([(100, 100)], 1.0),
        ([(50, 100)], 0.5),
        ([(50, 75), (75, 75), (180, 100)], 0.7),  # two that overlap each other count once
        ([(120, 20), (150, 20)], 0.4),
    ],
)
def test_overlap(tmp_path: Path, compute: list[tuple[float, float]], overlap: float):
    sent = [kernel(ALL_REDUCE, 100, 100), kernel(ALL_GATHER, 120, 30)]
    copies = [event("Memcpy HtoD", 100, 100, cat="gpu_memcpy", device=0), kernel(GEMM, 100, 100, device=1)]
    computing = [kernel(GEMM, ts, dur) for ts, dur in compute]
    trace = read(tmp_path, [step(2, 0, 1000), *sent, *copies, *computing])
    assert trace.overlap == pytest.approx(overlap)


def test_computing_alone_has_no_overlap(tmp_path: Path):
    assert read(tmp_path, [step(2, 0, 1000), kernel(GEMM, 0, 100)]).overlap is None


def test_ranks_of_gloo_are_known_if_its_groups_are_equal(tmp_path: Path):
    gather = event("gloo:all_gather", 1, 2, **{"Input Dims": [[30]], "Input type": ["float"]})

    def ranks(**info: Any) -> tuple[int | None, int | None]:
        (found,) = read(tmp_path, [step(2, 0, 10), gather], **info).collectives
        return found.num_ranks, found.num_bytes

    equal, other = {"pg_size": 4}, {"pg_size": 2}
    assert ranks(distributedInfo={"pg_config": [equal, equal]}) == (4, 480)
    assert ranks(distributedInfo={"pg_config": [equal, other]}) == (None, None)
    assert ranks() == (None, None)


@pytest.mark.parametrize(
    ("types", "shapes", "num_bytes"),
    [
        (["float"], [[]], 4),  # a scalar
        (["float", "double"], [[4], [5, 2]], 96),  # coalesced
        (["long int"], [[8]], 64),
        (["c10::Half"], [[8]], 16),
        (["c10::Quaternion"], [[8]], None),
    ],
)
def test_what_gloo_sent(tmp_path: Path, types: list[str], shapes: list[list[int]], num_bytes: int | None):
    sent = event("gloo:all_reduce", 1, 2, **{"Input Dims": shapes, "Input type": types})
    assert [one.num_bytes for one in read(tmp_path, [step(2, 0, 10), sent]).collectives] == [num_bytes]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"trace\.json is not JSON"),
        (b'{"traceEvents": [', "is not JSON .* was it cut off"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "cannot read the profiler trace"),
        (b"\x1f\x8bnonsense", "cannot read the profiler trace"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1, 2]", "has no traceEvents"),
        (b'{"traceEvents": {}}', "has no traceEvents"),
        (b'{"traceEvents": []}', r"has no steps \(ProfilerStep#N\); call profiler\.step"),
        (b'{"traceEvents": [{"ph": "M", "name": "ProfilerStep#1"}]}', "has no steps"),
        (b'{"traceEvents": [1]}', "not as the profiler writes it"),
        (b'{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "ts": 1}]}', "KeyError: 'dur'"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "ts": 1, "dur": NaN}]}',
            "ProfilerStep#1 .* lasts nan",
        ),
        (b'{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "ts": 1, "dur": 0}]}', "takes no time"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_kineto(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"cannot read the profiler trace .*missing"):
        read_kineto(tmp_path / "missing")
