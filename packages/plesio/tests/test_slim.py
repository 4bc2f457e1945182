"""Without its extras Plesio trains under every policy, and what needs an extra names it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

sys.modules.update(dict.fromkeys(("plotly", "matplotlib", "PIL", "scipy", "numba", "sklearn")))
"""
"""Source of a module ``sitecustomize``: every Python process that is started then has none of them."""
SCRIPT = """
import sys
import torch
import plesio

model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with plesio.join(model, optimizer, policy=sys.argv[1]) as session:
    for x, y in session.shard(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        session.step(loss)
    session.evaluate(lambda: float(loss))
print("trained")
"""


@pytest.fixture
def slim(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKED, encoding="utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}


def plesio(*arguments: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plesio", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_a_process_that_trains_and_those_that_start_and_serve_it_load_none_of_them(
    tmp_path: Path, slim: dict[str, str]
):
    code = "import plesio.runtime.launcher, plesio.runtime.server.process, runpy; runpy.run_path('train.py')"
    done = subprocess.run(
        [sys.executable, "-c", code, "adaptive"],
        cwd=tmp_path, env=slim, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "adaptive", "asp", "local_sgd:4"])
def test_training_needs_none_of_them(policy: str, tmp_path: Path, slim: dict[str, str]):
    done = plesio("run", "--workers", "2", "train.py", policy, folder=tmp_path, environment=slim)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("simulate", "digits"), "digits"),
        (("report", "."), "report"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    words: tuple[str, ...], extra: str, tmp_path: Path, slim: dict[str, str]
):
    done = plesio(*words, folder=tmp_path, environment=slim)
    assert (done.returncode, done.stdout) == (2, "")
    assert f'pip install "plesio[{extra}]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
