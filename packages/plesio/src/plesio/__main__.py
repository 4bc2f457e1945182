"""``python -m plesio`` is the command ``plesio``."""

from plesio.cli.main import main

main()
