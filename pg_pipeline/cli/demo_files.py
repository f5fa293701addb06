"""The demo's delivery: realistic orders of a day, with the kinds of broken files that real deliveries have."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNTRIES = ("DE", "FR", "SE", "PL", "ES", "NL")


@dataclass(frozen=True, slots=True)
class Planted:
    """What was written; `rows` is what must arrive: the orders with a positive amount, in files that can be read."""

    folder: Path
    files: int
    broken: int
    rows: int


def plant(folder: Path, *, files: int = 300, rows: int = 400, seed: int = 7, closed: bool = True) -> Planted:
    chance = random.Random(seed)  # noqa: S311 - the same delivery every time
    folder.mkdir(parents=True, exist_ok=True)
    broken = dict.fromkeys(chance.sample(range(files), 8))
    kinds = iter((_truncated, _not_json, _empty, _other_schema) * 2)
    expected = number = 0
    for index in range(files):
        lines = []
        for _ in range(rows):
            number += 1
            lines.append(_order(chance, number))
        zipped = index % 4 == 0
        path = folder / f"orders-{index:04}.json{'.gz' if zipped else ''}"
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if index in broken:
            next(kinds)(folder, index, text)
            continue
        path.write_bytes(gzip.compress(text, 1) if zipped else text)
        expected += sum(line["amount"] > 0 for line in lines)
    if closed:
        (folder / "_SUCCESS").touch()
    return Planted(folder, files, len(broken), expected)


def _order(chance: random.Random, number: int) -> dict[str, Any]:
    refund = chance.random() < 0.02
    amount = round(chance.lognormvariate(3.2, 0.8), 2)
    return {
        "order_id": number,
        "customer": f"c{chance.randrange(20_000):05}",
        "amount": -amount if refund else amount,
        "country": chance.choices(COUNTRIES, (30, 22, 12, 12, 14, 10))[0],
        "at": f"2026-11-17T{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}Z",
    }


def _truncated(folder: Path, index: int, text: bytes) -> None:
    zipped = gzip.compress(text, 1)
    (folder / f"orders-{index:04}.json.gz").write_bytes(zipped[: len(zipped) // 2])


def _not_json(folder: Path, index: int, text: bytes) -> None:
    (folder / f"orders-{index:04}.json").write_bytes(text[: len(text) // 2] + b'\n{"order_id": 17, "amo\n')


def _empty(folder: Path, index: int, _text: bytes) -> None:
    (folder / f"orders-{index:04}.json").write_bytes(b"")


def _other_schema(folder: Path, index: int, _text: bytes) -> None:
    lines = [json.dumps({"sku": f"s{n}", "stock": n}) for n in range(50)]
    (folder / f"orders-{index:04}.json").write_text("\n".join(lines) + "\n")
