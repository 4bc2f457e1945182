"""Types of the campaigns' command-line arguments: what cannot be meant is one line, and exit status 2."""

import argparse
from collections.abc import Callable, Collection

from plesio.core.errors import PlesioError
from plesio.policies import parse_policy


def policy_texts(text: str) -> list[str]:
    """Texts of policies, between spaces: ``bsp ssp:2``."""
    for policy in (found := text.split()):
        try:
            parse_policy(policy)
        except PlesioError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return found


def one_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Choose some of these, between commas."""

    def chosen(text: str) -> list[str]:
        found = [one.strip() for one in text.split(",")]
        if unknown := [one for one in found if one not in known]:
            raise argparse.ArgumentTypeError(f'there is no "{unknown[0]}"; known: {", ".join(known)}')
        return found

    return chosen


def at_least(least: int) -> Callable[[str], int]:
    """Take a whole number that is not smaller."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f'"{text}" is no whole number of {least} or more')
        return int(text)

    return number


def seconds(text: str) -> float:
    """``20 min``, ``90 s`` or ``2 h``."""
    number, _, unit = text.partition(" ")
    scale = {"s": 1.0, "min": 60.0, "h": 3600.0}
    if unit not in scale or not number.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f'"{text}" is no duration; write "90 s", "20 min" or "2 h"')
    return float(number) * scale[unit]
