"""The adaptive policy: as much slack as the system needs, and no more than training affords.

=============  =====================================================================================================
file, folder   concept
=============  =====================================================================================================
adaptive       the policy: its components and their text form
machine        directs the run by its reviews
controller     one decision: the smaller of what training affords and what the system wants
config         the components' parameters
readings       how the reports of all workers become one reading; what a component is shown, and what it says
system         the system side: settings, what each would take, the least slack that hides waiting and communicating,
               racks, shares of the batch for slow workers
training       the training side: how much slack training affords (gradient, noise, phase, bound), whether changes pay
               (progress), and whether it diverges (guard, and within a step spike and rate_limit)
=============  =====================================================================================================

Imports go downward only: machine > controller > training > system > readings > config.
"""

from plesio.policies.adaptive.adaptive import Adaptive
from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.config.review import ReviewConfig

__all__ = ["Adaptive", "GuardConfig", "ReviewConfig"]
