from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import bus_bytes_per_s
from plesio.cost.fit import alpha_beta_of_all_reduce, fit_line
from plesio.cost.nccl_tests import parse_nccl_tests, read_nccl_tests

STARTED = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n#\n"
)
RANKS = "# Using devices\n" + "".join(
    f"#  Rank {rank:2d} Group  0 Pid  63084 on ip-172-31-0-1 device {rank:2d} [0x{16 + rank:02x}] NVIDIA A100\n"
    for rank in range(8)
)
NAMES = """\
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
"""  # noqa: W291
TRAILER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 81.3212 \n#\n\n"


def printed_time(duration_s: float) -> str:
    """Print a time as nccl-tests do: with about four digits."""
    us = duration_s * 1e6
    return f"{us:7.0f}" if us >= 10_000 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"


def table(seconds: Callable[[float], float], *, redop: str = "sum", wrong: str = "0") -> str:
    rows = []
    for power in range(3, 34):
        size = 1 << power
        out, inside = seconds(size), seconds(size) * 0.99
        cells = "".join(
            f"{printed_time(one)} {size / one / 1e9:7.2f} {size / one / 1e9 * 1.75:7.2f} {wrong:>6}"
            for one in (out, inside)
        )
        rows.append(f"{size:12d}  {size // 4:12d}  {'float':>8}  {redop:>6}  {-1:6d} {cells}\n")
    return "".join(rows)


def of_a100s(size: float) -> float:
    """A Hockney fit of a measured table: 8 x A100, 78.6 µs, bus bandwidth 227 GB/s (studies/reference.md)."""
    return 78.6e-6 + 1.75 * size / 227e9


OUTPUT = STARTED + RANKS + NAMES + table(of_a100s) + TRAILER


def test_a_run_is_read(tmp_path: Path):
    path = tmp_path / "all_reduce.txt"
    path.write_text(OUTPUT)
    tests = read_nccl_tests(path)
    assert (tests.num_ranks, tests.operation, tests.complete, len(tests.rows)) == (8, None, True, 31)
    first, last = tests.rows[0], tests.rows[-1]
    assert (first.num_bytes, first.type, first.time_s, first.bus_bytes_per_s) == (8, "float", 78.6e-6, 0)
    assert (last.num_bytes, last.time_s) == (1 << 33, pytest.approx(of_a100s(1 << 33), rel=1e-5))
    assert last.algorithm_bytes_per_s == 129.56e9


def test_the_bandwidth_printed_is_ours():
    for row in parse_nccl_tests(OUTPUT, where="test").rows:
        ours = bus_bytes_per_s(row.num_bytes, row.time_s, num_ranks=8)
        assert row.bus_bytes_per_s == pytest.approx(ours, rel=1e-3, abs=0.005e9)  # half of the last digit printed


def test_the_published_latency_and_bandwidth_come_out_again():
    tests = parse_nccl_tests(OUTPUT, where="test")
    fit = fit_line([row.num_bytes for row in tests.rows], [row.time_s for row in tests.rows])
    links = alpha_beta_of_all_reduce(fit, num_ranks=tests.num_ranks)
    assert fit.intercept == pytest.approx(78.6e-6, rel=1e-3)
    assert links.bytes_per_s == pytest.approx(227e9, rel=1e-3)
    ring_s = ring_all_reduce_s(1e9, num_ranks=8, link=links.link)
    assert ring_s == pytest.approx(of_a100s(1e9), rel=1e-3)


def test_results_need_not_be_checked_nor_reduced():
    text = OUTPUT.replace(table(of_a100s), table(of_a100s, redop="none", wrong="N/A"))
    assert parse_nccl_tests(text, where="test").rows == parse_nccl_tests(OUTPUT, where="test").rows


def test_in_place_need_not_be_measured():
    row = "     1024    256    float    none      -1    45.33    0.02    0.02      0      N/A     N/A     N/A    N/A"
    (found,) = parse_nccl_tests(STARTED + RANKS + NAMES + row, where="test").rows
    assert found.time_s == pytest.approx(45.33e-6)


def test_old_versions_have_other_columns():
    text = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 
#
# Using devices
#   Rank  0 Pid  30000 on dgx1 device  0 [0x06] Tesla V100-SXM2-32GB
#   Rank  1 Pid  30000 on dgx1 device  1 [0x07] Tesla V100-SXM2-32GB
#
#                                                     out-of-place                       in-place          
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
           8             2   float     sum    13.06    0.00    0.00  0e+00    12.93    0.00    0.00  0e+00
        1024           256   float     sum    13.37    0.08    0.08  1e-07    13.22    0.08    0.08  1e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.0412 
"""  # noqa: W291
    tests = parse_nccl_tests(text, where="test")
    assert tests.num_ranks == 2
    assert [row.time_s for row in tests.rows] == pytest.approx([13.06e-6, 13.37e-6])


def test_new_versions_name_the_test_and_logs_are_passed_over():
    text = (
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n"
        "# Collective test starting: all_gather_perf\n" + STARTED + RANKS + "NCCL version 2.28.7+cuda12.9\n"
        "ip-172-31-0-1:63084:63084 [0] NCCL INFO Bootstrap: Using ens32:172.31.0.1<0>\n" + NAMES + table(of_a100s)
    )
    tests = parse_nccl_tests(text, where="test")
    assert tests.operation == "all_gather"
    assert len(tests.rows) == 31


def test_ranks_are_counted_in_their_group():
    split = "".join(
        f"#  Rank {rank:2d} Group {rank % 2:2d} Pid  {rank} on host{rank} device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
        for rank in range(8)
    )
    one_gpu = STARTED.replace("nGpus 8", "nGpus 1")
    assert parse_nccl_tests(one_gpu + split + NAMES + table(of_a100s), where="test").num_ranks == 4
    assert parse_nccl_tests(one_gpu + RANKS + NAMES + table(of_a100s), where="test").num_ranks == 8
    assert (
        parse_nccl_tests(STARTED.replace("nThread 1", "nThread 2") + NAMES + table(of_a100s), where="test").num_ranks
        == 16
    )
    with pytest.raises(DataError, match="groups have 3 to 4 ranks"):
        parse_nccl_tests(one_gpu + split.partition("\n")[2] + NAMES + table(of_a100s), where="test")


def test_a_run_that_was_ended_between_rows_is_not_complete():
    rows = table(of_a100s).splitlines(keepends=True)
    tests = parse_nccl_tests(STARTED + RANKS + NAMES + "".join(rows[:5]), where="test")
    assert not tests.complete
    assert len(tests.rows) == 5


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_row_that_was_cut_off_is_named(cut: int):
    rows = table(of_a100s).splitlines(keepends=True)
    half = " ".join(rows[5].split()[:-cut])
    with pytest.raises(
        DataError, match=rf"^out.txt, line 21: .* has {13 - cut} of the 13 columns; was the output cut off\?$"
    ):
        parse_nccl_tests(STARTED + RANKS + NAMES + "".join(rows[:5]) + half, where="out.txt")


ROW = "     1024    256    float     sum      -1    39.66    0.03    0.05      0    39.64    0.03    0.05      0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^out.txt: there are no rows"),
        (STARTED + RANKS + NAMES + TRAILER, "^out.txt: there are no rows"),
        (STARTED + RANKS + ROW, "^out.txt, line 12: a row before the column names"),
        (RANKS.partition("\n")[0] + "\n" + NAMES + ROW, "^out.txt: nobody says how many ranks"),
        (OUTPUT + OUTPUT, "^out.txt, line 51: a second run begins"),
        (STARTED + NAMES + ROW.replace("39.66", "39,66"), '^out.txt, line 7: "39,66" in the column time'),
        (STARTED + NAMES + ROW.replace("39.66", "-1.00"), "is not a number of 0 or more"),
        (STARTED + NAMES + ROW.replace("39.66", " 0.00"), "a time of 0.0 µs"),
        (STARTED + NAMES + ROW.replace("39.66", "  nan"), '"nan" in the column time'),
        (STARTED + NAMES + ROW.replace("39.66", "  N/A"), "no time out of place"),
        (STARTED + NAMES + ROW.replace("1024", "1e10"), 'the size "1e10"'),
        (STARTED + NAMES + ROW.replace("     0\n", "     7\n"), "^out.txt, line 7: the test found 7 wrong values"),
        (STARTED + NAMES + ROW + "# Out of bounds values : 3 FAILED\n", "line 8: the test found 3 wrong values"),
        (STARTED + NAMES + "host: Test NCCL failure common.cu:401 'unhandled cuda error'", "line 7: .*neither a row"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str):
    with pytest.raises(DataError, match=message) as caught:
        parse_nccl_tests(text, where="out.txt")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"cannot read .*missing\.txt"):
        read_nccl_tests(tmp_path / "missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"cannot read .*binary"):
        read_nccl_tests(tmp_path / "binary")
