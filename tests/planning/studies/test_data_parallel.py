import pytest

from plesio.cli.main import invoke
from plesio.core.errors import ConfigError
from plesio.planning.studies import data_parallel


def test_reference_values():
    """docs/studies/reference.md, study 1."""
    answer = data_parallel()
    assert answer.at.all_reduce_s == pytest.approx(60.9e-3, abs=0.05e-3)
    assert answer.total == pytest.approx(185.9e-3, abs=0.05e-3)
    assert answer.at.efficiency == pytest.approx(0.672, abs=0.0005)
    assert answer.at.speedup == pytest.approx(172, abs=0.5)
    assert data_parallel(bytes_per_s=50e9).at.all_reduce_s == pytest.approx(33.0e-3, abs=0.05e-3)
    nvlink = data_parallel(bytes_per_s=600e9, latency_s=1e-6)
    assert nvlink.at.all_reduce_s == pytest.approx(2.83e-3, abs=0.006e-3)


def test_what_overlaps_is_hidden_up_to_the_share_of_the_backward_pass_that_it_may():
    half = data_parallel(overlap=0.5)
    assert half.at.exposed_s == pytest.approx(data_parallel().at.exposed_s - 0.5 * 0.080)
    assert data_parallel(overlap=1.0).at.exposed_s == 0


def test_communication_overtakes_computing_where_it_says():
    slow = data_parallel(bytes_per_s=10e9)
    assert slow.overtaken_at is not None
    before = data_parallel(num_workers=slow.overtaken_at - 1, bytes_per_s=10e9)
    at = data_parallel(num_workers=slow.overtaken_at, bytes_per_s=10e9)
    assert before.at.all_reduce_s <= 0.125 < at.at.all_reduce_s
    assert data_parallel().overtaken_at is None


@pytest.mark.parametrize("inputs", [{"overlap": 1.5}, {"forward_s": -1.0}, {"num_workers": 0}, {"bytes_per_s": 0.0}])
def test_impossible_inputs_are_refused(inputs: dict[str, float]):
    with pytest.raises(ConfigError, match="write"):
        data_parallel(**inputs)  # type: ignore[arg-type]


def test_bits_for_bytes_are_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]):
    assert invoke(["study", "data-parallel", "--bandwidth", "25 Gb/s"]) == 2
    assert 'write "25 Gbit/s" (bits) or "25 GB/s" (bytes)' in capsys.readouterr().err
