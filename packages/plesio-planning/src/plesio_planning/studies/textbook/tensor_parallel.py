"""C.17: GPT-3's layers on eight devices."""

from plesio_planning.studies.models.tensor_parallel import TensorParallel
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """What is sent in a step, and its share of the time."""
    answer = asking.defaults(TensorParallel)
    return (
        Printed(
            place="solution",
            rows=(Row(what="sent by a device in a step", unit="GB", text=9.2, here=answer.at.sent_bytes / 1e9),),
            cause=(
                "Its program counts 2 times 12,288 numbers of 4 bytes a layer, which is one token's: 9.4 MB; a step "
                "has 2048 tokens and four all-reduces a layer."
            ),
        ),
        Printed(
            place="solution",
            rows=(Row(what="communication over computing", unit="%", text=2.3, here=100 * answer.at.share),),
            cause=(
                "It sets 1.3 GFLOPs a layer; 2048 tokens take 6 FLOPs for each of 1.8·10⁹ weights, which is 22 TFLOPs."
            ),
        ),
    )
