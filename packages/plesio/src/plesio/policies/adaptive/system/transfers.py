"""What exchanges among all workers took, read from their reviews."""

from collections.abc import Mapping

from plesio.policies.events import Reviewed

__all__ = ["each_step_s", "now_and_then_s", "with_store_s"]


def each_step_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """The transfer of each step, where every step ends in an exchange: the shortest time that a worker was blocked."""
    return [min(blocked) for blocked in zip(*(review.blocked_s for review in reviews.values()), strict=True)]


def with_store_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """The exchanges of all workers that were the shortest: the lower quarter."""
    blocked = sorted(each_s for review in reviews.values() for each_s in review.blocked_s if each_s > 0)
    return blocked[: -(-len(blocked) // 4)]


def now_and_then_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """The transfer of each exchange that all report: the time it took whoever began it last."""
    tables = [{row[0]: row[1] for row in review.exchanges} for review in reviews.values()]
    clocks = set.intersection(*(set(table) for table in tables))
    return [min(table[clock] for table in tables) for clock in sorted(clocks)]
