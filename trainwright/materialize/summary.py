"""What a run says about itself: one line for the screen, one page of Markdown for the step."""

from typing import TYPE_CHECKING

from trainwright.experiment import Materialize
from trainwright.report.markdown import escape, table

if TYPE_CHECKING:
    from trainwright.materialize.online import OnlineState, ViewOutcome


def headline(state: "OnlineState") -> str:
    """Say how much was written, up to when and how fresh: ``3,344 keys of 4 views up to …``."""
    keys = sum(view.mark.keys for view in state.views)
    written = sum(view.mark.written for view in state.views)
    end = max(view.mark.end for view in state.views)
    count = len(state.views)
    facts = [f"{keys:,} keys of {count} {'view' if count == 1 else 'views'} up to {end}"]
    if written != keys:
        facts.append(f"{keys - written:,} held newer rows")
    facts.append(f"{sum(view.mark.checked for view in state.views):,} checked")
    if emptied := [view.mark.view for view in state.views if view.asked and view.gone == view.asked]:
        facts.append(f"the store had lost {', '.join(emptied)}")
    elif gone := sum(view.gone for view in state.views):
        facts.append(f"{gone:,} of {sum(view.asked for view in state.views):,} earlier keys are gone")
    if late := sum(view.late for view in state.views):
        facts.append(f"{late:,} rows came later than the overlap")
    return ", ".join(facts)


def summary_of(state: "OnlineState", section: Materialize) -> str:
    """Write the summary: each view's window, rows and check, and what to do about rows that came too late."""
    header = ["view", "from", "up to", "rows", "keys", "written", "checked", "newest row", "way", "s"]
    rows = [
        [
            view.mark.view,
            view.mark.start or "the beginning",
            view.mark.end,
            f"{view.mark.rows:,}",
            f"{view.mark.keys:,}",
            f"{view.mark.written:,}",
            f"{view.mark.checked:,}",
            view.newest or "none",
            view.way,
            f"{view.seconds:.1f}",
        ]
        for view in state.views
    ]
    parts = [
        f"## Materialize: {escape(state.project)} to {escape(state.store)}\n",
        "Every checked key was read back through Feast and equals the newest row of the files.\n",
        table(header, rows, numeric=[3, 4, 5, 6, 9]),
        *[_gone(view) for view in state.views if view.gone],
        *[_late(view, section) for view in state.views if view.late],
        *[_by_feast(view) for view in state.views if view.by_feast],
    ]
    return "\n".join(parts)


def _gone(view: "ViewOutcome") -> str:
    name = escape(view.mark.view)
    if view.gone == view.asked:
        return (
            f"**The store had none of {view.asked:,} keys of {name} that earlier runs wrote**: it was "
            "emptied, or put back to an older state. So everything was written again.\n"
        )
    return (
        f"**{view.gone:,} of {view.asked:,} keys of {name} from before its window are not in the store**, or "
        "only as they were before: they were removed, or came too late. Backfill them: set "
        "`materialize.start`.\n"
    )


def _late(view: "ViewOutcome", section: Materialize) -> str:
    return (
        f"**{view.late:,} rows of {escape(view.mark.view)} became known since the last run and lie before "
        f"its window**: they came more than {section.overlap_s:,} s late and are not in the store. Backfill "
        "them: set `materialize.start`, and raise `materialize.overlap_s` if this goes on.\n"
    )


def _by_feast(view: "ViewOutcome") -> str:
    names = ", ".join(escape(name) for name in view.by_feast)
    return f"Values of {names} in {escape(view.mark.view)} went through Feast's own, slow converter.\n"
