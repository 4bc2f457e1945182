import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEADLINE_S = 300.0


def run(*command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE_S)
def test_both_packages_work_from_their_wheels_outside_the_checkout(tmp_path: Path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    wheels, site, elsewhere = tmp_path / "wheels", tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip")
    for name in ("plesio", "plesio-planning"):
        # Built from a copy: setuptools leaves a folder `build` behind, whose old files would be in the next wheel.
        source = tmp_path / name
        shutil.copytree(
            ROOT / "packages" / name,
            source,
            ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "tests", "docs"),
        )
        run(
            *(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)),
            folder=elsewhere,
            environment=environment,
        )
    run(
        *(*pip, "install", "--quiet", "--no-deps", "--target", str(site), *map(str, wheels.glob("*.whl"))),
        folder=elsewhere,
        environment=environment,
    )
    # The environment's own plesio is the checkout; a path that comes before it stands for another environment.
    environment["PYTHONPATH"] = str(site)
    where = run(
        sys.executable, "-c", "import plesio; print(plesio.__file__)", folder=elsewhere, environment=environment
    )
    assert Path(where.strip()).is_relative_to(site)
    assert (site / "plesio" / "py.typed").exists()
    assert (site / "plesio_planning" / "py.typed").exists()
    plesio = str(site / "bin" / "plesio")
    assert "compare" in run(plesio, "--help", folder=elsewhere, environment=environment)
    assert "digits" in run(plesio, "tasks", folder=elsewhere, environment=environment)
    study = ("study", "stragglers", "--workers", "8", "--steps", "50", "--out", "pages")
    assert "barrier" in run(plesio, *study, folder=elsewhere, environment=environment)
    assert 'id="plotly"' in (elsewhere / "pages" / "stragglers.html").read_text(encoding="utf-8")
    assert "resnet50" in run(plesio, "estimate", "--help", folder=elsewhere, environment=environment)
    output = run(
        *(plesio, "run", "--workers", "2", str(ROOT / "examples" / "train_digits.py")),
        *("--policy", "asp", "--epochs", "1"),
        folder=elsewhere,
        environment=environment,
    )
    assert "held-out accuracy" in output
