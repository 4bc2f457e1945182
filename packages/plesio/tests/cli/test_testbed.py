"""`plesio lab testbed`, and comparisons on one."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import read_results
from plesio.testbed.held import held
from plesio.testbed.namespaces import why_no_namespaces

NO_NAMESPACES = why_no_namespaces()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
RECIPE = """
[task]
name = "digits"
[run]
policies = ["bsp"]
samples = 320
[workers]
count = 2
"""


@needs_namespaces
def test_a_testbed_that_is_up_runs_scripts_until_it_is_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script, numbers = tmp_path / "where.py", tmp_path / "testbeds.json"
    script.write_text(
        "import os, sys\n"
        "print(os.stat('/proc/self/ns/net').st_ino, *map(os.environ.get, ('RANK', 'LOCAL_RANK', 'MASTER_ADDR')))\n"
        "sys.exit(0 if os.environ['LOCAL_WORLD_SIZE'] == '1' else 1)\n"
    )
    assert invoke(["lab", "testbed", "up", "4x1gbe", "--name", "four"]) == 0
    try:
        assert "four: 4 hosts" in capfd.readouterr().out
        assert invoke(["lab", "testbed", "run", "--on", "four", str(script)]) == 0
        words = [line.split()[1:] for line in capfd.readouterr().out.splitlines() if line.startswith("[")]
        assert len({inode for inode, *_ in words}) == 4
        assert sorted(rest for _, *rest in words) == [[str(rank), "0", "10.77.0.1"] for rank in range(4)]
        assert invoke(["lab", "testbed", "status", "--json", str(numbers)]) == 0
        assert "four: cluster 4x1gbe, held by process" in capfd.readouterr().out
        [values] = [one for one in json.loads(numbers.read_text()) if one["name"] == "four"]
        assert [host["address"] for host in values["hosts"]] == [f"10.77.0.{number}" for number in range(1, 5)]
    finally:
        assert invoke(["lab", "testbed", "clean", "four"]) == 0
    assert not [record for record in held() if record.name == "four"]


@needs_namespaces
def test_a_comparison_runs_on_hosts_that_are_gone_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    out = str(tmp_path / "out")
    assert invoke(["compare", str(recipe), "--out", out, "--world", "testbed", "--cluster", "4x1gbe"]) == 0
    [run] = read_results(tmp_path / "out" / "results.json")
    assert (run.world, run.status, run.samples) == ("testbed", "finished", 320)
    assert run.bytes_sent["collective"] > 0
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"plesio-{os.getpid()}-" not in listed


@pytest.mark.parametrize(
    "line", ["lab testbed up 4x1gbe", "compare recipe.toml --out out --world testbed --cluster 4x1gbe"]
)
def test_without_root_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert invoke(line.split()) == 2
    assert capsys.readouterr().err == (
        "plesio: error: no testbed on this machine: only root can make network namespaces\n"
    )
