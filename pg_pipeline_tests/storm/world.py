"""The files of a storm, and what must come out of them, computed from the files alone, without the product."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

Row = tuple[int, Decimal]


@dataclass
class Delivery:
    """One request: some files of one pipeline, under a key."""

    key: str
    pipeline: str
    paths: list[str] = field(default_factory=list)


@dataclass
class World:
    """What was landed; grows while the storm goes on."""

    folder: Path
    chance: random.Random
    deliveries: list[Delivery] = field(default_factory=list)
    _orders: int = 0

    def land(self, pipeline: str, *, files: int, rows: int) -> Delivery:
        """Files of orders; one in twelve is cut off in the middle of a line."""
        delivery = Delivery(f"delivery {len(self.deliveries)}", pipeline)
        place = self.folder / pipeline / f"{len(self.deliveries):05}"
        place.mkdir(parents=True)
        for number in range(files):
            path = place / f"{number:03}.json"
            lines = [self._order() for _ in range(rows)]
            if self.chance.random() < 1 / 12:
                lines[-1] = lines[-1][: len(lines[-1]) // 2]
            path.write_text("\n".join(lines) + "\n")
            then = time.time() - 60
            os.utime(path, (then, then))
            delivery.paths.append(str(path))
        (place / "_SUCCESS").touch()
        self.deliveries.append(delivery)
        return delivery

    def _order(self) -> str:
        self._orders += 1
        cents = self.chance.randrange(-2_000, 10_000)
        return json.dumps({"order_id": self._orders, "amount": float(Decimal(cents) / 100)})

    def expected(self, pipeline: str) -> Counter[Row]:
        """The rows that must be visible, each once."""
        wanted: Counter[Row] = Counter()
        for delivery in self.deliveries:
            if delivery.pipeline == pipeline:
                wanted.update(rows_of(delivery))
        return wanted


def rows_of(delivery: Delivery) -> Counter[Row]:
    """Orders of more than nothing; none of a file that does not parse to its end."""
    wanted: Counter[Row] = Counter()
    for path in delivery.paths:
        try:
            orders = [json.loads(line, parse_float=Decimal) for line in Path(path).read_text().splitlines()]
        except ValueError:
            continue
        wanted.update((order["order_id"], Decimal(order["amount"])) for order in orders if order["amount"] > 0)
    return wanted
