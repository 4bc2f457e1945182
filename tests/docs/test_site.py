"""The documentation: it builds without a warning, fetches nothing, and what it says to run runs."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import plesio

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the packages of plesio[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert not [tag for tag in tags if re.search(r'(?:src|href)="?(?:https?:)?//', tag)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style


def test_the_reference_has_every_public_name(site: Path):
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    missing = [name for name in plesio.__all__ if f'id="plesio.{name}"' not in text]
    assert not missing


def test_signatures_in_the_reference_have_nothing_private(site: Path):
    for page in (site / "reference").glob("*.html"):
        text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
        assert not re.findall(r"Annotated\[.*|(?::|=|Bases:) _\w+", text), page


@pytest.mark.browser
def test_colours_are_the_systems_or_the_readers_and_search_finds_a_guide_on_a_disk(site: Path, browser: Browser):
    context = browser.new_context(color_scheme="dark")
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "index.html").as_uri())
    seen = [page.evaluate("document.body.dataset.mdColorScheme")]
    for _ in range(2):
        page.locator("label[for^=__palette]:not([hidden])").first.click()
        seen.append(page.evaluate("document.body.dataset.mdColorScheme"))
    assert seen == ["slate", "default", "slate"]
    page.fill("input[name=query]", "PlesioAccelerator")
    page.wait_for_selector(".md-search-result__item")
    assert "Other frameworks" in page.inner_text(".md-search-result__list")
    assert complaints == []
    context.close()


def test_examples_in_docstrings_are_blocks_of_code(site: Path):
    for page in (site / "reference").glob("*.html"):
        assert "<blockquote>" not in page.read_text(encoding="utf-8"), page


@pytest.mark.parametrize("name", ROOT_PAGES)
def test_links_of_pages_outside_the_site(name: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        assert (ROOT / (path or name)).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / (path or name)).read_text(encoding="utf-8"), flags=re.M)
            assert anchor in [_anchor_of(heading) for heading in headings], target


def test_files_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:packages|tests|docs|examples|\.ci)/[\w./-]+)`", text)
    assert len(named) > 20
    assert not [path for path in named if "NAME" not in path and not (ROOT / path).exists()]


def _anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_the_program_of_the_tutorial_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    (program,) = re.findall(r'^```python title="train.py"\n(.*?)^```$', tutorial, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--policy", "ssp:4"])
    runpy.run_path("train.py", run_name="__main__")
    (accuracy,) = re.findall(r"held-out accuracy ([0-9.]+)", capsys.readouterr().out)
    assert float(accuracy) > 0.85
