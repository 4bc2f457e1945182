"""Reads a PyTorch profiler trace (Kineto; ``torch.profiler``, ``export_chrome_trace``): steps, collectives, overlap.

Contents of a trace that are read:

- ``ProfilerStep#N`` on the CPU, from one ``profiler.step()`` to the next: the step times. With a GPU they are right if
  the CPU waits for it now and then. The same name among the GPU's annotations is not taken.
- NCCL: kernels ``ncclDevKernel_AllReduce_...`` last as long as the communication. Their arguments say what was sent, or
  in older traces those of the ``record_param_comms`` with the same ``External id``. An annotation of the CPU
  (``nccl:all_reduce``, ``record_param_comms``) lasts as long as the launch, and is no communication time.
- Gloo: ``gloo:all_reduce``, in the thread that does the work. It has a size only if the profiler was given
  ``record_shapes=True``, and its ranks only if all process groups of the trace are equally large. Gloo's reduce-scatter
  *is* an all-reduce, and is recorded as one.

A collective's time includes waiting for ranks that come later. Sizes are those of the whole tensor, as everywhere in
`plesio.cost`: the larger of what goes in and what comes out. The file has microseconds.
"""

import gzip
import json
import math
import re
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plesio.core.errors import DataError
from plesio.core.files import reason_of

_STEP = re.compile(r"ProfilerStep#\d+")
_NCCL = re.compile(r"^nccl(?:(?:Dev)?Kernel_)?")
_GZIP_MAGIC = b"\x1f\x8b"
_OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
    "recv", "barrier",
)  # fmt: skip
"""Names in their order: where a name begins with two of them, the first is meant."""
_PER_RANK_INPUT = ("all_gather", "gather")
_ELEMENT_BYTES = {
    **dict.fromkeys(("bool", "byte", "char", "unsignedchar", "signedchar", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "shortint"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long", "longint", "complexfloat"), 8),
    "complexdouble": 16,
}  # fmt: skip
"""Bytes by an element's type, as NCCL calls it (``BFloat16``) and as shapes do (``c10::BFloat16``, ``long int``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """One collective that was timed.

    Attributes:
        operation: ``all_reduce``, ``all_gather``, ``broadcast``, ``send`` ...; if not known, the name in the trace.
        num_bytes: Bytes of the whole tensor; None if the trace does not tell.
        num_ranks: Ranks in its process group; None if the trace does not tell.
        duration_s: Seconds, with waiting for the other ranks.
    """

    operation: str
    num_bytes: int | None
    num_ranks: int | None
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoTrace:
    """The contents of one rank's trace.

    Attributes:
        durations_s: Seconds of each step, in order. One or more.
        collectives: Collectives in the order in which they began; with NCCL those on the GPU only.
        num_untimed: Collectives that were launched, but whose communication the trace does not hold (NCCL without
            ``ProfilerActivity.CUDA``).
        overlap: Share of the time with a kernel of NCCL in which the GPU has another kernel as well (as in Holistic
            Trace Analysis, Meta 2022). None without kernels of NCCL.
    """

    durations_s: tuple[float, ...]
    collectives: tuple[TracedCollective, ...]
    num_untimed: int
    overlap: float | None

    @property
    def median_s(self) -> float:
        """Seconds of the median step."""
        return statistics.median(self.durations_s)

    @property
    def cv(self) -> float | None:
        """Sample standard deviation of the steps over their mean; None for a single step."""
        if len(self.durations_s) < 2:
            return None
        return statistics.stdev(self.durations_s) / statistics.fmean(self.durations_s)


def read_kineto(path: Path) -> KinetoTrace:
    """Read a trace, JSON as ``export_chrome_trace`` writes it, plain or compressed.

    Raises:
        DataError: The file cannot be read, is no JSON or no trace of the profiler, or has no steps in it. One line.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
        document = json.loads(data.decode(errors="replace"))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read the profiler trace {path}: {reason_of(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); was it cut off?") from None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise DataError(f"{path} has no traceEvents; write a trace of torch.profiler's export_chrome_trace")
    try:
        spans = sorted(filter(None, map(_span, events)), key=lambda span: span.start_us)
        return _read(spans, group_ranks=_group_ranks(document.get("distributedInfo")))
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not as the profiler writes it: {type(error).__name__}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """An event that lasts. Its kind: step, gloo, launch (of NCCL, by the CPU), nccl (a kernel), compute (any other)."""

    name: str
    kind: str
    start_us: float
    duration_us: float
    arguments: Mapping[str, Any]


def _span(event: Mapping[str, Any]) -> _Span | None:
    """Return the span of an event, or None for most events, which are operators."""
    name, category = str(event.get("name")), str(event.get("cat"))
    if event.get("ph") != "X" or category.startswith("gpu_"):
        return None
    if category == "kernel":
        kind = "nccl" if name.startswith("nccl") else "compute"
    elif name == "record_param_comms":
        kind = "launch"
    elif name.startswith("gloo:"):
        kind = "gloo"
    elif _STEP.fullmatch(name):
        kind = "step"
    else:
        return None
    start_us, duration_us = float(event["ts"]), float(event["dur"])
    if not (math.isfinite(start_us) and 0 <= duration_us < math.inf):
        raise ValueError(f"{name} starts at {start_us} and lasts {duration_us}")
    return _Span(name=name, kind=kind, start_us=start_us, duration_us=duration_us, arguments=event.get("args", {}))


def _read(spans: Sequence[_Span], *, group_ranks: int | None) -> KinetoTrace:
    durations_s = tuple(span.duration_us / 1e6 for span in spans if span.kind == "step")
    if not durations_s:
        raise DataError("has no steps (ProfilerStep#N); call profiler.step() after each, and export in on_trace_ready")
    if not min(durations_s) > 0:
        raise DataError("has a step (ProfilerStep#N) that takes no time")
    launches = [span for span in spans if span.kind == "launch" and _operation(_collective_name(span.arguments))]
    launched = {span.arguments.get("External id"): span.arguments for span in launches}
    sent = any(span.kind == "nccl" for span in spans)
    return KinetoTrace(
        durations_s=durations_s,
        collectives=tuple(
            _of_gloo(span, group_ranks=group_ranks) if span.kind == "gloo" else _of_nccl(span, launched=launched)
            for span in spans
            if span.kind in ("gloo", "nccl")
        ),
        num_untimed=0 if sent else len(launches),
        overlap=_overlap(spans) if sent else None,
    )


def _of_nccl(span: _Span, *, launched: Mapping[Any, Mapping[str, Any]]) -> TracedCollective:
    arguments = span.arguments
    if not _collective_name(arguments) and "External id" in arguments:
        arguments = launched.get(arguments["External id"], {})
    operation = _operation(_collective_name(arguments)) or _operation(_NCCL.sub("", span.name)) or span.name
    elements = [int(arguments[key]) for key in ("In msg nelems", "Out msg nelems") if key in arguments]
    num_bytes = max(elements, default=0) * _element_bytes(arguments.get("dtype")) or None
    num_ranks = int(arguments.get("Group size", 0)) or None
    return _timed(span, operation, num_bytes=num_bytes, num_ranks=num_ranks)


def _of_gloo(span: _Span, *, group_ranks: int | None) -> TracedCollective:
    operation = _operation(span.name.removeprefix("gloo:")) or span.name
    types, shapes = (span.arguments.get(key, ()) for key in ("Input type", "Input Dims"))
    tensors = [_element_bytes(name) * math.prod(shape) for name, shape in zip(types, shapes, strict=True)]
    parts = (group_ranks or 0) if operation in _PER_RANK_INPUT else 1
    num_bytes = sum(tensors) * parts if all(tensors) else 0
    return _timed(span, operation, num_bytes=num_bytes or None, num_ranks=group_ranks)


def _timed(span: _Span, operation: str, *, num_bytes: int | None, num_ranks: int | None) -> TracedCollective:
    num_bytes = 0 if operation == "barrier" else num_bytes
    duration_s = span.duration_us / 1e6
    return TracedCollective(operation=operation, num_bytes=num_bytes, num_ranks=num_ranks, duration_s=duration_s)


def _collective_name(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("Collective name", ""))


def _operation(name: str) -> str | None:
    """Return the operation behind ``_allgather_base``, ``all_gather`` or ``AllGather_RING_LL``, which are one."""
    letters = re.sub("[^a-z]", "", name.lower())
    if letters.startswith("sendrecv"):  # the kernel of all-to-all, gather, scatter, send and recv alike
        return None
    return next((one for one in _OPERATIONS if letters.startswith(one.replace("_", ""))), None)


def _element_bytes(name: object) -> int:
    """Return the bytes of an element, 0 for a type that is not known."""
    return _ELEMENT_BYTES.get(str(name).lower().replace("c10::", "").replace(" ", ""), 0)


def _group_ranks(info: Any) -> int | None:
    """Ranks of any of the process groups, if they are equally large."""
    if not isinstance(info, dict):
        return None
    sizes = {int(group["pg_size"]) for group in info.get("pg_config", ())}
    return sizes.pop() if len(sizes) == 1 else None


def _overlap(spans: Iterable[_Span]) -> float | None:
    """Return `KinetoTrace.overlap`, from the spans of each GPU by itself."""
    edges: dict[Any, list[tuple[float, int, str]]] = {}
    for span in spans:
        if span.kind in ("nccl", "compute"):
            ends = (span.start_us, 1, span.kind), (span.start_us + span.duration_us, -1, span.kind)
            edges.setdefault(span.arguments.get("device"), []).extend(ends)
    both_us = communicating_us = before_us = 0.0
    for of_device in edges.values():
        running = {"nccl": 0, "compute": 0}
        for instant_us, change, kind in sorted(of_device):
            if running["nccl"]:
                communicating_us += instant_us - before_us
                both_us += (instant_us - before_us) * (running["compute"] > 0)
            running[kind] += change
            before_us = instant_us
    return both_us / communicating_us if communicating_us else None
