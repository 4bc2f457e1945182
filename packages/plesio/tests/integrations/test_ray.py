"""`PlesioConfig` under Ray Train's ``TorchTrainer``: a cluster of two nodes, and a stand-in for Ray."""

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import plesio
from plesio.core.errors import PolicySpecError
from plesio.runtime.worker.environment import WorkerPlace
from support.frameworks import RAY_QUIET

PROGRAM = Path(__file__).with_name("ray_programs.py")
LIMIT_S = 600.0
EPOCHS, SAMPLES = 6, 240


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `ray_programs` has found, all in one cluster: starting one takes as long as a run."""
    pytest.importorskip("ray", reason='Ray is not installed: pip install "plesio[ray]"')
    folder = tmp_path_factory.mktemp("ray")
    with tempfile.TemporaryDirectory(prefix="ray-") as home:  # the paths of sockets must be short
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), str(folder)],
            env={**os.environ, **RAY_QUIET, "RAY_TMPDIR": home},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "output.txt").write_text(ended.stdout + ended.stderr)
    return folder


def workers(runs: Path, name: str, *, attempt: int = 0) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((runs / name).glob(f"?-{attempt}.json"))]


def returned(runs: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / f"{name}.json").read_text())
    return found


real = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 20)]


class TestRay:
    pytestmark = real

    @pytest.mark.parametrize(("name", "policy"), [("bsp", "bsp"), ("ssp", "ssp:2")])
    def test_all_workers_of_both_nodes_train_in_one_run(self, runs: Path, name: str, policy: str):
        found = workers(runs, name)
        assert [one["ranks"] for one in found] == [[rank, rank] for rank in range(4)]
        assert [(one["host"], one["num_hosts"]) for one in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
        for one in found:
            assert (one["policy"], one["num_workers"], one["status"]) == (policy, 4, "finished")
            assert (one["steps"], one["samples"]) == (EPOCHS * SAMPLES // 4, EPOCHS * SAMPLES)
        if name == "bsp":
            assert all(one["weights"] == found[0]["weights"] for one in found)

    @pytest.mark.parametrize("name", ["bsp", "ssp", "unequal", "lost"])
    def test_ray_has_the_metrics_and_the_model_of_the_last_report(self, runs: Path, name: str):
        found = returned(runs, name)
        assert found["metrics"]["epoch"] == EPOCHS
        assert found["metrics"]["loss"] < 1.0, "it begins at about 5"
        assert found["weights"] == pytest.approx([1.0] * 5, abs=0.5)

    def test_a_node_with_more_workers_counts_as_several_hosts(self, runs: Path):
        found = workers(runs, "unequal")
        assert [(one["host"], one["num_hosts"]) for one in found] == [(0, 3), (1, 3), (2, 3)]
        assert {one["num_workers"] for one in found} == {3}

    def test_after_a_loss_ray_starts_all_again_and_they_go_on_from_the_checkpoint(self, runs: Path):
        first, again = workers(runs, "lost"), workers(runs, "lost", attempt=1)
        assert len(first) == len(again) == 2
        assert all("status" not in one for one in first)
        steps = SAMPLES // 4 // 2
        for one in again:
            assert one["status"] == "finished"
            assert one["first_clock"] > 2 * steps, "the loss came in the fourth epoch"
        assert again[0]["samples"] == EPOCHS * SAMPLES

    def test_an_error_of_one_is_what_ray_raises(self, runs: Path):
        assert "ValueError: no more" in returned(runs, "failed")["error"]

    def test_every_attempt_has_its_own_secret_and_no_log_has_one(self, runs: Path):
        found = json.loads((runs / "logs.json").read_text())
        assert found["secrets"] == 6
        assert found["logs"] > 10
        assert found["told"] == 0
        output = (runs / "output.txt").read_text()
        assert not any(path.read_text() in output for path in runs.glob("*/secret-*"))


@dataclass
class StandInGroup:
    """Workers of a worker group of Ray's, each with what its context says."""

    contexts: list[SimpleNamespace]

    def execute(self, function: Callable[[], Any]) -> list[Any]:
        found = []
        for context in self.contexts:
            with pytest.MonkeyPatch.context() as own:
                own.setattr(sys.modules["ray.train"], "get_context", lambda context=context: context, raising=False)
                found.append(function())
        return found

    def execute_single_async(
        self, at: int, function: Callable[[dict[str, str]], None], variables: dict[str, str]
    ) -> dict[str, str]:
        with pytest.MonkeyPatch.context() as own:
            own.setattr(os, "environ", self.contexts[at].environment)
            function(variables)
        return variables


def group(*local_workers: int) -> StandInGroup:
    """Workers of nodes with so many each."""
    of_each = [number for number in local_workers for _ in range(number)]
    return StandInGroup(
        [
            SimpleNamespace(get_world_rank=lambda r=rank: r, get_local_world_size=lambda n=number: n, environment={})
            for rank, number in enumerate(of_each)
        ]
    )


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`plesio.integrations.ray` on a stand-in for Ray."""
    modules = {
        name: ModuleType(name) for name in ("ray", "ray.train", "ray.train.backend", "ray.train.torch", "ray.util")
    }
    modules["ray"].__dict__.update(train=modules["ray.train"], util=modules["ray.util"], get=list)
    modules["ray.util"].__dict__.update(get_node_ip_address=lambda: "127.0.0.1")
    modules["ray.train.backend"].__dict__.update(Backend=type("Backend", (), {}))
    modules["ray.train.torch"].__dict__.update(TorchConfig=type("TorchConfig", (), {}))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop("plesio.integrations.ray", None)
    yield importlib.import_module("plesio.integrations.ray")
    del sys.modules["plesio.integrations.ray"]


class TestStandIn:
    @pytest.mark.parametrize(
        ("nodes", "local_workers", "hosts"),
        [
            ((2, 2), 2, [0, 0, 1, 1]),
            ((4,), 4, [0, 0, 0, 0]),
            ((2, 1), 1, [0, 1, 2]),
            ((4, 2), 2, [0, 0, 1, 1, 2, 2]),
        ],
    )
    def test_workers_have_torchruns_variables(
        self, integration: ModuleType, nodes: tuple[int, ...], local_workers: int, hosts: list[int]
    ):
        config = integration.PlesioConfig("ssp:4")
        backend, workers = config.backend_cls(), group(*nodes)
        backend.on_training_start(workers, config)
        places = [WorkerPlace.from_environment(one.environment) for one in workers.contexts]
        socket.create_connection((places[0].address, places[0].port), timeout=10).close()
        backend.on_shutdown(workers, config)
        assert [place.rank for place in places] == list(range(sum(nodes)))
        assert [place.host for place in places] == hosts
        assert {(place.num_workers, place.local_workers) for place in places} == {(sum(nodes), local_workers)}
        assert all(place.agent_hosts_store and place.address == "127.0.0.1" for place in places)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((places[0].address, places[0].port), timeout=10)

    def test_all_have_one_secret_and_the_policy_and_a_second_attempt_has_another(self, integration: ModuleType):
        config = integration.PlesioConfig(plesio.SSP(bound=4))
        backend, secrets = config.backend_cls(), set()
        for _ in range(2):
            workers = group(2)
            backend.on_training_start(workers, config)
            backend.on_shutdown(workers, config)
            first, second = (one.environment for one in workers.contexts)
            assert first["PLESIO_SECRET"] == second["PLESIO_SECRET"]
            assert first["PLESIO_POLICY"] == second["PLESIO_POLICY"] == "ssp:4"
            secrets.add(first["PLESIO_SECRET"])
        assert len(secrets) == 2
        assert not secrets & {str(value) for value in vars(config).values()}, "Ray writes the config into its records"

    def test_a_policy_that_cannot_be_read_is_refused_at_once(self, integration: ModuleType):
        with pytest.raises(PolicySpecError, match="did you mean"):
            integration.PlesioConfig("sspp:4")


def test_importing_the_integrations_does_not_import_ray():
    code = "import sys, plesio.integrations; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
