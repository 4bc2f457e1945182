"""Payloads of an island's ranks, some compressed and some in full, and what the ranks are sent back."""

import pytest
import torch

from plesio.core.errors import ExchangeError
from plesio.policies.compression import parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.server.compressed_pulls import CompressedPulls
from plesio.runtime.server.payloads import Payload, values_of

LEFT, RIGHT, ALL = (4, 0, 2, 0, 2), (4, 0, 2, 2, 2), (1, 0, 2, 0, 1)
"""Two halves of the columns of [2, 4], and all of [2]."""
TENSORS = [("w", torch.arange(8.0).view(2, 4), "parameter", 0), ("x", torch.tensor([8.0, 9.0]), "parameter", 0)]
(SLICES,) = SliceLayout.of(TENSORS, num_servers=1).servers  # type: ignore[arg-type]


def test_ranks_that_compress_and_ranks_that_do_not_make_one_update():
    summed = make_codec(parse_compression("fp16"), num_elements=4, seed=0, rank=0)
    encoded = summed.encode(torch.tensor([0.0, 2.0, 8.0, 10.0]), clock=1).view(torch.uint8).numpy()
    in_full = torch.tensor([2.0, 3.0, 6.0, 7.0, 8.0, 9.0]).view(torch.uint8).numpy()
    nothing = (1, 0, 0, 0, 1)
    payloads = [Payload(encoded, [0, 1], "fp16", [LEFT, nothing]), Payload(in_full, None, None, [RIGHT, ALL])]
    found = values_of(payloads, SLICES, of="an update", num_steps=2)
    for index, (_, tensor, *_) in enumerate(TENSORS):
        assert found[index].tolist() == tensor.flatten().tolist()
    with pytest.raises(ExchangeError, match="an update has 24 bytes; its slices make 16"):
        values_of([payloads[1]._replace(blocks=[RIGHT, nothing])], SLICES, of="an update")


def test_what_ranks_hold_alike_is_encoded_once_and_what_was_left_out_comes_next():
    views = [tensor.flatten().clone() for _, tensor, *_ in TENSORS]
    pulls, held = CompressedPulls(SLICES, views), [view.clone() for view in views]
    pulls.sent_in_full(3, [0, 1])
    for view in views:
        view += torch.arange(1.0, len(view) + 1)
    parts = [[LEFT, ALL], [RIGHT, ALL]]
    for version, kept in ((1, [[0, 2, 0, 4, 0, 6, 0, 8], [0, 2]]), (2, [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2]])):
        changes = pulls.changes(3, None, "topk:0.5+chunks:2", version=version, parts=parts)
        assert changes is not None
        indices, ((left, alike), (right, again)) = changes
        assert torch.equal(alike, again)
        for payload, places in ((left, [0, 1, 4, 5]), (right, [2, 3, 6, 7])):
            codec = make_codec(parse_compression("topk:0.5+chunks:2"), num_elements=4, seed=0, rank=0)
            held[0][places] += codec.decode(payload, clock=version)
        codec = make_codec(parse_compression("topk:0.5+chunks:2"), num_elements=2, seed=0, rank=0)
        held[1] += codec.decode(alike, clock=version)
        moved = [(one - tensor.flatten()).tolist() for one, (_, tensor, *_) in zip(held, TENSORS, strict=True)]
        assert (list(indices), moved) == ([0, 1], kept)
    pulls.forget(3)
    assert pulls.changes(3, None, "topk:0.5+chunks:2", version=3, parts=parts) is None
