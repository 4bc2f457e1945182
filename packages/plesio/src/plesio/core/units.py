"""Quantities that people write with a unit: durations, sizes, bandwidths; a bare number is refused. Counts have none.

Decimal prefixes are powers of 1000 (kB, MB, GB), binary ones of 1024 (KiB, MiB, GiB). Bandwidths are given in bits
(``Gbit/s``, ``Gbps``) or in bytes (``GB/s``, ``GiB/s``), and are bytes per second in all that is computed. ``Gb/s`` and
``GBps`` are refused: both are in use for either, and a guess would be wrong by a factor of eight.
"""

import math
import re
from collections.abc import Sequence

from plesio.core.errors import ConfigError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BANDWIDTHS = {
    **{f"{prefix}bit/s": number / 8 for prefix, number in _BITS.items()},
    **{f"{prefix}bps": number / 8 for prefix, number in _BITS.items()},
    **{f"{unit}/s": float(number) for unit, number in _BYTES.items()},
}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BITS_OR_BYTES = re.compile(r"([kKMGT]?)(?:b/s|Bps)")
_BITS_ALONE = re.compile(r"([kKMGT]?)(?:b|bit|bits)")
_QUANTITY = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")
_IN_PARTS = re.compile(r"\s*(?:(\d+) d )?(?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+) s)?\s*")
_NEXT_UNIT = 0.9995
"""The share of the next unit from which on three digits of the smaller one would be rounded to 1000 of it."""


def _parse(text: str, units: dict[str, float] | dict[str, int], *, what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ConfigError(
            f'"{text}" is not a {what}: write a number and a unit of {", ".join(units)}, as in "{example}"'
        )
    value = float(match[1]) * units[match[2]]
    if value < 0:
        raise ConfigError(f'"{text}" is negative; a {what} is zero or more, as in "{example}"')
    if math.isinf(value):
        raise ConfigError(f'"{text}" is too large; write a {what} as in "{example}"')
    return value


def parse_seconds(text: str) -> float:
    """Parse the seconds of a duration with its unit, or with several of them, as `format_seconds` writes it.

    >>> parse_seconds("20 ms"), parse_seconds("1.5min"), parse_seconds("2 min 5 s")
    (0.02, 90.0, 125.0)

    Raises:
        ConfigError: No unit, an unknown one, or a negative duration.
    """
    in_parts = _IN_PARTS.fullmatch(text)
    if in_parts and any(in_parts.groups()):
        days, hours, minutes, seconds = (int(number or 0) for number in in_parts.groups())
        return 86400.0 * days + 3600 * hours + 60 * minutes + seconds
    return _parse(text, _SECONDS, what="duration", example="20 ms")


def byte_unit(most: float) -> tuple[str, float]:
    """Return the unit for an axis that goes up to ``most`` bytes, and its bytes.

    >>> byte_unit(2.5e6), byte_unit(0)
    (('MB', 1000000.0), ('B', 1.0))
    """
    units = [(unit, float(_BYTES[unit])) for unit in ("TB", "GB", "MB", "kB", "B")]
    return next(((unit, scale) for unit, scale in units if most >= scale), units[-1])


def parse_bytes(text: str) -> int:
    """Parse the bytes of a size with its unit.

    >>> parse_bytes("2 MiB"), parse_bytes("20 MB")
    (2097152, 20000000)

    Raises:
        ConfigError: No unit, an unknown one, or bits; a negative size.
    """
    match = _QUANTITY.fullmatch(text)
    in_bits = match and _BITS_ALONE.fullmatch(match[2])
    if match and in_bits:
        prefix = in_bits[1].replace("K", "k")
        as_bytes = f"{float(match[1]) / 8:g} {prefix}B"
        raise ConfigError(
            f'"{text}" may mean bits; write "{as_bytes}" (so many bits) or "{match[1]} {prefix}B" (bytes)'
        )
    return round(_parse(text, _BYTES, what="size", example="20 MB"))


def parse_bandwidth(text: str) -> float:
    """Parse the bytes per second of a bandwidth with its unit, of bits or of bytes.

    >>> parse_bandwidth("1 Gbit/s"), parse_bandwidth("10 GB/s"), parse_bandwidth("100 Gbps")
    (125000000.0, 10000000000.0, 12500000000.0)

    Raises:
        ConfigError: No unit, an unknown one, or one that may mean bits or bytes; a negative bandwidth.
    """
    match = _QUANTITY.fullmatch(text)
    ambiguous = match and _BITS_OR_BYTES.fullmatch(match[2])
    if match and ambiguous:
        prefix = ambiguous[1].replace("K", "k")
        bits, as_bytes = f"{match[1]} {prefix}bit/s", f"{match[1]} {prefix}B/s"
        raise ConfigError(f'"{text}" may mean bits or bytes; write "{bits}" (bits) or "{as_bytes}" (bytes)')
    return _parse(text, _BANDWIDTHS, what="bandwidth", example='1 Gbit/s" or "10 GB/s')


def parse_count(text: str) -> float:
    """Parse a large number with its letter: k, M, B (10^9) or T (10^12), or without any.

    >>> parse_count("1.4T"), parse_count("300B"), parse_count("1e6")
    (1400000000000.0, 300000000000.0, 1000000.0)

    Raises:
        ConfigError: Another letter, or a negative number.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _COUNTS or match[1].startswith("-"):
        raise ConfigError(
            f'"{text}" is not a count: write a number, with k, M, B or T for thousands to 10^12, as in "2T"'
        )
    return float(match[1]) * _COUNTS[match[2]]


def format_count(value: float) -> str:
    """Write a large number with three significant digits.

    >>> format_count(2e12), format_count(68.98e9), format_count(512)
    ('2T', '69B', '512')
    """
    for letter, scale in reversed(_COUNTS.items()):
        if letter and value >= _NEXT_UNIT * scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def format_seconds(value_s: float) -> str:
    """Write a duration with three significant digits.

    >>> format_seconds(0.0123), format_seconds(7.5), format_seconds(125), format_seconds(2e6)
    ('12.3 ms', '7.5 s', '2 min 5 s', '23 d 3 h')
    """
    if value_s >= 100 * 86400:
        return f"{round(value_s / 86400):.6g} d"
    if value_s >= 2 * 86400:
        return f"{int(value_s // 86400)} d {int(value_s % 86400 // 3600)} h"
    if value_s >= 3600:
        return f"{int(value_s // 3600)} h {int(value_s % 3600 // 60)} min"
    if value_s >= 60:
        minutes, seconds = divmod(min(round(value_s), 3599), 60)
        return f"{minutes} min {seconds} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value_s >= _NEXT_UNIT * scale:
            return f"{value_s / scale:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns" if value_s else "0 s"


def format_bytes(num_bytes: float) -> str:
    """Write a size in decimal units with three significant digits.

    >>> format_bytes(20_000_000), format_bytes(512)
    ('20 MB', '512 B')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= _NEXT_UNIT * scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def format_bandwidth(bandwidth_Bps: float) -> str:  # noqa: N803
    """Write a bandwidth in decimal bytes per second with three significant digits.

    >>> format_bandwidth(12.5e9), format_bandwidth(parse_bandwidth("1 Gbit/s"))
    ('12.5 GB/s', '125 MB/s')
    """
    return f"{format_bytes(bandwidth_Bps)}/s"


def listed(things: Sequence[object], *, last: str = "and") -> str:
    """Join words or numbers in a row.

    >>> listed(["a", "b", "c"]), listed([1, 2], last="or")
    ('a, b and c', '1 or 2')
    """
    *first, end = map(str, things)
    return f"{', '.join(first)} {last} {end}" if first else end


def named(noun: str, numbers: Sequence[int]) -> str:
    """Name the ones of these numbers.

    >>> named("rank", [0, 1, 4]), named("rank", [1])
    ('ranks 0, 1 and 4', 'rank 1')
    """
    return f"{noun}{'' if len(numbers) == 1 else 's'} {listed(numbers)}"


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "worker"), counted(1200, "worker"), counted(2, "batch")
    ('1 worker', '1,200 workers', '2 batches')
    """
    plural = f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def format_percent(share: float, *, digits: int = 1) -> str:
    """Write a share of 1 as a percentage.

    >>> format_percent(0.6724), format_percent(0.00051, digits=2)
    ('67.2 %', '0.05 %')
    """
    return f"{100 * share:.{digits}f} %"
