"""The ``monitor`` component: it compares served rows with those that the model learned from."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TFDV, install_kfp_package=False)
def monitor(
    validation: dict,
    references: dict,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    features: dict = {},  # noqa: B006 - the default of a component's input
) -> NamedTuple("Monitored", [("decision", str), ("headline", str)]):  # type: ignore[valid-type]
    """Compare a serving log with the accepted baseline of the model in production, column by column.

    Args:
        validation: Limits, baseline, serving log: the section ``validation``.
        references: Baseline and serving log with their digests, as ``resolve`` returns them.
        record: The decision, and digests of what was compared.
        summary: Every distance with its limit.
        features: Limits of joined features: the section ``features``.

    Returns:
        decision: PASS; HOLD or FAIL if a column moved; INCONCLUSIVE if none moved and one could not be
        compared. headline: The reason.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Features, Validation
    from trainwright.monitor import monitor as step

    with reported("monitor"):
        found = step.monitor(
            Validation.parse(validation, "parameter validation"),
            Features.parse(features, "parameter features"),
            step.References(**references),
            Path(record.path),
            Path(summary.path),
            datetime.now(UTC),
        )
        describe("monitor", record, summary)
    return found
