"""The adaptive policy: as much slack as the system needs, and no more than training affords.

==========  ========================================================================================================
file        concept
==========  ========================================================================================================
adaptive    the policy: its components, their parameters, and their text form
machine     directs the run by its reviews
controller  one decision: the smaller of what training affords and what the system wants
review      when workers report, and how their reports become one reading
setting     period and delay, and the ladder of them
system      the least slack that hides waiting and communicating; shares of the batch for slow workers
what_if     how long a step would take under another setting
topology    settings under which the workers of a rack step together
gradient    less slack when gradients are noisy or jump
noise       no slack where noisy batches would lead an optimizer that normalises astray
phase       less slack in critical phases
bound       slack grows while training is stable and is cut when it is not
guard       notices divergence
spike       notices a single step's gradient or loss that is far out, before the step is made
rate_limit  holds a learning rate that leaps
reading     what a component is shown, and what it says
==========  ========================================================================================================
"""

from plesio.policies.adaptive.adaptive import Adaptive
from plesio.policies.adaptive.guard import GuardConfig
from plesio.policies.adaptive.review import ReviewConfig

__all__ = ["Adaptive", "GuardConfig", "ReviewConfig"]
