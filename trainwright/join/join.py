"""The join step: the training set, with features joined as they were known at each row's time, if any."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright import tables
from trainwright.artifacts import Snapshot, TargetKind
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features, JoinLimits
from trainwright.featurestore import (
    SETTINGS,
    Checkout,
    Service,
    checked_out,
    offline_files,
    open_service,
)
from trainwright.join.audit import MEASURES, Audit, displayed, suspicious
from trainwright.join.chunks import Join, QuarantinedKeys
from trainwright.join.gate import (
    GateContext,
    TrainingSetJudgement,
    judge_training_set,
    require_accepted,
    write_verdict,
)
from trainwright.redaction import redacted
from trainwright.report.markdown import escape, table
from trainwright.storage import require_listing
from trainwright.tables.capacity import warn_of_disk
from trainwright.tracking import Stopwatch

_BY_REFERENCE = "Set data.mode: reference or data.store: then only the features are written."


def make_training_set(
    entities: Path,
    data_version: str,
    features: Features,
    features_version: str,
    folder: Path,
    summary: Path,
    *,
    gate: GateContext | None = None,
    quarantine: Path | None = None,
    quarantine_version: str = "",
) -> Snapshot:
    """Make a training set: choose its columns, join the features of a service, and audit what leaks.

    Order, count and splits of the rows stay the same, except for quarantined rows, which are left out. The
    training set has their key, time, label and request columns, and the features. Without a feature service
    and request columns, it has every column of the rows that a model can read.

    Args:
        entities: The snapshot with the rows; its time column is the time of each prediction.
        data_version: Expected digest of the snapshot.
        features: Section ``features`` of the experiment.
        features_version: Expected content digest of ``features.source``; unused without a service.
        folder: Folder for the training set.
        summary: Path of the Markdown summary, which is always written.
        gate: Limits, baseline, serving log and data verdict; None to judge nothing.
        quarantine: Snapshot of the quarantined rows; None if there is none.
        quarantine_version: Its expected digest.

    Returns:
        The manifest of the training set.

    Raises:
        InputError: A column, the service or a file is missing or cannot be joined; a row has no key or time
            of its own or is newer than the cutoff; an input has another digest; or ``features.source``
            lacks files.
        DataRefused: A joined value leaks, or a limit does not hold, or the features are judged FAIL, or HOLD
            with ``on_data_hold: stop``. The summary and the audit are written before.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(entities, data_version)
    key = snapshot.roles.get("key", "")
    left_out = QuarantinedKeys.read(quarantine, quarantine_version, data_version, key)
    with _opened_service(features, features_version) as service:
        join = Join(snapshot, service, features, left_out)
        join.require_keys(entities)
        views = service.views if service else ()
        behind = {f"features.{view.name}": view.digest for view in views}
        behind |= {"quarantine": left_out.version} if left_out.rows else {}
        parents = {"entities": data_version} | ({"features": service.digest} if service else {}) | behind
        audit, training_set = _write(join, entities, snapshot, parents, folder, summary)
    behind |= gate.inputs if gate else {}
    own, verdict = _judge(join, gate, folder, training_set, snapshot, summary)
    made = {"training_set": training_set.digest} | ({"service": service.digest} if service else {}) | verdict
    for place in (folder, gate.verdict) if gate else (folder,):
        watch.record(
            place,
            "join",
            _headline(join, audit, training_set) + (f"; {own.headline}" if own else ""),
            decision=own.decision if own else "",
            config=features.model_dump(mode="json"),
            inputs={"entities": data_version} | ({"features": features_version} if service else {}) | behind,
            outputs=made,
            parents=[parent for parent in (entities, gate and gate.data_verdict) if parent],
        )
    if own and gate:
        require_accepted(own, gate.validation)
    return training_set


def _judge(
    join: Join,
    gate: GateContext | None,
    folder: Path,
    training_set: Snapshot,
    entities: Snapshot,
    summary: Path,
) -> tuple[TrainingSetJudgement | None, dict[str, str]]:
    """Judge the training set, and write the verdict; return its digest, if it says anything, too."""
    if gate is None:
        return None, {}
    newest = entities.quality.get("time.newest")
    own = judge_training_set(
        folder, training_set, join.service, join.plan.inputs, join.features, gate, newest
    )
    made = write_verdict(own, gate, entities.digest, summary).digest
    return own, {"verdict": made} if own or gate.data_verdict else {}


def _headline(join: Join, audit: Audit, training_set: Snapshot) -> str:
    columns = len(join.plan.joined) if join.service else len(join.plan.inputs)
    facts = [f"{training_set.rows:,} rows", f"{columns} {'features' if join.service else 'columns'}"]
    facts += [f"{audit.leaks} leaks"] if join.service else ["no feature service"]
    stay = sum(entry.in_place for entry in training_set.files)
    facts += [f"{stay:,} of {len(training_set.files):,} files by reference"] if stay else []
    left_out = join.left_out.rows
    facts += [f"{left_out:,} rows of the quarantine left out"] if left_out else []
    facts += [f"not proven for {', '.join(audit.unproven)}"] if audit.unproven else []
    return ", ".join(facts)


@contextmanager
def _opened_service(features: Features, version: str) -> Iterator[Service | None]:
    """Open the feature service, after checks of its files; None where none is configured."""
    if not (features.service and features.source and features.repository):
        yield None
        return
    listing = require_listing("features.source", features.source, version)
    with checked_out(features.repository, listing) as checkout:
        service = open_service(str(checkout.folder), features.service, fetched=checkout.fetched)
        require_covered(service, features.source, checkout, [entry.uri for entry in listing.files])
        _require_created(service, features)
        yield service


def require_covered(service: Service, source: str, checkout: Checkout, files: Iterable[str]) -> None:
    """Reject a ``source`` of features that lacks files of the joined values: the cached join depends on it.

    That is the offline files of every view and, where any of these lies in the repository's folder or the
    repository was fetched, the settings and the definitions there, or the registry that they were applied to.
    A commit of git holds its settings and definitions, but no registry in a bucket or a database.
    """
    covered = {checkout.origin(uri) for uri in files}
    offline = [checkout.origin(uri) for view in service.views for uri in offline_files(view)]
    registry = str(service.feast.config.registry.path)
    if service.feast.config.registry.registry_type == "file" and "://" not in registry:
        # The path is relative to the repository, and may start with ..
        registry = checkout.origin(os.path.normpath(checkout.folder / registry))
    if checkout.pinned:  # a commit is part of the configuration, and so of the cache key
        offline = [place for place in offline if not place.startswith(f"{checkout.uri}/")]
        if registry not in covered and not registry.startswith(f"{checkout.uri}/"):
            raise InputError(
                f"a change of the features would go unseen: the commit does not hold {redacted(registry)}",
                where=checkout.uri,
                hint=f"Write a relative registry.path into {SETTINGS}: then `join` applies the commit's own.",
            )
    missing = [place for place in offline if place not in covered]
    root = checkout.uri if checkout.fetched else os.path.realpath(checkout.folder)
    inside = checkout.fetched or any(place.startswith(f"{root}/") for place in offline)
    if inside and not checkout.pinned:
        if checkout.origin(str(checkout.folder / SETTINGS)) not in covered:
            missing.append(SETTINGS)
        if registry not in covered and not any(place.endswith(".py") for place in covered):
            missing.append("the definitions of the views (*.py) or their registry")
    if missing:
        shown = ", ".join(missing[:3])
        raise InputError(
            f"a change of the features would go unseen: features.source does not hold {shown}",
            where=source,
            hint=f"Name all of the repository but compiled Python: {checkout.uri}/**/*[!c]",
        )


def _require_created(service: Service, features: Features) -> None:
    """Reject views without creation times, unless a reason is configured."""
    without = [view.name for view in service.views if not view.created]
    if without and not features.allow_backfill_leak:
        raise InputError(
            f"views {without} have no created timestamp, so values that were filled in later would leak",
            where=f"feature service {service.name!r}",
            hint="Give their sources a created_timestamp_column, or say in features.allow_backfill_leak why "
            "they need none.",
        )


def _write(
    join: Join, entities: Path, snapshot: Snapshot, parents: dict[str, str], folder: Path, summary: Path
) -> tuple[Audit, Snapshot]:
    """Write the training set, or only what is beside files that stay, with the audit and the summary."""
    references = join.references()
    if not references:
        size = sum(entry.size for entry in snapshot.files)
        warn_of_disk("the files of the training set", size, folder, _BY_REFERENCE)
    with tables.SnapshotWriter(
        folder, list(snapshot.splits), references=references, added=join.plan.joined
    ) as writer:
        for split, rows in join.rows(entities):
            writer.append(split, rows)
        audit = _audit(join, folder, summary)
        quality = {f"left_out.{name}": float(rows) for name, rows in join.left_out.met.items()}
        return audit, writer.commit(
            parents=parents,
            roles={role: name for role, name in snapshot.roles.items() if name in join.plan.carried},
            quality=audit.figures() | quality,
            target=snapshot.target,
            protection=snapshot.protection if references else "",
        )


def _audit(join: Join, folder: Path, summary: Path) -> Audit:
    """Write the audit and the summary, then reject leaks and limits that do not hold."""
    join.left_out.require_met()
    audit = join.audit()
    audit.write(folder / Audit.FILE)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_summary(join, audit))
    wrong = {name: view for name, view in join.views.items() if view.leaks or view.differ}
    if wrong:
        lines = [
            f"  {name}: {view.leaks + view.differ:,} rows, such as {view.example}"
            for name, view in wrong.items()
        ]
        raise DataRefused(
            "joined values are not those that were known at their rows' times\n" + "\n".join(lines),
            where="the leakage audit",
            hint="The join is wrong, or Feast is, so nothing was written. Please report it with the files.",
        )
    if audit.refusals:
        raise DataRefused(
            f"the audit refuses the training set: {_broken_limits(audit)}\n"
            + "\n".join(f"  {line}" for line in audit.refusals),
            where=str(folder / Audit.FILE),
            hint="Leave the column out with features.exclude, or features.known_after if it is known only "
            "afterwards. If the figure is right, move the limit in features.limits.",
        )
    return audit


def _broken_limits(audit: Audit) -> str:
    count = len(audit.refusals)
    return "1 limit does not hold" if count == 1 else f"{count} limits do not hold"


def _summary(join: Join, audit: Audit) -> str:
    """Return the Markdown summary: the join, and the audit of every view and column."""
    plan, left_out = join.plan, join.left_out
    parts = _intro(join, join.service, audit) if join.service else _intro_of_table(join, audit)
    if audit.refusals:
        lines = "".join(f"- {escape(line)}\n" for line in audit.refusals)
        parts.append(f"**Refused: {_broken_limits(audit)}.**\n\n{lines}")
    if unique := join.nearly_unique():
        parts.append(
            f"**Warning**: {_names(unique)}: almost every row has another value. A model cannot learn from a "
            "column that names the rows; leave it out with `features.exclude`, if it is a name or a number.\n"
        )
    if left_out.rows:
        rows = ", ".join(f"{count:,} of {escape(split)}" for split, count in left_out.met.items())
        parts.append(f"{left_out.rows:,} rows are in quarantine and were left out: {rows}.\n")
    if join.service:
        parts += _views(audit)
    parts += [
        _columns(audit, join.features.limits, join.target.kind),
        f"Carried on: {_names(plan.carried)}.\n",
        f"Left behind: {_names(plan.left)}.\n",
    ]
    if plan.unreadable:
        shown = ", ".join(f"{escape(column.name)} ({escape(column.type)})" for column in plan.unreadable)
        parts.append(f"Of them, no model reads the type of {shown}.\n")
    if plan.empty:
        parts.append(f"Of them, no row has a value of {_names(plan.empty)}.\n")
    return "\n".join([*parts, *([f"Service digest: `{join.service.digest}`\n"] if join.service else [])])


def _intro(join: Join, service: Service, audit: Audit) -> list[str]:
    """Return the title and the result of a join with a feature service."""
    verdict = "No leak was found." if not audit.leaks else f"**{audit.leaks:,} values leak: refused.**"
    checked = max((view.checked_by_feast for view in audit.views), default=0)
    checks = (
        f"Feast's {service.store} store joined them. Every joined value was checked against the time, "
        f"creation and TTL of its row; {checked:,} rows were joined again from the files and "
        "compared. The shares past the TTL, or created later, are theirs."
        if service.on_engine
        else "Every joined value was checked against the time, creation, TTL and key of its row; "
        f"{checked:,} rows were joined again by Feast itself and compared."
    )
    got = f"{audit.rows:,} rows got {len(join.plan.joined)} features from {len(service.views)} views."
    return [f"## Join: {escape(service.name)}\n", f"{got} {verdict} {checks}\n"]


def _intro_of_table(join: Join, audit: Audit) -> list[str]:
    """Return the title and the result without a feature service."""
    count, after = len(join.plan.inputs), join.features.known_after
    how = "Named in `features.request`" if join.features.request else "Every column that a model can read"
    leaks = (
        f"{_names(after)}: known only afterwards, and left out (`features.known_after`)."
        if after
        else "No column is named in `features.known_after`: whether one is known only after the prediction "
        "shows only in the scores below."
    )
    return [
        "## Training set: the columns of the table\n",
        f"{audit.rows:,} rows with {count} {'column' if count == 1 else 'columns'} to learn from. {how}. No "
        f"feature service is configured, so nothing was joined. {leaks}\n",
    ]


def _names(names: Iterable[str]) -> str:
    return ", ".join(escape(name) for name in names) or "nothing"


def _views(audit: Audit) -> list[str]:
    """Return the table of views, and what could not be proven or used."""
    header = ["view", "rows with a value", "past TTL", "newer, created later", "median age, h", "oldest, h"]
    rows = []
    for view in audit.views:
        shares = [f"{share:.2%}" for share in (view.matched_share, view.expired_share, view.held_back_share)]
        ages = [f"{seconds / 3600:,.1f}" for seconds in (view.median_age_s, view.max_age_s)]
        rows.append([view.view, *shares, *ages, f"{view.leaks + view.differing_from_feast:,}"])
    parts = [table([*header, "leaks"], rows, numeric=range(1, len(header) + 1))]
    if audit.unproven:
        parts.append(
            f"Not proven for {_names(audit.unproven)}: these views have no creation times, "
            "so values that were filled in later cannot be detected.\n"
        )
    if found := [
        f"{view.unusable_rows:,} of {escape(view.view)}" for view in audit.views if view.unusable_rows
    ]:
        parts.append(
            f"Rows of the files without a key or a creation time, which no row gets: {', '.join(found)}.\n"
        )
    return parts


def _columns(audit: Audit, limits: JoinLimits, kind: TargetKind) -> str:
    """Return the table of columns: share of missing values, and the score of the column alone."""
    flagged = suspicious(audit, limits, kind)
    measure = MEASURES.get(kind, "score")
    rows = [
        [
            column.column,
            column.view or "(the row)",
            f"{column.missing_share:.2%}",
            f"{displayed(column.auc, kind):.3f}" if column.auc else "",
            "suspicious" if column.column in flagged else "no value" if column.missing_share == 1 else "",
        ]
        for column in sorted(audit.columns, key=lambda column: -column.auc)
    ]
    intro = "No column was scored against the label.\n\n"
    if kind == "text":
        intro = "A language model has no label, so scoring columns against it is not applicable.\n\n"
    elif any(column.auc for column in audit.columns):
        intro = (
            f"{_MEANINGS[kind]} {escape(audit.scored_on)}; above "
            f"{displayed(limits.max_single_feature_auc, kind):g} it usually leaks the label.\n\n"
        )
    return intro + table(["column", "from", "missing", measure, ""], rows, numeric=[2, 3])


_MEANINGS = {
    "binary": "AUC measures how well one column alone orders the labels of",
    "multiclass": "AUC measures how well one column alone separates the class that it separates worst, in",
    "regression": "The rank correlation (Spearman, without its sign) says how well one column alone orders "
    "the labels of",
}
