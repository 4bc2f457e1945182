"""The parts of the work on a GPU, as far as a CPU can tell: their times, their page, and that their programs run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plesio.testing import FakeClock
from runtime.test_cuda import FREE, IN_STEP, PROGRAM
from support.processes import on_processes

ROOT = Path(__file__).parents[4]
GPU = ROOT / "benchmarks" / "gpu"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as siblings; what they are called is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(GPU.parent))
    monkeypatch.syspath_prepend(str(GPU))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(GPU.parent) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_without_cuda_there_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from run import main

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--part", "step"]) == 2
    assert capsys.readouterr().out.startswith("there is no CUDA device that torch 2.")


def test_a_part_has_a_name_and_a_number():
    from parts import PARTS
    from run import part_names

    assert [part_names(str(number + 1)) for number in range(len(PARTS))] == [part_names(name) for name in PARTS]
    with pytest.raises(Exception, match="known: tests, "):
        part_names("9")


def test_cases_share_eight_minutes_and_those_without_time_are_named():
    from page import Case
    from parts import LIMIT_S, PARTS
    from run import compare

    clock = FakeClock()
    limits = []

    def measure(part: object, size: str, workers: int, limit_s: float) -> Case:
        limits.append(limit_s)
        clock.sleep_s(450.0 if size == "medium" else 0.0)  # past its limit
        return Case(size=size, workers=workers, blocks={"bsp": []})

    cases = compare(PARTS["store"], clock=clock, measure=measure)
    assert limits == [LIMIT_S / 3, LIMIT_S / 2]
    assert [case.why for case in cases] == ["", "", "no time was left"]


def block(step_s: float, begin_s: float = 0.5) -> dict[str, float]:
    return {"step_s": step_s, "begin_s": begin_s, "peak_bytes": 8e6}


def test_the_page_has_what_was_found():
    from page import Case, Setting, figures_text, with_section
    from parts import Comparison

    part = Comparison(ways=("plain", "exchange", "bsp"))
    cases = [
        Case(
            size="small",
            workers=2,
            blocks={
                "plain": [block(0.010), block(0.010)],
                "exchange": [block(0.004), block(0.004)],
                "bsp": [block(0.011, 2.0), block(0.011, 0.1)],
            },
        ),
        Case(size="large", workers=2, why="failed: OutOfMemoryError"),
    ]
    assert figures_text(part, cases).splitlines() == [
        "| network, workers | way | step, ms | steps a second | memory, MB | begin, ms | later, ms | hidden |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
        "| small, 2 | `plain` | 10.00 (10.00 to 10.00) | 1.000 (1.000 to 1.000) | 8 | 500 | 500 | – |",
        "| small, 2 | `exchange` | 4.00 (4.00 to 4.00) | – | 8 | 500 | 500 | – |",
        "| small, 2 | `bsp` | 11.00 (11.00 to 11.00) | 0.909 (0.909 to 0.909) | 8 | 2000 | 100 | 75% |",
        "| large, 2 | failed: OutOfMemoryError | – | – | – | – | – | – |",
    ]
    limited = Comparison(ways=("plain", "bsp"), least=0.95)
    assert figures_text(limited, cases[:1]).endswith("Criterion: `bsp` at least 0.95 of the steps of `plain`: NOT MET.")
    setting = Setting(device="A", cards=2, torch="2.13", date="2026-11-27", command="python run.py")
    assert setting.text() == "*A, 2 GPUs, torch 2.13, 2026-11-27:* `python run.py`"
    page = "# P\n\n<!-- written: a -->\n\nold\n\n<!-- end -->\n\n<!-- written: b -->\n\nkept\n\n<!-- end -->\n"
    assert with_section(page, name="a", text="new") == page.replace("old", "new")


def test_the_page_has_a_place_for_each_part():
    from parts import PARTS

    lines = (ROOT / "docs" / "evidence-gpu.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ")] == [f"## {n} {name}" for n, name in enumerate(PARTS, 1)]
    assert [line for line in lines if "written" in line and "<" in line] == [
        f"<!-- written: {name} -->" for name in PARTS
    ]


def test_parts_of_tests_have_all_that_need_a_gpu():
    from parts import PARTS
    from run import command_of, tests_text

    marked = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("packages/*/tests/**/test_*.py")
        if path != Path(__file__) and "mark.cuda" in path.read_text(encoding="utf-8")
    }
    assert marked
    assert marked == {word for word in command_of(PARTS["tests"]) if word.endswith(".py")}
    output = "..F\nFAILED test_cuda.py::test_a - assert 1 == 2\n1 failed, 2 passed in 3.00s\n"
    assert tests_text(output) == "1 failed, 2 passed in 3.00s.\n\n- `FAILED test_cuda.py::test_a`"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_way_takes_its_steps_on_a_cpu(num_workers: int):
    from parts import PARTS, Comparison
    from run import measure_on

    parts = [part for part in PARTS.values() if isinstance(part, Comparison) and num_workers in part.workers]
    ways = tuple(dict.fromkeys(way for part in parts for way in part.ways))
    case = measure_on("cpu", cards=1)(Comparison(ways=ways), "small", num_workers, 100.0)
    assert case.why == ""
    assert {way: len(blocks) for way, blocks in case.blocks.items()} == dict.fromkeys(ways, 2)
    assert all(block["step_s"] > 0 and block["begin_s"] > 0 for blocks in case.blocks.values() for block in blocks)


SETTINGS = [
    {"policy": "bsp", "half": True},
    {"policy": "bsp", "compiler": "eager", "optimizer": "adamw"},
    *({"policy": policy} for policy in (*IN_STEP, *FREE) if isinstance(policy, str)),
]


@pytest.mark.parametrize("settings", [SETTINGS[:2], pytest.param(SETTINGS[2:], marks=pytest.mark.slow)])
def test_programs_for_a_gpu_run_on_a_cpu(settings: list[dict[str, object]]):
    told = on_processes(2, PROGRAM, "one_after_another", settings=[{"device": "cpu"} | one for one in settings])
    assert [len(worker) for worker in told] == [len(settings)] * 2
    assert all(one["steps"] > 0 and one["devices"] == {"cpu"} for worker in told for one in worker)
