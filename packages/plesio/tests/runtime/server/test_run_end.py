import json
from pathlib import Path

import pytest

from plesio.protocol.effects import EndRun
from plesio.protocol.message import Message, kind_of
from plesio.protocol.to_server import Ended
from plesio.protocol.to_worker import Expelled, RunEnded
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.server.effect_carrier import EffectCarrier
from plesio.runtime.server.run_end import RunEnd
from plesio.runtime.server.server_traffic import ServerTraffic
from plesio.runtime.server.shard_server import ShardServer
from plesio.testing import FakeClock
from support.coordinated_run import join_of
from support.endpoints import KeepingEndpoint

KINDS = {kind_of(message): message for message in (EndRun, Expelled, RunEnded)}


class Job:
    """Server 0, and what it has told whom."""

    def __init__(self, *others: bytes) -> None:
        self.endpoint = KeepingEndpoint()
        shard = ShardServer(self.endpoint, index=0, clock=FakeClock())
        self.end = RunEnd(ServerTraffic(self.endpoint), EffectCarrier(self.endpoint, shard=shard))
        for peer in others:
            self.end.serves(peer)

    @property
    def told(self) -> list[tuple[bytes, type[Message]]]:
        return [(peer, KINDS[kind]) for peer, kind, _ in self.endpoint.controls]

    @property
    def last(self) -> Message:
        _, kind, body = self.endpoint.controls[-1]
        return KINDS[kind].of_body(dict(body))

    @property
    def num_over(self) -> int:
        return self.endpoint.generation


def coordinator() -> Coordinator:
    return Coordinator(join_of("asp", num_workers=1, num_servers=1))


def test_a_run_of_one_server_is_over_at_once():
    job = Job()
    job.end.let_go(3)
    job.end.begin(coordinator(), folder=None)
    assert job.told == [(b"worker-3", RunEnded)]
    assert (job.num_over, len(job.end.results), job.end.under_way) == (1, 1, False)


def test_a_worker_that_was_lost_is_told_that_the_run_is_over():
    job = Job()
    run = coordinator()
    for worker in (0, 1):  # 0 before the run was resumed
        run.ledger.lose(worker, evaluates=False)
    job.end.let_go(0)
    job.end.begin(run, folder=None)
    assert (job.told, job.last) == ([(b"worker-0", RunEnded), (b"heartbeat-1", Expelled)], Expelled(over=True))


def test_a_run_is_over_when_all_servers_have_forgotten_it():
    job = Job(b"server-1", b"server-2")
    job.end.let_go(0)
    job.end.begin(coordinator(), folder=None)
    assert sorted(job.told) == [(b"server-1", EndRun), (b"server-2", EndRun)]
    job.end.ended_at(b"server-2", Ended(sent={"tcp": 7}, refused={}))
    assert job.end.under_way
    job.end.ended_at(b"server-1", Ended(sent={"tcp": 1}, refused={}))
    assert (job.num_over, job.told[-1]) == (1, (b"worker-0", RunEnded))
    assert job.end.results[0].bytes_sent["tcp"] == 8


def test_a_server_that_is_gone_is_not_waited_for():
    job = Job(b"server-1")
    job.end.begin(coordinator(), folder=None)
    job.end.gone(b"worker-0")
    assert job.end.under_way
    job.end.gone(b"server-1")
    assert job.num_over == 1
    job.end.begin(coordinator(), folder=None)
    assert job.num_over == 2, "nor asked again"


def test_the_end_of_the_job_closes_the_records_of_a_run_that_is_ending(tmp_path: Path):
    job = Job(b"server-1")
    job.end.begin(coordinator(), folder=tmp_path / "run")
    job.end.give_up_waiting()
    assert json.loads((tmp_path / "run" / "results.json").read_text())
    job.end.give_up_waiting()
    assert job.num_over == 1


def test_results_that_cannot_be_written_are_a_line_in_the_log_and_the_workers_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "run").write_text("a file where the folder would be")
    job = Job()
    job.end.let_go(0)
    job.end.begin(coordinator(), folder=tmp_path / "run")
    assert "could not be written" in caplog.text
    assert isinstance(job.last, RunEnded)
    assert "could not be written" in job.last.unwritten
    assert RunEnded.of_body(job.last.body()) == job.last
    assert (job.num_over, len(job.end.results)) == (1, 1)
