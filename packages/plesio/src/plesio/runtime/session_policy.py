"""The policy of a session: the script's, its launcher's, or that of the world around it."""

from plesio.core.errors import ConfigError
from plesio.policies import Interruptible, Policy, parse_policy
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.worker.environment import POLICY_VARIABLE, launcher_policy
from plesio.runtime.worker.job_handle import Ambient


def stoppable(policy: Policy, setting: CheckpointSetting | None) -> Policy:
    """Return the policy with moments at which all stop, where checkpoints need them; None are no checkpoints."""
    if setting is None:
        return policy
    setting.prepare()
    return policy if policy.remembers else Interruptible(policy=policy)


def policy_of(given: Policy | str | None, *, around: Ambient | None) -> Policy:
    """Return the policy that is asked for.

    Args:
        given: The script's policy, or None for the launcher's.
        around: The world around the script; a policy of its takes the place of both.

    Raises:
        PolicySpecError: A text cannot be read.
        ConfigError: Script and launcher name different policies.
    """
    return _chosen(given) if around is None or around.policy is None else _parsed(around.policy)


def _chosen(given: Policy | str | None) -> Policy:
    told = launcher_policy()
    if given is None:
        return parse_policy("adaptive") if told is None else told
    chosen = _parsed(given)
    if told not in (None, chosen):
        raise ConfigError(
            f"the script says {chosen.spec}, and its launcher ({POLICY_VARIABLE}) says {told.spec}; leave one of them "
            "out"
        )
    return chosen


def _parsed(policy: Policy | str) -> Policy:
    return parse_policy(policy) if isinstance(policy, str) else policy
