import pytest

from plesio.core.errors import ConfigError
from plesio_planning.activations import Recomputation, boundary_bytes, layer_activation_bytes, recomputed_share

# heads, hidden, layers, micro-batch, stages, chunks; GiB with everything kept, and with selective recomputation and
# sequence parallelism
PUBLISHED = {
    "22B": (64, 6144, 48, 4, 1, 1, 59.25, 9.56),
    "175B": (96, 12288, 96, 1, 8, 3, 66.84, 12.35),
    "530B": (128, 20480, 105, 1, 35, 3, 114.02, 23.08),
    "1T": (160, 25600, 128, 1, 64, 1, 131.25, 26.56),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_memory(model: str):
    """Korthikanti et al. 2022, figure 1, t=8, s=2048."""
    heads, hidden, layers, batch, stages, chunks, without, selective = PUBLISHED[model]

    def layers_gib(recomputation: Recomputation, *, sequence_parallel: bool) -> float:
        layer = layer_activation_bytes(
            hidden=hidden,
            num_heads=heads,
            sequence=2048,
            batch=batch,
            recomputation=recomputation,
            tensor_parallel=8,
            sequence_parallel=sequence_parallel,
        )
        # under 1F1B a device of the first stage holds as many micro-batches as make up all layers
        in_flight = 1.0 if chunks == 1 else 1 + (stages - 1) / (stages * chunks)
        return layer * layers * in_flight / 2**30

    assert layers_gib("none", sequence_parallel=False) == pytest.approx(without, abs=0.006)
    assert layers_gib("selective", sequence_parallel=True) == pytest.approx(selective, abs=0.006)


def test_without_dropout_there_are_no_masks():
    kept = [layer_activation_bytes(hidden=64, num_heads=4, sequence=8, dropout=dropout) for dropout in (True, False)]
    assert kept[0] - kept[1] == 2 * 8 * 64 + 3 * 4 * 8 * 8  # two masks of the layer, what was made of the softmax


def test_gpt_3_keeps_2_87_gb_a_layer():
    """studies/reference.md, study 5."""
    layer = layer_activation_bytes(hidden=12288, num_heads=96, sequence=2048)
    assert layer == 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288)
    assert layer == pytest.approx(2.87e9, abs=0.005e9)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_table_2(devices: int):
    def per_sbh(recomputation: Recomputation, *, sequence_parallel: bool = False) -> float:
        layer = layer_activation_bytes(
            hidden=12288,
            num_heads=96,
            sequence=2048,
            recomputation=recomputation,
            tensor_parallel=devices,
            sequence_parallel=sequence_parallel,
        )
        return layer / (2048 * 12288)

    assert per_sbh("none") == pytest.approx(10 + 24 / devices + 80 / devices)
    assert per_sbh("none", sequence_parallel=True) == pytest.approx(114 / devices)
    assert per_sbh("selective") == pytest.approx(10 + 24 / devices)
    assert per_sbh("selective", sequence_parallel=True) == pytest.approx(34 / devices)
    assert per_sbh("full") == 2


def test_what_is_computed_again():
    assert recomputed_share("none", hidden=12288, sequence=2048) == 0
    assert recomputed_share("full", hidden=12288, sequence=2048) == 1
    assert recomputed_share("selective", hidden=12288, sequence=2048) == pytest.approx(1 / 37)


def test_sequence_parallel_devices_send_their_part():
    whole = boundary_bytes(hidden=1024, sequence=512, tensor_parallel=4)
    assert boundary_bytes(hidden=1024, sequence=512, tensor_parallel=4, sequence_parallel=True) == whole / 4


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="hidden = 0; write 1"):
        layer_activation_bytes(hidden=0, num_heads=1, sequence=1)
    with pytest.raises(ConfigError, match="sequence parallelism of one device; write"):
        layer_activation_bytes(hidden=8, num_heads=1, sequence=1, sequence_parallel=True)
