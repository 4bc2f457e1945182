"""Updates of which only a part or a rounding is pushed to the store; the rest goes with the next push.

Each server gets its own part of the update, encoded by itself: the largest numbers of ``topk`` are those of each
server's part, and of what a rank of an island sends of it. No server sends anything back for it, so a worker, or such a
rank, decides alone when to push in full: at the end, before another policy, when the guard asks for it, and where a
number is too large for the form that is sent.

The residual of gradients is a sum over steps, as a push may cover fewer of them than the one before.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plesio.policies.compression import Compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.compression.feedback import ErrorFeedback
from plesio.runtime.worker.compression.reducer import CompressionFigures, Flush
from plesio.runtime.worker.exchange.replica import all_finite


@dataclass(frozen=True, slots=True)
class PushParts:
    """An update as it is pushed.

    Attributes:
        values: The tensors in full, flat, with what was kept back before; where encoded, only their names count.
        encoded: For each server the bytes of its parameters; None where they are pushed in full.
    """

    values: Mapping[str, Tensor]
    encoded: Sequence[Tensor] | None


class CompressedPushes:
    """Encodes one worker's updates of parameters.

    Args:
        compression: One whose payload can be read by itself.
        layout: The slices of each server, as ranges of what this process has.
        rank: Another on each process; they round independently.
        of: Names of the parameters that are pushed; None: all.
    """

    exchanges = "pushes"
    """The name under which they are counted."""

    def __init__(
        self, compression: Compression, *, layout: SliceLayout, seed: int, rank: int, of: Collection[str] | None = None
    ) -> None:
        self.compression = compression
        self._servers = [
            [piece for piece in slices if piece.kind == "parameter" and (of is None or piece.name in of)]
            for slices in layout.servers
        ]
        self._sizes = [piece.stop - piece.start for pieces in self._servers for piece in pieces]
        self._ends = {piece.name: piece.stop for pieces in self._servers for piece in pieces}  # the last one's
        self._seed, self._rank = seed, rank
        limit = compression.residual_limit(max(1, sum(self._sizes)))
        self._feedback = ErrorFeedback(limit=limit) if compression.keeps_residual else None
        self._seen: set[str] = set()
        """Parameters that have been in an update."""
        self._figures = CompressionFigures()

    @property
    def kept_back(self) -> bool:
        return self._feedback is not None and self._feedback.residual_norm > 0

    @property
    def flushes(self) -> Sequence[Flush]:
        return self._figures.flushes

    @torch.no_grad()
    def take(self, update: Mapping[str, Tensor], *, clock: int, in_full: bool = False) -> PushParts:
        """Encode what is pushed of a finite update, by name; an empty one pushes what was kept back."""
        self._seen |= update.keys()
        total = self._flat(update)
        feedback = self._feedback
        guard = feedback is not None and feedback.exceeded
        if guard and feedback is not None:
            self._figures.flushes += (Flush(clock=clock, ratio=feedback.ratio, limit=feedback.limit),)
        if feedback is not None:
            total = feedback.compensate(total)
        views = iter(torch.split(total, self._sizes))
        parts = [[next(views) for _ in pieces] for pieces in self._servers]
        encoded = None if in_full or guard else self._encode(parts, update, clock=clock)
        self._count(encoded)
        if encoded is not None:
            if feedback is not None:
                feedback.keep(total)
                self._figures.worst_residual_ratio = max(self._figures.worst_residual_ratio, feedback.ratio)
            return PushParts(update, encoded)
        if feedback is not None:
            feedback.keep(None)
        return PushParts(self._by_name(parts, self._seen), None)

    def _flat(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the update in the order of the slices, in 32 bits or more; what lacks is zero."""
        flats = {name: tensor.detach().reshape(-1) for name, tensor in update.items()}
        any_flat = next(iter(flats.values()), torch.empty(0) if self._residual is None else self._residual)
        dtype = torch.promote_types(any_flat.dtype, torch.float32)
        pieces = (piece for pieces in self._servers for piece in pieces)
        return torch.cat(
            [
                piece.cut(flats[piece.name]).to(dtype) if piece.name in flats else any_flat.new_zeros(size, dtype=dtype)
                for piece, size in zip(pieces, self._sizes, strict=True)
            ]
        )

    @property
    def _residual(self) -> Tensor | None:
        return None if self._feedback is None else self._feedback.residual

    def _encode(
        self, parts: Sequence[Sequence[Tensor]], update: Mapping[str, Tensor], *, clock: int
    ) -> list[Tensor] | None:
        """Encode the slices of the update, and leave in them what is not sent; None if it cannot be sent so."""
        encoded, left = [], []
        for server, (pieces, views) in enumerate(zip(self._servers, parts, strict=True)):
            here = [view for piece, view in zip(pieces, views, strict=True) if piece.name in update]
            if not sum(map(len, here)):
                encoded.append(torch.empty(0, dtype=torch.uint8))
                continue
            flat = torch.cat(here)
            rank = self._rank * len(self._servers) + server
            codec = make_codec(self.compression, num_elements=len(flat), seed=self._seed, rank=rank)
            payload = codec.encode(flat, clock=clock)
            codec.add(payload, to=flat, clock=clock, scale=-1.0)
            if not all_finite([flat]):
                return None
            encoded.append(payload.view(torch.uint8))
            left.append((here, flat))
        for here, flat in left:
            for view, rest in zip(here, torch.split(flat, [len(view) for view in here]), strict=True):
                view.copy_(rest)
        return encoded

    def _by_name(self, parts: Sequence[Sequence[Tensor]], names: set[str]) -> dict[str, Tensor]:
        """Return flat tensors that have the slices where the layout has them."""
        found: dict[str, Tensor] = {}
        for pieces, views in zip(self._servers, parts, strict=True):
            for piece, view in zip(pieces, views, strict=True):
                if piece.name in names:
                    flat = found.setdefault(piece.name, view.new_zeros(self._ends[piece.name], dtype=piece.torch_dtype))
                    piece.cut(flat).copy_(view)
        return found

    def _count(self, encoded: Sequence[Tensor] | None) -> None:
        self._figures.num_exchanges += 1
        in_full = sum(piece.num_bytes for pieces in self._servers for piece in pieces if piece.name in self._seen)
        self._figures.uncompressed_bytes += in_full
        self._figures.sent_bytes += in_full if encoded is None else sum(len(part) for part in encoded)

    def figures(self) -> CompressionFigures:
        """Return the counts so far; bytes are those of parameters."""
        return replace(self._figures, residual_ratio=0.0 if self._feedback is None else self._feedback.ratio)
