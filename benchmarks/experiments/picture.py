"""Pictures of figures, made by the browser that the tests of the report use."""

import tempfile
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
FONT = "'DejaVu Sans', sans-serif"


def write_picture(figure: go.Figure, path: Path, *, width_px: int) -> None:
    """Write ``figure`` to ``path`` as a PNG on white, with two pixels to each of its own."""
    height_px = figure.layout.height
    figure.update_layout(width=width_px, paper_bgcolor="white", font_family=FONT, font_color="#1f2328")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "figure.html"
        html = figure.to_html(include_plotlyjs=True, full_html=True, config={"staticPlot": True})
        page_file.write_text(html.replace("<body>", '<body style="margin: 0">'), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": width_px, "height": height_px}, device_scale_factor=2)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path)
        browser.close()
