"""The page and the summary: the decision first, the numbers behind it, and no page too large to open."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluate.conftest import FAIR, Step, rows_of
from tests.evaluate.made_findings import made, made_fairness, verdict_on
from tests.report.browser import Browser
from trainwright.evaluate.findings import Findings, MeasuredMetrics
from trainwright.evaluate.page import draw_report
from trainwright.evaluate.page_slices import shown_metrics, worst_first
from trainwright.evaluate.summary import next_steps, summarize
from trainwright.report.page import MAX_BYTES, DenseTable, Figure, ReportPage, Table, draw_page, write_page
from trainwright.verdicts import DECISIONS, Verdict

HOSTILE = "<script>document.title='broken'</script>|[x](javascript:alert(1))"
KINDS = ("binary", "multiclass", "regression", "language_model")
CARRIERS = (("carrier",), [f"C{index:02}" for index in range(14)])


def page_of(findings: Findings) -> ReportPage:
    return draw_report(findings, verdict_on(findings))


def section(page: ReportPage, heading: str) -> "list[object]":
    return next(list(entry.blocks) for entry in page.sections if entry.heading == heading)


@pytest.mark.parametrize(("kind", "width"), [*((kind, 400) for kind in KINDS), ("binary", 1200)])
def test_every_kind_is_readable_and_whole_on_a_phone_and_at_a_desk(
    kind: str, width: int, browser: Browser, tmp_path: Path
) -> None:
    fairness = made_fairness([("sex",), ("sex", "race")], 4, baseline=True) if kind == "binary" else ((), ())
    findings = made(
        kind, decision="HOLD", slices=[CARRIERS, (("origin",), ["EWR", HOSTILE])], small=1, fairness=fairness
    )
    ask = (
        "document.documentElement.scrollWidth",
        "document.querySelector('h1').getBoundingClientRect().top < 300",
        "document.querySelector('header').innerText.includes('HOLD')",
        "[...document.querySelectorAll('svg')].every(s => s.role == 'img' && s.querySelector('title'))",
        "document.title",
        "document.querySelectorAll('script').length",
    )
    seen = browser.open(
        write_page(page_of(findings), tmp_path / "page.html"), width=width, dark=width < 500, ask=ask
    )
    assert (seen.requests, seen.problems) == ([], [])
    wide, high, decided, named, title, scripts = seen.answers
    assert wide <= width
    assert (high, decided, named, scripts) == (True, True, True, 0)
    assert title.endswith("well enough?: HOLD")
    assert seen.shades > 50


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_decision_comes_first_with_its_number_and_limit(decision: str) -> None:
    html = draw_page(page_of(made(decision=decision)))
    header = html[html.index("<header>") : html.index("</header>")]
    assert decision in header
    assert "0.711 against" in header
    first = re.search(r"<section>\s*<h2>(.*?)</h2>", html)
    assert first
    assert first[1] == "Rules"


def test_each_rule_has_value_interval_limit_decision_and_needed_rows() -> None:
    findings = made(decision="INCONCLUSIVE", slices=[CARRIERS])
    (table, *_) = section(page_of(findings), "Rules")
    assert isinstance(table, Table)
    assert table.rows[0][:6] == ["auc", "0.711", "[0.701, 0.721]", "> 0.711", "INCONCLUSIVE", "81,000"]
    assert table.rows[2][:5] == ["auc against production", "+0.014", "[+0.009, +0.019]", "> -0.005", "PASS"]
    assert list(table.flagged) == [0]


def test_a_rule_on_slices_shows_the_worst_and_how_many_there_are() -> None:
    (table, *_) = section(page_of(made(slices=[CARRIERS], small=2)), "Rules")
    assert isinstance(table, Table)
    assert table.rows[1][0] == "recall of carrier C00"
    assert "the worst of 12 slices" in str(table.rows[1][-1])


def test_slices_are_shown_worst_first_and_small_ones_last_with_their_size() -> None:
    findings = made(slices=[CARRIERS], small=3)
    ordered = worst_first(findings.cuts[0], shown_metrics(findings))
    assert [entry.name for entry in ordered[:2]] == ["C10", "C09"]
    assert {entry.rows for entry in ordered[-3:]} == {40}
    html = draw_page(page_of(findings))
    assert html.count("40 small") == 3 * 2  # in both figures
    assert html.count("40 of at least 200 rows") >= 3


def test_a_figure_with_hollow_points_says_what_they_mean_and_no_other_does() -> None:
    names = [f"C{index:02}" for index in range(4)]
    for findings, hollow in (
        (made(slices=[(("carrier",), names)]), False),
        (made(slices=[(("carrier",), names)], small=1), True),
        (undecided(made(slices=[(("carrier",), names)])), True),
    ):
        figures = [block for block in section(page_of(findings), "By carrier") if isinstance(block, Figure)]
        assert figures
        assert {"Hollow: nothing was decided" in figure.caption for figure in figures} == {hollow}
        assert {'class="hollow faint"' in figure.svg for figure in figures} == {hollow}


def undecided(findings: Findings) -> Findings:
    """The same, with slices that are large enough and still too few to tell."""
    rulings = [
        replace(ruling, rules=tuple(replace(rule, limit=0.04) for rule in ruling.rules))
        for ruling in findings.rulings
    ]
    return replace(findings, rulings=tuple(rulings))


def test_a_column_with_one_value_is_one_slice() -> None:
    html = draw_page(page_of(made(slices=[(("carrier",), ["AA"])])))
    assert "1 slice." in html
    assert "1 slices" not in html


def test_of_a_figure_that_is_better_low_the_worst_slice_is_the_highest() -> None:
    findings = made("regression", slices=[CARRIERS])
    assert worst_first(findings.cuts[0], ["rmse"])[0].name == "C00"


def test_slices_are_shown_by_the_metrics_that_rules_judge_them_by() -> None:
    rule = {"metric": "log_loss", "at_most": 0.6, "scope": "slice"}
    asked = {"slices": ("carrier",), "rules": [rule]}
    assert shown_metrics(made(slices=[CARRIERS])) == ["recall", "auc"]
    assert shown_metrics(made(slices=[CARRIERS], asked=asked)) == ["log_loss", "recall", "auc"]


def test_five_thousand_slices_are_all_in_the_table_and_the_page_stays_small() -> None:
    names = [f"shop <{index}> & co" for index in range(5_000)]
    page = page_of(made(slices=[(("shop",), names)], small=300))
    html = draw_page(page)
    assert len(html.encode()) < MAX_BYTES
    (table,) = [block for block in section(page, "By shop") if isinstance(block, DenseTable)]
    assert table.title == "All 5,000 slices"
    assert {row[0] for row in table.rows} == set(names)


def test_more_slices_than_have_a_place_are_counted_and_the_worst_are_kept() -> None:
    long = [f"{index} " + "x" * 70 for index in range(500)]
    page = page_of(made(slices=[((f"c{index}", "d"), long) for index in range(20)]))
    html = draw_page(page)
    assert len(html.encode()) < MAX_BYTES
    tables = [block for entry in page.sections for block in entry.blocks if isinstance(block, DenseTable)]
    kept = sum(len(table.rows) for table in tables if "worst of 500" in table.title)
    assert 1_000 < kept < 10_000
    assert "more slices have no place here" in html


def test_candidate_and_production_are_drawn_together_where_there_are_two() -> None:
    both, alone = (draw_page(page_of(made(slices=[CARRIERS], baseline=many))) for many in (True, False))
    assert "hollow previous" in both.partition("<body>")[2]
    assert "hollow previous" not in alone.partition("<body>")[2]
    assert "production, version 7" in both
    assert "nothing: no model in production" in alone
    assert '<th scope="col">gain' not in alone
    assert '<th scope="col">gain' in both


def test_fairness_shows_every_disparity_with_its_limits_and_who_it_is_between() -> None:
    fairness = made_fairness([("sex",), ("race",), ("sex", "race")], 30, baseline=True)
    (table, *figures) = section(page_of(made(fairness=fairness)), "Fairness")
    assert isinstance(table, Table)
    assert [str(row[0]).partition(" by ")[2] for row in table.rows] == ["sex", "race", "sex and race", "sex"]
    assert table.rows[0][1:6] == ["no limit", "0.080 [0.070, 0.090]", "-", "+0.030 [+0.020, +0.040]", "-"]
    assert table.rows[2][7] == "sex = 0, race = 0 and sex = 29, race = 29"
    assert table.rows[3][7] == "one group has no rows selected"
    assert len(figures) > 3


def test_digests_of_everything_judged_are_on_the_page_whole() -> None:
    findings = made()
    verdict, html = verdict_on(findings), draw_page(page_of(findings))
    assert all(digest in html for digest in (*verdict.judged.values(), verdict.digest))


def test_many_classes_show_their_commonest_mistakes_instead_of_a_matrix() -> None:
    findings = made("multiclass", classes=[f"class {index}" for index in range(40)])
    tables = section(page_of(findings), "Confusion")
    assert all(isinstance(table, DenseTable) and len(table.rows) == 30 for table in tables)
    few = section(page_of(made("multiclass")), "Confusion")
    assert all(isinstance(table, Table) and len(table.rows) == 3 for table in few)


def test_the_same_findings_give_the_same_bytes() -> None:
    assert draw_page(page_of(made(slices=[CARRIERS]))) == draw_page(page_of(made(slices=[CARRIERS])))


@pytest.mark.covers("A6")
def test_hostile_names_are_text_on_the_page_and_in_the_summary() -> None:
    findings = made(slices=[(("origin",), ["EWR", HOSTILE])], small=1, warnings=(HOSTILE,))
    body = draw_page(page_of(findings)).partition("<body>")[2]
    assert "<script" not in body
    summary = summarize(findings, verdict_on(findings))
    assert "<script" not in summary
    assert r"\|[x\](javascript:alert(1))" in summary


def test_what_is_open_says_how_many_rows_would_decide() -> None:
    findings = made(decision="INCONCLUSIVE")
    steps = " ".join(next_steps(findings, verdict_on(findings)))
    assert "About 81,000 rows like these 28,618 would decide auc with 80 % probability" in steps
    assert "81,000" in summarize(findings, verdict_on(findings))


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_summary_names_the_decision_each_rule_and_what_to_do_next(decision: str) -> None:
    findings = made(decision=decision, slices=[CARRIERS], small=2)
    summary = summarize(findings, verdict_on(findings))
    assert summary.startswith(f"# Evaluate: {decision}\n")
    assert "| auc | 0.711 | [0.701, 0.721] | " in summary
    assert "\nNext: " in summary
    assert "- carrier = C12: 40 of at least 200 rows" in summary


def test_the_gate_writes_page_summary_figures_and_card(written: Callable[..., Step]) -> None:
    step = written(rows_of(FAIR))
    made_of = step.judge(slices=["origin"], min_auc=0.6, min_rows=50)
    verdict = step.folder / "verdict"
    measured = MeasuredMetrics.read(verdict)
    html = (step.folder / "report.html").read_text()
    assert Verdict.read(verdict).digest in html
    assert measured.measures[0].name == "auc"
    assert {entry.name: entry.value for entry in measured.measures}["auc"] == made_of.metrics["auc"]
    assert (verdict / "card.md").read_text().startswith("# Evaluation of the model of late\n")
    assert (step.folder / "summary.md").read_text().startswith(f"# Evaluate: {made_of.decision}\n")


def test_a_rule_that_only_warns_says_that_it_is_open() -> None:
    findings = made()
    (first, *rest) = findings.rulings
    low = replace(first.rules[0], limit=0.75, interval=(0.70, 0.78), unsure="PASS")
    (table, *_) = section(page_of(replace(findings, rulings=(replace(first, rules=(low,)), *rest))), "Rules")
    assert isinstance(table, Table)
    assert (table.rows[0][4], table.rows[0][-1]) == ("PASS", "open, and reported only")
