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
    """Every component but the reviews and the system side can be left out (None, in text ``off``).

    Attributes:
        review: When workers report, and which steps are sampled.
        system: What hides waiting and communicating.
        topology: Where there are racks, their workers may step together, and have slack between racks alone.
        gradient: Less slack when gradients are noisy or jump.
        noise: No slack where noisy batches would lead an optimizer that normalises astray.
        phase: Less slack in critical phases.
        feedback: The slack grows while training is stable, and is cut when it is not.
        progress: Judges changes by the loss, and undoes what costs more than it saves.
        guard: Notices divergence, falls back to BSP and goes back to the last good parameters.
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
