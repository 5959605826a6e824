"""The ``materialize`` component: the newest features go into the online store, and are read back."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.FEAST, install_kfp_package=False)
def materialize(
    features_version: str,
    section: dict,
    online: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    date: str = "",
    scheduled: str = "",
) -> str:
    """Bring the newest row of every key into a Feast online store, and check that it is there.

    Never cache it: the online store is outside of what a cache knows.

    Args:
        features_version: The content digest that ``resolve`` found for the features' files.
        section: Repository, state, views, window: the section ``materialize``.
        online: What was written, of which window, and how it was checked; one entry a view.
        summary: The same in a table.
        date: The run's date: a day, which stands for its first moment in UTC, or a time with its zone; '' for
            the time for which the run was scheduled.
        scheduled: When that was: ``dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER``. '' for now.

    Returns:
        The digest of what was done.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Materialize

    with reported("materialize"):
        from trainwright.materialize.materialize import materialize as bring

        asked = Materialize.parse(section, "parameter section")
        places = Path(online.path), Path(summary.path)
        done = bring(asked, features_version, date, *places, scheduled=scheduled)
        describe("materialize", online, summary)
    return done.digest
