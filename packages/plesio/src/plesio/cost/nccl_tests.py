"""Reads what nccl-tests print (``all_reduce_perf`` and its siblings; github.com/NVIDIA/nccl-tests).

A header says how the test was started and which ranks took part, a line of column names follows, then a row for each
size, measured out of place and in place, of which the first is read, and two lines that sum up. Columns are found by
their names: older versions have no ``root``, and ``error`` for ``#wrong``. Lines of NCCL's own log between them are
passed over; any other line that cannot be read is an error, because a row that is passed over would go unnoticed.

Sizes are those of the whole tensor, as everywhere in `plesio.cost`; 1 GB/s is 1e9 bytes per second. Bandwidths are
printed with two decimals of a GB/s, so those of small messages are best computed from the times.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from plesio.core.errors import DataError
from plesio.core.files import read_text

_STARTED = re.compile(r"#\s*nThreads?:? (\d+) nGpus:? (\d+)\b")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\b")
_OPERATION = re.compile(r"#\s*Collective test starting:\s*(\w+?)(?:_perf)?\s*")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:")
_LOG = re.compile(r"NCCL (?:version|INFO|WARN)\b")
_MEASURED = ("time", "algbw", "busbw")
_NONE = "N/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRow:
    """One size.

    Attributes:
        num_bytes: Bytes of the whole tensor.
        type: Type of an element, as printed: ``float``, ``half``, ``bfloat16`` ...
        time_s: Seconds out of place, the mean of the test's iterations.
        algorithm_bytes_per_s: ``num_bytes / time_s``, as printed (multiples of 1e7).
        bus_bytes_per_s: The printed one; as in `plesio.cost.collectives.bus_bytes_per_s`.
    """

    num_bytes: int
    type: str
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """One run of one test.

    Attributes:
        rows: One or more, in the order printed.
        num_ranks: Ranks of one collective: the ranks that are listed, of one group if they are split into groups; if
            none is listed, threads times GPUs, as of a single process.
        operation: ``all_reduce``, ``all_gather`` ...; None if the version does not print it.
        complete: Whether the run came to its end. If not, the rows that it did print are still right.
    """

    rows: tuple[NcclRow, ...]
    num_ranks: int
    operation: str | None
    complete: bool


def read_nccl_tests(path: Path) -> NcclTests:
    """Read a file of a test's output; raise `DataError` as `parse_nccl_tests` does, or where it cannot be read."""
    return parse_nccl_tests(read_text(path, "the nccl-tests output"), where=str(path))


def parse_nccl_tests(text: str, *, where: str) -> NcclTests:
    r"""Parse the output of a test.

    >>> tests = parse_nccl_tests(
    ...     "# nThread 1 nGpus 8 minBytes 1024 maxBytes 1024 step: 2(factor)\n"
    ...     "#  size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
    ...     "   1024    256  float    sum    -1  40.00   0.03   0.05      0  39.64   0.03   0.05      0\n",
    ...     where="example",
    ... )
    >>> tests.num_ranks, tests.rows[0].num_bytes, tests.rows[0].time_s, tests.complete
    (8, 1024, 4e-05, False)

    Args:
        text: The output of one run.
        where: Name of the text in messages.

    Raises:
        DataError: A line that cannot be read, which is named; results that the test itself found wrong; more than one
            run; no rows, or no way to tell how many ranks there were.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader.take(line.strip())
        except DataError as error:
            raise DataError(f"{where}, line {number}: {error}") from None
    try:
        return reader.result()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


class _Reader:
    """Line after line; messages do not say where."""

    def __init__(self) -> None:
        self.rows: list[NcclRow] = []
        self.columns: list[str] = []
        self.started: int | None = None
        self.groups: Counter[str] = Counter()
        self.operation: str | None = None
        self.complete = False

    def take(self, line: str) -> None:
        if line.startswith("#"):
            self._take_comment(line)
        elif line and not _LOG.search(line):
            self.rows.append(_row(line, self.columns))

    def _take_comment(self, line: str) -> None:
        if match := _STARTED.match(line):
            if self.started is not None:
                raise DataError("a second run begins; keep each run in a file of its own")
            self.started = int(match[1]) * int(match[2])
        elif match := _RANK.match(line):
            self.groups[match[2] or "0"] += 1
        elif match := _OPERATION.fullmatch(line):
            self.operation = match[1]
        elif match := _OUT_OF_BOUNDS.match(line):
            if match[1] != "0" or match[2] != "OK":
                raise DataError(
                    f"the test found {match[1]} wrong values ({match[2]}); times of wrong results say nothing"
                )
        elif _AVERAGE.match(line):
            self.complete = True
        elif {"size", "type", *_MEASURED} <= set(words := line.removeprefix("#").split()):
            self.columns = words

    def result(self) -> NcclTests:
        if not self.rows:
            raise DataError("there are no rows; write what a test of nccl-tests printed, as all_reduce_perf")
        sizes = set(self.groups.values())
        if len(sizes) > 1:
            raise DataError(f"its groups have {min(sizes)} to {max(sizes)} ranks; groups must be of one size")
        num_ranks = sizes.pop() if sizes else self.started
        if not num_ranks:
            raise DataError('nobody says how many ranks there were; keep the lines "# nThread ..." and "#  Rank ..."')
        return NcclTests(rows=tuple(self.rows), num_ranks=num_ranks, operation=self.operation, complete=self.complete)


def _row(line: str, columns: list[str]) -> NcclRow:
    if not line[0].isdigit():
        raise DataError(f'"{_short(line)}" is neither a row nor a comment; delete the line if it is not of the test')
    if not columns:
        raise DataError("a row before the column names; keep the line of them, as in: #  size  count  type ...")
    words = line.split()
    if len(words) != len(columns):
        raise DataError(f'"{_short(line)}" has {len(words)} of the {len(columns)} columns; was the output cut off?')
    values: dict[str, list[str]] = {}
    for name, word in zip(columns, words, strict=True):
        values.setdefault(name, []).append(word)
    for wrong in values.get("#wrong", ()):
        if wrong != _NONE and _number(wrong, "#wrong") > 0:
            raise DataError(f"the test found {wrong} wrong values; times of wrong results say nothing")
    # the first columns of a name are of the test out of place, the second of the one in place
    if values["time"][0] == _NONE:
        raise DataError("there is no time out of place; run the test without options that leave it out")
    time_us, algorithm_gb, bus_gb = (_number(values[name][0], name) for name in _MEASURED)
    if not time_us > 0:
        raise DataError(f"a time of {time_us} µs; times are more than 0")
    size = values["size"][0]
    if not size.isdecimal():
        raise DataError(f'the size "{size}" is not a whole number of bytes')
    return NcclRow(
        num_bytes=int(size),
        type=values["type"][0],
        time_s=time_us / 1e6,
        algorithm_bytes_per_s=algorithm_gb * 1e9,
        bus_bytes_per_s=bus_gb * 1e9,
    )


def _number(word: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DataError(f'"{word}" in the column {name} is not a number of 0 or more')
    return value


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:60]} ..."
