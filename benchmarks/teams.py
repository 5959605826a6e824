"""Three teams on 128 GPUs: the queues of deploy/kueue against one queue, on the same jobs.

``python benchmarks/teams.py`` replays two weeks of jobs, with several seeds, through `simulation/kueue.py`, a
model of Kueue's admission that tests compare with recordings of Kueue. It stores waiting times, shares, what
evictions cost and the use of the GPUs, and draws docs/images/teams.svg.
"""

import heapq
import itertools
import math
import random
import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from results import publish  # noqa: E402

from benchmarks.simulation.kueue import ClusterQueue, Kueue, Workload  # noqa: E402
from trainwright.report.charts import lines  # noqa: E402

GPUS, HOUR, DAY, DAYS = 128, 3600, 86400, 14
CAPACITY_S = GPUS * DAYS * DAY
SEEDS = range(10)
LONGEST_H, GIANTS = 24, (3, 9)
CHECKPOINT_S, GRACE_S, START_S = 1800, 30, 180
"""A job saves every half hour. An evicted one holds its GPUs for the grace, and has to start again."""

PRODUCTION, RESEARCH = 1000, 100
_RELEASE, _ARRIVAL = -1, 0
"""Events beside the ends of attempts, which have their number, from 1 on."""

DEPLOYED = [
    ClusterQueue.of(manifest, "on-demand-gpu")
    for manifest in yaml.safe_load_all((ROOT / "deploy" / "kueue" / "teams.yaml").read_text())
    if manifest["kind"] == "ClusterQueue"
]
QUOTA = {queue.name: queue.nominal for queue in DEPLOYED}
TEAMS = tuple(QUOTA)
POLICIES = {
    "one FIFO queue": [ClusterQueue(name="all", nominal=GPUS, strategy="StrictFIFO")],
    "one queue, two priorities": [
        ClusterQueue(name="all", nominal=GPUS, strategy="BestEffortFIFO", within="LowerPriority")
    ],
    "a queue per team": DEPLOYED,
}
FIFO, TEAM_QUEUES = "one FIFO queue", "a queue per team"
GOAL_WAIT, GOAL_USE = 2.0, 0.95


@dataclass(kw_only=True)
class Job:
    """A training, and how it went: waits, work that is saved, GPU seconds that evictions cost."""

    team: str
    workload: Workload
    work_s: int
    production: bool = False
    queued: int = 0
    started: int = 0
    attempt: int = 0
    saved_s: int = 0
    lost_s: int = 0
    waited_s: int = 0
    waited_with_quota_s: int = 0


def trace(seed: int) -> list[Job]:
    """Return two weeks of jobs of three teams: 82 to 101% of what 128 GPUs can do, in bursts.

    team-a trains large models, twice on 64 GPUs for a day; team-b works by day, on 1 to 16 GPUs; team-c runs
    a sweep of 96 trials every other day. Each team retrains its models in production every night.
    """
    rng = random.Random(seed)  # noqa: S311 - jobs, no secrets
    jobs: list[Job] = []

    def add(team: str, hour: float, gpus: int, hours: float, spread: float, production: bool = False) -> None:
        priority = PRODUCTION if production else RESEARCH
        at, name = max(0, int(hour * HOUR)), f"{len(jobs):05}"
        workload = Workload(name=name, queue=team, gpus=gpus, created=at, priority=priority)
        drawn = max(0.1, rng.lognormvariate(math.log(hours), spread))
        work_s = int(min(LONGEST_H, drawn) * HOUR)
        jobs.append(Job(team=team, workload=workload, work_s=work_s, production=production, queued=at))

    for day in range(DAYS):
        start, weekday = day * 24, day % 7 < 5
        for team, gpus, count in (("team-a", 16, 1), ("team-b", 8, 2), ("team-c", 4, 4)):
            for _ in range(count):
                add(team, start + rng.uniform(2, 5), gpus, 1.5, 0.3, production=True)
        for _ in range(rng.randint(6, 14)):
            add("team-a", start + rng.uniform(8, 22), rng.choice([8, 8, 16, 16, 32]), 5, 0.7)
        for _ in range(rng.randint(50, 95) if weekday else rng.randint(10, 25)):
            add("team-b", start + rng.gauss(13, 3), rng.choice([1, 1, 2, 4, 4, 8, 16]), 2.5, 0.9)
        sweep = start + rng.uniform(9, 18)
        for _ in range(96 if day % 2 == 0 else 0):
            add("team-c", sweep, rng.choice([1, 2]), 4, 0.6)
        if day in GIANTS:
            add("team-a", start + rng.uniform(9, 18), 64, LONGEST_H, 0)
    return jobs


class Replay:
    """Jobs in the queues of one policy: what became of them, and of the GPUs.

    Args:
        jobs: The jobs of a trace; with one queue, all are sent to it.
        queues: A ClusterQueue for each team, or one.
        equal: Ignore priorities.
    """

    def __init__(self, jobs: Sequence[Job], queues: Sequence[ClusterQueue], *, equal: bool = False) -> None:
        self._kueue, one = Kueue(queues), queues[0].name if len(queues) == 1 else ""
        self.jobs: list[Job] = []
        for job in jobs:
            priority = 0 if equal else job.workload.priority
            workload = replace(job.workload, queue=one or job.team, priority=priority)
            self.jobs.append(replace(job, workload=workload))
        self._by_name = {job.workload.name: job for job in self.jobs}
        self._events: list[tuple[int, int, str]] = []
        self.held_s, self.evictions = 0, 0
        self.contended_s = dict.fromkeys(TEAMS, 0)
        self._run()

    @property
    def lost_s(self) -> int:
        """Return the GPU seconds of repeated work, of starts after an eviction and of graces."""
        return sum(job.lost_s for job in self.jobs)

    @property
    def use(self) -> float:
        """Return the useful part of all GPU time until the last day ends."""
        return (self.held_s - self.lost_s) / CAPACITY_S

    def _run(self) -> None:
        self._events = [(job.workload.created, _ARRIVAL, name) for name, job in self._by_name.items()]
        heapq.heapify(self._events)
        before = 0
        while self._events:
            now = self._events[0][0]
            self._account(before, now)
            before = now
            while self._events and self._events[0][0] == now:
                _, attempt, name = heapq.heappop(self._events)
                self._handle(self._by_name[name], attempt, now)
            admitted, evicted = self._kueue.schedule(now)
            for workload in admitted:
                self._start(self._by_name[workload.name], now)
            for workload in evicted:
                self._evict(self._by_name[workload.name], now)

    def _handle(self, job: Job, attempt: int, now: int) -> None:
        if attempt == _ARRIVAL:
            self._kueue.submit(job.workload)
        elif attempt == _RELEASE:
            self._kueue.release(job.workload)
            job.queued = now
        elif attempt == job.attempt:  # the end of an attempt that was not evicted
            self._kueue.release(job.workload)

    def _start(self, job: Job, now: int) -> None:
        job.waited_s += now - job.queued
        job.attempt += 1
        again_s = START_S if job.attempt > 1 else 0
        job.lost_s += again_s * job.workload.gpus
        job.started = now + again_s
        ends = job.started + job.work_s - job.saved_s
        heapq.heappush(self._events, (ends, job.attempt, job.workload.name))

    def _evict(self, job: Job, now: int) -> None:
        done = job.saved_s + max(0, now - job.started)
        job.saved_s = done // CHECKPOINT_S * CHECKPOINT_S
        job.lost_s += (done - job.saved_s + GRACE_S) * job.workload.gpus
        job.attempt += 1  # whose end is not the one that was planned
        self.evictions += 1
        heapq.heappush(self._events, (now + GRACE_S, _RELEASE, job.workload.name))

    def _account(self, before: int, now: int) -> None:
        """Add a span without changes: GPUs in use, and who waits although the team has unused quota."""
        counted = min(now, DAYS * DAY) - min(before, DAYS * DAY)
        used = dict.fromkeys(TEAMS, 0)
        for workload in itertools.chain.from_iterable(self._kueue.admitted.values()):
            used[self._by_name[workload.name].team] += workload.gpus
        pending = itertools.chain.from_iterable(map(self._kueue.pending, self._kueue.queues))
        waiting = [self._by_name[workload.name] for workload in pending]
        self.held_s += sum(used.values()) * counted
        for job in waiting:
            if used[job.team] < QUOTA[job.team]:
                job.waited_with_quota_s += now - before
        if {job.team for job in waiting} == set(TEAMS):
            for team in TEAMS:
                self.contended_s[team] += used[team] * counted


def waits_h(replays: Sequence[Replay], team: str = "", production: bool = False) -> list[float]:
    """Return the hours that jobs waited, before their first start and after evictions, in ascending order."""
    return sorted(
        job.waited_s / HOUR
        for one in replays
        for job in one.jobs
        if team in ("", job.team) and (job.production or not production)
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def rows(results: dict[str, list[Replay]]) -> list[list[str]]:
    """Return the table: a row for each figure, a column for each policy."""

    def row(name: str, figure: Callable[[list[Replay]], str]) -> list[str]:
        return [name, *(figure(replays) for replays in results.values())]

    def waited(team: str = "", production: bool = False) -> Callable[[list[Replay]], str]:
        def figure(replays: list[Replay]) -> str:
            found = waits_h(replays, team, production)
            return " / ".join(f"{quantile(found, share):.1f}" for share in (0.5, 0.9, 0.99, 1))

        return figure

    def shares(replays: list[Replay]) -> str:
        held = {team: sum(one.contended_s[team] for one in replays) for team in TEAMS}
        return " / ".join(f"{seconds / sum(held.values()):.0%}" for seconds in held.values())

    return [
        row("useful GPU time, of all", lambda all_: f"{mean(one.use for one in all_):.1%}"),
        row("GPU hours lost to evictions, of all", lambda all_: f"{mean(lost(one) for one in all_):.1%}"),
        row("evictions a day", lambda all_: f"{mean(one.evictions for one in all_) / DAYS:.0f}"),
        *(
            row(f"wait of {team}, {QUOTA[team]} GPUs: median / p90 / p99 / longest, hours", waited(team))
            for team in TEAMS
        ),
        row("the same of production, all teams", waited(production=True)),
        row(f"GPUs of {' / '.join(TEAMS)} while all wait", shares),
        row("longest wait of a team with unused quota, hours", lambda all_: f"{starved_h(all_):.1f}"),
    ]


def lost(one: Replay) -> float:
    """Return the GPU time that evictions cost, as a part of all."""
    return one.lost_s / CAPACITY_S


def starved_h(replays: Sequence[Replay]) -> float:
    """Return the longest time that a job waited while its team used less than its quota."""
    return max(job.waited_with_quota_s for one in replays for job in one.jobs) / HOUR


def draw(results: dict[str, list[Replay]]) -> None:
    """Draw the part of all jobs that wait longer than so many hours while their team has unused quota."""
    style = f"<style>{(ROOT / 'trainwright' / 'report' / 'page.css').read_text()}</style>"
    hours = [step / 2 for step in range(97)]
    series = {}
    for name, replays in zip(("FIFO", "priorities", "teams"), results.values(), strict=True):
        found = sorted(job.waited_with_quota_s / HOUR for one in replays for job in one.jobs)
        series[name] = (hours, [100 * (1 - bisect(found, hour) / len(found)) for hour in hours])
    chart = str(lines(series, x_label="hours", y_label="% that wait longer with unused quota"))
    # An image of its own names its language, and brings the style that a report page has.
    chart = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{style}", 1)
    (ROOT / "docs" / "images" / "teams.svg").write_text(chart + "\n")


def main() -> int:
    """Replay, draw and publish."""
    results: dict[str, list[Replay]] = {name: [] for name in POLICIES}
    for seed in SEEDS:
        jobs = trace(seed)
        for name, queues in POLICIES.items():
            results[name].append(Replay(jobs, queues, equal=name == FIFO))
            print(f"seed {seed}, {name}: {results[name][-1].use:.3f}", flush=True)
    draw(results)
    ours, fifo = results[TEAM_QUEUES], results[FIFO]
    longest_h = max(job.work_s for one in ours for job in one.jobs) / HOUR
    wait = starved_h(ours) / longest_h
    use = min(a.use / b.use for a, b in zip(ours, fifo, strict=True))
    line = (
        f"teams: with unused quota a team waits at most {wait:.2f} times the longest job, {longest_h:.0f} h; "
        f"{use:.1%} of the use of one FIFO queue (goal {GOAL_WAIT:g} times, {GOAL_USE:.0%})"
    )
    return publish("teams", ["", *POLICIES], rows(results), line, wait < GOAL_WAIT and use >= GOAL_USE)


if __name__ == "__main__":
    sys.exit(main())
