"""Compressions side by side on real gradients: how much is sent, how much is lost, how long it takes, what is learned.

- Codecs: the gradients of three models in training (the digits CNN, the default byte transformer, and one of 5 million
  parameters), each of one rank's batch. For each compression: the bits of a number, the error ``‖x - C(x)‖ / ‖x‖`` of
  one gradient by itself, and the residual's norm over the gradients' average norm after they have all been sent with
  feedback. Times are processor times of encoding and decoding, for a megabyte of float32, one thread; compressions
  take turns, each round in another order; ``none`` is a copy.
- Training: digits by four virtual ranks that send their gradients through a `CompressedReducer`, everything else equal.

    python benchmarks/adaptive/compression.py [--rounds 15] [--seeds 3] [--quick]

Prints tables and writes benchmarks/results/compression.json.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plesio.cost.cluster import parse_cluster
from plesio.policies.compression import Compression, NoCompression, PowerSgd, parse_compression
from plesio.runtime.worker.compression import CompressedReducer, CompressionFigures, ErrorFeedback, make_codec
from plesio.runtime.worker.compression.power_sgd import Factoring
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import Task, load_task
from plesio.tasks.task import take_batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import Spread, print_table, print_verdict, save

TEXTS = ("none", "fp16", "bf16", "qsgd:8", "qsgd:4", "topk:0.05", "topk:0.01", "topk:0.001", "randk:0.05", "randk:0.01",
         "powersgd:1", "powersgd:2", "powersgd:4")  # fmt: skip
USUAL = ("fp16", "bf16", "qsgd:8", "qsgd:4", "topk:0.01", "randk:0.05", "powersgd:2")
"""The compressions that one would try first."""
TRAINED = (*TEXTS, "qsgd:4+feedback", "topk:0.01+no_feedback", "randk:0.01+no_feedback", "powersgd:2+no_feedback")
MODELS: dict[str, dict[str, Any]] = {
    "digits": {},
    "stdlib_lm": {},
    "stdlib_lm, 5 million": {"width": 320, "depth": 4, "num_heads": 5},
}
NUM_STEPS = {"digits": 200, "stdlib_lm": 60, "stdlib_lm, 5 million": 12}
"""Steps of training before and while gradients are taken, one every step of the second half."""
NUM_RANKS = 4
MB = 1e6


def gradients_of(task: Task, *, num_steps: int) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """Return the flat gradients of the second half of ``num_steps`` steps, and their tensors' shapes."""
    model, optimizer = task.build(0)
    parameters = list(model.parameters())
    dataset: Any = task.train_set()
    order = torch.Generator().manual_seed(0)
    found = []
    for step in range(num_steps):
        chosen = torch.randint(len(dataset), (task.batch_size,), generator=order).tolist()
        optimizer.zero_grad()
        task.loss(model, take_batch(dataset, chosen)).backward()
        if step >= num_steps // 2:
            found.append(flat_gradient(parameters))
        optimizer.step()
    return found, [tuple(parameter.shape) for parameter in parameters]


def flat_gradient(parameters: list[torch.nn.Parameter]) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])


class Both:
    """Encoding and decoding of one compression, whatever its payloads are."""

    def __init__(self, compression: Compression, *, shapes: list[tuple[int, ...]]) -> None:
        self.num_elements = sum(math.prod(shape) for shape in shapes)
        self.encode: Callable[[Tensor, int], Any]
        self.decode: Callable[[Any, int], Tensor]
        match compression:
            case NoCompression():
                self.encode, self.decode = lambda update, _: update.clone(), lambda payload, _: payload.clone()
            case PowerSgd():
                self._factoring = Factoring(compression, shapes=shapes, seed=0)
                self.encode, self.decode = self._factor, self._multiply
            case _:
                codec = make_codec(compression, num_elements=self.num_elements, seed=0, rank=0)
                self.encode = lambda update, clock: codec.encode(update, clock=clock)
                self.decode = lambda payload, clock: codec.decode(payload, clock=clock)

    def _factor(self, update: Tensor, _: int) -> tuple[Tensor, list[Tensor], Tensor]:
        first = self._factoring.first(update)
        bases = self._factoring.bases(first)
        second = self._factoring.second(update, bases)
        self._factoring.begin_next_at(second)
        return first, bases, second

    def _multiply(self, payload: tuple[Tensor, list[Tensor], Tensor], _: int) -> Tensor:
        decoded = torch.zeros(self.num_elements)
        self._factoring.add(*payload, to=decoded)
        return decoded


def error_of(text: str, gradients: list[Tensor], *, shapes: list[tuple[int, ...]]) -> float:
    """Mean relative error of single gradients."""
    both = Both(parse_compression(text), shapes=shapes)
    errors = [
        float((gradient - both.decode(both.encode(gradient, clock), clock)).norm() / gradient.norm())
        for clock, gradient in enumerate(gradients)
    ]
    return statistics.fmean(errors)


def residual_of(text: str, gradients: list[Tensor], *, shapes: list[tuple[int, ...]]) -> tuple[float, float]:
    """Residual by the gradients' average norm after all of them, sent with feedback; and the guard's limit."""
    compression = parse_compression(text)
    if text == "none":
        return 0.0, math.inf
    both = Both(compression, shapes=shapes)
    feedback = ErrorFeedback(limit=compression.residual_limit(shapes))
    for clock, gradient in enumerate(gradients):
        compensated = feedback.compensate(gradient.clone())
        feedback.keep(compensated - both.decode(both.encode(compensated, clock), clock))
    return feedback.ratio, feedback.limit


def times_of(gradients: list[Tensor], *, shapes: list[tuple[int, ...]], rounds: int) -> dict[str, dict[str, Spread]]:
    """Seconds of encoding and of decoding for a megabyte of gradient."""
    all_both = {text: Both(parse_compression(text), shapes=shapes) for text in TEXTS}
    megabytes = 4 * len(gradients[0]) / MB
    repeats = max(1, round(1 / megabytes))
    encode_s: dict[str, list[float]] = {text: [] for text in TEXTS}
    decode_s: dict[str, list[float]] = {text: [] for text in TEXTS}
    for number in range(rounds + 1):
        texts = TEXTS[number % len(TEXTS) :] + TEXTS[: number % len(TEXTS)]
        for text in texts if number % 2 else reversed(texts):
            both, gradient = all_both[text], gradients[number % len(gradients)]
            started_s = time.process_time()
            for _ in range(repeats):
                payload = both.encode(gradient, number)
            encoded_s = time.process_time()
            for _ in range(repeats):
                both.decode(payload, number)
            ended_s = time.process_time()
            if number:  # the first warms up
                encode_s[text].append((encoded_s - started_s) / repeats / megabytes)
                decode_s[text].append((ended_s - encoded_s) / repeats / megabytes)
    return {text: {"encode": Spread(encode_s[text]), "decode": Spread(decode_s[text])} for text in TEXTS}


def measure_codecs(name: str, *, rounds: int, quick: bool) -> dict[str, Any]:
    task = load_task(name.partition(",")[0], **MODELS[name])
    gradients, shapes = gradients_of(task, num_steps=6 if quick else NUM_STEPS[name])
    times = times_of(gradients, shapes=shapes, rounds=rounds)
    number = len(gradients[0])
    results: dict[str, Any] = {}
    for text in TEXTS:
        compression = parse_compression(text)
        ratio, limit = residual_of(text, gradients, shapes=shapes)
        results[text] = {
            "bits_per_number": compression.payload_bits(shapes) / number,
            "sent_bytes": {n: compression.sent_bytes(shapes, num_ranks=n) for n in (2, 4, 8, 16, 64)},
            "relative_error": error_of(text, gradients, shapes=shapes),
            "residual_ratio": ratio,
            "residual_limit": limit if math.isfinite(limit) else None,
            "encode_s_per_mb": times[text]["encode"],
            "decode_s_per_mb": times[text]["decode"],
        }
    rows = [
        [
            text,
            f"{row['bits_per_number']:.2f}",
            f"{32 / row['bits_per_number']:.1f}",
            f"{results['none']['sent_bytes'][NUM_RANKS] / row['sent_bytes'][NUM_RANKS]:.1f}",
            f"{row['relative_error']:.2g}",
            f"{row['residual_ratio']:.2g}",
            row["encode_s_per_mb"].text(".2f", scale=1e3),
            row["decode_s_per_mb"].text(".2f", scale=1e3),
        ]
        for text, row in results.items()
    ]
    columns = ["", "bits", "fewer", f"of {NUM_RANKS} ranks", "error", "residual", "encode ms/MB", "decode ms/MB"]
    print_table(f"{name}: {number:,} numbers, {len(gradients)} gradients", columns=columns, rows=rows)
    return {"num_elements": number, "num_gradients": len(gradients), "compressions": results}


def batches(num_samples: int, *, batch_size: int, num_epochs: int, seed: int, rank: int) -> Iterator[list[int]]:
    """One rank's batches."""
    order = torch.Generator().manual_seed(seed)
    together = NUM_RANKS * batch_size
    for _ in range(num_epochs):
        shuffled = torch.randperm(num_samples, generator=order).tolist()
        for begin in range(rank * batch_size, num_samples // together * together, together):
            yield shuffled[begin : begin + batch_size]


def train(text: str, *, seed: int, num_epochs: int) -> tuple[float, CompressionFigures]:
    """Train, and return the final accuracy on digits, and rank 0's figures."""
    task = load_task("digits", num_epochs=num_epochs)

    def main(job: VirtualJob) -> tuple[float, CompressionFigures]:
        model, optimizer = task.build(seed)
        parameters = list(model.parameters())
        shapes = [tuple(parameter.shape) for parameter in parameters]
        reducer = CompressedReducer(job.group("cpu"), parse_compression(text), shapes=shapes, seed=seed)
        dataset: Any = task.train_set()
        own = batches(len(dataset), batch_size=task.batch_size, num_epochs=num_epochs, seed=seed, rank=job.place.rank)
        for clock, batch in enumerate(own):
            task.loss(model, take_batch(dataset, batch)).backward()
            mean = reducer.begin(flat_gradient(parameters), clock).wait()
            for parameter, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
            optimizer.zero_grad()
        return task.metric(model), reducer.figures()

    first, *_ = simulate(main, num_workers=NUM_RANKS, cluster=parse_cluster("4x1gbe"), seed=seed).values()
    assert first is not None
    return first


def measure_training(*, num_seeds: int, num_epochs: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for text in TRAINED:
        runs = [train(text, seed=seed, num_epochs=num_epochs) for seed in range(num_seeds)]
        accuracies = [accuracy for accuracy, _ in runs]
        results[text] = {
            "accuracy": accuracies,
            "mean": statistics.fmean(accuracies),
            "deviation": statistics.stdev(accuracies) if num_seeds > 1 else 0.0,
            "ratio": runs[0][1].ratio,
            "worst_residual_ratio": max(figures.worst_residual_ratio for _, figures in runs),
            "num_flushes": sum(len(figures.flushes) for _, figures in runs),
            "num_exchanges": sum(figures.num_exchanges for _, figures in runs),
        }
    rows = [
        [
            text,
            f"{row['ratio']:.1f}",
            f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f} %",
            f"{100 * min(row['accuracy']):.1f} %",
            f"{row['worst_residual_ratio']:.2g}",
            f"{row['num_flushes']} of {row['num_exchanges']}",
        ]
        for text, row in results.items()
    ]
    columns = ["", "fewer bytes", "accuracy", "worst seed", "worst residual", "flushes"]
    print_table(f"digits, {NUM_RANKS} ranks, {num_seeds} seeds", columns=columns, rows=rows)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of timing")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each compression")
    parser.add_argument("--quick", action="store_true", help="does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds, num_seeds = (2, 1) if arguments.quick else (arguments.rounds, arguments.seeds)
    num_epochs = 1 if arguments.quick else 16
    names = list(MODELS)[:1] if arguments.quick else list(MODELS)
    codecs = {name: measure_codecs(name, rounds=rounds, quick=arguments.quick) for name in names}
    training = measure_training(num_seeds=num_seeds, num_epochs=num_epochs)
    met = min(training[text]["mean"] for text in USUAL) >= training["none"]["mean"] - 0.01
    print_verdict(f"digits is learned within 1 point of no compression with {', '.join(USUAL)}", met=met)
    settings = {"rounds": rounds, "seeds": num_seeds, "ranks": NUM_RANKS, "epochs": num_epochs, "steps": NUM_STEPS}
    if not arguments.quick:
        save("compression", settings=settings, results={"codecs": codecs, "training": training}, met=met)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
