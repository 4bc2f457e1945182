"""Errors at the start of a job, and a process on its own."""

import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import ConfigError, ExchangeError, TaskError, TransportError
from plesio.core.results import read_results
from plesio.core.trace import read_trace
from plesio.runtime.job import Job
from plesio.runtime.job_store import listen, serve_store
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import Ending, LocalJob

pytestmark = pytest.mark.timeout(120)

PROGRAMS = Path(__file__).with_name("programs.py")
LIMIT_S = 100.0


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(num_workers: int, function: str, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(num_workers) as job:
        return job.run(PROGRAMS, function, timeout_s=LIMIT_S, **arguments)


@pytest.mark.parametrize(
    ("told", "own", "found"),
    [("ssp:4", None, "ssp:4"), ("ssp:4", "ssp:4", "ssp:4"), (None, "asp", "asp"), (None, None, "adaptive")],
)
def test_the_launchers_policy_is_for_a_join_that_names_none(
    monkeypatch: pytest.MonkeyPatch, told: str | None, own: str | None, found: str
):
    monkeypatch.delenv("PLESIO_POLICY", raising=False)
    if told is not None:
        monkeypatch.setenv("PLESIO_POLICY", told)
    with plesio.join(*small(), policy=own) as session:
        assert session.report().policy == found


def test_a_launchers_policy_beside_another_of_the_script_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLESIO_POLICY", "ssp:4")
    with pytest.raises(ConfigError, match=r"says bsp, and its launcher \(PLESIO_POLICY\) says ssp:4; leave one"):
        plesio.join(*small(), policy="bsp")
    monkeypatch.setenv("PLESIO_POLICY", "spp:4")
    with pytest.raises(ConfigError, match=r"^PLESIO_POLICY=spp:4: "):
        plesio.join(*small())


@pytest.mark.parametrize("policy", ["bsp", "asp", "local_sgd:4", "ssp:2"])
def test_one_process_alone_trains_as_plain_pytorch(policy: str, tmp_path: Path):
    data = TensorDataset(torch.randn(20, 2, generator=torch.Generator().manual_seed(0)))
    torch.manual_seed(0)
    model, optimizer = small()
    plain = nn.Linear(2, 1)
    plain.load_state_dict(model.state_dict())
    stepper = torch.optim.SGD(plain.parameters(), lr=0.1)
    with plesio.join(model, optimizer, policy=policy, trace=tmp_path) as session:
        assert (session.rank, session.num_workers) == (0, 1)
        for _ in range(2):
            for (x,) in session.shard(DataLoader(data, batch_size=3, shuffle=True)):
                loss = model(x).square().mean()
                loss.backward()
                session.step(loss)
                plain(x).square().mean().backward()
                stepper.step()
                stepper.zero_grad()
        metric = session.evaluate(lambda: 1.0)
    assert metric == 1.0
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    [result] = read_results(tmp_path / "results.json")
    assert result == session.report()
    assert (result.status, result.samples, result.steps, result.bytes_sent_total) == ("finished", 40, 14, 0)


def test_sessions_follow_one_another_and_a_closed_one_says_so():
    model, optimizer = small()
    for _ in range(2):
        session = plesio.join(model, optimizer)
        model(torch.ones(1, 2)).sum().backward()
        session.step()
        session.close()
        session.close()
        assert (session.report().policy, session.report().steps) == ("adaptive", 1)
        with pytest.raises(ConfigError, match="closed"):
            session.step()


def test_a_loop_over_what_is_no_loader_is_told_so():
    model, optimizer = small()
    with plesio.join(model, optimizer) as session, pytest.raises(ConfigError, match="write a DataLoader"):
        session.shard([torch.ones(1, 2)])  # type: ignore[arg-type]


def test_error_in_the_loop_is_the_users_own_and_in_the_results(tmp_path: Path):
    model, optimizer = small()
    with pytest.raises(ZeroDivisionError), plesio.join(model, optimizer, trace=tmp_path):
        raise ZeroDivisionError("mine")
    [result] = read_results(tmp_path / "results.json")
    assert result.status == "failed"
    assert "ZeroDivisionError: mine" in str(result.error)


def test_ctrl_c_is_an_interrupted_run(tmp_path: Path):
    model, optimizer = small()
    with pytest.raises(KeyboardInterrupt), plesio.join(model, optimizer, trace=tmp_path):
        raise KeyboardInterrupt
    assert read_results(tmp_path / "results.json")[0].status == "interrupted"


def test_gradient_that_is_not_finite_is_refused_alone_too():
    model, optimizer = small()
    before = [p.detach().clone() for p in model.parameters()]
    with plesio.join(model, optimizer) as session:
        (model(torch.ones(1, 2)) * float("inf")).sum().backward()
        session.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert session.report().refused_updates == {"0": {"not_finite": 1}}


def test_model_that_cannot_be_trained_is_refused():
    with pytest.raises(TaskError, match=r"ReLU.*no trainable parameters"):
        plesio.join(nn.ReLU(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    frozen = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(TaskError, match="no trainable parameters"):
        plesio.join(frozen, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(TaskError, match=r"model\.parameters\(\)"):
        plesio.join(nn.Linear(2, 1), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE and MASTER_ADDR and MASTER_PORT not set although RANK is"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, 'RANK="x"'),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "high"}, 'MASTER_PORT="high"'),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "PLESIO_RACK": "A"},
            'PLESIO_RACK="A" is not a whole number',
        ),
    ],
)
def test_half_of_torchruns_variables_is_an_error_that_says_which(variables: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        WorkerPlace.from_environment(variables)


@pytest.mark.parametrize(("variables", "rack"), [({}, None), ({"PLESIO_RACK": "1"}, 1)])
def test_the_environment_may_name_the_rack(variables: dict[str, str], rack: int | None):
    torchruns = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    place = WorkerPlace.from_environment(torchruns | variables)
    assert place is not None
    assert place.rack == rack


def place_at(port: int, *, rank: int, agent: bool) -> WorkerPlace:
    return WorkerPlace(
        rank=rank,
        num_workers=2,
        local_rank=rank,
        local_workers=2,
        address="127.0.0.1",
        port=port,
        agent_hosts_store=agent,
    )


def test_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"port {port} of 127.0.0.1 is in use.*MASTER_PORT"):
            Job(place_at(port, rank=0, agent=False), meet_s=1.0)


def test_nobody_at_the_address_is_an_error_that_says_where():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TransportError, match=f"127.0.0.1:{port}.*nobody answers"):
        Job(place_at(port, rank=1, agent=True), meet_s=0.2)


def test_a_late_worker_is_told_at_once_that_its_job_has_ended():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TransportError, match=f"127.0.0.1:{port}: nobody answers there .*Connection refused"):
        Job(place_at(port, rank=2, agent=True), meet_s=3600.0)


def test_a_listener_that_is_no_store_is_not_waited_for_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TransportError, match=f"127.0.0.1:{port}: nobody answers there"):
            Job(place_at(port, rank=1, agent=True), meet_s=0.2)
    for thread in threading.enumerate():  # its connection is gone, so it ends
        if thread.name == "plesio-store":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("policy", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_worker_that_does_not_come_is_waited_for_only_so_long(policy: str):
    with LocalJob(2) as job:
        job.start(0, PROGRAMS, "join_within", policy=policy, meet_s=1.0)
        ending = job.wait(timeout_s=LIMIT_S)[0]
    assert ending.error == "TransportError"
    assert "within 1 s" in ending.message
    assert "[1]" in ending.message, "it says who is missing"


def test_first_worker_that_does_not_come_is_named():
    with LocalJob(2) as job:
        job.start(1, PROGRAMS, "join_within", policy="asp", meet_s=1.0)
        ending = job.wait(timeout_s=LIMIT_S)[1]
    assert ending.error == "TransportError"
    assert "is worker 0 running" in ending.message


def test_one_that_stops_while_all_join_is_named_in_time():
    endings = run(3, "group_alone")
    told = "TransportError: worker 0 waited 0.1 s for worker 1 and worker 2 to form the group of all workers"
    assert str(endings[0].value).startswith(told), endings[0].trace


@pytest.mark.parametrize(
    ("what", "message"), [("policy", "runs policy"), ("model", "model differs")], ids=["policy", "model"]
)
@pytest.mark.parametrize("exchange", ["collective", pytest.param("store", marks=pytest.mark.slow)])
def test_workers_that_disagree_are_all_told_at_once(what: str, message: str, exchange: str):
    endings = run(2, "disagree", what=what, exchange=exchange)
    for ending in endings.values():
        assert ending.error == "TransportError", ending.trace
        assert message in ending.message


@pytest.mark.parametrize("policy", ["asp", "local_sgd:4", "adaptive"])
def test_layers_that_are_in_step_are_refused_where_workers_are_not(policy: str):
    for ending in run(2, "with_synchronous_norm", policy=policy).values():
        assert ending.error == "TaskError"
        assert '"1" is a SyncBatchNorm' in ending.message


@pytest.mark.parametrize(("policy", "passes"), [("bsp", 1), ("local_sgd:2", 2)])
def test_checkpoints_that_hide_parameters_from_ddp_are_trained(policy: str, passes: int):
    one, other = run(2, "with_reentrant_checkpoints", policy=policy, passes=passes).values()
    assert one.error is None, one.trace
    assert one.value == other.value


def test_checkpoints_that_give_ddp_a_parameter_twice_are_explained():
    endings = run(2, "with_reentrant_checkpoints", policy="bsp", passes=2).values()
    assert "TaskError" in {ending.error for ending in endings}
    for ending in endings:  # a worker that the other leaves first passes its words on
        assert "write use_reentrant=False" in ending.message, ending.trace


def test_an_evaluation_on_a_shard_is_refused():
    endings = run(2, "evaluating_on_a_shard")
    assert endings[0].error == "ConfigError"
    assert "let its function go through the loader itself" in endings[0].message


@pytest.mark.parametrize("elastic", [True, False])
def test_one_that_fails_while_all_take_over_the_parameters_is_named_by_the_others(elastic: bool):
    endings = run(2, "failing_at_the_start", elastic=elastic)
    assert (endings[1].error, endings[1].message) == ("ArithmeticError", "of one's own")
    assert endings[0].error == "WorkerLostError"
    assert "worker 1 ended with an error (of one's own)" in endings[0].message


def test_optimizer_that_the_store_cannot_run_is_one_clear_line_on_every_worker():
    endings = run(2, "join_with", policy="asp")
    assert endings[0].error == ExchangeError.__name__
    assert "cannot run Own" in endings[0].message
    assert "AdamW" in endings[0].message
    assert "update=delta" in endings[0].message
    assert "\n" not in endings[0].message
    assert endings[1].error in (ExchangeError.__name__, TransportError.__name__)


@pytest.mark.slow
def test_any_optimizer_works_with_deltas():
    endings = run(2, "join_with", policy="ssp:4,update=delta")
    for ending in endings.values():
        assert ending.error is None, ending.trace
    assert endings[0].value < endings[0].value + 1  # finite


@pytest.mark.parametrize("policy", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that is too small")
def test_full_disk_while_tracing_does_not_stop_the_training(policy: str, tmp_path: Path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        (folder / "ballast").write_bytes(b"x" * 8192)
        endings = run(2, "without_results", policy=policy, epochs=20, trace=folder)
    finally:
        subprocess.run(["umount", folder], check=True)
    for ending in endings.values():
        assert ending.error is None, ending.trace
        assert "could not be written" in ending.value["said"]
    result = endings[0].value["result"]
    assert result["status"] == "finished"
    assert result["samples"] == 20 * 96
    assert any("tracing stopped, training goes on" in line for line in result["fallbacks"])
    assert len(result["fallbacks"]) == len(set(result["fallbacks"]))


def test_the_trace_has_the_sizes_of_ddps_buckets(tmp_path: Path):
    endings = run(2, "without_results", policy="bsp", epochs=1, trace=tmp_path)
    for rank, ending in endings.items():
        assert ending.error is None, ending.trace
        (event,) = (one for one in read_trace(tmp_path / f"trace-{rank}.jsonl").records if one.kind == "buckets")
        assert sum(event.fields["num_bytes"]) > 0
        assert event.clock > 0


def test_plesio_imports_without_torch():
    code = "import plesio, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_that_comes_when_the_job_is_over_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLESIO_SECRET", "7" * 64)
    with listen(0) as listener:
        port = listener.getsockname()[1]
        store = serve_store(listener, num_workers=1)
    first = WorkerPlace(
        rank=0,
        num_workers=1,
        local_rank=0,
        local_workers=1,
        address="127.0.0.1",
        port=port,
        agent_hosts_store=True,
    )
    with Job(first) as job:
        job.servers(1, folder=None)
    with Job(replace(first, rank=1, local_rank=1)) as late:
        with pytest.raises(TransportError, match="the run is at its end: nobody can join it any more"):
            late.servers(1, folder=None)
        del store  # the launcher ends while it is being answered
        late.start.assure_all_come()
