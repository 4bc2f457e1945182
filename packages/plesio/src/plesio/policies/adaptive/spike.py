"""Spikes: one step's figure of one worker, compared with its own last steps, so that harm is prevented.

The guard reads means over a review's steps, one review late. Here every step is judged by itself, on its worker, before
its gradient is applied or sent; no message is needed. A value is *extraordinary*

    by itself     when it is more than `JUMP` times as far above the largest of the last 128 ordinary values as
                  that is above the usual one, their median:    value / largest > JUMP * largest / usual
    by its kind   when the median of the last five values, of which it is one, is that far above the largest such median

The distance from the usual to the largest value replaces a standard deviation (as in ZClip, Kumar et al. 2025), because
the gradients of small batches have heavy tails: near the end of training a rare sample's gradient can be thirty times
the usual one, while those of large batches never differ by half. In either case the ratio of ``largest`` to ``usual``
shows it.

An extraordinary gradient is to be scaled to a quarter of the usual norm, not left out (as PaLM's batches were;
Chowdhery et al. 2022). A worker that is wrong for good then does little harm, and one that only learns something else
goes on.

Extraordinary values are kept out of the window, but each of them raises all that is remembered, twofold in 512 steps.
Values that persist thus become ordinary, so no limit holds a run down for ever.
"""

import math
import statistics

import msgspec

JUMP, SHIFT = 2.0, 1.5
"""Distance above the largest value at which a single one is extraordinary; the same for medians of five."""
_BLOCK = 16
"""Steps after which the levels are renewed."""
_BLOCKS = 8
"""Blocks in the window."""
_KNOWN_AFTER = 64
"""Ordinary values before which nothing is extraordinary."""
_FEW = 5
_GROWTH = 2 ** (1 / 512)
_PART = 0.25
"""Share of the usual value to which an extraordinary one is scaled."""


class SpikeDetector(msgspec.Struct, kw_only=True):
    """Judges one figure of one worker, step by step; its fields are stored in checkpoints.

    >>> spikes = SpikeDetector()
    >>> [spikes.judge(1.0 + 0.1 * (step % 3)) for step in range(64)] == [1.0] * 64
    True
    >>> round(spikes.judge(11.0), 3), spikes.judge(1.2)
    (0.025, 1.0)
    """

    _last: list[float] = msgspec.field(default_factory=list)
    _block: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """Pairs of value and median that are not yet part of the levels."""
    _blocks: list[tuple[float, float, float]] = msgspec.field(default_factory=list)
    """Triples of largest value, largest median and median value, by block."""
    _num_known: int = 0
    _most: float = math.inf
    _most_middle: float = math.inf
    _usual: float = math.nan

    def judge(self, value: float, *, suspect: bool = False) -> float:
        """Return a factor for ``value``: 1 if it is ordinary, else the one that makes it a quarter of the usual one.

        NaN is left to others to refuse and counts for nothing. If usual values are not above zero, nothing is
        extraordinary.

        Args:
            value: The figure of the next step.
            suspect: True if another figure of the step is extraordinary; the value then counts as extraordinary too.
        """
        if math.isnan(value):
            return 1.0
        # the median of five includes extraordinary values: a lasting shift must show
        self._last = [*self._last[1 - _FEW :], value]
        middle = sorted(self._last)[len(self._last) // 2]
        strange = suspect or value > self._most or middle > self._most_middle
        if strange and self._usual > 0:
            # kept out of the window, but it raises what is remembered: no limit may last for ever
            self._blocks = [(_GROWTH * most, _GROWTH * middle, _GROWTH * usual) for most, middle, usual in self._blocks]
            self._renew()
            return min(1.0, _PART * self._usual / value)
        self._block.append((value, middle))
        if len(self._block) == _BLOCK:
            values = [value for value, _ in self._block]
            levels = max(values), max(middle for _, middle in self._block), statistics.median(values)
            self._blocks = [*self._blocks, levels][-_BLOCKS:]
            self._num_known += _BLOCK
            self._block.clear()
            if self._num_known >= _KNOWN_AFTER:
                self._renew()
        return 1.0

    def _renew(self) -> None:
        self._usual = statistics.median([block[2] for block in self._blocks])
        if self._usual > 0:
            largest, middle = (max(block[place] for block in self._blocks) for place in (0, 1))
            self._most = JUMP * largest * (largest / self._usual)
            self._most_middle = SHIFT * middle * (middle / self._usual)
