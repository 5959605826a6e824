"""Sweep a namespace once: ``python -m trainwright.launch.janitor --namespace N [--dry-run]``.

Prints one line for each job of ours, and one for each home that is left over on the shared volume. Jobs that
nobody looks after are deleted, homes only with ``--remove-homes``. Run by the CronJob in ``deploy/``.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from kubernetes import client as k8s  # type: ignore[import-untyped]
from kubernetes import config

from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError, reported
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.kind import KINDS
from trainwright.launch.janitor import homes, jobs
from trainwright.launch.janitor.jobs import Rules
from trainwright.retries import RetryPolicy


def main(arguments: list[str]) -> int:
    """Sweep once; 0 unless something could not be done."""
    options = _parser().parse_args(arguments)
    with reported("janitor"):
        sweep(_client(), options, datetime.now(UTC))
    return 0


def sweep(
    client: k8s.ApiClient, options: argparse.Namespace, now: datetime, *, outage_s: float = 60.0
) -> None:
    """Judge and remove, and print what was seen and done.

    Args:
        client: A client of the cluster.
        options: What the command line says.
        now: The time.
        outage_s: Longest outage of the API that is sat out: the next sweep is near.

    Raises:
        TrainwrightError: Something could not be judged or removed; everything else was.
    """
    rules = Rules(now=now, margin_s=options.margin_s, kept_s=options.kept_days * 86_400)
    used: list[str] = []
    wrong: list[TrainwrightError] = []
    for kind in KINDS.values():
        api = Api(client, options.namespace, kind, RetryPolicy(outage_s=outage_s))
        for judged in jobs.judge_all(api, rules, wrong):
            done = ""
            if judged.left:
                done = "would be deleted" if options.dry_run else _removed(api, judged, rules, wrong)
            used.append(judged.folder)
            _say(f"{judged}: {done}" if done else str(judged))
    if options.volume:
        for home in homes.leftover(options.volume, used, options.days, now):
            asked = options.remove_homes and not options.dry_run
            _say(f"{home}: {homes.remove(home) if asked else 'left over'}")
    if wrong:
        raise wrong[0]


def _removed(api: Api, judged: jobs.Judged, rules: Rules, wrong: list[TrainwrightError]) -> str:
    """Remove a job, and say what became of it; one that cannot be removed must not save the others."""
    try:
        return jobs.remove(api, judged, rules)
    except (PermissionRefused, DependencyError, InputError) as error:
        wrong.append(error)
        return f"not deleted: {error.what}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("trainwright.launch.janitor", description=__doc__)
    parser.add_argument("--namespace", required=True, help="Namespace to sweep.")
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
    parser.add_argument("--margin-s", type=float, default=600, help="Seconds after its lease a job is kept.")
    parser.add_argument("--kept-days", type=float, default=1, help="Days that a job which ended is kept.")
    parser.add_argument("--volume", type=Path, help="Where the shared volume is mounted, to look at homes.")
    parser.add_argument(
        "--days", type=float, default=14, help="Days unchanged after which a home is left over."
    )
    parser.add_argument("--remove-homes", action="store_true", help="Remove homes that are left over.")
    return parser


def _client() -> k8s.ApiClient:
    """Use the service account of this pod, or else what the caller's kubectl uses."""
    settings = k8s.Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise DependencyError(
            f"no access to a cluster: {error}", hint="Run it in a pod, or where kubectl works."
        ) from None
    settings.retries = False
    return k8s.ApiClient(settings)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
