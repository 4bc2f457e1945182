"""``stdlib_lm``: a byte-level language model of the running Python's own standard library.

The corpus is the ``.py`` source below ``sysconfig.get_path("stdlib")``, without installed packages and without tests.
Files are put in the order of a hash of their relative path and read until ``corpus_bytes`` are reached, so any size is
a fair sample and a larger corpus contains a smaller one. Every tenth file is held out; a file whose bytes have been
seen already is left out, so no held-out file is a copy of a training file. Nothing is written, and each process reads
the corpus once, when it is first needed.

The bytes differ between versions of Python: compare perplexities of one version only.
"""

import functools
import hashlib
import math
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from plesio.core.errors import DataError, TaskError
from plesio.tasks.chain import Chain
from plesio.tasks.options import check_integer, check_number
from plesio.tasks.task import Task

NUM_BYTES = 256
HELD_OUT_EVERY = 10
EVALUATION_WINDOWS = 64
WARM_UP_SHARE = 0.05
FINAL_RATE_SHARE = 0.1
LEFT_OUT_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def stdlib_lm(
    *,
    context: int = 128,
    corpus_bytes: int = 4_000_000,
    width: int = 96,
    depth: int = 2,
    num_heads: int = 4,
    tied: bool = True,
    batch_size: int = 8,
    learning_rate: float = 2e-3,
    num_epochs: int = 1,
) -> Task:
    """Predict the next byte of Python source: held-out perplexity per byte, to be minimised (256 is knowing nothing).

    Args:
        context: Bytes the model sees; a sample is a window of ``context + 1`` bytes.
        corpus_bytes: Size at which reading stops, the last file being read to its end; more than there is reads all.
        width: Width of the embeddings; a multiple of ``num_heads``.
        depth: Transformer blocks.
        num_heads: Attention heads in a block.
        tied: Whether the output layer is the byte embedding; a grid needs ``false``, for it cuts between the two.
        batch_size: Windows in one step of one worker.
        learning_rate: Peak rate of AdamW; warmed up over 5 % of the steps, then a cosine down to a tenth of it.
        num_epochs: Passes over the training windows, all workers together.

    Raises:
        TaskError: An option out of its range.
    """
    for option, value in (("context", context), ("width", width), ("depth", depth), ("num_heads", num_heads)):
        check_integer(value, task="stdlib_lm", option=option)
    check_integer(corpus_bytes, task="stdlib_lm", option="corpus_bytes", minimum=100_000)
    check_number(learning_rate, task="stdlib_lm", option="learning_rate", above=0.0)
    if width % num_heads:
        raise TaskError(f'task "stdlib_lm": width = {width} is no multiple of num_heads = {num_heads}')
    if not isinstance(tied, bool):
        raise TaskError(f'task "stdlib_lm": tied = {tied!r}; write true or false')
    # parts are bound here, so that a task can be pickled for worker processes
    model = functools.partial(
        ByteTransformer, context=context, width=width, depth=depth, num_heads=num_heads, tied=tied
    )
    return Task(
        name="stdlib_lm",
        build=functools.partial(_build, model, learning_rate=learning_rate),
        train_set=functools.partial(_train_set, corpus_bytes=corpus_bytes, context=context),
        loss=_loss,
        metric=functools.partial(_perplexity, corpus_bytes=corpus_bytes, context=context),
        metric_name="perplexity",
        metric_goal="min",
        batch_size=batch_size,
        num_epochs=num_epochs,
        schedule=_warm_up_then_cosine,
        chain=Chain(layers=_layers, loss=_loss_of_logits, split=_shifted),
    )


class ByteTransformer(nn.Module):
    """A decoder-only transformer with pre-normalisation and a shared byte embedding (Radford et al. 2019).

    Args:
        width: Width of the embeddings; a multiple of ``num_heads``.
        num_heads: Attention heads in a block.
        tied: Whether the output layer is the byte embedding.
    """

    def __init__(self, *, context: int, width: int, depth: int, num_heads: int, tied: bool = True) -> None:
        super().__init__()
        self.byte_embedding = nn.Embedding(NUM_BYTES, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width=width, num_heads=num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = None if tied else nn.Linear(width, NUM_BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            assert isinstance(block, _Block)
            for layer in (block.attend, block.shrink):  # each adds to the residual stream: keep its variance near one
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [batch, length, 256] of the byte after each of ``tokens`` [batch, length]."""
        features = _embedded(tokens, self.byte_embedding, self.position_embedding)
        for block in self.blocks:
            features = block(features)
        last = self.byte_embedding if self.output is None else self.output
        logits: Tensor = F.linear(self.norm(features), last.weight)
        return logits


def _embedded(tokens: Tensor, byte_embedding: nn.Module, position_embedding: nn.Module) -> Tensor:
    features: Tensor = byte_embedding(tokens) + position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
    return features


class _Embedding(nn.Module):
    """A transformer's first layer, by itself."""

    def __init__(self, model: ByteTransformer) -> None:
        super().__init__()
        self.bytes = model.byte_embedding
        self.positions = model.position_embedding

    def forward(self, tokens: Tensor) -> Tensor:
        return _embedded(tokens, self.bytes, self.positions)


def _layers(model: nn.Module) -> nn.Sequential:
    assert isinstance(model, ByteTransformer), "as `_build` makes it"
    if model.output is None:
        raise TaskError(
            'task "stdlib_lm": its first and its last layer share weights, which a grid cuts apart; set tied = false'
        )
    return nn.Sequential(_Embedding(model), *model.blocks, nn.Sequential(model.norm, model.output))


class _Block(nn.Module):
    def __init__(self, *, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.attend = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width, bias=False)
        self.shrink = nn.Linear(4 * width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        batch, length, width = features.shape
        heads = self.project(self.norm1(features)).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        features = features + self.attend(attended.transpose(1, 2).reshape(batch, length, width))
        expanded: Tensor = self.shrink(F.gelu(self.grow(self.norm2(features))))
        return features + expanded


def _build(
    model: functools.partial[ByteTransformer], seed: int, *, learning_rate: float
) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # `Task` seeds torch before it calls
    built = model()
    matrices = [parameter for parameter in built.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in built.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return built, torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def _warm_up_then_cosine(optimizer: torch.optim.Optimizer, num_steps: int) -> LambdaLR:
    """Scale the peak rate: from 0 to 1 over the first 5 % of the steps, then half a cosine down to a tenth."""
    warm_up = max(1, round(WARM_UP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1.0, (step - warm_up) / max(1, num_steps - warm_up))
        return FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The two parts as bytes [length] of dtype uint8, and the files each was made of."""

    train: Tensor
    held_out: Tensor
    train_files: tuple[Path, ...]
    held_out_files: tuple[Path, ...]


@functools.cache
def read_corpus(corpus_bytes: int, *, folder: Path | None = None) -> Corpus:
    """Read the corpus of the module's theory; ``folder`` is the standard library's unless given."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    seen: set[bytes] = set()
    texts: tuple[list[bytes], list[bytes]] = ([], [])
    files: tuple[list[Path], list[Path]] = ([], [])
    size = 0
    for path in _source_files(folder):
        text = path.read_bytes()
        digest = hashlib.sha256(text).digest()
        if not text or digest in seen:
            continue
        part = 1 if len(seen) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else 0
        seen.add(digest)
        texts[part].append(text)
        files[part].append(path)
        size += len(text)
        if size >= corpus_bytes and texts[1]:
            break
    if not texts[1]:
        raise DataError(
            f"stdlib_lm: {folder} has {len(seen)} Python source files, fewer than {HELD_OUT_EVERY}; "
            "this Python keeps its standard library elsewhere (zipped?): use one that has it as files"
        )
    train, held_out = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in texts)
    return Corpus(train=train, held_out=held_out, train_files=tuple(files[0]), held_out_files=tuple(files[1]))


def _source_files(folder: Path) -> list[Path]:
    """List Python files below ``folder`` by a hash of their relative path: a fixed order, and not alphabetical."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS]  # not even walked: they are large
        found += [Path(parent, name) for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: hashlib.sha256(path.relative_to(folder).as_posix().encode()).digest())


def _windows(part: Tensor, *, context: int) -> Tensor:
    """Return all windows of ``context + 1`` bytes, as a view: the last byte of one is the first of the next."""
    if len(part) <= context:
        raise TaskError(
            f'task "stdlib_lm": context = {context} is more than the {len(part)} bytes of one of the two parts; '
            "write a smaller context or a larger corpus_bytes"
        )
    return part.unfold(0, context + 1, context)


def _train_set(*, corpus_bytes: int, context: int) -> TensorDataset:
    return TensorDataset(_windows(read_corpus(corpus_bytes).train, context=context))


def _shifted(batch: Any) -> tuple[Tensor, Tensor]:
    """Return all bytes of the windows but the last, and for each the byte after it."""
    tokens = batch[0].long()
    return tokens[:, :-1], tokens[:, 1:]


def _loss_of_logits(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def _loss(model: nn.Module, batch: Any) -> Tensor:
    tokens, wanted = _shifted(batch)
    return _loss_of_logits(model(tokens), wanted)


def _perplexity(model: nn.Module, *, corpus_bytes: int, context: int) -> float:
    windows = _windows(read_corpus(corpus_bytes).held_out, context=context)
    chosen = torch.linspace(0, len(windows) - 1, min(EVALUATION_WINDOWS, len(windows))).long()
    device = next(model.parameters()).device
    return _loss(model, [windows[chosen].to(device)]).exp().item()  # infinite, not an error, when it diverged
