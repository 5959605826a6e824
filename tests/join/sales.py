"""Sales to join to, and what a search through every row of a view says of them."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tests.featurestore.repository import ViewSpec, at
from tests.join.conftest import Joined

Join = Callable[..., Joined]


Row = dict[str, Any]


def sale(name: str, hours: float, **values: Any) -> Row:
    return {
        "sale": name,
        "sold": at(hours),
        "returned": 0,
        "shop": "north",
        "product": 1,
        "pieces": 1,
    } | values


def known_value(view: ViewSpec, row: Row, feature: str) -> Any:
    """Search every row of a view for the newest event, then creation, that was known and not expired."""
    best: tuple[datetime, datetime] | None = None
    value = None
    for entry in view.rows:
        if any(row[key] is None or entry[key] != row[key] for key in view.keys):
            continue
        event, created, moment = entry["event"], entry["created"], row["sold"]
        if event > moment or created > moment or (view.ttl and event < moment - view.ttl):
            continue
        if best is None or (event, created) > best:
            best, value = (event, created), entry[feature]
    return value


def random_views(seed: int) -> list[ViewSpec]:
    """Three views with late creations, corrections, missing values and expired ones."""
    rng = np.random.default_rng(seed)

    def rows(keys: dict[str, list[Any]], feature: str, count: int) -> list[Row]:
        made, seen = [], set()
        for _ in range(count):
            event = round(float(rng.uniform(0, 100)) * 2) / 2
            entry: Row = {name: values[rng.integers(len(values))] for name, values in keys.items()}
            entry |= {"event": at(event), "created": at(event + float(rng.choice([0, 0, 1, 5, 40])))}
            entry[feature] = None if rng.random() < 0.1 else float(rng.normal())
            identity = tuple(value for name, value in entry.items() if name != feature)
            if identity not in seen:
                made.append(entry)
            seen.add(identity)
        return made

    shops, products = ["north", "south", "east"], [1, 2, 3, 4]
    return [
        ViewSpec(
            "visits",
            {"shop": pa.string()},
            {"visitors": pa.float64()},
            rows({"shop": shops}, "visitors", 150),
        ),
        ViewSpec(
            "costs",
            {"product": pa.int64()},
            {"cost": pa.float64()},
            rows({"product": products}, "cost", 120),
            ttl=timedelta(hours=10),
        ),
        ViewSpec(
            "stock",
            {"shop": pa.string(), "product": pa.int64()},
            {"in_stock": pa.float64()},
            rows({"shop": shops, "product": products}, "in_stock", 250),
            ttl=timedelta(days=1),
        ),
    ]


def random_sales(seed: int, count: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        sale(
            f"s{number}",
            round(float(rng.uniform(-2, 110)) * 2) / 2,
            shop=["north", "south", "east", "west", None][rng.integers(5)],
            product=[1, 2, 3, 4, 9, None][rng.integers(6)],
            returned=int(rng.integers(2)),
        )
        for number in range(count)
    ]
