"""The components of the adaptive policy, each with its parameters."""

from dataclasses import dataclass, field

from plesio.policies.adaptive.config.bound import BoundTunerConfig
from plesio.policies.adaptive.config.gradient import GradientMonitorConfig
from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.config.noise import NoiseConfig
from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.config.progress import ProgressConfig
from plesio.policies.adaptive.config.review import ReviewConfig
from plesio.policies.adaptive.config.system import SystemConfig, TopologyConfig

__all__ = ["Components"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Parameters of all components; all but ``review`` and ``system`` may be None, in text ``off``.

    Attributes:
        review: Times of the workers' reports, and steps that are sampled.
        system: Slack that hides waiting and communication.
        topology: Steps together within racks, and slack between racks alone.
        gradient: Less slack when gradients are noisy or jump.
        noise: No slack if noisy batches would mislead an optimizer that normalises.
        phase: Less slack in critical phases.
        feedback: Slack that grows while training is stable, and is cut when it is not.
        progress: Trials of changes by the loss; a change that costs more than it saves is undone.
        guard: Response to divergence: BSP, and the last good parameters.
    """

    review: ReviewConfig = field(default_factory=ReviewConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    topology: TopologyConfig | None = field(default_factory=TopologyConfig)
    gradient: GradientMonitorConfig | None = field(default_factory=GradientMonitorConfig)
    noise: NoiseConfig | None = field(default_factory=NoiseConfig)
    phase: PhaseConfig | None = field(default_factory=PhaseConfig)
    feedback: BoundTunerConfig | None = field(default_factory=BoundTunerConfig)
    progress: ProgressConfig | None = field(default_factory=ProgressConfig)
    guard: GuardConfig | None = field(default_factory=GuardConfig)
