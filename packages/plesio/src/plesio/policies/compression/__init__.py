"""Forms in which an exchange sends less than every number in full: how much is sent, and how much may be lost.

Pure arithmetic.

==============  ====================================================================  ========================
text            what a rank contributes of n numbers                                  source
==============  ====================================================================  ========================
``none``        all, in 32 bits
``fp16``        all, in 16 bits: 11 bits of precision, up to 65504                    Micikevicius et al. 2018
``bf16``        all, in 16 bits: 8 bits of precision, float32's range                 Kalamkar et al. 2019
``topk:RHO``    the ⌈RHO n⌉ largest in magnitude, with their places                   Stich et al. 2018
``randk:RHO``   ⌈RHO n⌉ at random places, which all ranks draw alike                  Stich et al. 2018
``+chunks:D``   of top-k: the ⌈RHO D⌉ largest of each D numbers; 4096 unless said     SparseLoCo 2025
``+bits:2``     of top-k: what is sent, in two bits a number                          SparseLoCo 2025
``qsgd:BITS``   all, rounded at random to 2^(BITS-1) - 1 levels of each sign; 4, 8    Alistarh et al. 2017
``qsgd:2``      all, as one of two magnitudes of their bucket, with their sign        MuLoCo 2025
``powersgd:R``  of each matrix two factors of R columns; vectors in full              Vogels et al. 2019
==============  ====================================================================  ========================

``+feedback`` and ``+no_feedback`` say whether what was not sent is added to the next update (error feedback, Seide et
al. 2014); without them it is, unless the codec is unbiased or nearly exact (qsgd of 4 and 8 bits, fp16, bf16).
``+guard:M`` sets the guard.

Top-k and QSGD are gathered, the others are added up on the way (`Compression.collectives`). Every rank contributes as
much whatever the number of ranks n, but what it *sends* depends on it: an all-reduce sends at most twice its
contribution, an all-gather n - 1 times (`Compression.sent_bytes`).

**Contraction.** ``E‖x - C(x)‖² <= (1 - δ)‖x‖²`` with δ > 0 is what error feedback needs (Karimireddy et al. 2019, Stich
et al. 2018); all have it.

**The guard.** Of such a codec no residual exceeds ``2√(1-δ)/δ`` times the largest ‖x‖ (Karimireddy et al. 2019, lemma
3). So one that exceeds this multiple of the *average* ‖x‖ is of another time, when updates were larger: everything is
then sent in full once.

One file each: `stage` is what all have in common, `half_precision`, `sparse`, `qsgd`, `two_bits` and `power_sgd` are
the codecs' closed forms, `spec` is the text form. The codecs themselves are in `plesio.runtime.parameters.codecs`.
"""

from plesio.policies.compression.half_precision import HalfPrecision
from plesio.policies.compression.power_sgd import PowerSgd
from plesio.policies.compression.qsgd import Qsgd
from plesio.policies.compression.sparse import RandomK, TopK, elias_fano_low_bits, place_bits
from plesio.policies.compression.spec import parse_compression
from plesio.policies.compression.stage import (
    NO_COMPRESSION,
    Collective,
    Compression,
    NoCompression,
    Shapes,
    SummedByParts,
    num_elements,
)
from plesio.policies.compression.two_bits import TwoBits

__all__ = [
    "NO_COMPRESSION",
    "Collective",
    "Compression",
    "HalfPrecision",
    "NoCompression",
    "PowerSgd",
    "Qsgd",
    "RandomK",
    "Shapes",
    "SummedByParts",
    "TopK",
    "TwoBits",
    "elias_fano_low_bits",
    "num_elements",
    "parse_compression",
    "place_bits",
]
