import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_seconds,
)


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
        ("2 min 5 s", 125),
        ("1 h 30 min", 5400),
        ("1 h 30 min 2 s", 5402),
        ("23 d 4 h", 23 * 86400 + 4 * 3600),
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


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1 bit/s", 0.125),
        ("941 Mbit/s", 117.625e6),
        ("1Gbit/s", 125e6),
        ("100 Gbps", 12.5e9),
        (" 0.4 Tbit/s ", 50e9),
        ("10 GB/s", 10e9),
        ("25 GiB/s", 25 * 2**30),
        ("1.5e3 kB/s", 1.5e6),
    ],
)
def test_bits_and_bytes_per_second_differ_by_eight(text: str, bytes_per_s: float):
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-12)


@pytest.mark.parametrize("text", ["10 Gb/s", "10 GBps", "10Mb/s", "10 KBps", "10 b/s"])
def test_a_spelling_that_may_mean_bits_or_bytes_is_refused_with_both(text: str):
    with pytest.raises(ConfigError, match=r'write "10 [kMG]?bit/s" \(bits\) or "10 [kMG]?B/s" \(bytes\)'):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["", "10", "10 GB", "10 s", "fast", "10 gbit/s", "10 GB/ms", "nan GB/s"])
def test_what_is_no_bandwidth_is_refused_with_an_example(text: str):
    with pytest.raises(ConfigError, match=r'as in "1 Gbit/s" or "10 GB/s"'):
        parse_bandwidth(text)


def test_bandwidths_are_neither_negative_nor_infinite():
    with pytest.raises(ConfigError, match="negative"):
        parse_bandwidth("-1 GB/s")
    with pytest.raises(ConfigError, match="too large"):
        parse_bandwidth("1e400 GB/s")
    with pytest.raises(ConfigError, match="too large"):
        parse_bytes("1e400 GB")


@given(st.floats(1e3, 1e15))
def test_bandwidths_for_people_are_right_to_half_a_percent(bandwidth: float):
    assert parse_bandwidth(format_bandwidth(bandwidth)) == pytest.approx(bandwidth, rel=5.1e-3)


def test_rounding_up_to_a_unit_moves_to_that_unit():
    assert (format_bytes(999_600_000), format_seconds(0.99996), format_seconds(119.7)) == ("1 GB", "1 s", "2 min 0 s")


@given(st.floats(1e-9, 1e5) | st.floats(1e5, 1e18))
def test_durations_for_people_are_right_to_half_a_percent(value_s: float):
    text = format_seconds(value_s)
    # the smaller of two units: hours, minutes, seconds
    last_digit_s = 3600 if value_s >= 172800 else 60 if value_s >= 3600 else 0.5 if value_s >= 60 else 1e-10
    assert parse_seconds(text) == pytest.approx(value_s, rel=5.1e-3, abs=last_digit_s)


@given(st.integers(0, 10**15))
def test_sizes_for_people_are_right_to_half_a_percent(num_bytes: int):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=5.1e-3)


def test_nearest_word_is_suggested_or_all_are_listed():
    assert nearest("polices", ["policies", "seeds"]) == 'did you mean "policies"?'
    assert nearest("zebra", ["b", "a"]) == "known: a, b"


@given(st.floats(1, 1e15))
def test_counts_read_what_they_print(value: float):
    assert parse_count(format_count(value)) == pytest.approx(value, rel=5e-3)


@pytest.mark.parametrize("text", ["", "2G", "2 TB", "-2T", "many"])
def test_what_is_no_count_is_refused_with_an_example(text: str):
    with pytest.raises(ConfigError, match='as in "2T"'):
        parse_count(text)


@pytest.mark.parametrize(("text", "sizes"), [("700 Mb", ("87.5 MB", "700 MB")), ("8 kbit", ("1 kB", "8 kB"))])
def test_bits_are_no_size(text: str, sizes: tuple[str, str]):
    with pytest.raises(ConfigError) as refused:
        parse_bytes(text)
    assert all(f'"{size}"' in str(refused.value) for size in sizes)
