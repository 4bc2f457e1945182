"""`plesio launch`: what it writes for Slurm, Kubernetes and TorchX, parsed, and run against stand-ins for them."""

import ast
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plesio.cli.commands import invoke

LIMIT_S = 100.0
TRAIN = """
import json, os, signal, sys, pathlib
import torch, plesio
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
data = TensorDataset(torch.ones(64, 2), torch.ones(64, 1))
with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
    for x, y in session.shard(DataLoader(data, batch_size=4)):
        if [str(session.rank), str(session.clock)] == sys.argv[2:]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (model(x) - y).square().mean()
        loss.backward()
        session.step(loss)
run = session.report()
found = {"policy": run.policy, "workers": run.num_workers, "samples": run.samples, "lost": run.lost_workers}
pathlib.Path(sys.argv[1], f"{session.rank}.json").write_text(json.dumps(found))
"""
SHOW = """
import json, os, sys, pathlib
pathlib.Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps([dict(os.environ), sys.argv[2:]]))
"""
SRUN = """
import os, subprocess, sys
pathlib = __import__("pathlib")
pathlib.Path(os.environ["NOTES"], "srun.txt").write_text(" ".join(sys.argv))
options = [word for word in sys.argv[1 : sys.argv.index("bash")]]
assert all(word.startswith("--") and "=" in word for word in options), options
command = sys.argv[1 + len(options) :]
nodes, each = (int(os.environ[name]) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
tasks = [
    subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % each)})
    for rank in range(nodes * each)
]
sys.exit(max(abs(task.wait()) for task in tasks))
"""
KEPT = """
import os, pathlib, shutil, sys
folder = pathlib.Path(os.environ["NOTES"])
name = pathlib.Path(sys.argv[0]).name
(folder / f"{name}.json").write_text(__import__("json").dumps(sys.argv[1:]))
if name == "torchx":
    shutil.copy(sys.argv[-1].rpartition(":")[0], folder / "torchx.in")
else:
    (folder / f"{name}.in").write_text(sys.stdin.read())
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put Python programs on the path, in place of all that is there; returns the folder of what they note."""

    def make(**texts: str) -> Path:
        (folder := tmp_path / "programs").mkdir()
        for name, text in texts.items():
            (path := folder / name).write_text(f"#!{sys.executable}\n{text}")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if "srun" in texts else str(folder))
        monkeypatch.setenv("NOTES", str(tmp_path))
        return tmp_path

    return make


@pytest.fixture
def script(tmp_path: Path) -> str:
    (path := tmp_path / "train_digits.py").write_text(SHOW)
    return str(path)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Have what a kind of launch prints."""

    def show(kind: str, *words: str) -> str:
        assert invoke(["launch", kind, "--print", *words]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return show


def free_port() -> int:
    """A port of the range from which Slurm's script takes one by the number of the job."""
    for port in range(20_000, 30_000):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError


def run_in_slurm(text: str, *, nodes: int, each: int) -> None:
    """Run a script as Slurm would on the first node of a job."""
    job = {"SLURM_JOB_ID": str(free_port() - 20_000 + 10_000), "SLURM_JOB_NODELIST": "node[1-2]"}
    numbers = {"SLURM_NNODES": str(nodes), "SLURM_NTASKS_PER_NODE": str(each)}
    subprocess.run(["bash"], input=text, text=True, env={**os.environ, **job, **numbers}, check=True, timeout=LIMIT_S)


class TestSlurm:
    def test_directives(self, printed: Callable[..., str], script: str):
        text = printed(
            "slurm", "--nodes", "2", "--workers-per-node", "4", "--cpus", "3", "--gpus", "1", "--memory", "5",
            "--time", "2-00:00:00", "--partition", "long", script,
        )  # fmt: skip
        assert re.findall("^#SBATCH --(.*)$", text, re.M) == [
            "job-name=train-digits", "nodes=2", "ntasks-per-node=4", "cpus-per-task=3", "mem=20G", "time=2-00:00:00",
            "output=%x-%j.out", "gpus-per-node=4", "partition=long",
        ]  # fmt: skip
        assert text.startswith("#!/bin/bash\n#SBATCH ")

    def test_its_tasks_are_the_workers(self, printed: Callable[..., str], programs: Callable[..., Path], script: str):
        notes = programs(srun=SRUN, scontrol='print("127.0.0.1\\n127.0.0.2")')
        text = printed(
            "slurm", "--nodes", "2", "--workers-per-node", "2", "--policy", "SSP:4", "--checkpoint", "runs/ck",
            "--every", "50 steps", script, str(notes), "--name", "it's $HOME",
        )  # fmt: skip
        run_in_slurm(text, nodes=2, each=2)
        found = [json.loads((notes / f"{rank}.json").read_text()) for rank in range(4)]
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        assert [tuple(environment[name] for name in names) for environment, _ in found] == [
            ("0", "4", "0", "2", "127.0.0.1"), ("1", "4", "1", "2", "127.0.0.1"),
            ("2", "4", "0", "2", "127.0.0.1"), ("3", "4", "1", "2", "127.0.0.1"),
        ]  # fmt: skip
        first = found[0][0]
        assert first["PLESIO_POLICY"] == "ssp:4"
        assert (first["PLESIO_CHECKPOINT"], first["PLESIO_CHECKPOINT_EVERY"]) == (f"{Path.cwd()}/runs/ck", "50 steps")
        assert all(arguments == ["--name", "it's $HOME"] for _, arguments in found)

    def test_the_secret_is_each_run_s_own_and_in_no_text(
        self, printed: Callable[..., str], programs: Callable[..., Path], script: str
    ):
        notes = programs(srun=SRUN, scontrol='print("127.0.0.1")')
        text, told = printed("slurm", "--nodes", "2", script, str(notes)), set()
        for _ in range(2):
            run_in_slurm(text, nodes=2, each=1)
            secrets = {json.loads((notes / f"{rank}.json").read_text())[0]["PLESIO_SECRET"] for rank in range(2)}
            assert len(secrets) == 1, "all workers have one"
            told |= secrets
        assert len(told) == 2
        assert all(len(secret) == 64 and secret not in text + (notes / "srun.txt").read_text() for secret in told)

    @pytest.mark.slow
    @pytest.mark.timeout(LIMIT_S + 20)
    def test_two_workers_really_train(self, printed: Callable[..., str], programs: Callable[..., Path], script: str):
        Path(script).write_text(TRAIN)
        notes = programs(srun=SRUN, scontrol='print("127.0.0.1")')
        run_in_slurm(printed("slurm", "--nodes", "2", "--policy", "ssp:2", script, str(notes)), nodes=2, each=1)
        found = [json.loads((notes / f"{rank}.json").read_text()) for rank in range(2)]
        assert found == [{"policy": "ssp:2", "workers": 2, "samples": 64, "lost": []}] * 2

    @pytest.mark.slow
    @pytest.mark.timeout(LIMIT_S + 20)
    @pytest.mark.parametrize("policy", ["ssp:2", "bsp"])
    @pytest.mark.parametrize("lost", [0, 1])
    def test_the_others_go_on_without_a_lost_worker(
        self, printed: Callable[..., str], programs: Callable[..., Path], script: str, policy: str, lost: int
    ):
        Path(script).write_text(TRAIN)
        notes = programs(srun=SRUN, scontrol='print("127.0.0.1")')
        text = printed("slurm", "--nodes", "3", "--policy", policy, script, str(notes), str(lost), "2")
        with pytest.raises(subprocess.CalledProcessError):
            run_in_slurm(text, nodes=3, each=1)
        found = {path.name: json.loads(path.read_text()) for path in notes.glob("?.json")}
        assert sorted(found) == [f"{rank}.json" for rank in range(3) if rank != lost]
        assert all((run["workers"], run["lost"]) == (3, [lost]) for run in found.values())

    def test_it_is_submitted_by_sbatch(self, printed: Callable[..., str], programs: Callable[..., Path], script: str):
        notes = programs(sbatch=KEPT)
        assert invoke(["launch", "slurm", script]) == 0
        assert (notes / "sbatch.in").read_text() == printed("slurm", script)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (node,) = manifest["spec"]["replicatedJobs"]
    (found,) = node["template"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


class TestKubernetes:
    def test_every_field(self, printed: Callable[..., str]):
        manifest = json.loads(
            printed(
                "k8s", "--image", "train:1", "--nodes", "3", "--workers-per-node", "2", "--policy", "ssp:4", "--gpus",
                "1", "--cpus", "4", "--memory", "8", "--restarts", "5", "--volume", "runs:/runs", "--checkpoint",
                "/runs/ck", "--namespace", "team", "--name", "digits", "train.py", "--lr", "0.1",
            )
        )  # fmt: skip
        assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
        assert manifest["metadata"] == {"name": "digits", "namespace": "team"}
        spec = manifest["spec"]
        assert spec["failurePolicy"] == {"maxRestarts": 5}
        assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
        (node,) = spec["replicatedJobs"]
        assert (node["name"], node["replicas"]) == ("node", 3)
        job = dict(node["template"]["spec"])
        pod = job.pop("template")["spec"]
        assert job == {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 0}
        assert pod["restartPolicy"] == "Never"
        assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "runs"}}]
        assert container(manifest) == {
            "name": "workers",
            "image": "train:1",
            "command": [
                "torchrun", "--nnodes=3", "--nproc-per-node=2", "--node-rank=$(NODE_RANK)",
                "--master-addr=digits-node-0-0.digits", "--master-port=29500", "train.py", "--lr", "0.1",
            ],
            "env": [
                {"name": "PLESIO_SECRET", "valueFrom": {"secretKeyRef": {"name": "digits-secret", "key": "secret"}}},
                {
                    "name": "NODE_RANK",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/job-index']"}},
                },
                {"name": "OMP_NUM_THREADS", "value": "4"},
                {"name": "PLESIO_POLICY", "value": "ssp:4"},
                {"name": "PLESIO_CHECKPOINT", "value": "/runs/ck"},
            ],
            "resources": {"requests": {"cpu": 8, "memory": "16Gi"}, "limits": {"nvidia.com/gpu": 2}},
            "volumeMounts": [{"name": "shared", "mountPath": "/runs"}],
        }  # fmt: skip

    def test_what_was_not_asked_for_is_left_out(self, printed: Callable[..., str]):
        manifest = json.loads(printed("k8s", "--image", "train:1", "train.py", "$(echo)"))
        assert manifest["metadata"] == {"name": "train"}
        assert container(manifest)["command"][-1] == "$$(echo)", "Kubernetes would replace it"
        assert set(container(manifest)) == {"name", "image", "command", "env", "resources"}
        assert set(container(manifest)["resources"]) == {"requests"}

    def test_the_secret_comes_with_it_on_standard_input_alone(
        self, printed: Callable[..., str], programs: Callable[..., Path]
    ):
        notes = programs(kubectl=KEPT)
        words = ["--image", "train:1", "--namespace", "team", "train.py"]
        assert invoke(["launch", "k8s", *words]) == 0
        assert json.loads((notes / "kubectl.json").read_text()) == ["apply", "-f", "-"]
        both = json.loads((notes / "kubectl.in").read_text())
        secret, manifest = both["items"]
        assert (both["apiVersion"], both["kind"]) == ("v1", "List")
        assert manifest == json.loads(printed("k8s", *words))
        assert (secret["apiVersion"], secret["kind"]) == ("v1", "Secret")
        assert secret["metadata"] == {"name": "train-secret", "namespace": "team"}
        assert re.fullmatch("[0-9a-f]{64}", secret["stringData"]["secret"])

    def test_the_status_is_that_of_kubectl(self, programs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
        programs(kubectl=KEPT)
        monkeypatch.setenv("STATUS", "7")
        assert invoke(["launch", "k8s", "--image", "train:1", "train.py"]) == 7

    @pytest.mark.slow
    @pytest.mark.timeout(LIMIT_S + 20)
    def test_the_pods_really_train(self, printed: Callable[..., str], tmp_path: Path, script: str):
        Path(script).write_text(TRAIN)
        words = ["--image", "train:1", "--nodes", "2", "--policy", "local_sgd:4", "--name", "digits", script]
        found = container(json.loads(printed("k8s", *words, str(tmp_path))))
        given = {one["name"]: one.get("value", "") for one in found["env"]} | {"PLESIO_SECRET": "s" * 64}
        pods = []
        for number in range(2):
            text = shlex.join(found["command"]).replace("$(NODE_RANK)", str(number))
            text = text.replace("digits-node-0-0.digits", "127.0.0.1").replace("29500", str(free_port()))
            command = [sys.executable, "-m", "torch.distributed.run", *shlex.split(text)[1:]]
            pods.append(subprocess.Popen(command, env={**os.environ, **given}))
        assert [pod.wait(timeout=LIMIT_S) for pod in pods] == [0, 0]
        workers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
        assert workers == [{"policy": "local_sgd:4", "workers": 2, "samples": 64, "lost": []}] * 2


def component(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Call the component of a file with a stand-in for TorchX; returns what it gives to ``dist.ddp``."""
    modules = {name: ModuleType(name) for name in ("torchx", "torchx.specs", "torchx.components")}
    modules["torchx"].__dict__.update(specs=modules["torchx.specs"])
    modules["torchx.specs"].__dict__.update(AppDef=tuple)
    ddp = ModuleType("torchx.components.dist")
    ddp.__dict__.update(ddp=lambda *words, **given: (words, given))
    modules["torchx.components"].__dict__.update(dist=ddp)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    own: dict[str, Any] = {}
    exec(compile(text, "component.py", "exec"), own)
    found: tuple[tuple[str, ...], dict[str, Any]] = own["train"]()
    return found


class TestTorchX:
    def test_the_component_is_dist_ddp(self, printed: Callable[..., str], script: str, monkeypatch: pytest.MonkeyPatch):
        text = printed(
            "torchx", "--nodes", "2", "--workers-per-node", "4", "--cpus", "2", "--gpus", "1", "--memory", "3",
            "--policy", "ssp:4", "--restarts", "2", "--image", "train:1", script, "--lr", "0.1", 'a "b"',
        )  # fmt: skip
        (function,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        assert (function.name, ast.unparse(function.returns)) == ("train", "specs.AppDef")
        words, given = component(text, monkeypatch)
        variables = given.pop("env")
        assert words == ("--lr", "0.1", 'a "b"')
        assert given == {
            "script": script, "name": "train-digits", "image": "train:1", "cpu": 8, "gpu": 4, "memMB": 12288,
            "j": "2x4", "max_retries": 2,
        }  # fmt: skip
        secret = variables.pop("PLESIO_SECRET")
        assert variables == {"OMP_NUM_THREADS": "2", "PLESIO_POLICY": "ssp:4"}
        assert len(secret) == 64
        assert secret not in text
        assert component(text, monkeypatch)[1]["env"]["PLESIO_SECRET"] != secret, "each submission has its own"

    def test_it_is_submitted_by_torchx(self, printed: Callable[..., str], programs: Callable[..., Path], script: str):
        notes = programs(torchx=KEPT)
        assert invoke(["launch", "torchx", "--scheduler", "slurm", script]) == 0
        *words, where = json.loads((notes / "torchx.json").read_text())
        assert words == ["run", "-s", "slurm"]
        assert where.endswith(".py:train")
        assert (notes / "torchx.in").read_text() == printed("torchx", script)
        assert not Path(where.rpartition(":")[0]).exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("slurm missing.py", "there is no script missing.py"),
        ("slurm .", "there is no script .: it is a folder"),
        ("slurm 3.py", "there is no script 3.py"),
        ("slurm --nodes 0 SCRIPT", "--nodes"),
        ("slurm --policy sspp:4 SCRIPT", 'did you mean "ssp"?'),
        ("slurm --time tomorrow SCRIPT", "--time"),
        ("slurm --every 10 SCRIPT", "add --checkpoint DIR"),
        ("slurm --checkpoint ck --every soon SCRIPT", 'checkpoints every "soon"'),
        ("slurm --name -x SCRIPT", '--name "-x"'),
        ("torchx --name Big SCRIPT", '--name "Big"'),
        ("torchx missing.py", "there is no script missing.py"),
        ("k8s train.py", "--image"),
        ("k8s --image i --checkpoint ck train.py", "write an absolute path"),
        ("k8s --image i --volume runs train.py", "write CLAIM:PATH"),
        ("slurm SCRIPT", "there is no sbatch here"),
        ("k8s --image i train.py", "there is no kubectl here"),
        ("torchx SCRIPT", "there is no torchx here"),
    ],
)
def test_what_cannot_be_is_one_line(
    refused: Callable[[str], str], programs: Callable[..., Path], script: str, line: str, said: str
):
    programs()
    assert said in refused(f"launch {line.replace('SCRIPT', script)}")
