"""The ranks' programs in the process tests."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

import plesio
from plesio.policies.compression import PowerSgd, parse_compression
from plesio.runtime.worker.compression import CompressedReducer
from plesio.runtime.worker.compression.comm_hooks import ddp_comm_hook
from plesio.runtime.worker.environment import WorkerPlace

SHAPES = [(16, 12), (5,), (20, 30)]
SIZE = 16 * 12 + 5 + 600
CLOCKS = 40
CLOCKS_ALIKE = 10
"""Clocks up to which results agree: on noise, the power method enlarges small differences at every exchange."""


def update(rank: int, clock: int) -> Tensor:
    """Ranks differ always in the same way, as those do whose data differ, and by noise."""
    generator = torch.Generator().manual_seed(1000 * clock + rank)
    steady = torch.Generator().manual_seed(rank)
    return torch.randn(SIZE, generator=generator) + torch.randn(SIZE, generator=steady)


def collect(*, texts: list[str]) -> dict[str, Any]:
    """Collect the results of groups and reducers in real processes."""
    place = WorkerPlace.from_environment()
    assert place is not None
    torch.set_num_threads(1)
    with plesio.Job(place) as job:
        group = job.group("cpu")
        parts = torch.arange(5, dtype=torch.uint8) + 10 * place.rank
        gathering = group.all_gather(parts)
        found: dict[str, Any] = {"gathered": [part.tolist() for part in gathering.wait()]}
        for text in texts:
            reducer = CompressedReducer(group, parse_compression(text), shapes=SHAPES, seed=5)
            means = [reducer.begin(update(place.rank, clock), clock).wait() for clock in range(3)]
            found[text] = [mean.tolist() for mean in means], reducer.figures().sent_bytes
        found["torch"] = _beside_torch(group)
        found["hooks"] = {text: _by_hook(text, group, rank=place.rank).tolist() for text in ("fp16", "bf16")}
        return found


class _Bucket:
    """One bucket of a DDP, as its hooks see it."""

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat

    def buffer(self) -> Tensor:
        return self._flat

    def set_buffer(self, flat: Tensor) -> None:
        self._flat = flat

    def gradients(self) -> list[Tensor]:
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        return [part.view(shape) for part, shape in zip(self._flat.split(sizes), SHAPES, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def _beside_torch(group: Any) -> dict[str, float]:
    """How far our PowerSGD and torch's come apart at first, begun alike, and both residuals at last."""
    reducer = CompressedReducer(group, PowerSgd(rank=2), shapes=SHAPES, seed=5)
    starts = reducer._mean.factoring._starts  # type: ignore[attr-defined]
    state = PowerSGDState(
        process_group=group.process_group,
        matrix_approximation_rank=2,
        start_powerSGD_iter=2,
        min_compression_rate=1,  # type: ignore[arg-type]
    )
    state.iter = 2
    state.q_memory_dict[0] = torch.cat([start.reshape(-1) for start in starts])
    state.p_memory_dict[0] = torch.zeros(2 * (16 + 20))
    apart = 0.0
    for clock in range(CLOCKS):
        own = update(group.rank, clock)
        mean = reducer.begin(own, clock).wait()
        theirs = powerSGD_hook(state, _Bucket(own.clone())).wait()  # type: ignore[arg-type]
        if clock < CLOCKS_ALIKE:
            apart = max(apart, float((mean - theirs).abs().max()))
    residual = reducer.residual
    assert residual is not None
    return {
        "apart": apart,
        "ours": float(residual.norm()) * group.size,  # it is of shares
        "theirs": float(state.error_dict[0].norm()),
        "update": float(update(group.rank, 0).norm()),
    }


def _by_hook(text: str, group: Any, *, rank: int) -> Tensor:
    hook = ddp_comm_hook(parse_compression(text))
    assert hook is not None
    process_group: dist.ProcessGroup = group.process_group
    return hook(process_group, _Bucket(update(rank, 0))).wait()
