"""The figures of README and guidelines are those of the tables that they come from; files that pages name are there."""

import re
import statistics
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if page.name != "log.md")]
ROW = re.compile(
    r"^\| (1\d{3})-\S+ \| \S+, \S+, x\S+ \| [^|]+ \| (\w+) \| [\d.]+ \| ([\d.]+) ± [\d.]+ \| (-?[\d.]+) ± [\d.]+ \|$",
    flags=re.MULTILINE,
)
WORDS = {10: "ten", 12: "twelve", 16: "sixteen", 17: "seventeen", 40: "forty"}


class Scenario(NamedTuple):
    """A row of the report's table: time to target over BSP's, and final points to BSP."""

    number: int
    stragglers: str
    time: float
    points: float


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    named = re.search(r"table of all forty is in the \[log\]\(log.md\), section (\d+)", page("docs/evidence.md"))
    assert named is not None
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    text = log.partition(f"\n## {named[1]}. ")[2].partition("\n## ")[0]
    return [Scenario(int(n), stragglers, float(t), float(p)) for n, stragglers, t, p in ROW.findall(text)]


def test_what_adaptive_is_worth_in_forty_scenarios(scenarios: list[Scenario]):
    assert len(scenarios) == 40
    points = statistics.fmean(scenario.points for scenario in scenarios)
    lowest = -min(scenario.points for scenario in scenarios)
    guidelines = page("docs/guidelines.md")
    assert f"{round(points, 2) + 0.0:.2f} points (95 % from -0.08 to +0.08) over forty scenarios" in guidelines
    assert f"over forty scenarios, {lowest} ± 1.0 below at most" in guidelines
    assert f"at worst {max(scenario.time for scenario in scenarios):.2f} times bsp's time" in guidelines


def test_what_adaptive_is_worth_on_the_first_page():
    readme, evidence = page("README.md"), page("docs/evidence.md")
    number, time = re.search(r"the same elsewhere, of (\d+) \| [^|]+ \| ([\d.]+) ", evidence).groups()
    lowest = re.search(r"the lowest: \d+ ends ([\d.]+ ± [\d.]+) lower", evidence).group(1)
    assert f"where there is something to gain ({number} of them" in readme
    assert f"the target in {float(time):.2f} of the time of `bsp`" in readme
    assert f"at worst {lowest} points below" in readme
    section = page("docs/log.md").partition("## 80. ")[2].partition(" ## ")[0]
    harder = re.search(r"geometric mean of \d+ \|.*? ([\d.]+) \| \| elsewhere", section).group(1)
    average, least = re.search(r"the third -([\d.]+), and one below one point \(\d+, -([\d.]+)", section).groups()
    assert (
        f"{float(harder):.2f} of its time, at worst 1.08; {average} points below on average, and {least} in one"
        in readme
    )


def test_what_adaptive_is_worth_by_kind_of_scenario(scenarios: list[Scenario]):
    guidelines = page("docs/guidelines.md")
    same = sum(scenario.time == 1 and scenario.points == 0 for scenario in scenarios)
    assert f"in {same} of 40 scenarios" in guidelines
    slow = [scenario.time for scenario in scenarios if scenario.stragglers == "persistent"]
    told = f"`adaptive` takes {min(slow):.2f} to {max(slow):.2f} of bsp's time in {WORDS[len(slow)]} scenarios"
    assert told in guidelines


def test_a_section_of_the_notebook_that_is_named_is_there_and_has_the_figures():
    """Each rule that names sections: its figures stand in one of them."""
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\d+)\.? ", log, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = []
    for line in (ROOT / "docs" / "guidelines.md").read_text(encoding="utf-8").splitlines():
        named = re.findall(r"sections? (\d+(?:(?:, | and )\d+)*)", line)
        numbers = [number for text in named for number in re.findall(r"\d+", text)]
        if not numbers or not line.startswith("|"):
            continue
        assert set(numbers) <= set(sections), line
        text = "".join(sections[number] for number in numbers)
        rule = re.sub(r"sections? \d.*?(?=[);|]|$)|`[^`]*`|\([^)]*\.md[^)]*\)", "", line)
        figures = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", rule)
        missing += [(figure, line) for figure in figures if figure not in text]
    assert not missing


def test_the_number_of_examples_is_that_of_the_folder():
    number = len(list((ROOT / "examples").glob("*.py")))
    for name in ("README.md", "docs/examples.md", "packages/plesio/CHANGELOG.md"):
        assert re.search(rf"\b{WORDS[number]}\b", page(name), flags=re.IGNORECASE), name


def test_files_that_pages_name_are_there():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("a checkout without its history")
    missing = []
    for path in PAGES:
        for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|toml|md))`", path.read_text(encoding="utf-8")):
            if "NAME" not in name and not any(f"/{file}".endswith(f"/{name}") for file in tracked):
                missing.append((path.name, name))
    assert not missing
