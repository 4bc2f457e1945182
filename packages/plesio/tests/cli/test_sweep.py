from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.bench.plan import ComparisonPlan
from plesio.bench.recipe import Recipe
from plesio.cli.commands import invoke
from plesio.core.combination import Combination
from plesio.core.results import RunResult, read_results
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.testbed import QUIET

RECIPE = """
task = { name = "quadratic", options = { dimension = 8, num_samples = 256 } }
run = { policies = ["asp"], samples = 384, evaluate_every = 96, target = 20.0 }

[workers]
count = 2
cluster = "4x1gbe"
step_time = { kind = "constant", mean = "1 ms" }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_sweep_prints_tables_and_an_answer_and_is_resumed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    line = ["sweep", str(recipe), "--out", str(out), "--bounds", "0,inf"]
    assert invoke([*line, "--bandwidths", "10 Mbit/s"]) == 0
    capsys.readouterr()
    assert invoke([*line, "--bandwidths", "1Gbps, 10 Mbit/s", "--target", "30", "--resume"]) == 0
    printed, progress = capsys.readouterr()
    assert "Median time to suboptimality 30 (seeds that reached it):" in printed
    assert printed.splitlines()[1].split() == ["policy", "10", "Mbit/s", "1", "Gbit/s"]
    assert "At 1 Gbit/s ssp:" in printed
    assert printed.splitlines()[-1] == str(out / "report.html")
    assert "[1/4] ssp:0 at 10 Mbit/s · seed 0: kept" in progress
    assert "[4/4] ssp:inf at 1 Gbit/s · seed 0: finished" in progress
    page = (out / "report.html").read_text(encoding="utf-8")
    assert [f'id="{slug}"' in page for slug in ("time-bound", "time-bandwidth", "throughput")] == [True] * 3
    assert [run.policy for run in read_results(out / "10-Mbit-s" / "results.json")] == ["ssp:0", "ssp:inf"]
    (out / "note.txt").write_text("mine")
    assert invoke([*line, "--bandwidths", "1 Gbit/s", "--overwrite"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["1-Gbit-s", "note.txt", "report.html"]


NO_NAMESPACES = why_no_namespaces()


@pytest.mark.slow
@pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
def test_a_sweep_on_a_testbed_has_hosts_of_each_bandwidth(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    line = ["sweep", str(recipe), "--out", str(out), "--world", "testbed", "--bandwidths", "100 Mbit/s, 1 Gbit/s"]
    assert invoke(line) == 0
    assert "Median time to suboptimality 20" in capsys.readouterr().out
    assert "2 workers in the testbed world" in (out / "report.html").read_text(encoding="utf-8")
    for folder in ("100-Mbit-s", "1-Gbit-s"):
        [run] = read_results(out / folder / "results.json")
        assert (run.world, run.status, run.samples) == ("testbed", "finished", 384)


class Stub:
    """Stands in for the runs: here it is about what is round them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recipes: list[Recipe] = []
        self.error: BaseException | None = None
        self.status = "finished"
        monkeypatch.setattr("plesio.bench.plan.run_plan", self.run_plan)

    def run_plan(self, plan: ComparisonPlan, **others: object) -> dict[Combination, list[RunResult]]:
        self.recipes += [one.recipe for one in plan.comparisons.values()]
        if self.error is not None:
            raise self.error
        run = RunResult(
            policy="asp",
            task="quadratic",
            world="virtual",
            seed=0,
            num_workers=2,
            status=self.status,  # type: ignore[arg-type]
            error="worker 1 was lost",
            steps=1,
            samples=1,
            wall_s=1.0,
            target=1.0,
        )
        return {combination: [run] for combination in plan.comparisons}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    return Stub(monkeypatch)


@pytest.mark.parametrize(
    ("options", "policies"),
    [
        ([], ["asp"]),
        (["--bounds", "0 4,inf"], ["ssp:0", "ssp:4", "ssp:inf"]),
        (
            ["--bounds", "0,04", "--policies", "bsp,ssp:4,asp,weight=inverse"],
            ["ssp:0", "ssp:4", "bsp", "asp,weight=inverse"],
        ),
        (["--bounds", "2,4,inf", "--period", "3"], ["ssp:2,period=3", "ssp:4,period=3", "ssp:inf,period=3"]),
        (["--policies", "bsp"], ["bsp"]),
    ],
)
def test_bounds_and_policies_take_the_place_of_the_recipes(
    recipe: Path, tmp_path: Path, stub: Stub, options: list[str], policies: list[str]
):
    assert invoke(["sweep", str(recipe), "--out", str(tmp_path / "out"), "--seeds", "3,1", *options]) == 0
    assert list(stub.recipes[0].run.policies) == policies
    assert stub.recipes[0].run.seeds == (3, 1)


def test_ctrl_c_says_how_to_go_on(recipe: Path, tmp_path: Path, stub: Stub, capsys: pytest.CaptureFixture[str]):
    stub.error = KeyboardInterrupt()
    out = tmp_path / "out"
    options = ["--bounds", "0,4", "--bandwidths", "1 Gbit/s,2 Gbit/s", "--target", "3.5"]
    assert invoke(["sweep", str(recipe), "--out", str(out), *options]) == 130
    again = f"plesio sweep {recipe} --out {out} --bounds 0,4 --bandwidths '1 Gbit/s,2 Gbit/s' --target 3.5 --resume"
    assert capsys.readouterr().err.endswith(f"finished runs are kept, go on with: {again}\n")


def test_runs_that_failed_are_told_and_make_status_1(
    recipe: Path, tmp_path: Path, stub: Stub, capsys: pytest.CaptureFixture[str]
):
    stub.status = "failed"
    assert invoke(["sweep", str(recipe), "--out", str(tmp_path / "out")]) == 1
    printed, complaints = capsys.readouterr()
    assert "asp at 1 Gbit/s, seed 0, failed: worker 1 was lost" in printed
    assert "3 of 3 runs did not finish" in complaints


def test_a_page_that_cannot_be_written_is_one_line_and_status_2(
    recipe: Path, tmp_path: Path, stub: Stub, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    (out / "report.html" / "in the way").mkdir(parents=True)
    assert invoke(["sweep", str(recipe), "--out", str(out), "--resume"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"plesio: error: cannot write {out}/report.html: ")
    assert sorted(path.name for path in out.iterdir()) == ["report.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bounds 0,x", '--bounds "0,x": write whole numbers of 0 or more, or inf, as in 0,1,2,4,8,16,inf'),
        ("--bounds -1", '--bounds "-1": write whole numbers'),
        ("--bounds ,", '--bounds ",": write whole numbers'),
        ("--bounds 4,4", '--bounds "4,4": 4 is there 2 times; write it once'),
        ("--bounds 0,4 --period 3", '--bounds 0,4 --period 3: policy "ssp:0,period=3": period 3 with bound 0'),
        ("--period 3", "--period 3 is that of the policies of --bounds; add --bounds"),
        ("--policies sps:4", '--policies: unknown policy "sps"'),
        ("--bandwidths 1Gb/s", '--bandwidths: "1Gb/s" may mean bits or bytes'),
        ("--bandwidths 1", '--bandwidths: "1" is not a bandwidth'),
        ("--bandwidths 0Gbit/s", '--bandwidths "0Gbit/s": write one or more above 0'),
        ("--bandwidths ,", '--bandwidths ",": write one or more above 0'),
        ("--bandwidths 1Gbps,1000Mbps", "1 Gbit/s is there 2 times; write it once"),
        ("--cluster laptop", "the 2 workers fill one host of cluster laptop"),
        ("--cluster 4x1gbee", 'unknown cluster "4x1gbee"; did you mean "4x1gbe"?'),
        ("--calibration none.json", "none.json"),
        ("--calibration none.json --world testbed", "describes the virtual world; leave out --world testbed"),
        ("--resume --overwrite", "--resume keeps what is in the folder and --overwrite removes it"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    recipe: Path, tmp_path: Path, refused: Callable[[str], str], options: str, message: str
):
    assert message in refused(f"sweep {recipe} --out {tmp_path / 'out'} {options}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (", target = 20.0", "task quadratic has no target to time; add --target X"),
        ('cluster = "4x1gbe"', "one host has no network whose bandwidth could be changed; add --cluster 4x1gbe"),
        ('step_time = { kind = "constant", mean = "1 ms" }', "the virtual world must know how long a step takes"),
    ],
)
def test_a_recipe_without_target_network_or_step_time_is_refused_and_nothing_is_removed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, message: str
):
    recipe.write_text(RECIPE.replace(key, ""))
    kept = tmp_path / "out" / "report.html"
    kept.parent.mkdir()
    kept.write_text("precious")
    assert invoke(["sweep", str(recipe), "--out", str(tmp_path / "out"), "--overwrite"]) == 2
    assert message in capsys.readouterr().err
    assert kept.read_text() == "precious"
