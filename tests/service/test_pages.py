"""The pages of a real service in a real browser: what they show, and that nothing breaks out of them."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.authoring.api.server import serving as kubeflow
from tests.registry.shelf import MODEL, Shelf
from tests.report.browser import Browser, Tab, browser
from tests.service.hostile_runs import HOSTILE, STEPS, write_run
from tests.service.server import Service, experiment, serving
from trainwright.documents import digest_text
from trainwright.local.run_folder import Request, Tasks, held
from trainwright.local.run_index import RunSummary
from trainwright.service.access import COOKIE

__all__ = ["browser"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

DONE, OTHER, FAILED, HELD, CANCELLED = "0000d1", "0000d2", "0000f1", "0000h1", "0000c1"
DATA, MODEL_DIGEST = digest_text("data"), digest_text("model 0")
PAGES = (
    "/runs",
    "/runs?state=running",
    f"/runs/{DONE}",
    f"/runs/{FAILED}",
    f"/runs/{HELD}",
    f"/runs/{CANCELLED}",
    f"/runs/{DONE}/log/train",
    "/runs/missing",
    "/compare",
    f"/compare?run={DONE}&run={OTHER}",
    "/cost?since=2026-11-01",
    "/lineage",
    f"/lineage?of={DATA[:12]}",
    "/models",
    f"/models/{MODEL}",
    f"/models/{MODEL}/1",
    "/models/none",
)

REQUIREMENTS = {
    "the document has a language": "document.documentElement.lang == 'en'",
    "it has one heading of the first level": "document.querySelectorAll('h1').length == 1",
    "it has landmarks": "document.querySelectorAll('main, header, nav').length == 3",
    "it has a title": "document.title.length > 15",
    "tables have captions": "[...document.querySelectorAll('table')].every(one => one.caption?.textContent)",
    "every header cell has a scope": "[...document.querySelectorAll('th')].every(one => one.scope)",
    "every field has a name": "[...document.querySelectorAll('input:not([type=hidden]), select')]"
    ".every(one => one.labels.length || one.ariaLabel)",
    "ids are unique": "new Set([...document.querySelectorAll('[id]')].map(one => one.id)).size"
    " == document.querySelectorAll('[id]').length",
    "the page is not scrolled sideways": "document.documentElement.scrollWidth <= innerWidth",
    "nothing of a run became a program": "window.hacked === undefined && !document.querySelector('img')",
    "styles apply": "getComputedStyle(document.body).fontSize == '14px'",
}


@dataclass(frozen=True)
class Site:
    """A service with its folder of runs; its user is not the author of the models."""

    service: Service
    runs: Path

    def send(self, path: str, method: str = "GET", **more: Any) -> tuple[int, str]:
        """Return the status and the text of a page."""
        answer = self.service.call(method, path, **more)
        return answer.status_code, answer.text

    @contextmanager
    def open(self, browser: Browser, path: str, width: int = 1280, *, dark: bool = False) -> Iterator[Tab]:
        """Open a page as a browser that has signed in."""
        cookie = {COOKIE: self.service.token}
        with browser.tab(self.service.root + path, width=width, cookie=cookie, dark=dark) as tab:
            yield tab


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, stocked: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    runs = folder / "runs"
    write_run(runs, DONE)
    write_run(runs, OTHER, seed=1, auc=0.91, continues=DONE)
    for run, state in ((FAILED, "failed"), (HELD, "held"), (CANCELLED, "cancelled")):
        write_run(runs, run, state)
    shelf = Shelf.copy(stocked, folder / "shelf")
    config = experiment(folder, {"model": MODEL, "tracking_uri": shelf.registry.tracking_uri})
    with serving("--runs", runs, "--config", config, folder=folder) as service:
        yield Site(service, runs)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible_fits_and_runs_nothing_of_a_run(
    filled: Site, browser: Browser, path: str, width: int
) -> None:
    with filled.open(browser, path, width, dark=width == 390) as tab:
        assert [name for name, text in REQUIREMENTS.items() if not tab.ask(text)] == []
        others = [url for url in browser.requests() if not url.startswith((filled.service.root, "data:"))]
        assert others == []
        expected = 1 if path in {"/runs/missing", "/models/none"} else 0  # the browser notes a 404
        assert len(browser.problems()) == expected, browser.problems()


def test_run_page_shows_hostile_texts_as_they_are(filled: Site, browser: Browser) -> None:
    with filled.open(browser, f"/runs/{FAILED}") as tab:
        shown = tab.ask("document.querySelector('.problem').innerText")
        assert f"train: column {HOSTILE} is missing" in shown
        assert f"Add {HOSTILE}." in shown
        assert f"trainwright run train_and_register --runs {filled.runs} --run {FAILED}" in shown
        assert HOSTILE in tab.ask("document.querySelector('#step-train pre').innerText")
        assert HOSTILE in tab.ask("document.body.innerText")


def test_run_page_draws_its_steps_with_states_and_links(filled: Site, browser: Browser) -> None:
    with filled.open(browser, f"/runs/{FAILED}") as tab:
        boxes = tab.ask("[...document.querySelectorAll('.graph a')].map(one => one.textContent)")
        assert sorted(re.sub(r"^.*?: ", "", text, count=1) for text in boxes) == sorted(
            ["doneingestdone", "done PASSvalidatedone PASS", "failedtrainfailed", "skippedevaluateskipped"]
        )
        assert (
            tab.ask("document.querySelectorAll('.graph .arrow').length") == 3
        )  # train waits for validate alone
        assert tab.ask("[...document.querySelectorAll('.graph a')].every(one => "
                       "document.querySelector(one.getAttribute('href')))")  # fmt: skip
        open_steps = "[...document.querySelectorAll('.step[open]')].map(one => one.id)"
        assert tab.ask(open_steps) == ["step-train"]


def test_report_opens_in_a_frame_that_runs_no_script(filled: Site, browser: Browser) -> None:
    path = f"/api/v1/runs/{DONE}/files/validate/report.html"
    assert "parent.hacked" in filled.send(path)[1]
    with filled.open(browser, f"/runs/{DONE}") as tab:
        loaded = tab.ask(
            "new Promise(done => { const frame = document.querySelector('iframe');"
            "frame.onload = () => done(frame.src); frame.closest('details').open = true; })"
        )
        assert loaded == filled.service.root + path
        assert tab.ask("window.hacked === undefined")
        assert tab.ask("document.querySelector('iframe').contentDocument === null")  # of another origin
    with filled.open(browser, path) as tab:
        assert tab.ask("[document.querySelector('#seen').innerText, typeof hacked, origin]") == [
            "A report", "undefined", "null",
        ]  # fmt: skip


def test_keyboard_skips_to_the_content_ticks_two_runs_and_compares_them(
    filled: Site, browser: Browser
) -> None:
    focused = "document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label')"
    with filled.open(browser, "/runs") as tab:
        tab.press("Tab")
        assert tab.ask(focused) == "Skip to content"
        assert tab.ask("document.activeElement.getBoundingClientRect().left") == 8
        tab.press("Enter")
        assert tab.ask("document.activeElement.id") == "main"
        ticked = []
        for _ in range(60):
            tab.press("Tab")
            name = tab.ask(focused)
            outline = tab.ask("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", name
            if name in {f"Compare {DONE}", f"Compare {OTHER}"}:
                tab.press(" ")
                ticked.append(name)
            if name == "Compare":
                break
        assert len(ticked) == 2
        tab.press("Enter", loads=True)
        text = tab.ask("document.querySelector('main').innerText")
        assert re.search(r"training\.seed\s+[01]\s+[01]", text)
        assert re.search(r"auc\s+0\.91?\s+0\.91?\s+[+-]0\.01", text)


def test_running_run_shows_its_end_without_a_reload(filled: Site, browser: Browser) -> None:
    folder = write_run(filled.runs, "0000r1", "running")
    with held(folder), filled.open(browser, "/runs/0000r1") as tab:
        states = "[...document.querySelectorAll('.step')].map(one => one.id + ' ' + one.dataset.state)"
        assert tab.ask(states) == [
            "step-ingest done", "step-validate done", "step-train running", "step-evaluate waiting",
        ]  # fmt: skip
        tab.ask("document.querySelector('#step-ingest').open = true; window.here = true; 0")
        written = Tasks.read(folder)
        failed = write_run(filled.runs, "0000r2", "failed")
        both = Tasks.read(failed).tasks
        Tasks(run="0000r1", state="running", tasks=(*written.tasks, both[2]), steps=STEPS).write(folder)
        changed = "document.querySelector('#step-train').dataset.state == 'failed'"
        assert tab.ask(until(changed))
        assert tab.ask("window.here && document.querySelector('#step-ingest').open")
        tasks = Tasks(run="0000r1", state="failed", tasks=both, steps=STEPS)
        browser.forget()
        RunSummary.of(Request.read(folder), tasks).write(folder)
        browser.wait_for_load()  # at its end, the page loads once more: there may be reports
        assert tab.ask("document.querySelector('[role=status]').innerText.includes('failed')")


def until(condition: str) -> str:
    """Return an expression that waits until a condition holds."""
    look = f"const look = () => {condition} ? done(true) : setTimeout(look, 50)"
    return f"new Promise(done => {{ {look}; look(); }})"


def test_killed_run_says_so_and_does_not_refresh(filled: Site) -> None:
    write_run(filled.runs, "0000k1", "running")
    status, page = filled.send("/runs/0000k1")
    assert status == 200
    assert "killed" in page
    assert "live.js" not in page


def test_search_finds_runs_by_parameter_state_and_version(filled: Site) -> None:
    def found(query: str) -> list[str]:
        status, page = filled.send(f"/runs?{query}")
        assert status == 200
        return re.findall(r'name="run" value="(\w+)"', page)

    assert found("where=training.seed%3D1") == [OTHER]
    assert found("state=held") == [HELD]
    assert found(f"version={digest_text('model 1')[:8]}") == [OTHER]
    assert len(found(f"owner={quote(HOSTILE)}")) >= 5
    assert found("pipeline=other") == found("owner=nobody") == []
    assert "No run matches" in filled.send("/runs?pipeline=other")[1]
    assert filled.send("/runs?where=seed")[0] == 400


def test_lineage_leads_from_data_to_models_and_back(filled: Site, browser: Browser) -> None:
    with filled.open(browser, f"/lineage?of={DATA[:10]}") as tab:
        titles = "[...document.querySelectorAll('.graph a .bold')].map(one => one.textContent).sort()"
        assert tab.ask(titles) == ["data", "model", "model", "source"]
        model = f".graph a[href$={MODEL_DIGEST!r}]"
        tab.ask(f"document.querySelector({model!r}).focus()")
        tab.press("Enter", loads=True)
        assert MODEL_DIGEST[:12] in tab.ask("document.querySelector('h1').innerText")
        assert tab.ask(titles) == ["data", "model", "source"]


def test_promotion_form_moves_a_version_that_passes_and_shows_why_another_is_held(filled: Site) -> None:
    first, second = f"/models/{MODEL}/1", f"/models/{MODEL}/2"
    csrf = re.findall(r'name="csrf" value="(\w+)"', filled.send(first)[1])[0]
    asked = {"to": "production", "by": "ben", "reason": HOSTILE}
    for wrong in (asked, asked | {"csrf": "0" * 64}):
        assert filled.send(first, "POST", data=wrong)[0] == 403
    assert filled.send(first, "POST", data=asked | {"csrf": csrf, "to": "moon"})[0] == 400
    assert "production: nothing" not in filled.send(first)[1]
    _, moved = filled.send(first, "POST", data=asked | {"csrf": csrf})
    assert "PASS: version 1 is production" in moved
    assert re.search(r"promote: candidate → production</td><td>ben</td><td>\w+</td>", moved)
    _, held_back = filled.send(second, "POST", data=asked | {"csrf": csrf})
    assert "FAIL: version 2 was not promoted to production" in held_back
    failed = r'<span class="result FAIL">FAIL</span></th><td class="text">[\w ]+</td>'
    assert re.search(failed, held_back)
    assert f'<a href="/models/{MODEL}/1">1</a>' in filled.send("/models")[1]
    assert re.search(r"<dt>Stage</dt><dd>candidate</dd>", filled.send(second)[1])


def test_caller_without_the_token_sees_how_to_sign_in_and_nothing_else(filled: Site) -> None:
    for path in PAGES:
        answer = requests.get(filled.service.root + path, cookies={COOKIE: "another"}, timeout=60)
        assert answer.status_code == 401
        assert "open the address that trainwright serve printed" in answer.text
        assert DONE not in answer.text


def test_empty_service_says_what_to_do_below_the_path_of_a_gateway(tmp_path: Path) -> None:
    with serving("--runs", tmp_path / "runs", "--root-path", "/team", folder=tmp_path) as service:
        site = Site(service, tmp_path)
        assert "trainwright run train_and_register --config" in site.send("/runs")[1]
        assert "Start the service with" in site.send("/models")[1]
        assert 'href="/team/style.css?' in site.send("/runs")[1]
        assert site.send("/lineage?of=abc")[0] == 404


def test_pages_of_a_long_list_hold_each_run_once(tmp_path: Path) -> None:
    runs, seen, path = tmp_path / "runs", [], "/runs?state=done"
    for number in range(120):
        write_run(runs, f"run{number:03}", seed=number)
    with serving("--runs", runs, folder=tmp_path) as service:
        while path:
            status, page = Site(service, runs).send(path)
            assert status == 200
            assert len(page) < 100_000
            seen += re.findall(r'name="run" value="(\w+)"', page)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = f"/runs{html.unescape(older[1])}" if older else ""
    assert seen == sorted((f"run{number:03}" for number in range(120)), reverse=True)


def test_cost_page_and_api_sum_the_runs_since_a_day(filled: Site) -> None:
    path = "/api/v1/cost?by=model&since=2026-11-01"
    [group] = filled.service.call("GET", path).json()
    # At least five runs of 1 each, of which that with another seed cost 2, each with 0.25 idle.
    runs = group["runs"]
    assert runs >= 5
    waste = {"idle": runs / 4}
    assert group == {
        "value": "flight_late", "currency": "EUR", "runs": runs, "cost": runs + 1.0, "waste": waste,
    }  # fmt: skip
    status, page = filled.send("/cost?by=owner&since=2026-11-01")
    assert status == 200
    assert f'<td class="number">{runs + 1}</td><td>EUR</td><td class="number">{runs}</td>' in page
    assert "<dt>Cost</dt><dd>1 EUR</dd>" in filled.send(f"/runs/{DONE}")[1]
    assert "No run since 2030-01-01 has a cost" in filled.send("/cost?since=2030-01-01")[1]
    assert filled.send("/cost?since=yesterday")[0] == 400


def test_run_of_kubeflow_is_listed_and_shown_with_a_link(tmp_path: Path) -> None:
    with kubeflow() as api, serving("--runs", tmp_path, "--kfp-host", api.url, folder=tmp_path) as service:
        run = api.store.recorded("another-team-fails").run_id
        site = Site(service, tmp_path)
        assert f'href="/runs/{run}"' in site.send("/runs")[1]
        assert "There is no run in" in site.send("/runs?source=folder")[1]
        status, page = site.send(f"/runs/{run}")
        assert status == 200
        assert re.search(rf'href="[^"]+/#/runs/details/{run}">In Kubeflow', page)
        assert 'id="step-resolve" data-state="failed"' in page
        body = {"parameters": {"request": {"to": "staging", "by": "anna", "reason": "x"}}}
        made = service.call("POST", "pipelines/promote_model/runs", json=body).json()["run"]
        page = site.send(f"/runs/{made}")[1]
        assert "<title>promote: waiting</title>" in page
