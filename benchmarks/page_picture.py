"""Takes the pictures of pages in the documents, by the browser that the tests of reports use.

    make demo && python benchmarks/page_picture.py runs/demo/report.html docs/pictures/demo-report.png --height 2700
    python benchmarks/page_picture.py runs/explained/explain.html docs/pictures/explain.png --of "#slack, #step-time"

docs/adaptive.md has the commands that make the second page.
"""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent / "experiments"))
from picture import ARGUMENTS, CHROMIUM

WIDTH_PX = 1180


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--height", type=int, default=1610, metavar="N", help="pixels of the page from its top (1610)")
    parser.add_argument("--of", metavar="SELECTOR", help="the elements of this CSS selector, in place of the top")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": arguments.height})
        page.goto(arguments.page.resolve().as_uri())
        page.wait_for_selector(".main-svg")
        clip = None
        if arguments.of is not None:
            boxes = [it.bounding_box() for it in page.query_selector_all(arguments.of)]
            found = [box for box in boxes if box is not None]
            top, bottom = found[0]["y"], found[-1]["y"] + found[-1]["height"]
            clip = {"x": 0, "y": max(0, top - 10), "width": WIDTH_PX, "height": bottom - top + 20}
        page.screenshot(path=arguments.picture, clip=clip, full_page=clip is not None)
        browser.close()


if __name__ == "__main__":
    main()
