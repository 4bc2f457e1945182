"""Means over the ranks of updates of which only a part or a rounding is sent (`plesio.policies.compression` says what).

==================  ====================================================================================================
file                concept
==================  ====================================================================================================
codec               a flat update in, a payload out, and back
half_precision      16-bit numbers
top_k, random_k     some of the numbers
qsgd                a few levels, rounded at random
power_sgd           thin factors of matrices
feedback            what was not sent is added to the next update, and guarded
means               the mean of payloads: added up on the way, gathered, or of factors
reducer             all of it together, for exchanges
records               warnings for the user
comm_hooks          torch's own hooks, where they do the same
==================  ====================================================================================================
"""

from plesio.runtime.worker.compression.feedback import ErrorFeedback
from plesio.runtime.worker.compression.reducer import (
    CompressedReducer,
    CompressionFigures,
    Flush,
    PendingMean,
    make_codec,
)

__all__ = ["CompressedReducer", "CompressionFigures", "ErrorFeedback", "Flush", "PendingMean", "make_codec"]
