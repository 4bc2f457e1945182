"""Text of the page docs/evidence-gpu.md, on which each part has a place that its run writes anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parts import Comparison

from record import Spread, table_text

Blocks = Mapping[str, Sequence[Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The device, the time and the command of a part."""

    device: str
    cards: int
    torch: str
    date: str
    command: str

    def text(self) -> str:
        """Return a line for the page."""
        cards = f"{self.cards} GPU" + "s" * (self.cards > 1)
        return f"*{self.device}, {cards}, torch {self.torch}, {self.date}:* `{self.command}`"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and a number of workers: the blocks of rank 0 by way, or why there are none."""

    size: str
    workers: int
    blocks: Blocks = field(default_factory=dict)
    why: str = ""


def figures_text(part: Comparison, cases: Sequence[Case]) -> str:
    """Return the table of a comparison, and its criterion if it has one."""
    has_hidden = {"plain", "exchange"} <= {*part.ways}
    columns = ["network, workers", "way", "step, ms", "steps a second", "memory, MB", "begin, ms", "later, ms"]
    rows = [row for case in cases for row in _rows(part, case, has_hidden=has_hidden)]
    text = table_text(columns=[*columns, *["hidden"] * has_hidden], rows=rows)
    if part.least is None:
        return text
    first, second = part.ways[:2]
    met = all(case.blocks and _ratios(case.blocks, second, first)["median"] >= part.least for case in cases)
    verdict = "met" if met else "NOT MET"
    return f"{text}\n\nCriterion: `{second}` at least {part.least:g} of the steps of `{first}`: {verdict}."


def _rows(part: Comparison, case: Case, *, has_hidden: bool) -> list[list[str]]:
    name = f"{case.size}, {case.workers}"
    if not case.blocks:
        return [[name, case.why, *["–"] * (5 + has_hidden)]]
    rows = []
    for way, blocks in case.blocks.items():
        later = [block["begin_s"] for block in blocks[1:]]
        ratio = _ratios(case.blocks, way, part.ways[0]).text(".3f")
        cells = [
            name,
            f"`{way}`",
            _steps(blocks).text(".2f", scale=1e3),
            ratio if way != "exchange" else "–",
            f"{max(block['peak_bytes'] for block in blocks) / 1e6:.0f}",
            f"{1e3 * blocks[0]['begin_s']:.0f}",
            f"{1e3 * Spread(later)['median']:.0f}" if later else "–",
        ]
        rows.append([*cells, *[_hidden(case.blocks, way)] * has_hidden])
    return rows


def _steps(blocks: Sequence[Mapping[str, float]]) -> Spread:
    return Spread([block["step_s"] for block in blocks])


def _ratios(blocks: Blocks, way: str, base: str) -> Spread:
    """Divide steps a second of ``way`` by those of ``base``, round by round."""
    pairs = zip(blocks[base], blocks[way], strict=True)
    return Spread([of_base["step_s"] / of_way["step_s"] for of_base, of_way in pairs])


def _hidden(blocks: Blocks, way: str) -> str:
    if way in ("plain", "exchange"):
        return "–"
    plain_s, exchange_s, step_s = (_steps(blocks[name])["median"] for name in ("plain", "exchange", way))
    return f"{1 - (step_s - plain_s) / exchange_s:.0%}"


def with_section(page: str, *, name: str, text: str) -> str:
    """Return the page with this text in place of what a part's earlier run wrote."""
    before, begins, rest = page.partition(f"<!-- written: {name} -->\n")
    _, ends, after = rest.partition("\n<!-- end -->")
    assert begins and ends, f"the page has no place for {name}"  # noqa: PT018
    return f"{before}{begins}\n{text}\n{ends}{after}"
