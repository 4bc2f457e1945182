"""Times of exchanges among all workers, read from their reviews."""

from collections.abc import Mapping

from plesio.policies.events import Reviewed


def each_step_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """Return the transfer of each step that ends in an exchange: the shortest time that a worker was blocked."""
    return [min(blocked) for blocked in zip(*(review.blocked_s for review in reviews.values()), strict=True)]


def with_store_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """Return the shortest quarter of the workers' exchanges with the store."""
    blocked = sorted(each_s for review in reviews.values() for each_s in review.blocked_s if each_s > 0)
    return blocked[: -(-len(blocked) // 4)]


def now_and_then_s(reviews: Mapping[int, Reviewed]) -> list[float]:
    """Return the transfer of each exchange that all report: its time for the last worker to begin it."""
    tables = [{row[0]: row[1] for row in review.exchanges} for review in reviews.values()]
    clocks = set.intersection(*(set(table) for table in tables))
    return [min(table[clock] for table in tables) for clock in sorted(clocks)]
