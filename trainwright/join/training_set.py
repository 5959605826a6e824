"""The training set: rows with their features as they were known at each row's time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features
from trainwright.featurestore import Service, checked_out, open_service, require_version
from trainwright.join.audit import Audit
from trainwright.join.coverage import require_covered
from trainwright.join.joining import Join, SourceOf, source_of
from trainwright.join.left_out import LeftOut, read_left_out
from trainwright.join.summary import headline, summary_of
from trainwright.tracking import Stopwatch


def make_training_set(
    entities: Path,
    data_version: str,
    features: Features,
    features_version: str,
    folder: Path,
    summary: Path,
    *,
    quarantine: Path | None = None,
    quarantine_version: str = "",
    source_of: SourceOf = source_of,
) -> Snapshot:
    """Join a feature service to every row of a snapshot, and prove that nothing leaked.

    Order, count and splits of the rows are kept, but for those in quarantine, which are left out. The
    training set has their key, time, label and request columns, and the features; no other column goes on.

    Args:
        entities: The snapshot with the rows; its time column says when each prediction is made.
        data_version: Digest that the snapshot must have.
        features: Which features are joined.
        features_version: Content digest that ``features.source`` must have.
        folder: Where the training set is written.
        summary: Where the Markdown summary is written, whatever the audit says.
        quarantine: Snapshot of the rows that are left out; None if there is none.
        quarantine_version: Digest that it must have.
        source_of: Opens the rows behind a view.

    Returns:
        The manifest of the training set.

    Raises:
        InputError: A column, the service or a file is missing or cannot be joined; a row has no key or time
            of its own or is newer than the cutoff; an input is not the one that was asked for; or a change
            of the features would go unseen.
        DataRefused: A joined value is not the one that was known at its row's time, or a limit on the
            features does not hold. The summary and the audit are written before.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(entities, data_version)
    left_out = read_left_out(quarantine, quarantine_version, data_version, snapshot.roles.get("key", ""))
    with (
        _opened(features, features_version) as service,
        tables.SnapshotWriter(folder, list(snapshot.splits)) as writer,
    ):
        join = Join(snapshot, service, features, left_out, source_of=source_of)
        join.require_keys(entities)
        behind = {f"features.{view.name}": view.digest for view in service.views} | _named(left_out)
        audit = _write(join, entities, writer, folder, summary)
        training_set = writer.commit(
            parents={"entities": data_version, "features": service.digest} | behind,
            roles={role: name for role, name in snapshot.roles.items() if name in join.plan.carried},
            quality=audit.figures()
            | {f"left_out.{name}": float(rows) for name, rows in left_out.met.items()},
        )
    watch.record(
        folder,
        "join",
        headline(training_set, join.plan, audit, left_out),
        config=features.model_dump(mode="json"),
        inputs={"entities": data_version, "features": features_version} | behind,
        outputs={"training_set": training_set.digest, "service": service.digest},
        parents=[entities],
    )
    return training_set


@contextmanager
def _opened(features: Features, version: str) -> Iterator[Service]:
    """Open the features, if they are the ones that were looked at, and such as may be joined."""
    listing = require_version(features.source, version)
    with checked_out(features.repository, listing) as checkout:
        service = open_service(str(checkout.folder), features.service, fetched=checkout.fetched)
        require_covered(service, features, checkout, [entry.uri for entry in listing.files])
        _require_created(service, features)
        yield service


def _write(join: Join, entities: Path, writer: tables.SnapshotWriter, folder: Path, summary: Path) -> Audit:
    """Write the rows, the audit and the summary, and only then refuse what is not right."""
    for split, table in join.rows(entities):
        writer.append(split, table)
    join.left_out.require_met()
    audit = join.audit()
    audit.write(folder / Audit.FILE)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summary_of(join.service, join.plan, audit, join.features.limits, join.left_out))
    _refuse_leaks(join)
    _refuse_limits(audit, folder)
    return audit


def _named(left_out: LeftOut) -> dict[str, str]:
    """Name the quarantine, if any row is in it."""
    return {"quarantine": left_out.version} if left_out.rows else {}


def _require_created(service: Service, features: Features) -> None:
    """Refuse views that cannot show when a value was known, unless a reason is given."""
    without = [view.name for view in service.views if not view.created]
    if without and not features.allow_backfill_leak:
        raise InputError(
            f"views {without} have no created timestamp, so values that were filled in later would leak",
            where=f"feature service {service.name!r}",
            hint="Give their sources a created_timestamp_column, or say in features.allow_backfill_leak why "
            "they need none.",
        )


def _refuse_leaks(join: Join) -> None:
    """Refuse values that are not those that were known."""
    wrong = {name: view for name, view in join.views.items() if view.wrong}
    if wrong:
        lines = [f"  {name}: {view.wrong:,} rows, such as {view.example}" for name, view in wrong.items()]
        raise DataRefused(
            "joined values are not those that were known at their rows' times\n" + "\n".join(lines),
            where="the leakage audit",
            hint="The join is wrong, or Feast is, so nothing was written. Please report it with the files.",
        )


def _refuse_limits(audit: Audit, folder: Path) -> None:
    """Refuse features that do not reach what was asked of them."""
    if audit.refusals:
        raise DataRefused(
            f"the audit refuses the training set: {len(audit.refusals)} limits do not hold\n"
            + "\n".join(f"  {line}" for line in audit.refusals),
            where=str(folder / Audit.FILE),
            hint="Look at the feature, or move its limit in features.limits if the figure is right.",
        )
