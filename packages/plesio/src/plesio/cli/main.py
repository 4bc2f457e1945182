"""The entry point of the ``plesio`` command: Ctrl-C ends it without a traceback also while it is being imported."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and end with its exit status."""
    try:
        from plesio.cli.commands import invoke

        status = invoke(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
