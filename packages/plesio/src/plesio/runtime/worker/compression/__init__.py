"""Means over the ranks of updates of which only a part or a rounding is sent (`plesio.policies.compression` says what).

The codecs are in `plesio.runtime.parameters.codecs`: servers read what workers write.
"""

from plesio.runtime.worker.compression.feedback import ErrorFeedback
from plesio.runtime.worker.compression.reducer import CompressedReducer, CompressionFigures, Flush, PendingMean

__all__ = ["CompressedReducer", "CompressionFigures", "ErrorFeedback", "Flush", "PendingMean"]
