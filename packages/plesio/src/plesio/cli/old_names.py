"""Names that commands had in the release before: each still runs its command, and tells the new name."""

import sys
from typing import Any

from plesio.cli.given_once import CommandGroup

__all__ = ["OLD_NAMES", "NamedCommands"]

OLD_NAMES = {
    "bound chapter": "list chapter",
    "bound list": "list bounds",
    "bound statements": "list statements",
    "calibrate": "lab calibrate",
    "characterise": "lab characterise",
    "explain": "report",
    "policies": "list policies",
    "probe": "lab probe",
    "study list": "list studies",
    "tasks": "list tasks",
    "testbed": "lab testbed",
    "validate": "lab validate",
}
"""The names that go in the next release, and what to write instead."""


class NamedCommands(CommandGroup):
    """The commands of ``plesio``, which answer to their old names too; help lists the new ones alone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for num_words in (2, 1):
            old = " ".join(args[:num_words])
            if old in OLD_NAMES:
                if not ctx.resilient_parsing:  # which parses for the completion of a line
                    print(
                        f"`plesio {old}` is now `plesio {OLD_NAMES[old]}`; the old name goes in the next release",
                        file=sys.stderr,
                    )
                args = [*OLD_NAMES[old].split(), *args[num_words:]]
                break
        return super().resolve_command(ctx, args)
