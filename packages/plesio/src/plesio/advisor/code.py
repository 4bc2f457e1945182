"""The code to put into a training loop, and the recipe that compares the choice with bsp again."""

import json
from collections.abc import Mapping
from typing import Any


def code_for(spec: str, *, servers: int | None) -> str:
    """Write the Python of a training loop; ``servers`` of the store where they are not as usual.

    >>> print(code_for("ssp:3", servers=1))
    import plesio
    <BLANKLINE>
    options = plesio.JoinOptions(num_servers=1)
    with plesio.join(model, optimizer, policy="ssp:3", options=options) as session:
        for batch in session.shard(loader):
            loss = loss_of(model, batch)
            loss.backward()
            session.step(loss)
    """
    options = "" if servers is None else f"options = plesio.JoinOptions(num_servers={servers})\n"
    given = "" if servers is None else ", options=options"
    return (
        f"import plesio\n\n{options}"
        f'with plesio.join(model, optimizer, policy="{spec}"{given}) as session:\n'
        "    for batch in session.shard(loader):\n"
        "        loss = loss_of(model, batch)\n"
        "        loss.backward()\n"
        "        session.step(loss)"
    )


def recipe_for(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write tables as TOML; None is left out.

    >>> print(recipe_for({"run": {"policies": ["bsp"], "target": None}, "workers": {"count": 4}}))
    [run]
    policies = ["bsp"]
    <BLANKLINE>
    [workers]
    count = 4
    """
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {_value(value)}" for key, value in table.items() if value is not None and value != []]
        parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
