"""The adaptive policy: as much slack as the system needs, and no more than training affords.

=============  =====================================================================================================
file, folder   concept
=============  =====================================================================================================
adaptive       the policy: its components and their text form
machine        directs the run by its reviews
controller     one decision: the smaller of the slack that training affords and that the system needs
config         the components' parameters
readings       the reports of all workers, merged into one reading; a component's answer to it
system         the system side: settings, their predicted times, the least slack that hides waiting and
               communication, racks, shares of the batch for slow workers
training       the training side: the slack that training affords (gradient, noise, phase, bound), trials of changes
               (progress), and signs of divergence (guard, and within a step spike and rate_limit)
=============  =====================================================================================================

Imports go downward only: machine > controller > training > system > readings > config.
"""

from plesio.policies.adaptive.adaptive import Adaptive
from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.config.review import ReviewConfig

__all__ = ["Adaptive", "GuardConfig", "ReviewConfig"]
