"""Alerts at the end of a run: each rule sends one message, to a webhook or by e-mail, once for each end.

A receipt beside the run's artifacts keeps a retry of the exit handler from sending again. Where a receiver
took a message and its answer was lost, nobody can know, and it is sent again, with the same ``id``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from functools import partial
from typing import Any

from trainwright.artifacts import RunCost
from trainwright.credentials import read_secret
from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import TrainwrightError
from trainwright.experiment import Alert, RunSettings
from trainwright.storage import Access, AlreadyExists, create, exists
from trainwright.summarize.delivery import deliver, one_line, post_json, send_mail
from trainwright.summarize.run import Run, outcome, registration_of, state_of
from trainwright.summarize.workflow import WorkflowReader

_STORE_S = 3.0
"""Longest outage of the store of the receipts that is waited for."""

_EVERYBODY = re.compile(r"@(?=(?:all|channel|here|everyone)\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Notification(Document):
    """The end of a run in short, as a webhook gets it.

    Attributes:
        id: Equal for every delivery of the same end.
        outcome: ``done``, ``held``, ``failed`` or ``cancelled``.
        headline: What happened, in one line, with numbers and limits.
        run: Its id, which commands and the API take.
        step: The step that failed, or whose decision held the run.
        error: ``what``, ``where`` and ``hint`` of a failed step.
        decision: Decision of the last gate.
        registered: Model and version.
        link: Page of the run: a path on a laptop, Kubeflow's page on a cluster.
        cost: Cost with its currency; empty without prices.
        over_budget: A sentence for each soft limit that was reached.
    """

    id: str
    pipeline: str
    run: str
    outcome: str
    headline: str
    owner: str = ""
    step: str = ""
    error: dict[str, str] = field(default_factory=dict)
    decision: str = ""
    registered: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    link: str = ""
    cost: str = ""
    over_budget: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return pipeline, run and outcome in one line."""
        return f"{self.pipeline} {self.run} {self.outcome}".strip()

    def lines(self) -> Iterator[str]:
        """Yield what a person needs to know, the most important first."""
        yield self.headline
        yield from self.over_budget
        for name in ("where", "hint"):
            if text := self.error.get(name):
                yield f"{'at' if name == 'where' else 'next'}: {text}"
        whole = {name: value for name, value in self.metrics.items() if not name.startswith("slice/")}
        if whole:
            yield "metrics: " + ", ".join(f"{name} {value:.4g}" for name, value in whole.items())
        for name in ("registered", "owner", "cost", "link"):
            if text := getattr(self, name):
                yield f"{name}: {text}"


def notification_of(run: Run, owner: str, link: str, cost: RunCost | None = None) -> Notification:
    """Describe the end of a run, without secrets and control characters.

    Args:
        run: The run.
        owner: Person or team that owns it.
        link: Path or URL of its page.
        cost: Its cost, if it is known.
    """
    state, made = state_of(run), registration_of(run)
    gate = next((step for step in reversed(run.steps) if step.record and step.record.decision), None)
    failed = next((step for step in run.steps if step.state == "failed"), None)
    stopped = failed or (gate if state == "held" else None)
    texts = {
        "pipeline": run.pipeline,
        "run": run.id,
        "outcome": state,
        "headline": outcome(run),
        "owner": owner,
        "step": stopped.name if stopped else "",
        "decision": gate.record.decision if gate and gate.record else "",
        "registered": made.headline if made else "",
        "link": link,
        "cost": f"{cost.cost:,.4g} {cost.currency}" if cost else "",
    }
    error = {name: str(failed.error.get(name, "")) for name in ("what", "where", "hint")} if failed else {}
    # A resumed run that ends again has other times.
    steps = [[step.name, step.state, step.started, step.record and step.record.digest] for step in run.steps]
    return Notification(
        id=digest_text(canonical([run.root, run.name, state, steps])),
        error={name: one_line(text) for name, text in error.items()},
        metrics=dict(next((step.metrics for step in reversed(run.steps) if step.metrics), {})),
        over_budget=tuple(map(one_line, cost.over_budget)) if cost else (),
        **{name: one_line(text) for name, text in texts.items()},
    )


def announce(
    run: Run,
    section: Mapping[str, Any],
    page: str,
    cluster: WorkflowReader | None,
    scheduled: str,
    cost: RunCost | None = None,
) -> list[str]:
    """Send alerts and OpenLineage events; return a line for each receiver that did not get them.

    Args:
        run: The run.
        section: The section ``run``.
        page: Path of the run's page.
        cluster: The cluster of the run; None for a local run.
        scheduled: Time for which the run was scheduled, ISO 8601.
        cost: Its cost, if it is known.
    """
    try:
        settings = RunSettings.parse(section, "run")
        link = f"{settings.page.rstrip('/')}/#/runs/details/{run.id}" if settings.page else ""
        notification = notification_of(run, settings.owner, link if cluster else page, cost)
        happened = {notification.outcome, *(["over_budget"] if notification.over_budget else [])}
        deliveries: dict[str, Callable[[], None]] = {
            f"alert {number} to {rule.webhook_file or ', '.join(rule.email)}": partial(
                _deliver, rule, settings, notification, f"{run.root.rstrip('/')}/alerts"
            )
            for number, rule in enumerate(settings.alerts, 1)
            if happened.intersection(rule.outcomes) and rule.owner in {"", settings.owner}
        }
        if settings.openlineage:
            from trainwright.summarize.openlineage import send_events

            namespace = cluster.namespace if cluster else "trainwright"
            deliveries["OpenLineage events"] = partial(send_events, run, settings, namespace, scheduled)
        return deliver(deliveries)
    except Exception as error:
        return [f"alerts and events: {one_line(str(error))}"]


def _deliver(rule: Alert, settings: RunSettings, notification: Notification, receipts: str) -> None:
    """Send one alert, unless its receipt is there. If the store is away, nobody knows, and it is sent."""
    key = digest_text(notification.id + canonical(rule.to_parameter()))
    receipt, access = f"{receipts}/{key[:16]}.json", Access(retry_s=_STORE_S)
    with suppress(TrainwrightError, OSError):
        if exists(receipt, access):
            return
    if rule.webhook_file:
        url = read_secret(rule.webhook_file, "run.alerts.webhook_file").strip()
        body = notification.to_json() if rule.format == "json" else {"text": slack_text(notification)}
        post_json(url, body, "run.alerts.webhook_file")
    elif smtp := settings.smtp:
        secret = read_secret(smtp.password_file, "run.smtp.password_file") if smtp.password_file else ""
        send_mail(smtp, secret, letter(rule.email, smtp.sender, notification))
    with suppress(AlreadyExists):
        create(receipt, canonical(notification.to_json()).encode(), access)


def slack_text(notification: Notification) -> str:
    """Return a text for Slack and its like: escaped, and mentioning nobody."""
    text = "\n".join([f"*{notification.title}*", *notification.lines()])
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _EVERYBODY.sub("@\u200b", escaped)


def letter(recipients: Sequence[str], sender: str, notification: Notification) -> EmailMessage:
    """Return the e-mail of a notification; its headers hold no text that could break out of them."""
    message = EmailMessage()
    message["Subject"] = f"trainwright: {notification.title}"
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Message-ID"] = f"<{notification.id}@{sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join([notification.title, "", *notification.lines()]))
    return message
