"""Cluster files: from TOML to the fields of `plesio.cost.cluster.Cluster` and its links, key by key.

How a value is written is said here; which clusters are possible is checked by the dataclasses themselves. What
`plesio lab probe` has measured pair by pair, the table ``[probe]``, is passed over here (`plesio.cost.topology_file`).
"""

import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import parse_bandwidth, parse_bytes, parse_seconds

MOST_HOSTS = 4096
"""Hosts that come and go; each brings workers of its own."""


def _quantity(parse: Callable[[str], float], *, example: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, str):
            return parse(value)
        raise ConfigError(f'{value!r} has no unit; write it as in "{example}"')

    return read


def _of(*kinds: type, otherwise: str) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
            return float(value) if float in kinds else value  # type: ignore[arg-type]
        raise ConfigError(f"{value!r} is {otherwise}")

    return read


_whole = _of(int, otherwise="not a whole number; write one, as in 4")
_number = _of(int, float, otherwise="not a number; write one, as in 4.0")
_yes_or_no = _of(bool, otherwise="neither true nor false; write one of them")
_text = _of(str, otherwise="not a text; write it in quotes")


def _hosts(value: object) -> int:
    number: int = _whole(value)
    if 1 <= number <= MOST_HOSTS:
        return number
    raise ConfigError(f"{number} is not possible; write 1 to {MOST_HOSTS}, or leave the table out")


def _mean(value: object) -> float:
    seconds = _quantity(parse_seconds, example="6 h")(value)
    if seconds > 0:
        return seconds
    raise ConfigError(f'{value} is no time to be there; write more, as in "6 h", or leave the table out')


def _bandwidth(value: object) -> float:
    bytes_per_s = _quantity(parse_bandwidth, example="10 Gbit/s")(value)
    if bytes_per_s > 0:
        return bytes_per_s
    raise ConfigError(f'"{value}" carries nothing; write more, as in "10 Gbit/s"')


Keys = Mapping[str, tuple[str, Callable[[object], Any]]]
"""The field that each key sets, and how its value is read."""

_CLUSTER: Keys = {
    "name": ("name", _text),
    "hosts": ("hosts", _whole),
    "workers_per_host": ("workers_per_host", _whole),
    "cores_per_host": ("cores_per_host", _whole),
    "racks": ("racks", _whole),
    "device": ("device", _text),
    "collectives": ("collectives", _text),
    "memory": ("memory_bytes", _quantity(parse_bytes, example="80 GiB")),
    "backward_share": ("backward_share", _number),
    "tcp_flows": ("tcp_flows", _whole),
    "payload_share": ("payload_share", _number),
    "uplink_oversubscription": ("uplink_oversubscription", _number),
}
_LINK: Keys = {
    "latency": ("latency_s", _quantity(parse_seconds, example="50 us")),
    "bandwidth": ("bytes_per_s", _bandwidth),
}
_LINKS: Mapping[str, Keys] = {
    "local": {**_LINK, "shared": ("shared", _yes_or_no)},
    "nic": _LINK,
    "uplink": {**_LINK, "oversubscription": ("oversubscription", _number)},
}
_CHANGE: Keys = {
    "at": ("at_s", _quantity(parse_seconds, example="30 s")),
    "link": ("link", _text),
    "host": ("host", _whole),
    "rack": ("rack", _whole),
    **_LINK,
}
"""Keys of ``[[changes]]``, the changes of a link during a run; a number is a host's or a rack's, as the link is."""

_AWAY = _quantity(parse_seconds, example="6 h")
_COMING_AND_GOING: Mapping[str, Keys] = {
    "failures": {"mtbf": ("mtbf_s", _mean), "shape": ("shape", _number), "repair": ("rejoin_after_s", _AWAY)},
    "preemption": {
        "hosts": ("hosts", _hosts),
        "mtbf": ("mtbf_s", _mean),
        "shape": ("shape", _number),
        "repair": ("rejoin_after_s", _AWAY),
    },
    "scavenged": {"hosts": ("hosts", _hosts), "stay": ("mtbf_s", _mean), "away": ("rejoin_after_s", _AWAY)},
}
"""Tables of hosts that come and go, and their keys."""
_NEEDED = {"failures": ("mtbf",), "preemption": ("hosts", "mtbf"), "scavenged": ("hosts", "stay", "away")}


def read_cluster_text(text: str, *, where: str) -> dict[str, Any]:
    """Return the fields of the cluster, for each link table those of that link, and ``changes`` with theirs.

    Raises `ConfigError`, which names the text as ``where``, for no TOML, a key that is unknown or missing, or a value
    that cannot be read. One line.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    document.pop("probe", None)
    known = (*_CLUSTER, *_LINKS, *_COMING_AND_GOING, "changes")
    for key in document:
        if key not in known:
            raise ConfigError(f'{where}: unknown key "{key}"; {nearest(key, known)}')
    links = {name: _link(name, document.pop(name), where=where) for name in _LINKS if name in document}
    churn = {name: _churn(name, document.pop(name), where=where) for name in _COMING_AND_GOING if name in document}
    changes = _changes(document.pop("changes", []), where=where)
    if "hosts" not in document:
        raise ConfigError(f"{where}: hosts is missing; write how many there are, as in: hosts = 4")
    cluster = _fields(document, _CLUSTER, where=where)
    if "uplink_oversubscription" in cluster:
        if "uplink" in links:
            raise ConfigError(
                f"{where}: uplink_oversubscription and [uplink] both say how fast uplinks are; write one of them"
            )
        links["uplink"] = {"latency_s": 0.0, "oversubscription": cluster.pop("uplink_oversubscription")}
    if (cluster["hosts"] > 1 or "uplink" in links) and "nic" not in links:
        raise ConfigError(f'{where}: [nic] is missing; write latency = "50 us" and bandwidth = "1 Gbit/s" under it')
    return {**cluster, **links, "changes": changes, "churn": churn}


def _changes(tables: object, *, where: str) -> list[dict[str, Any]]:
    if not isinstance(tables, list):
        raise ConfigError(
            f'{where}: changes is {tables!r}; write [[changes]], and under it at = "30 s", link = "nic", '
            'bandwidth = "100 Mbit/s"'
        )
    return [_change(table, where=f"{where}: [[changes]] {number}") for number, table in enumerate(tables, start=1)]


def _change(table: object, *, where: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f'{where} is {table!r}; write at = "30 s", link = "nic", bandwidth = "100 Mbit/s" under it')
    fields = _fields(table, _CHANGE, where=where)
    for key, example in (("at_s", 'at = "30 s"'), ("link", 'link = "nic"')):
        if key not in fields:
            raise ConfigError(f"{where}: {key.removesuffix('_s')} is missing; write it as in {example}")
    own, other = ("rack", "host") if fields["link"] == "uplink" else ("host", "rack")
    if other in fields:
        raise ConfigError(f'{where}: a link "{fields["link"]}" is of a {own}, and not of a {other}; write {own} = 0')
    return {"number": fields.pop(own, None), **fields}


def _churn(name: str, table: object, *, where: str) -> dict[str, Any]:
    where = f"{where}: [{name}]"
    keys = _COMING_AND_GOING[name]
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is {table!r}; write it as a table with the keys {', '.join(keys)}")
    for key in _NEEDED[name]:
        if key not in table:
            example = "2" if key == "hosts" else '"6 h"'
            raise ConfigError(f"{where} has no {key}; write it as in {key} = {example}")
    return _fields(table, keys, where=where)


def _link(name: str, table: object, *, where: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(
            f'{where}: {name} is {table!r}; write [{name}], and under it latency = "50 us", bandwidth = "1 Gbit/s"'
        )
    fields = _fields(table, _LINKS[name], where=f"{where}: [{name}]")
    if name == "uplink" and ("bytes_per_s" in fields) == ("oversubscription" in fields):
        given = "both are" if "bytes_per_s" in fields else "neither is"
        raise ConfigError(f"{where}: [uplink] has a bandwidth or an oversubscription; {given} given: write one of them")
    if name != "uplink" and "bytes_per_s" not in fields:
        raise ConfigError(f'{where}: [{name}] has no bandwidth; write it as in bandwidth = "1 Gbit/s"')
    return {"latency_s": 0.0, **fields}


def _fields(table: Mapping[str, object], keys: Keys, *, where: str) -> dict[str, Any]:
    fields = {}
    for key, value in table.items():
        if key not in keys:
            raise ConfigError(f'{where}: unknown key "{key}"; {nearest(key, keys)}')
        field, read = keys[key]
        try:
            fields[field] = read(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {key}: {error}") from None
    return fields
