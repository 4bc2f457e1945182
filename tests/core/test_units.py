import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3 ns", 3e-9),
        ("250us", 2.5e-4),
        ("2 µs", 2e-6),
        (" 1e2 ms ", 0.1),
        (".5 min", 30),
        ("1 h", 3600),
        ("2 d", 172800),
    ],
)
def test_durations_have_units(text: str, seconds: float):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "20", "ms", "20 parsecs", "20 MB", "1.2.3 s", "nan s", "0x2 s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str):
    with pytest.raises(ConfigError, match="20 ms"):
        parse_seconds(text)


def test_negative_quantities_are_refused():
    with pytest.raises(ConfigError, match="negative"):
        parse_seconds("-1 s")
    with pytest.raises(ConfigError, match="negative"):
        parse_bytes("-1 MB")


def test_decimal_and_binary_sizes_differ():
    assert (parse_bytes("1 kB"), parse_bytes("1 KiB"), parse_bytes("1.5 GB")) == (1000, 1024, 1_500_000_000)
    with pytest.raises(ConfigError, match="KB"):
        parse_bytes("1 KB")


@given(st.floats(1e-9, 1e5))
def test_durations_for_people_are_right_to_half_a_percent(value_s: float):
    text = format_seconds(value_s)
    total_s = sum(parse_seconds(f"{number} {unit}") for number, unit in zip(*[iter(text.split())] * 2, strict=True))
    assert total_s == pytest.approx(value_s, rel=5.1e-3, abs=60 if value_s >= 3600 else 1e-10)


@given(st.integers(0, 10**15))
def test_sizes_for_people_are_right_to_half_a_percent(num_bytes: int):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=5.1e-3)


def test_nearest_word_is_suggested_or_all_are_listed():
    assert nearest("polices", ["policies", "seeds"]) == 'did you mean "policies"?'
    assert nearest("zebra", ["b", "a"]) == "known: a, b"
