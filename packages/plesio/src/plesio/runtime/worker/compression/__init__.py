"""Means over the ranks of updates of which only a part or a rounding is sent (`plesio.policies.compression` says what).

The codecs are in `plesio.runtime.parameters.codecs`: servers read what workers write.

==================  ====================================================================================================
file                concept
==================  ====================================================================================================
power_sgd           thin factors of matrices
feedback            what was not sent is added to the next update, and guarded
means               the mean of payloads: added up on the way, gathered, or of factors
reducer             all of it together, for collectives
pushes              updates to the store
records               warnings for the user
comm_hooks          torch's own hooks, where they do the same
==================  ====================================================================================================
"""

from plesio.runtime.worker.compression.feedback import ErrorFeedback
from plesio.runtime.worker.compression.reducer import CompressedReducer, CompressionFigures, Flush, PendingMean

__all__ = ["CompressedReducer", "CompressionFigures", "ErrorFeedback", "Flush", "PendingMean"]
