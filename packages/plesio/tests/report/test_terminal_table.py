"""Tables in lines of any width: nothing is wider, nothing is lost, and no number is broken."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from plesio.core.charts import Table
from plesio.report.charts import plain_table, terminal_table

WORDS = st.text("abcdefghij", min_size=1, max_size=9)
NUMBERS = st.integers(-(10**9), 10**9).map(lambda value: f"{value:,}")


def drawn(table: Table, width: int, *, num_texts: int = 1) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(plain_table(table, num_texts=num_texts))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    num_numbers, num_rows = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    headers = [" ".join(draw(st.lists(WORDS, min_size=1, max_size=4))) for _ in range(num_numbers + 1)]
    rows = [
        [" ".join(draw(st.lists(WORDS, min_size=1, max_size=8))), *(draw(NUMBERS) for _ in range(num_numbers))]
        for _ in range(num_rows)
    ]
    return Table(title="", headers=headers, rows=rows)


@given(tables(), st.integers(40, 140))
def test_no_line_is_longer_than_the_terminal_and_every_number_is_whole(table: Table, width: int):
    lines = drawn(table, width)
    assert max(map(cell_len, lines)) <= width
    words = " ".join(lines).split()
    for row in table.rows:
        assert all(words.count(cell) >= 1 for cell in row[1:])


def test_what_fits_is_one_line_a_row():
    table = Table(title="", headers=("policy", "time"), rows=[("bsp", "1.5 s"), ("local_sgd:8", "900 ms")])
    assert drawn(table, 40) == ["policy         time", "bsp           1.5 s", "local_sgd:8  900 ms"]


def test_columns_without_room_come_below_with_the_names_of_their_rows():
    table = Table(title="", headers=("policy", "samples/s", "bytes"), rows=[("bsp", "123,456", "100 MB")])
    lines = [line.rstrip() for line in drawn(table, 18)]
    assert lines == ["policy  samples/s", "bsp       123,456", "", "policy   bytes", "bsp     100 MB"]


def test_a_long_policy_is_folded_and_a_text_is_wrapped_at_words():
    table = Table(title="", headers=("policy", "why"), rows=[("p" * 50, "it is much too slow for what it does")])
    lines = drawn(table, 40)
    assert max(map(cell_len, lines)) <= 40
    words = " ".join(lines[1:]).split()
    assert "".join(words).count("p") == 50
    assert {"it", "is", "much", "too", "slow", "for", "what", "does"} <= set(words)


def test_a_title_stands_above():
    console = Console(width=40, file=io.StringIO())
    console.print(terminal_table(Table(title="Rings:", headers=("ranks",), rows=[("2",)])))
    assert console.file.getvalue().splitlines()[0].rstrip() == "Rings:"  # type: ignore[attr-defined]
