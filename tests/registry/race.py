"""Two promoters race for production, again and again: python -m tests.registry.race --postgres --count 100.

Each is a process. Before every round, both have seen the same version in production, and each brings another
one.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tests.registry.shelf import DIRECT, MODEL, stock
from tests.tracking.server import mlflow_server, on_postgres
from trainwright.experiment import PromotionRequest, Registry
from trainwright.registry.audit import AuditLog
from trainwright.registry.promote import promote
from trainwright.tracking.server import open_client

PATIENCE_S = 120


def racer(registry: Registry, folder: Path, start: Barrier, orders: Connection) -> None:
    """Take orders, one a round: a version, and the one that is in production."""
    while (order := orders.recv()) is not None:
        version, there = order
        wanted = {"to": "production", "by": f"racer {version}", "reason": "a race", "version": version}
        request = PromotionRequest.check(wanted | {"expected": there}, "request")
        start.wait(PATIENCE_S)
        made = promote(registry, DIRECT, request, folder, folder / "summary.md")
        orders.send((made.decision, made.production))


def race(registry: Registry, folder: Path, count: int) -> list[str]:
    """Let two race so many times, and return the winners, after checking each round.

    Raises:
        AssertionError: In a round not exactly one won, or the registry or the audit says otherwise.
    """
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    lines = [context.Pipe() for _ in range(2)]
    racers = [
        context.Process(target=racer, args=(registry, folder / str(number), start, line[1]))
        for number, line in enumerate(lines)
    ]
    for process in racers:
        process.start()
    winners: list[str] = []
    versions = ["1", "2", "3"]
    try:
        for _ in range(count):
            there = winners[-1] if winners else ""
            pair = [version for version in versions if version != there][:2]
            for (orders, _), version in zip(lines, pair, strict=True):
                orders.send((version, there))
            assert all(orders.poll(PATIENCE_S) for orders, _ in lines), "a racer died or hangs"
            answers = [orders.recv() for orders, _ in lines]
            assert sorted(decision for decision, _ in answers) == ["FAIL", "PASS"], answers
            winner = pair[[decision for decision, _ in answers].index("PASS")]
            assert {production for _, production in answers} == {winner}
            winners.append(winner)
    finally:
        for orders, _ in lines:
            orders.send(None)
        for process in racers:
            process.join(PATIENCE_S)
            process.kill()
    client = open_client(registry.tracking_uri)
    aliases = client.get_registered_model(MODEL).aliases
    assert str(aliases["production"]) == winners[-1]
    state = AuditLog(str(registry.audit), MODEL).read()
    assert [event.production for event in state.events] == winners
    assert len(state.entries) == 2 * count
    return winners


@contextmanager
def registry_at(folder: Path, uri: str, *, postgres: bool) -> Iterator[str]:
    """Give an address: the one that is named, a server's on PostgreSQL, or an SQLite file's."""
    if not postgres:
        yield uri or f"sqlite:///{folder}/mlflow.db"
        return
    with on_postgres() as store, mlflow_server(folder, store) as port:
        yield f"http://127.0.0.1:{port}"


def main() -> None:
    """Race on a registry that is there, or on one of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", default="", help="MLflow's address; absent: an SQLite file")
    parser.add_argument("--postgres", action="store_true", help="start a server on PostgreSQL")
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, begun = Path(name), time.monotonic()
        with registry_at(folder, asked.uri, postgres=asked.postgres) as uri:
            stock(folder, uri, audit=str(folder / "audit"))
            registry = Registry(model=MODEL, tracking_uri=uri, audit=str(folder / "audit"))
            winners = race(registry, folder, asked.count)
    wins = {version: winners.count(version) for version in sorted(set(winners))}
    seconds = round(time.monotonic() - begun)
    print(json.dumps({"rounds": len(winners), "wins": wins, "seconds": seconds}))  # noqa: T201


if __name__ == "__main__":
    main()
