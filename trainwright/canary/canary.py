"""Judge a canary by its served requests, and set its share of the traffic."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Self

from trainwright.canary.log import GUARDS, Comparison, RequestLog, read_log
from trainwright.documents import canonical, digest_text
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import Canary, InferenceService, Serving
from trainwright.http_exchange import HttpStatus, exchange, is_transient
from trainwright.redaction import redacted
from trainwright.report import markdown
from trainwright.retries import GaveUp, retry
from trainwright.significance import mean_bounds
from trainwright.tracking import Stopwatch
from trainwright.verdicts import UP_TO, NotJudged, Rule, Verdict, worst

LEVEL = 0.05
"""Largest probability that a canary within its limits ever fails, and that one beyond a limit ever passes."""

SERVICE_FILE = "inference_service.json"

_HEADER = ("guard", "canary", "production", "difference", "interval", "limit", "says")

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_READ_BY_KSERVE = ("gs://", "s3://", "https://", "http://", "pvc://", "hdfs://", "oci://")
_TIMEOUT_S = 30.0
_RETRY_S = 300.0


@dataclass(frozen=True)
class ServedVersion:
    """A version as the log and the registry name it; ``number`` is empty if no version has the stage."""

    number: str = ""
    model: str = ""
    source: str = ""


@dataclass(frozen=True)
class JudgedCanary:
    """The verdict, and the share of the traffic that follows from it."""

    verdict: Verdict
    share: float
    headline: str
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class ApiServer:
    """Address, token and CA file of a Kubernetes API; without one, the certificates of the machine."""

    url: str
    token: str = field(repr=False)
    ca: str = ""

    @classmethod
    def of_pod(cls) -> Self:
        """Return the API of this pod's cluster, with the token of its service account.

        Raises:
            DependencyError: This is no pod, or its account mounts no token.
        """
        try:
            token = (_ACCOUNT / "token").read_text()
        except OSError as error:
            raise DependencyError(
                f"no access to a cluster: {error}",
                where="serving.service.apply",
                hint="Outside of a cluster set apply: false, and apply inference_service.json with kubectl.",
            ) from None
        return cls("https://kubernetes.default.svc", token, str(_ACCOUNT / "ca.crt"))


def judge_canary(
    serving: Serving,
    canary: Canary | None,
    candidate: ServedVersion,
    production: ServedVersion,
    folder: Path,
    summary: Path,
    api: ApiServer | None = None,
) -> Verdict:
    """Compare a canary with production, write the verdict, and set the share of the traffic.

    Args:
        serving: The log, and the InferenceService.
        canary: Guards and shares: ``promotion.canary``.
        candidate: The version that is the canary.
        production: The version in production.
        folder: Gets ``verdict.json``, ``record.json`` and the manifest of the InferenceService.
        summary: Path of a Markdown file.
        api: The Kubernetes API. Default: that of this pod.

    Raises:
        InputError: A section or the log does not suit the guards.
        TrainwrightError: The Kubernetes API rejects the manifest, or does not answer.
    """
    watch = Stopwatch()
    if candidate.number and production.number:
        made = _compare(serving, _require_guards(serving, canary), candidate, production)
    else:
        stage = "in production" if candidate.number else "the canary"
        left = NotJudged(name="canary", reason=f"no version is {stage}", decision="INCONCLUSIVE")
        verdict = Verdict(decision=left.decision, rules=(), judged={}, not_judged=(left,))
        made = JudgedCanary(verdict, 0.0, left.reason)
    folder.mkdir(parents=True, exist_ok=True)
    document, traffic = _serve(serving, made, candidate, production)
    if document and serving.service:
        (folder / SERVICE_FILE).write_text(canonical(document))
        if serving.service.apply:
            apply(document, api or ApiServer.of_pod())
    headline = "; ".join(filter(None, (f"{made.verdict.decision}: {made.headline}", traffic)))
    summary.parent.mkdir(parents=True, exist_ok=True)
    table = markdown.table(_HEADER, made.rows, (1, 2, 3, 5)) if made.rows else ""
    summary.write_text(f"**{markdown.escape(headline)}**\n\n{table}")
    watch.record(
        folder,
        "canary",
        headline,
        decision=made.verdict.decision,
        config={
            "serving": serving.model_dump(mode="json"),
            "canary": canary.model_dump(mode="json") if canary else None,
        },
        inputs=made.verdict.judged,
        outputs={"verdict": made.verdict.digest},
    )
    made.verdict.write(folder)
    return made.verdict


def _require_guards(serving: Serving, canary: Canary | None) -> Canary:
    """Return the section; reject guards that cannot be compared, all together."""
    if canary is None:
        hint = "For example: canary: {share: 0.05, guards: {error_rate: 0.01, brier: 0.005}}"
        raise InputError("promotion.canary is not set", where="promotion.canary", hint=hint)
    wrong = [f"{name} is not one of {', '.join(GUARDS)}" for name in canary.guards if name not in GUARDS]
    needs = {"slow_rate": ("slow_ms", serving.slow_ms), "mae": ("bounds", serving.bounds)}
    wrong += [
        f"{name} needs serving.{key}"
        for name, (key, value) in needs.items()
        if name in canary.guards and not value
    ]
    if wrong:
        raise InputError(
            "; ".join(wrong), where="promotion.canary.guards", hint="docs/canary.md explains them."
        )
    return canary


def _compare(
    serving: Serving, canary: Canary, candidate: ServedVersion, production: ServedVersion
) -> JudgedCanary:
    log = read_log(serving, canary.guards, candidate.number, production.number, canary.start)
    found = {name: log.compare(name) for name in canary.guards}
    rules = [judge_guard(name, canary, one) for name, one in found.items()]
    rows = [_row(rule, one) for rule, one in zip(rules, found.values(), strict=True)]
    unsure = [rule for rule in rules if rule.outcome() == "INCONCLUSIVE"]
    verdict = Verdict(
        decision=worst(rule.outcome() for rule in rules),
        rules=tuple(rules),
        judged={
            "model": candidate.model,
            "production": production.model,
            "log": log.digest,
            "serving": digest_text(serving.to_json()),
            "canary": digest_text(canonical(canary.model_dump(mode="json"))),
        },
        not_judged=tuple(
            NotJudged(name=rule.name, reason=rule.detail, decision="INCONCLUSIVE", needed=rule.needed)
            for rule in unsure
        ),
        baseline_version=production.number,
    )
    worst_first = sorted(rules, key=lambda rule: rule.outcome() != verdict.decision)
    share = 0.0 if verdict.decision == "FAIL" else _share(canary, log)
    return JudgedCanary(verdict, share, f"{worst_first[0].name} {worst_first[0].detail}", rows)


def judge_guard(name: str, canary: Canary, found: Comparison) -> Rule:
    """Judge one guard: the level of failing is divided over all guards, since any can fail."""
    limit, sides = canary.guards[name], (1, -1) if name == "score" else (1,)
    low_level = LEVEL / len(canary.guards) / len(sides)
    bounds = [mean_bounds(side * found.differences, low_level, LEVEL) for side in sides]
    value, low, high = (
        found.span * max(getattr(side, end) for side in bounds) for end in ("value", "low", "high")
    )
    count = len(found.differences)
    needed = ceil(count * ((high - value) / (limit - value)) ** 2) if value < limit else 0
    more = f"; about {needed:,} would pass" if needed > count else ""
    return Rule(
        name=name,
        value=value,
        limit=limit,
        test=UP_TO,
        interval=(low, high),
        detail=f"{value:.4g} [{low:.4g}, {high:.4g}], limit {limit:g}, {count:,} comparisons{more}",
        needed=needed if more else 0,
    )


def _row(rule: Rule, found: Comparison) -> tuple[str, ...]:
    low, high = rule.interval
    means = (f"{number:.4g}" for number in (found.candidate, found.production, rule.value))
    return (rule.name, *means, f"[{low:.4g}, {high:.4g}]", f"{rule.limit:g}", rule.outcome())


def _share(canary: Canary, log: RequestLog) -> float:
    """Return the share that the canary's answers so far have reached."""
    reached = [step for step in canary.steps if step.after <= log.answers]
    return max(reached, key=lambda step: step.after).share if reached else canary.share


def _serve(
    serving: Serving, made: JudgedCanary, candidate: ServedVersion, production: ServedVersion
) -> tuple[dict[str, Any] | None, str]:
    """Return the manifest of the InferenceService, and what it says; None without one.

    Without a canary all traffic goes to production, as after a promotion or an archived canary.
    """
    service = serving.service
    if service is None or not production.number:
        return None, ""
    if not candidate.number:
        return manifest(service, production.source, 100), f"all traffic to version {production.number}"
    percent = max(round(100 * made.share), 1) if made.share else 0
    said = f"{percent} % of traffic to version {candidate.number}"
    return manifest(service, candidate.source, percent), said


def manifest(service: InferenceService, source: str, percent: int) -> dict[str, Any]:
    """Return the fields that this library owns: the model, and its percentage of the traffic.

    KServe sends the rest to the last revision that had 100 %.
    """
    model: dict[str, Any] = {"modelFormat": {"name": service.model_format}, "storageUri": source}
    model |= {"runtime": service.runtime} if service.runtime else {}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": {"predictor": {"canaryTrafficPercent": percent, "model": model}},
    }


def apply(document: dict[str, Any], api: ApiServer) -> None:
    """Apply a manifest; fields that it does not name stay as they are.

    Raises:
        InputError: KServe cannot read the model, or the API rejects the manifest.
        PermissionRefused: The account lacks the right.
        DependencyError: The API does not answer.
    """
    meta, uri = document["metadata"], document["spec"]["predictor"]["model"]["storageUri"]
    name = f"InferenceService {meta['namespace']}/{meta['name']}"
    if not uri.startswith(_READ_BY_KSERVE):
        raise InputError(
            f"KServe reads models from {', '.join(_READ_BY_KSERVE)}; found {redacted(uri)}",
            where=name,
            hint="Give MLflow an artifact store that it does not serve itself, such as s3://.",
        )
    path = f"apis/serving.kserve.io/v1beta1/namespaces/{meta['namespace']}/inferenceservices/{meta['name']}"
    url = f"{api.url}/{path}?fieldManager=trainwright&force=true&fieldValidation=Strict"
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/apply-patch+yaml"}
    body = canonical(document).encode()

    def patch() -> None:
        exchange("PATCH", url, headers, body, timeout_s=_TIMEOUT_S, authority=api.ca)

    try:
        retry(patch, is_transient, name, _RETRY_S)
    except HttpStatus as error:
        raise _rejection(error, name) from None
    except (GaveUp, OSError) as error:
        hint = "Until it answers, `kubectl apply --server-side -f inference_service.json` does the same."
        raise DependencyError(f"the Kubernetes API does not answer: {error}", where=name, hint=hint) from None


def _rejection(error: HttpStatus, name: str) -> TrainwrightError:
    if error.code in {401, 403}:
        return PermissionRefused(
            f"the Kubernetes API refuses: {error}",
            where=name,
            hint="Apply deploy/serving.yaml in its namespace. The InferenceService has to exist.",
        )
    return InputError(
        f"the Kubernetes API answers {error}",
        where=name,
        hint="Look at serving.service, and at whether KServe is installed.",
    )
