"""The codecs of compressions, by which workers and servers write and read (`plesio.policies.compression` says what).

==================  ====================================================================================================
file                concept
==================  ====================================================================================================
codec               a flat update in, a payload out, and back
half_precision      16-bit numbers
top_k, random_k     some of the numbers
qsgd                a few levels, rounded at random
two_bits            two magnitudes
==================  ====================================================================================================
"""

from plesio.policies.compression import Compression, HalfPrecision, Qsgd, RandomK, TopK, TwoBits
from plesio.runtime.parameters.codecs.codec import Codec
from plesio.runtime.parameters.codecs.half_precision import HalfPrecisionCodec
from plesio.runtime.parameters.codecs.qsgd import QsgdCodec
from plesio.runtime.parameters.codecs.random_k import RandomKCodec
from plesio.runtime.parameters.codecs.top_k import TopKCodec
from plesio.runtime.parameters.codecs.two_bits import TwoBitsCodec

__all__ = ["Codec", "make_codec"]


def make_codec(compression: Compression, *, num_elements: int, seed: int, rank: int) -> Codec:
    """Make the codec of a compression that neither sends everything nor factors matrices."""
    match compression:
        case HalfPrecision():
            return HalfPrecisionCodec(compression, num_elements=num_elements)
        case TopK():
            return TopKCodec(compression, num_elements=num_elements)
        case RandomK():
            return RandomKCodec(compression, num_elements=num_elements, seed=seed)
        case Qsgd():
            return QsgdCodec(compression, num_elements=num_elements, seed=seed, rank=rank)
        case TwoBits():
            return TwoBitsCodec(compression, num_elements=num_elements)
    raise AssertionError(f"no codec for {compression!r}")
