"""An exercise for each study: a question with a number, and the reason that its answer has.

The text's exercises ask a reader to predict before simulating. Here a study asks: the question has the study's own
inputs in it, the reader writes a number, and the study's answer is set beside it with the reason.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plesio.core.errors import ConfigError
from plesio.core.units import format_seconds, parse_seconds
from plesio_planning.studies.catalogue import find_study
from plesio_planning.studies.study import Asked

__all__ = ["EXERCISES", "Exercise"]

Unit = Literal["time", "%", "number"]

_RIGHT, _CLOSE = 1.1, 2.0
"""Factors up to which a prediction is right, and close."""
_RIGHT_POINTS, _CLOSE_POINTS = 3.0, 10.0
"""The same of a percentage, in points."""
_LARGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """What a study asks a reader.

    Attributes:
        question: With the names of inputs in braces.
        unit: Unit of the answer.
        value: The number, of a study's answer: seconds, per cent or a number.
        reason: Why it is so.
    """

    question: str
    unit: Unit
    value: Callable[[Any], float]
    reason: str

    def ask(self, asked: Asked) -> str:
        """The question, with the study's inputs."""
        inputs = {one.name: one.format(asked.inputs[one.name]) for one in find_study(asked.study).inputs()}
        return self.question.format_map(inputs)

    def hint(self) -> str:
        """How a prediction is written.

        >>> EXERCISES["pipeline"].hint()
        'in per cent, as in 20'
        """
        return {"time": "with a unit, as in 120 ms", "%": "in per cent, as in 20", "number": "as in 1.5"}[self.unit]

    def read(self, text: str) -> float | None:
        """The number that somebody predicts; None where nothing is written.

        >>> EXERCISES["pipeline"].read("20 %"), EXERCISES["overlap"].read("5 ms"), EXERCISES["overlap"].read("")
        (20.0, 0.005, None)

        Raises:
            ConfigError: It is no number of this unit.
        """
        text = text.strip()
        if not text:
            return None
        if self.unit == "time":
            return parse_seconds(text)
        try:
            value = float(text.removesuffix("%").removesuffix("x"))
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ConfigError(f'"{text}" is no prediction; write a number of 0 or more, {self.hint()}')
        return value

    def judge(self, predicted: float | None, asked: Asked) -> str:
        """The answer, and how far a prediction is from it."""
        value = self.value(asked.answer)
        shown = f"It is {self._format(value)}."
        if predicted is None:
            return shown
        if self.unit == "%":
            apart = abs(predicted - value)
            grade = _grade(apart, right=_RIGHT_POINTS, close=_CLOSE_POINTS)
            return f"{shown} You said {self._format(predicted)}: {grade}, {apart:.1f} points off."
        low, high = sorted((predicted, value))
        times = high / low if low > 0 else (1.0 if high == low else math.inf)
        grade = _grade(times, right=_RIGHT, close=_CLOSE)
        return f"{shown} You said {self._format(predicted)}: {grade}, {times:.3g} times apart."

    def _format(self, value: float) -> str:
        if self.unit == "time":
            return format_seconds(value)
        if self.unit == "%":
            return f"{value:.1f} %"
        return f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _grade(apart: float, *, right: float, close: float) -> str:
    return "right" if apart <= right else "close" if apart <= close else "far off"


def _saved_by_inverse(answer: Any) -> float:
    asked = answer.tuned[0].staleness
    (inverse,) = (one for one in answer.tuned if (one.staleness, one.weighting) == (asked, "inverse"))
    return float(100 * inverse.saved)


EXERCISES: Mapping[str, Exercise] = {
    "data-parallel": Exercise(
        question="{num_workers} workers compute for {forward_s} and {backward_s} and all-reduce {gradient_bytes} by a "
        "{algorithm} at {bytes_per_s}. Which share of an iteration do they compute?",
        unit="%",
        value=lambda answer: 100 * answer.at.efficiency,
        reason="A ring sends each gradient nearly twice over every link, however many workers there are, and pays the "
        "latency of 2(N-1) messages. Computing does not get shorter with more workers, since each has its own batch.",
    ),
    "stragglers": Exercise(
        question="Steps of {num_workers} workers vary ({distribution}, coefficient of variation {cv}). How many times "
        "the mean step does a barrier wait for?",
        unit="number",
        value=lambda answer: answer.cost,
        reason="A barrier waits for the largest of N draws, not for a typical one: mean over E[max] is the efficiency. "
        "The more workers, the further out in the tail the slowest is.",
    ),
    "bounded-staleness": Exercise(
        question="Gradients are {stalenesses} updates late, the condition number is {condition_number}. How many times "
        "as many iterations does the largest staleness take as none, each with its best step?",
        unit="number",
        value=lambda answer: answer.total / answer.points[0].best_iterations,
        reason="The largest stable step is 2 sin(π / (2(2τ+1))) / L, which falls as 1/τ, and iterations are as many as "
        "steps are short. With one tiny step for all there would be no penalty.",
    ),
    "collectives": Exercise(
        question="How long does the fastest all-reduce of {message_bytes} over {num_ranks} ranks take at {bytes_per_s} "
        "with {latency_s} a message?",
        unit="time",
        value=lambda answer: answer.total,
        reason="A ring pays 2(n-1) latencies for the least bytes, a tree 2 log n latencies for log n times the bytes; "
        "halving-doubling and two levels have few latencies and few bytes.",
    ),
    "pipeline": Exercise(
        question="{pp} stages run {num_micro_batches} micro-batches ({schedule}). Which share of the time do "
        "they wait?",
        unit="%",
        value=lambda answer: 100 * answer.at.bubble,
        reason="With GPipe and 1F1B the bubble is (p-1)/(m+p-1): each stage waits for the time of p-1 micro-batches "
        "while the pipeline fills and drains. Twice as many micro-batches as stages leave about 30 %; interleaving "
        "divides p-1 by v.",
    ),
    "compression": Exercise(
        question="At {bytes_per_s} a worker computes for {compute_s} and sends {gradient_bytes}. How many times as "
        "fast as sending everything is the best of the compressions at the target?",
        unit="number",
        value=lambda answer: answer.dense.total_s / answer.best.total_s,
        reason="A compression wins what it saves in bytes and loses what it adds in iterations; error feedback is what "
        "keeps the iterations few. On a fast network only the second is left.",
    ),
    "local-sgd": Exercise(
        question="A step takes {compute_s} and an exchange {exchange_s}. How many local steps between exchanges "
        "(of {periods}) are at the target first?",
        unit="number",
        value=lambda answer: answer.best.period,
        reason="K* = sqrt(Tm / (c Tc)), where each local step costs c more iterations. c is a property of the problem: "
        "with equal Hessians it is 0, and there is no reason to exchange often.",
    ),
    "load-balancing": Exercise(
        question="{num_workers} workers have speeds that are {distribution} (uniform: from {low} to {high}; lognormal: "
        "with a coefficient of variation of {cv}). How many times as long do equal shares take as shares in proportion "
        "to the speeds?",
        unit="number",
        value=lambda answer: answer.gain.ratio,
        reason="Equal shares take as long as the slowest worker, proportional ones as long as the mean speed allows: "
        "the ratio is the mean speed over the smallest of N.",
    ),
    "loss-scaling": Exercise(
        question="A dynamic loss scale is doubled after {growth_interval} steps without an overflow. One step in how "
        "many is skipped, once it has found its range?",
        unit="number",
        value=lambda answer: 1 / run.steady if (run := answer.runs["by interval"]).steady else math.inf,
        reason="At the top of its range every doubling overflows, is skipped and undone: one step in an interval and "
        "one more, whatever the gradients are.",
    ),
    "overlap": Exercise(
        question="{num_layers} layers are ready one after another within {backward_s}, {gradient_bytes} in all, at "
        "{bytes_per_s} over {num_workers} workers. How long after the backward pass is all added up, with the best "
        "bucket size?",
        unit="time",
        value=lambda answer: answer.best.exposed_s,
        reason="Nothing hides the all-reduce of the bucket that is ready last. Smaller buckets make it shorter until "
        "their latencies take longer than the layers that hide them.",
    ),
    "parameter-server": Exercise(
        question="{num_workers} workers push to and pull from {num_servers} servers. How many times as long does that "
        "take as a ring all-reduce?",
        unit="number",
        value=lambda answer: answer.model.server_s / answer.model.ring_s,
        reason="A server's link carries N/S gradients each way, a ring's less than one each way: the ratio is N/S, and "
        "as many servers as workers tie with the ring.",
    ),
    "mixture-of-experts": Exercise(
        question="Tokens like {num_experts} experts by Zipf's law with an exponent of {skew}. How many times the mean "
        "does the fullest expert get?",
        unit="number",
        value=lambda answer: answer.at.load,
        reason="The first of E experts has 1/(1 + 1/2^s + ... + 1/E^s) of the tokens, E times which is its load; an "
        "all-to-all takes as long as the busiest device.",
    ),
    "staleness-weighting": Exercise(
        question="Staleness is even from 0 to {max_staleness}. Which share of the iterations does weighting by 1/(1+τ) "
        "save, if it and unweighted updates both have their best step?",
        unit="%",
        value=_saved_by_inverse,
        reason="The few stale updates are what forbids a large step; counting them less allows it again. Where all are "
        "equally stale a weighting is a smaller step by another name and saves nothing.",
    ),
    "checkpointing": Exercise(
        question="Saving takes {checkpoint_s}, and failures are {cluster_mtbf_s} apart on average. How much work "
        "should there be between two states?",
        unit="time",
        value=lambda answer: answer.best_s,
        reason="Saving costs C/I of the time and a failure undoes I/2: the sum is least at about sqrt(2 C M), which is "
        "Young's rule.",
    ),
    "batch-scaling": Exercise(
        question="A gradient's noise scale is {noise_scale} at the start, of a loss that goes down to {target} of the "
        "first. At which batch does it take twice as many steps as it must?",
        unit="number",
        value=lambda answer: answer.critical_batch,
        reason="Steps are S_min (1 + B_crit/B), with the mean of the noise scale over the run for B_crit: it grows as "
        "the gradient shrinks, so it is several times what it was at the start.",
    ),
    "consistency": Exercise(
        question="An exchange takes {ratio} steps, steps vary by {cv}, and one worker is {slowdown} times slower. How "
        "many times as fast as BSP is the fastest of BSP, local SGD, SSP and asynchronous updates?",
        unit="number",
        value=lambda answer: answer.at.gain,
        reason="BSP pays every exchange and the slowest of every step. Local steps save exchanges and slack saves "
        "waiting; each costs iterations for what it saves.",
    ),
    "tensor-parallel": Exercise(
        question="Layers of {hidden_size} dimensions are cut over {tp} devices at {local_bytes_per_s}. Which share of "
        "an iteration do they communicate?",
        unit="%",
        value=lambda answer: 100 * answer.at.share,
        reason="Each layer takes four all-reduces of batch x sequence x hidden numbers, whatever its weights are, and "
        "computing falls with the devices while that does not.",
    ),
    "hierarchical": Exercise(
        question="{num_hosts} hosts have {ranks_per_host} ranks and {nics_per_host} NICs each. How many times as fast "
        "as one flat ring is an all-reduce of {message_bytes} in two levels?",
        unit="number",
        value=lambda answer: answer.times_s["flat ring"] / answer.total,
        reason="A flat ring uses one NIC of each host at a time; in two levels all of a host's NICs carry a part. With "
        "one NIC a host nearly all of the gain is gone.",
    ),
    "determinism": Exercise(
        question="{num_tensors} FP32 tensors are added up forward, and then backward. Which share of the sums differs?",
        unit="%",
        value=lambda answer: answer.total,
        reason="Every addition rounds, and another order rounds elsewhere: with many ranks hardly a sum comes out the "
        "same, though each differs in its last digits only.",
    ),
    "time-to-train": Exercise(
        question="How long does a run of {tokens} tokens take on {cluster}, with its failures and states (pace: "
        "{pace}; model: {num_parameters} parameters at an MFU of {mfu}, or {model})?",
        unit="time",
        value=lambda answer: answer.total,
        reason="Work is 6 FLOPs for each parameter and token, over devices x peak x MFU. With the best interval "
        "failures and states add a percent or so, as long as the machine is not very large.",
    ),
    "goodput": Exercise(
        question="Each of {num_devices} devices fails every {device_mtbf_s} in the mean. Which share of its time does "
        "an elastic run work, whose replicas have {replica_devices} devices and wait {reconfigure_s} when one leaves?",
        unit="%",
        value=lambda answer: 100 * next(way.share for way in answer.ways if way.name == "elastic"),
        reason="The machine fails N times as often as a device. An elastic run goes on with the other replicas after a "
        "short wait for all, so it loses that wait for every failure, and the replica that is being repaired.",
    ),
}
"""By name of the study."""
