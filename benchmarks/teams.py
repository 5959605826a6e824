"""Three teams on 128 GPUs: the queues of deploy/kueue against one queue, on the same jobs.

``python benchmarks/teams.py`` replays two weeks of jobs, with several seeds, through `simulation/kueue.py`, a model of Kueue's
admission that tests compare with recordings of Kueue. It prints and stores waiting times, shares, lost GPU hours and the use
of the GPUs, and draws docs/images/teams.svg.
"""

import heapq
import math
import random
import sys
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from results import publish  # noqa: E402

from benchmarks.simulation.kueue import ClusterQueue, Kueue, Workload  # noqa: E402
from trainwright.report.charts import lines  # noqa: E402

GPUS, HOUR, DAY, DAYS = 128, 3600, 86400, 14
SEEDS = range(10)
CHECKPOINT_S, GRACE_S, START_S = 1800, 30, 180
"""A job saves every half hour. An evicted one holds its GPUs for the grace, and loses the time of another start."""

PRODUCTION, RESEARCH = 1000, 100

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
    """A training, and how it went."""

    team: str
    asked: int
    workload: Workload
    work_s: int
    saved_s: int = 0
    started: int | None = None
    attempt: int = 0
    waits: list[float] = field(default_factory=list)
    waited_with_quota_s: int = 0
    queued: int = 0
    lost: float = 0.0
    done: int = 0

    @property
    def gpu_s(self) -> int:
        """Return the work in GPU seconds."""
        return self.work_s * self.workload.gpus


def trace(seed: int) -> list[Job]:
    """Return two weeks of jobs of three teams: 90% of what 128 GPUs can do, in bursts.

    team-a trains large models, twice on 64 GPUs for a day; team-b works by day, on 1 to 16 GPUs; team-c runs a sweep of 96
    trials every other day. Each team retrains its models in production every night.
    """
    rng = random.Random(seed)
    jobs: list[Job] = []

    def add(team: str, at: float, gpus: int, hours: float, priority: int = RESEARCH) -> None:
        name = f"{team}-{len(jobs):05}"
        workload = Workload(name=name, queue=team, gpus=gpus, created=int(at), priority=priority)
        jobs.append(Job(team=team, asked=priority, workload=workload, work_s=int(min(hours, 24) * HOUR)))

    def hours(median: float, spread: float) -> float:
        return max(0.1, rng.lognormvariate(math.log(median), spread))

    for day in range(DAYS):
        start = day * DAY
        for team, gpus, count in (("team-a", 16, 1), ("team-b", 8, 2), ("team-c", 4, 4)):
            for _ in range(count):
                add(team, start + rng.uniform(2, 5) * HOUR, gpus, hours(1.5, 0.3), PRODUCTION)
        for _ in range(round(rng.uniform(6, 14))):
            add("team-a", start + rng.uniform(8, 22) * HOUR, rng.choice([8, 8, 16, 16, 32]), hours(5, 0.7))
        for _ in range(round(rng.uniform(50, 95) if day % 7 < 5 else rng.uniform(10, 25))):
            add(
                "team-b", start + rng.gauss(13, 3) * HOUR, rng.choice([1, 1, 2, 4, 4, 8, 16]), hours(2.5, 0.9)
            )
        if day % 2 == 0:
            at = start + rng.uniform(9, 18) * HOUR
            for _ in range(96):
                add("team-c", at, rng.choice([1, 2]), hours(4, 0.6))
        if day in (3, 9):
            add("team-a", start + rng.uniform(9, 18) * HOUR, 64, 24)
    return sorted(jobs, key=lambda job: (job.workload.created, job.workload.name))


@dataclass
class Replay:
    """What became of the jobs of one trace."""

    jobs: list[Job]
    held_s: float = 0.0
    contended_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    evictions: int = 0

    @property
    def lost_s(self) -> float:
        """Return the GPU seconds of work that was done again, of starts after an eviction and of graces."""
        return sum(job.lost for job in self.jobs)

    @property
    def use(self) -> float:
        """Return the useful part of all GPU time until the last job arrived."""
        return (self.held_s - self.lost_s) / (GPUS * DAYS * DAY)


def replay(jobs: Sequence[Job], queues: Sequence[ClusterQueue], *, equal: bool = False) -> Replay:
    """Run jobs through queues.

    Args:
        jobs: The jobs; with one queue, all are sent to it.
        queues: The ClusterQueues, by team, or one.
        equal: Ignore priorities.
    """
    kueue, result = Kueue(queues), Replay([])
    events: list[tuple[int, int, str, Job]] = []
    one = queues[0].name if len(queues) == 1 else ""
    for job in jobs:
        old = job.workload
        workload = replace(old, queue=one or job.team, priority=0 if equal else old.priority)
        copy = Job(
            team=job.team, asked=job.asked, workload=workload, work_s=job.work_s, queued=workload.created
        )
        result.jobs.append(copy)
        heapq.heappush(events, (workload.created, 0, workload.name, copy))
    by_name = {job.workload.name: job for job in result.jobs}
    before, horizon = 0, DAYS * DAY
    while events:
        now = events[0][0]
        _account(kueue, by_name, result, before, min(now, horizon) - min(before, horizon), now - before)
        before = now
        while events and events[0][0] == now:
            _, attempt, _, job = heapq.heappop(events)
            workload = job.workload
            if attempt == 0:
                kueue.submit(workload)
            elif attempt < 0:  # the pods of an evicted job are gone
                kueue.release(workload)
                job.queued = now
            elif attempt == job.attempt:
                kueue.release(workload)
                job.done = now
        admitted, evicted = kueue.schedule(now)
        for workload in admitted:
            job = by_name[workload.name]
            job.waits.append(now - job.queued)
            job.attempt += 1
            job.started = now + (START_S if job.attempt > 1 else 0)
            job.lost += START_S * workload.gpus if job.attempt > 1 else 0
            ends = job.started + job.work_s - job.saved_s
            heapq.heappush(events, (ends, job.attempt, workload.name, job))
        for workload in evicted:
            job = by_name[workload.name]
            result.evictions += 1
            done = job.saved_s + max(0, now - (job.started or now))
            saved = done // CHECKPOINT_S * CHECKPOINT_S
            job.lost += (done - saved + GRACE_S) * workload.gpus
            job.saved_s = saved
            job.attempt += 1
            heapq.heappush(events, (now + GRACE_S, -1, workload.name, job))
    return result


def _account(kueue: Kueue, jobs: dict[str, Job], result: Replay, at: int, counted: int, lasted: int) -> None:
    """Add a span of time in which nothing changed: GPUs in use, and who waits although the team's quota is not used up."""
    used: dict[str, int] = defaultdict(int)
    for entries in kueue.admitted.values():
        for workload in entries:
            used[jobs[workload.name].team] += workload.gpus
    result.held_s += sum(used.values()) * counted
    waiting = defaultdict(list)
    for name in kueue.queues:
        for workload in kueue.pending(name):
            waiting[jobs[workload.name].team].append(jobs[workload.name])
    for team, pending in waiting.items():
        if used[team] < QUOTA[team]:
            for job in pending:
                job.waited_with_quota_s += lasted
    if len(waiting) == len(TEAMS):
        for team in TEAMS:
            result.contended_s[team] += used[team] * counted


def waits_h(replays: Sequence[Replay], team: str = "", priority: int | None = None) -> list[float]:
    """Return the hours that jobs waited, before their first start and after evictions, in ascending order."""
    return sorted(
        sum(job.waits) / HOUR
        for one in replays
        for job in one.jobs
        if team in ("", job.team) and priority in (None, job.asked)
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def rows(results: dict[str, list[Replay]]) -> list[list[str]]:
    """Return the table: a row for each figure, a column for each policy."""

    def row(name: str, figure: Callable[[list[Replay]], str]) -> list[str]:
        return [name, *(figure(replays) for replays in results.values())]

    def waited(team: str, priority: int | None = None) -> Callable[[list[Replay]], str]:
        def figure(replays: list[Replay]) -> str:
            found = waits_h(replays, team, priority)
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
        row("the same of production, all teams", waited("", PRODUCTION)),
        row(f"GPUs of {' / '.join(TEAMS)} while all wait", shares),
        row("longest wait of a team with unused quota, hours", lambda all_: f"{starved_h(all_):.1f}"),
    ]


def lost(one: Replay) -> float:
    """Return the GPU time that evictions cost, as a part of all."""
    return one.lost_s / (GPUS * DAYS * DAY)


def starved_h(replays: Sequence[Replay]) -> float:
    """Return the longest time that a job waited while its team used less than its quota."""
    return max(job.waited_with_quota_s for one in replays for job in one.jobs) / HOUR


def draw(results: dict[str, list[Replay]]) -> None:
    """Draw the part of each team's jobs that waits longer than so many hours."""
    style = f"<style>{(ROOT / 'trainwright' / 'report' / 'page.css').read_text()}</style>"
    hours = [step / 2 for step in range(97)]
    series = {}
    for name, replays in results.items():
        found = waits_h(replays)
        series[name] = (hours, [100 * (1 - bisect(found, hour) / len(found)) for hour in hours])
    chart = lines(series, x_label="hours", y_label="% of jobs that wait longer")
    (ROOT / "docs" / "images" / "teams.svg").write_text(chart.replace(">", f">{style}", 1) + "\n")


def main() -> int:
    """Replay, draw and publish."""
    results: dict[str, list[Replay]] = {name: [] for name in POLICIES}
    for seed in SEEDS:
        jobs = trace(seed)
        for name, queues in POLICIES.items():
            results[name].append(replay(jobs, queues, equal=name == FIFO))
            print(f"seed {seed}, {name}: {results[name][-1].use:.3f}", flush=True)
    draw(results)
    ours, fifo = results[TEAM_QUEUES], results[FIFO]
    longest_h = max(job.work_s for one in ours for job in one.jobs) / HOUR
    wait = starved_h(ours) / longest_h
    use = min(a.use / b.use for a, b in zip(ours, fifo, strict=True))
    line = (
        f"teams: a team with unused quota waits at most {wait:.2f} times the longest job, {starved_h(ours):.1f} of "
        f"{longest_h:.0f} h; {use:.1%} of the use of one FIFO queue (goal {GOAL_WAIT:g} times, {GOAL_USE:.0%})"
    )
    return publish("teams", ["", *POLICIES], rows(results), line, wait < GOAL_WAIT and use >= GOAL_USE)


if __name__ == "__main__":
    sys.exit(main())
