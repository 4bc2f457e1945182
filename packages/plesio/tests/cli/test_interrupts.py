"""Ctrl-C at any moment of any long command: ended by it, no traceback, and nothing goes on behind it."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plesio.core.results import read_results

RECIPE = """
task.name = "quadratic"
run = { policies = ["bsp", "asp"], samples = 100_000, seeds = [0] }
workers = { count = 2, step_time = { kind = "constant", mean = "5 ms" } }
"""
COMMANDS = {
    "compare": "compare {recipe} --out {out}",
    "compare, virtual": "compare {recipe} --out {out} --world virtual",
    "simulate": "simulate quadratic --epochs 5000 --workers 4 --out {out}",
    "advise": "advise digits --cluster 4x1gbe --measure 120s",
    "characterise": "lab characterise {characterise} --out {out} --world virtual",
    "calibrate": "lab calibrate quadratic --out {out}.toml",
    "sweep": "sweep {recipe} --cluster 4x1gbe --bounds 0,2,4 --out {out}",
    "run": "run --workers 2 {script}",
}
LIMIT_S = 60.0


def moments(name: str, number: int) -> list[float]:
    """Draw seconds after the start: while it imports, sets up, and works."""
    drawn = random.Random(name)
    return [drawn.uniform(*span) for span in ((0.2, 2.0), (2.0, 4.0), (4.0, 9.0)) for _ in range(number)]


CASES = [
    pytest.param(name, after_s, id=f"{name}-{position}")
    for name in COMMANDS
    for position, after_s in enumerate(moments(name, 2))
]


@pytest.mark.slow  # bench/test_compare.py has one of a comparison
@pytest.mark.parametrize(("name", "after_s"), CASES)
def test_ctrl_c_ends_a_command_at_any_moment(tmp_path: Path, name: str, after_s: float):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "script.py").write_text("import time\nimport plesio\ntime.sleep(60)\n")
    places = {
        "recipe": tmp_path / "recipe.toml",
        "script": tmp_path / "script.py",
        "characterise": Path(__file__).parents[4] / "recipes" / "characterise.toml",
        "out": tmp_path / "out",
    }
    line = COMMANDS[name].format(**places).split()
    process = subprocess.Popen(
        [sys.executable, "-m", "plesio", *line],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        try:
            output, _ = process.communicate(timeout=after_s)
            pytest.fail(f"over before Ctrl-C: {output}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (130, -signal.SIGINT), output  # a shell shows both as 130
    assert "Traceback" not in output
    results = tmp_path / "out" / "results.json"
    assert not results.exists() or read_results(results) is not None  # whole, or not there
    # that no process, socket or folder is left is looked at after every test (conftest.py)


def test_ctrl_c_while_python_ends_shows_nothing():
    code = """
import atexit, os, signal
import plesio.cli.commands
from plesio.cli.main import main
plesio.cli.commands.invoke = lambda arguments: 0
atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
