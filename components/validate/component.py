"""The ``validate`` component: a snapshot against its schema, the span before, and the model's own data."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TFDV, install_kfp_package=False)
def validate(  # noqa: PLR0917 - five of them are outputs
    snapshot: dsl.Input[dsl.Dataset],
    data_version: str,
    verdict: dsl.Output[dsl.Artifact],
    quarantine: dsl.Output[dsl.Dataset],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    schema: str = "",
    schema_version: str = "",
    validation: dict = {},  # noqa: B006 - the default of a component's input
    baseline: str = "",
    baseline_version: str = "",
    newest_since: str = "",
    date: str = "",
) -> NamedTuple("Validated", [("decision", str), ("quarantine_version", str), ("proceed", str)]):  # type: ignore[valid-type]
    """Judge a snapshot: does it fit its schema, and has it moved since it was last trained on?

    Args:
        snapshot: The rows, by split.
        data_version: Digest of the snapshot's manifest; another one is refused.
        verdict: The verdict, TFDV's statistics and anomalies, the baseline that was calculated, and
            ``schema.pbtxt`` if it was inferred.
        quarantine: Snapshot of the rows that violate the schema; without rows unless ``quarantine`` is set.
        report: One page: what moved, how far, against what limit, and what could not be compared.
        metrics: ``drift/<column>`` and the like: every distance that was measured, fractions in [0, 1].
        schema: The reviewed TFDV schema, ``schema.pbtxt``: a file or a URI; '' to infer one, which holds the
            data.
        schema_version: The content digest that ``resolve`` found for it; other content is rejected. ''
            for a file that this step is to write: ``on_missing_schema`` is ``bootstrap``.
        validation: Comparisons, limits, severities: the section ``validation``.
        baseline: The accepted ``baseline.json`` of the model in production: a file or a URI; '' for none.
        baseline_version: The content digest that ``resolve`` found for it.
        newest_since: Time that the newest row must reach, ISO 8601, as ``resolve`` gives it; '' for any.
        date: The run's date, for the end of suppressions; '' for the time of the newest row.

    Returns:
        decision: PASS, HOLD or FAIL; the pipeline decides what follows. quarantine_version: Digest of the
        quarantine's manifest. proceed: yes or no: whether the run goes on; no after FAIL, and after HOLD if
        ``on_data_hold`` is ``stop``.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Validation

    with reported("validate"):
        section = Validation.parse(validation, "parameter validation")
        from trainwright.validate.schema import read_schema
        from trainwright.validate.validate import ValidationContext, ValidationOutputs, validate_snapshot

        outcome = validate_snapshot(
            Path(snapshot.path),
            data_version,
            section,
            ValidationContext(
                read_schema(schema, schema_version) if schema_version else "",
                baseline,
                baseline_version,
                newest_since,
                date,
                schema_place=schema,
                schema_version=schema_version,
            ),
            ValidationOutputs(
                verdict=Path(verdict.path),
                quarantine=Path(quarantine.path),
                report=Path(report.path),
                summary=Path(verdict.path, "summary.md"),
            ),
        )
        metrics.metadata.update(outcome.metrics())
        describe("validate", verdict, quarantine, report, metrics)
    return (
        outcome.decision,
        outcome.quarantined.snapshot.digest,
        "no" if section.stops(outcome.decision) else "yes",
    )
