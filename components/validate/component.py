"""The ``validate`` component: a snapshot against its reviewed schema, and a span against the one before."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TFDV, install_kfp_package=False)
def validate(
    snapshot: dsl.Input[dsl.Dataset],
    data_version: str,
    schema: str,
    validation: str,
    verdict: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """Judge a snapshot: does it fit its schema, and has it moved since the previous span?

    Args:
        snapshot: The rows, by split.
        data_version: Digest of the snapshot's manifest; another one is refused.
        schema: The reviewed TFDV schema, as the text of ``schema.pbtxt``.
        validation: JSON: the two splits, the limits, the columns to ignore (the section ``validation``).
        verdict: The verdict, TFDV's statistics of both splits and its anomalies.
        report: One page: what moved, how far, against what limit, and what could not be compared.
        summary: The decision and the columns closest to their limits.
        metrics: ``drift/<column>``: the distance of each column, a fraction in [0, 1].

    Returns:
        PASS, HOLD or FAIL; the pipeline decides what follows.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.experiment import Validation

    with reported("validate"):
        section = Validation.parse(validation, "parameter validation")
        from trainwright.validate.gate import judge_snapshot

        places = {"verdict": Path(verdict.path), "report": Path(report.path), "summary": Path(summary.path)}
        outcome = judge_snapshot(Path(snapshot.path), data_version, schema, section, **places)
        for name, value in outcome.metrics.items():
            metrics.log_metric(name, value)
    return outcome.decision
