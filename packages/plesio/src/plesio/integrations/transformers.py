"""Hugging Face Transformers on a session: `PlesioTrainer` in place of ``transformers.Trainer``."""

from pathlib import Path
from typing import Any

from transformers import Trainer

from plesio.integrations.accelerate import PlesioAccelerator
from plesio.policies import Policy


class PlesioTrainer(Trainer):
    """A `Trainer` whose workers exchange by a policy instead of by DDP; ``TrainingArguments`` are the same.

    Evaluations and checkpoints in mid-run have the shared parameters. When `train` returns, every worker has the final
    ones.

    Args:
        *parts: As for ``Trainer``.
        policy: As in `plesio.join`; None for the launcher's (``plesio run --policy``), or ``adaptive,store=off``.
        trace: Folder for traces and ``results.json``; None for none.
        **settings: As for ``Trainer``.
    """

    accelerator: Any

    def __init__(
        self, *parts: Any, policy: Policy | str | None = None, trace: Path | str | None = None, **settings: Any
    ) -> None:
        self._policy, self._trace = policy, trace  # its parent makes the accelerator
        super().__init__(*parts, **settings)

    def create_accelerator_and_postprocess(self) -> None:
        """Make a `PlesioAccelerator` of what `Trainer` makes.

        Raises:
            ConfigError: The arguments ask for another way to exchange: DeepSpeed, FSDP.
        """
        super().create_accelerator_and_postprocess()
        self.accelerator = PlesioAccelerator.of(self.accelerator, self._policy, trace=self._trace)

    def train(self, *args: Any, **settings: Any) -> Any:
        """Train in a session."""
        try:
            return super().train(*args, **settings)
        except BaseException as error:
            self.accelerator.fail(error)
            raise

    def evaluation_loop(self, *args: Any, **settings: Any) -> Any:
        """Evaluate the shared parameters."""
        with self.accelerator.shared():
            return super().evaluation_loop(*args, **settings)

    def _save_checkpoint(self, *args: Any, **settings: Any) -> None:
        with self.accelerator.shared():
            super()._save_checkpoint(*args, **settings)
            self.accelerator.wait_for_everyone()

    def _finalize_training(self, *args: Any, **settings: Any) -> Any:
        self.accelerator.leave()  # before the best model is loaded
        return super()._finalize_training(*args, **settings)
