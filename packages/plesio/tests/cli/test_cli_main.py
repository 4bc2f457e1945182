import dataclasses
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import plesio
from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio.policies import ALIASES, POLICY_HELP, Adaptive, parse_policy
from plesio.policies.grid import GRID_OPTIONS, GridSetting
from plesio.tasks import TASK_NAMES

ROOT = Path(__file__).parents[4]
COMMANDS = [
    "advise",
    "bound",
    "checkpoint",
    "compare",
    "estimate",
    "lab",
    "launch",
    "list",
    "report",
    "run",
    "simulate",
    "study",
    "sweep",
    "watch",
]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    assert invoke(["--help"]) == 0
    with_flag = capsys.readouterr().out
    assert invoke([]) == 0
    assert capsys.readouterr().out == with_flag
    listed = with_flag.partition("Commands:\n")[2].partition("\n\n")[0]
    assert sorted(line.split()[0] for line in listed.splitlines()) == COMMANDS
    assert "..." not in listed, "a summary is too long for its line"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "lab"])
def test_every_command_explains_itself_with_examples(capsys: pytest.CaptureFixture[str], command: str):
    assert invoke([command, "--help"]) == 0
    assert f"\n    plesio {command}" in capsys.readouterr().out.partition("  Examples:\n")[2]


def test_help_needs_neither_torch_nor_rich():
    code = """
import sys
from plesio.cli.commands import invoke
invoke(["--help"])
sys.exit(", ".join({"torch", "rich", "pydantic", "numpy"} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback():
    code = """
import sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from plesio.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_version(capsys: pytest.CaptureFixture[str]):
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"plesio {plesio.__version__}\n"
    assert plesio.__version__ == importlib.metadata.version("plesio")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compar", "No such command 'compar'. Did you mean 'compare'?"),
        ("--hlep", "No such option"),
        ("compare", "Missing argument"),
        ("lab characterise recipe.toml", "Missing option '--out'"),
        ("compare recipe.toml --out x --sedes 0", "No such option: --sedes"),
        ("simulate digits --policy asp --policy bsp", "--policy is given twice; write it once"),
        ("run -n 2 --workers 3 train.py", "--workers is given twice; write it once"),
        ("lab testbed run --on a --on b train.py", "--on is given twice; write it once"),
        ("launch slurm --time 1 --time 2 train.py", "--time is given twice; write it once"),
        ("list --json a --json b", "--json is given twice; write it once"),
        ("run --restarts -1 train.py", "--restarts is '-1'; write 0 or more"),
        ("compare recipe.toml --out x", "there is no recipe recipe.toml"),
        ("compare RECIPE --out x --seeds 0,a", '--seeds "0,a": write whole numbers'),
        ("compare RECIPE --out x --seeds -1", "--seeds is -1; write 0 or more"),
        ("compare RECIPE --out x --policies sps:4", '--policies: unknown policy "sps"; did you mean "ssp"?'),
        ("compare RECIPE --out x --policies ssp:-1", "--policies: "),
        ("compare RECIPE --out x --policies ,", "--policies is empty; write one or more"),
        ("compare RECIPE --out x --resume --overwrite", "write one of them"),
        ("compare RECIPE --out RECIPE", "results cannot be written to"),
        ("compare RECIPE --out /proc/self --resume", "results cannot be written to /proc/self: "),
        ("compare RECIPE --out x --world virtual --cluster 4x1gb", 'did you mean "4x1gbe"?'),
        ("compare RECIPE --out x --world virtual", "must know how long a step takes"),
        ("simulate digit --out x", 'there is no task "digit"; did you mean "digits"?'),
        ("simulate none.py --out x", "there is no script none.py"),
        ("simulate digits --out x --workers 1", "--workers 1: write 2 or more"),
        ("simulate digits --out x --step-time 20", "not a duration"),
        ("simulate digits --out x --policy sps:4", 'did you mean "ssp"?'),
        ("simulate digits --out x --slow fast", "write a rank and its speed"),
        ("simulate digits --out x -- --lr 1", "only a script has arguments of its own"),
        ("run", "Missing argument"),
        ("run --workers 0 RECIPE", "--workers 0: write 1 or more"),
        ("run --workers four RECIPE", "--workers is 'four'; write a whole number"),
        ("run none.py", "there is no script none.py"),
        ("run --policy sspp:4 RECIPE", 'unknown policy "sspp"; did you mean "ssp"?'),
        ("run --join nowhere RECIPE", '--join "nowhere": write HOST:PORT'),
        ("bound local-sdg", 'there is no bound "local-sdg"; did you mean "local-sgd"?'),
        ("bound speedup --workers many", '"many" is no whole number'),
        ("bound speedup --workers 0", "--workers is 0; write 1 or more"),
        ("report none", "none/results.json does not exist"),
        ("report", "Missing argument"),
        ("lab validate estimatr", 'validate "estimatr"; did you mean "estimator"?'),
        ("lab validate estimator --seeds 0", "leave out all options but --out, --json and --overwrite"),
        ("lab validate estimator --oversubscription 2", "leave out all options but --out, --json and --overwrite"),
        ("lab validate --oversubscription 2", "--oversubscription is of racks on a testbed; write --world testbed too"),
        ("lab validate estimator --resume", "leave out all options but --out, --json and --overwrite"),
        ("lab validate estimator --world testbed", "leave out all options but --out, --json and --overwrite"),
        ("lab validate estimator --json none/x.json", "there is no folder"),
        ("lab validate --out x --json none/x.json", "there is no folder"),
        ("lab validate --out x --json .", "--json . is a folder; write a file's name"),
        ("lab validate --out x --seeds x", '--seeds "x"'),
        ("lab validate --out x --policies bps", "bps"),
        ("lab calibrate", "say what to measure or read"),
        ("lab calibrate digits --nccl-tests file", "say what to measure or read, one of them"),
        ("lab calibrate --kineto none.json --batch-size 3", "--batch-size is for measuring a task"),
        ("lab calibrate --nccl-tests none.txt --out x", "leave out --out"),
        ("lab calibrate digits --workers 1", "--workers 1: write 2 or more"),
        ("lab calibrate digit", 'there is no task "digit"'),
        ("lab calibrate digits --batch-size 0", "batch"),
        ("lab calibrate --nccl-tests none.txt", "cannot read the nccl-tests output none.txt"),
        ("lab calibrate --kineto none.json", "none.json"),
        ("compare RECIPE --out x --calibration c.json", "add --world virtual"),
        ("compare RECIPE --out x --world virtual --calibration c.json", "there is no calibration c.json"),
        ("lab probe", "nobody to probe: write --workers N, or start it on every host with torchrun"),
        ("lab probe --workers 1", "--workers 1: write 2 or more"),
        ("lab probe --workers 2 --size 3", '"3" is not a size'),
        ("lab probe --workers 2 --out none/x.toml", "there is no folder"),
        ("lab probe --workers 2 --json .", "is a folder; write a file's name"),
        ("lab probe --workers 2 --out cluster.json", "a cluster file's name ends in .toml"),
        ("lab testbed up 4x1gb", 'unknown cluster "4x1gb"'),
        ("lab testbed up 4x1gbe --cores-per-host 0", "--cores-per-host 0: write 0.05 or more"),
        ("lab testbed up 4x1gbe --jitter some", "some"),
        ("lab testbed run train.py", "write --cluster NAME, or --on NAME"),
        ("lab testbed run --cluster 4x1gbe none.py", "there is no script none.py"),
        ("lab testbed run --cluster 4x1gbe --workers 0 train.py", "--workers 0: write 1 or more"),
        ("lab testbed run --cluster 4x1gbe --workers 5 train.py", "has room for 4 workers"),
        ("lab testbed run --on nowhere train.py", 'there is no testbed "nowhere"'),
        ("lab testbed clean nowhere", 'there is no testbed "nowhere"'),
        ("compare RECIPE --out x --world testbed", "a testbed needs a cluster: add --cluster"),
        ("compare RECIPE --out x --cluster 4x1gbe", "add --world virtual, or --world testbed"),
        ("compare RECIPE --out x --world testbed --calibration x.json", "--world virtual"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], str], line: str, message: str
):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "good.toml"
    recipe.write_text('task.name = "digits"\nrun = { policies = ["bsp"], epochs = 1 }\nworkers.count = 2\n')
    (tmp_path / "train.py").write_text("")
    assert message in refused(line.replace("RECIPE", str(recipe)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.toml", "train.py"], "nothing has begun"


@pytest.mark.parametrize(
    "line",
    [
        "sweep RECIPE --out OUT --cluster 4x1gbe --target 97",
        "compare RECIPE --out OUT",
        "compare RECIPE --out OUT --world virtual",
        "simulate digits --out OUT --target 97",
        "advise digits --out OUT --cluster 4x1gbe --target 97",
    ],
)
def test_a_target_in_percent_is_refused_before_training(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    text = (ROOT / "recipes" / "demo.toml").read_text()
    recipe.write_text(text if "--target" in line else text.replace("[run]", "[run]\ntarget = 97"))
    assert invoke(line.replace("RECIPE", str(recipe)).replace("OUT", str(out)).split()) == 2
    printed, complaint = capsys.readouterr()
    assert printed == ""
    assert complaint.endswith("target is 97, and accuracy is a share between 0 and 1; did you mean 0.97?\n")
    assert complaint.count("\n") == 1
    assert not out.exists() or not any(out.iterdir())


@pytest.mark.parametrize("command", ["lab characterise RECIPE", "compare RECIPE", "sweep RECIPE", "lab validate"])
def test_an_unknown_world_is_named_without_the_kind_of_exception(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = ROOT / "recipes" / "demo.toml"
    line = f"{command} --out {tmp_path / 'out'} --world moon".replace("RECIPE", str(recipe))
    assert invoke(line.split()) == 2
    assert capsys.readouterr().err.startswith("plesio: error: --world: 'moon' is not one of ")


def test_policies_are_listed_with_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["list", "policies", "--json", str(tmp_path / "policies.json")]) == 0
    policies, of_a_grid, of_adaptive = json.loads((tmp_path / "policies.json").read_text()).values()
    assert [*policies] == [*POLICY_HELP, "grid", *ALIASES]
    assert of_a_grid == GRID_OPTIONS
    assert parse_policy(",".join(["adaptive", *of_adaptive])) == Adaptive()
    assert len(of_adaptive) == len(dataclasses.fields(Adaptive))
    assert "Standard deviation of price before anything is seen (tuned)" in of_adaptive.values()
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert lines == [[name, text] for one in (policies, of_a_grid, of_adaptive) for name, text in one.items()]
    with pytest.raises(ConfigError) as refused:
        GridSetting.parse("grid:2x2,nonsense=1")
    assert str(refused.value).endswith(f"known: {', '.join(sorted(GRID_OPTIONS))}")


@pytest.mark.parametrize(("kind", "names"), [("tasks", {*TASK_NAMES}), ("clusters", {"4x1gbe", "2-racks", "8xa100"})])
def test_a_kind_is_listed_with_a_line_each_and_without_torch(kind: str, names: set[str]):
    code = f"""
import sys
from plesio.cli.commands import invoke
sys.exit(invoke(["list", "{kind}"]) or "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines()} >= names
    assert all(len(line.split()) > 3 for line in done.stdout.splitlines())


def test_list_alone_lists_the_kinds_with_their_numbers(capsys: pytest.CaptureFixture[str]):
    assert invoke(["list"]) == 0
    kinds = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["tasks", f"({len(TASK_NAMES)})"] in kinds
    assert {"policies", "clusters", "studies", "bounds"} <= {name for name, _ in kinds}


def test_run_gives_a_script_its_own_flags_and_returns_its_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(5)")
    assert invoke(["run", "--workers", "1", "train.py", "--workers", "9", "--help", "--", "x"]) == 5
    assert json.loads(capfd.readouterr().out.removeprefix("[0] ")) == ["--workers", "9", "--help", "--", "x"]
