"""The adaptive policy: the most progress per second that can be relied on.

=============  =====================================================================================================
file, folder   concept
=============  =====================================================================================================
adaptive       the policy and its switches
numbers        all numbers that can be set
controller     one decision: the highest lower bound of progress per second, trials, kept states
compared       the figures of the settings that a decision compared
worth          the worth of a step under a setting, in steps of BSP: what is believed, and what trials teach
trend          the loss's trend, and the test of a change on trial
guard          signs of divergence, by the same test of two figures
spike          an extraordinary gradient of one step, and `rate_limit` a learning rate that leaps: on the workers
system         settings, their predicted times, racks, shares of the batch for slow workers
readings       the reports of all workers, merged into one reading
=============  =====================================================================================================
"""

from plesio.policies.adaptive.adaptive import Adaptive

__all__ = ["Adaptive"]
