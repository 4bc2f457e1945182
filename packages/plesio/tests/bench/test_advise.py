import math
from pathlib import Path

import pytest
import torch
from torch import nn

from plesio.bench.advise import ScriptRehearsal, TaskRehearsal, situation_of
from plesio.bench.advise_probe import probe_script, probe_task
from plesio.bench.model_sizes import SavedTensors, largest_block_bytes, sizes_of
from plesio.bench.recipe import make_workers
from plesio.bench.simulate import VirtualScript
from plesio.core.errors import ConfigError
from plesio.tasks import load_task

WORKERS = {"count": 2, "cluster": "4x1gbe", "step_time": {"kind": "constant", "mean": "5 ms"}}
SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import plesio

inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs @ torch.arange(8.0))
torch.manual_seed(0)
model = torch.nn.Linear(8, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
with plesio.join(model, optimizer, policy="bsp") as session:
    for epoch in range(int(sys.argv[1])):
        for batch, wanted in session.shard(DataLoader(data, batch_size=8, shuffle=True)):
            loss = (model(batch).squeeze(1) - wanted).square().mean()
            loss.backward()
            session.step(loss)
        print("an epoch is over")
"""


def rehearsal(**run: object) -> TaskRehearsal:
    table = {
        "task": {"name": "quadratic", "options": {"dimension": 8, "num_samples": 256}},
        "run": {"policies": ["bsp"], "epochs": 4.0, **run},
        "workers": WORKERS,
    }
    return TaskRehearsal(table, probed=probe_task(load_task("quadratic", dimension=8, num_samples=256)), measure_s=2.0)


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the probes, whose measurements do not matter here."""
    monkeypatch.setattr("plesio.bench.advise_probe.PROBE_S", 0.05)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_what_a_task_keeps_is_counted():
    probed = probe_task(load_task("digits"))
    parameters = sum(math.prod(shape) for shape in probed.sizes.shapes)
    assert probed.sizes.optimizer_bytes == 0  # plain SGD
    assert probed.sizes.activation_bytes > 4 * probed.batch_size * 64  # the first layer's inputs alone
    assert 0 < probed.sizes.block_bytes <= 4 * parameters
    assert probed.has_store
    assert not probed.shares_moments
    assert probed.gradient_s > 0


@pytest.mark.parametrize(("change", "shares"), [("", True), ("Sparse", False), ("amsgrad=True", False)])
def test_who_can_keep_the_mean_s_moments_is_seen(script: Path, change: str, shares: bool):
    text = SCRIPT.replace("SGD(model.parameters(), lr=0.01, momentum=0.9)", "Adam(model.parameters(), lr=0.01)")
    if change == "Sparse":
        text = text.replace(
            "optimizer = torch", "model.extra = torch.nn.Embedding(2, 2, sparse=True)\noptimizer = torch"
        )
    elif change:
        text = text.replace("lr=0.01", f"lr=0.01, {change}")
    script.write_text(text)
    assert probe_script(script, ["1"], count=2).shares_moments is shares


def test_saved_tensors_are_counted_while_they_are_kept():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh())
    saved = SavedTensors()
    saved.leave_out(model)
    with saved.counting():
        for _ in range(3):
            model(torch.ones(4, 16)).sum().backward()
    assert saved.peak_bytes == 2 * 4 * 4 * 16  # the inputs and tanh's outputs; the weights are no activations
    assert largest_block_bytes(nn.Linear(3, 2)) == 4 * 8


def test_a_run_of_a_task_ends_where_it_is_told_to_in_the_midst_of_its_schedule():
    world = rehearsal()
    half = world.run("bsp", seed=0, servers=None, until_samples=512, within_s=math.inf, budget_s=math.inf)
    assert (half.samples, half.whole) == (512, False)
    assert half.result is not None
    whole = world.run("asp", seed=0, servers=1, until_samples=math.inf, within_s=math.inf, budget_s=math.inf)
    assert (whole.samples, whole.whole) == (world.most_samples, True)
    assert whole.result is not None
    assert len(whole.result.evaluations) > 8


def test_a_run_that_is_cut_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plesio.runtime.worlds.virtual.simulation.LOOK_S", 0.0)
    for policy in ("bsp", "ssp:3", "adaptive"):
        cut = rehearsal().run(policy, seed=0, servers=None, until_samples=math.inf, within_s=0.02, budget_s=math.inf)
        assert cut.result is None
        assert 0 < cut.samples < 1024
        assert cut.virtual_s > 0.02


def test_a_policy_that_cannot_be_run_is_a_problem():
    table = {
        "task": {"name": "stdlib_lm", "options": {"width": 16, "depth": 1, "context": 16, "corpus_bytes": 100_000}},
        "run": {"policies": ["bsp"], "samples": 64},
        "workers": WORKERS,
    }
    task = load_task("stdlib_lm", width=16, depth=1, context=16, corpus_bytes=100_000)
    world = TaskRehearsal(table, probed=probe_task(task), measure_s=1.0)
    told = world.run("no_such", seed=0, servers=None, until_samples=64, within_s=math.inf, budget_s=math.inf)
    assert told.result is None
    assert "unknown policy" in str(told.problem)


def test_a_script_is_probed_and_run_by_its_loss(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("plesio.bench.advise_probe.PROBE_S", 0.0)
    monkeypatch.setattr("plesio.runtime.worlds.virtual.simulation.LOOK_S", 0.0)
    probed = probe_script(script, ["3"], count=2)
    assert (probed.sizes.shapes, probed.sizes.optimizer_bytes, probed.batch_size) == (((1, 8),), 32, 8)
    section = make_workers(WORKERS, folder=Path.cwd(), where="")
    world = ScriptRehearsal(VirtualScript(path=script, arguments=["3"], workers=section), probed=probed)
    assert math.isinf(world.most_samples)
    cut = world.run("bsp", seed=0, servers=None, until_samples=64, within_s=math.inf, budget_s=math.inf)
    assert 64 <= cut.samples < 768
    assert cut.result is not None
    assert cut.result.losses
    whole = world.run("local_sgd:4", seed=0, servers=None, until_samples=1e9, within_s=math.inf, budget_s=math.inf)
    assert (whole.samples, whole.whole, world.most_samples) == (768, True, 768.0)
    assert "an epoch" not in capsys.readouterr().out


def test_a_short_script_is_timed_by_its_steps_alone(script: Path):
    start_s = 2.0
    script.write_text(f"import time; time.sleep({start_s})\n{SCRIPT}".replace("256", "64"))
    assert probe_script(script, ["1"], count=2).gradient_s < start_s / 8


def test_a_script_without_plesio_is_one_line(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text("print(1)")
    with pytest.raises(ConfigError, match=r"never called plesio\.join"):
        probe_script(path, [], count=2)


def test_steps_are_drawn_as_a_run_draws_them():
    section = make_workers(
        {**WORKERS, "unequal": [{"rank": 1, "speed": 0.5}]},
        folder=Path.cwd(),
        where="",
    )
    model, optimizer = load_task("quadratic").build(0)
    place = situation_of(section, None, sizes=sizes_of(model, optimizer, SavedTensors()), batch_size=8)
    assert place.compute_s.shape[0] == 2
    assert place.compute_s.mean(axis=1).tolist() == pytest.approx([0.005, 0.01])
