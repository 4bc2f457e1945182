"""The mean of the ranks' sparse gradients: every rank gets all ranks' rows, and adds them up in the order of ranks.

A sparse gradient (`torch.nn.Embedding(sparse=True)`) is a COO tensor: the places that a batch has touched, and a row of
values for each. The mean has the union of all ranks' places, which is what one process would have touched with all
their batches; an optimizer that leaves untouched rows alone (SparseAdam) therefore steps as it would there.

Ranks touch different numbers of rows, while a collective takes tensors that are alike. So there are two rounds:

    1. how many rows each rank has of each gradient, a few bytes, for which every rank waits
    2. their places and their values, padded to those of the rank that has the most; this one can run behind a step

A rank receives nnz rows of each of the n ranks, ``n · nnz · (8 + 4 · width)`` bytes for rows of float32, where a dense
mean would send about ``8 · rows · width``: it is less as long as all ranks together touch fewer than about the whole
table twice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from plesio.runtime.worker.exchange.group import Gathering, Group


class SparseMean:
    """A mean under way, which begins when it is made: by all ranks, after the first round.

    Args:
        gradients: This rank's, COO; at least one, and the same ones on all ranks.
        weight: This rank's; the ranks' weights add up to 1.
    """

    @torch.no_grad()
    def __init__(self, gradients: Sequence[Tensor], *, group: Group, weight: float) -> None:
        own = [gradient.coalesce() for gradient in gradients]
        self._like = own
        counts = torch.tensor([gradient._nnz() for gradient in own], device=own[0].device)
        self._counts: list[list[int]] = [theirs.tolist() for theirs in group.all_gather(counts).wait()]
        self._places = self._gather([one.indices().t() for one in own], range(len(own)), group=group)
        self._values: list[tuple[list[int], Gathering | None]] = []
        for dtype in dict.fromkeys(one.dtype for one in own):
            alike = [number for number, one in enumerate(own) if one.dtype == dtype]
            rows = [own[number].values() * weight for number in alike]
            self._values.append((alike, self._gather(rows, alike, group=group)))

    def _gather(self, parts: Sequence[Tensor], numbers: Sequence[int], *, group: Group) -> Gathering | None:
        """Begin to collect all ranks' rows of these gradients; None if no rank has any."""
        widths = [part.shape[1:].numel() for part in parts]
        longest = max(
            sum(counts[number] * width for number, width in zip(numbers, widths, strict=True))
            for counts in self._counts
        )
        if longest == 0:
            return None
        flat = torch.cat([part.reshape(-1) for part in parts])
        padded = flat.new_zeros(longest)
        padded[: flat.numel()] = flat
        return group.all_gather(padded)

    @torch.no_grad()
    def wait(self) -> list[Tensor]:
        """Wait for the means: coalesced, and the same to the bit on all ranks."""
        numbers = range(len(self._like))
        places = self._split(self._places, numbers, [one.indices().t() for one in self._like])
        means = list(self._like)
        for alike, gathering in self._values:
            rows = self._split(gathering, alike, [self._like[number].values() for number in alike])
            for number, theirs in zip(alike, rows, strict=True):
                means[number] = torch.sparse_coo_tensor(
                    torch.cat(places[number]).t(), torch.cat(theirs), self._like[number].shape, check_invariants=False
                ).coalesce()
        return means

    def _split(self, gathering: Gathering | None, numbers: Sequence[int], like: Sequence[Tensor]) -> list[list[Tensor]]:
        if gathering is None:
            return [[part] for part in like]  # nobody has a row, so this rank has none
        found: list[list[Tensor]] = [[] for _ in numbers]
        for counts, flat in zip(self._counts, gathering.wait(), strict=True):
            position = 0
            for rows, number, part in zip(found, numbers, like, strict=True):
                shape = (counts[number], *part.shape[1:])
                num_values = torch.Size(shape).numel()
                rows.append(flat[position : position + num_values].view(shape))
                position += num_values
        return found
