"""The pages of a real service in a real browser: what they show, and that nothing breaks out of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.registry.shelf import MODEL, Shelf, template
from tests.report.browser import Browser, browser
from tests.service.site import HOSTILE, STEPS, TOKEN, Site, serving, write_run
from trainwright.documents import digest_text
from trainwright.local.run_folder import Request, Tasks, held, identifier
from trainwright.local.run_index import RunSummary
from trainwright.service.access import COOKIE

__all__ = ["browser"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

DONE, OTHER, FAILED, HELD, CANCELLED = "0000d1", "0000d2", "0000f1", "0000h1", "0000c1"
COOKIES = {COOKIE: TOKEN.replace(" ", "-")}
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
class Filled:
    """A service with some runs and models."""

    site: Site
    runs: Path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("site")
    runs = folder / "runs"
    write_run(runs, DONE)
    write_run(runs, OTHER, seed=1, auc=0.91, continues=DONE)
    for run, state in ((FAILED, "failed"), (HELD, "held"), (CANCELLED, "cancelled")):
        write_run(runs, run, state)
    shelf = Shelf.copy(template(tmp_path_factory.mktemp("stocked")), folder / "shelf")
    registry = {"model": "any", "tracking_uri": shelf.registry.tracking_uri}
    policy = {"path": ["production"], "four_eyes": True}
    with serving(folder, runs, registry, promotion=policy) as site:
        yield Filled(site, runs)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible_fits_and_runs_nothing_of_a_run(
    filled: Filled, browser: Browser, path: str, width: int
) -> None:
    with browser.tab(filled.site.address + path, width=width, cookie=COOKIES, dark=width == 390) as tab:
        assert [name for name, text in REQUIREMENTS.items() if not tab.ask(text)] == []
        others = [url for url in browser.requests() if not url.startswith((filled.site.address, "data:"))]
        assert others == []
        expected = 1 if path in {"/runs/missing", "/models/none"} else 0  # the browser notes a 404
        assert len(browser.problems()) == expected, browser.problems()


def test_run_page_shows_hostile_texts_as_they_are(filled: Filled, browser: Browser) -> None:
    with browser.tab(f"{filled.site.address}/runs/{FAILED}", width=1280, cookie=COOKIES) as tab:
        shown = tab.ask("document.querySelector('.problem').innerText")
        assert f"train: column {HOSTILE} is missing" in shown
        assert f"Add {HOSTILE}." in shown
        assert f"trainwright run train_and_register --runs {filled.runs} --run {FAILED}" in shown
        assert HOSTILE in tab.ask("document.querySelector('#step-train pre').innerText")
        assert HOSTILE in tab.ask("document.body.innerText")


def test_run_page_draws_its_steps_with_states_and_links(filled: Filled, browser: Browser) -> None:
    with browser.tab(f"{filled.site.address}/runs/{FAILED}", width=1280, cookie=COOKIES) as tab:
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


def test_report_opens_in_a_frame_that_runs_no_script(filled: Filled, browser: Browser) -> None:
    path = f"/api/v1/runs/{DONE}/files/validate/report.html"
    assert "parent.hacked" in filled.site.get(path)[1]
    with browser.tab(f"{filled.site.address}/runs/{DONE}", width=1280, cookie=COOKIES) as tab:
        loaded = tab.ask(
            "new Promise(done => { const frame = document.querySelector('iframe');"
            "frame.onload = () => done(frame.src); frame.closest('details').open = true; })"
        )
        assert loaded == filled.site.address + path
        assert tab.ask("window.hacked === undefined")
        assert tab.ask("document.querySelector('iframe').contentDocument === null")  # of another origin
    with browser.tab(filled.site.address + path, width=1280, cookie=COOKIES) as tab:
        assert tab.ask("[document.querySelector('#seen').innerText, typeof hacked, origin]") == [
            "A report", "undefined", "null",
        ]  # fmt: skip


def test_keyboard_skips_to_the_content_ticks_two_runs_and_compares_them(
    filled: Filled, browser: Browser
) -> None:
    focused = "document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label')"
    with browser.tab(f"{filled.site.address}/runs", width=1280, cookie=COOKIES) as tab:
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


def test_running_run_shows_its_end_without_a_reload(filled: Filled, browser: Browser) -> None:
    folder = write_run(filled.runs, "0000r1", "running")
    with held(folder), browser.tab(f"{filled.site.address}/runs/0000r1", width=1280, cookie=COOKIES) as tab:
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


def test_killed_run_says_so_and_does_not_refresh(filled: Filled) -> None:
    write_run(filled.runs, "0000k1", "running")
    status, page = filled.site.get("/runs/0000k1")
    assert status == 200
    assert "killed" in page
    assert "live.js" not in page


def test_search_finds_runs_by_parameter_state_and_version(filled: Filled) -> None:
    def found(query: str) -> list[str]:
        status, page = filled.site.get(f"/runs?{query}")
        assert status == 200
        return re.findall(r'name="run" value="(\w+)"', page)

    assert found("where=training.seed%3D1") == [OTHER]
    assert found("state=held") == [HELD]
    assert found(f"version={digest_text('model 1')[:8]}") == [OTHER]
    assert found("pipeline=other") == []
    assert "No run matches" in filled.site.get("/runs?pipeline=other")[1]
    assert filled.site.get("/runs?where=seed")[0] == 400


def test_lineage_leads_from_data_to_models_and_back(filled: Filled, browser: Browser) -> None:
    with browser.tab(f"{filled.site.address}/lineage?of={DATA[:10]}", width=1280, cookie=COOKIES) as tab:
        titles = "[...document.querySelectorAll('.graph a .bold')].map(one => one.textContent).sort()"
        assert tab.ask(titles) == ["data", "model", "model", "source"]
        model = f".graph a[href$={MODEL_DIGEST!r}]"
        tab.ask(f"document.querySelector({model!r}).focus()")
        tab.press("Enter", loads=True)
        assert MODEL_DIGEST[:12] in tab.ask("document.querySelector('h1').innerText")
        assert tab.ask(titles) == ["data", "model", "source"]


def test_promotion_form_moves_a_version_that_passes_and_shows_why_another_is_held(filled: Filled) -> None:
    first, second = f"/models/{MODEL}/1", f"/models/{MODEL}/2"
    csrf = re.findall(r'name="csrf" value="(\w+)"', filled.site.get(first)[1])[0]
    asked = {"to": "production", "by": "ben", "reason": HOSTILE}
    for wrong in (asked, asked | {"csrf": "0" * 64}):
        assert filled.site.post(first, **wrong)[0] == 403
    assert filled.site.post(first, csrf=csrf, **asked | {"to": "moon"})[0] == 400
    assert "production: nothing" not in filled.site.get(first)[1]
    _, moved = filled.site.post(first, csrf=csrf, **asked)
    assert "PASS: version 1 is production" in moved
    assert re.search(r"promote: candidate → production</td><td>ben</td><td>carl</td>", moved)
    _, held_back = filled.site.post(second, csrf=csrf, **asked)
    assert "FAIL: version 2 was not promoted to production" in held_back
    assert re.search(r'<th scope="row">FAIL</th><td class="text">[\w ]+</td>', held_back)
    assert f'<a href="/models/{MODEL}/1">1</a>' in filled.site.get("/models")[1]
    assert re.search(r"<dt>Stage</dt><dd>candidate</dd>", filled.site.get(second)[1])


def test_caller_without_the_token_sees_how_to_sign_in_and_nothing_else(filled: Filled) -> None:
    for path in PAGES:
        status, page = filled.site.get(path, token="another-one")  # noqa: S106
        assert status == 401
        assert "open the address that trainwright serve printed" in page
        assert DONE not in page


def test_empty_service_says_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "runs") as site:
        assert "trainwright run train_and_register --config" in site.get("/runs")[1]
        assert "Start the service with" in site.get("/models")[1]
        assert site.get("/lineage?of=abc")[0] == 404


def test_ten_thousand_runs_are_listed_searched_and_traced_below_a_second(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = write_run(runs, "model0")
    texts = {name: (first / name).read_text() for name in (Request.FILE, RunSummary.FILE)}
    for index in range(10_000):
        folder = runs / identifier(1_750_000_000 + index)
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(
                text.replace("model0", folder.name).replace('"seed": 0', f'"seed": {index}')
            )
    with serving(tmp_path, runs) as site:
        for path in (
            "/runs",
            "/runs?state=held",
            "/runs?where=training.seed%3D7",
            f"/lineage?of={MODEL_DIGEST}",
        ):
            site.get(path)  # reads what has changed since the last look
            before = site.cpu_s
            status, page = site.get(path)
            assert status == 200
            assert site.cpu_s - before < 1, path
            assert len(page) < 300_000
        seen, after = set(), ""
        for _ in range(3):
            page = site.get(f"/runs?after={after}")[1]
            rows = re.findall(r'name="run" value="(\w+)"', page)
            assert len(rows) == 50
            assert not seen & set(rows)
            seen |= set(rows)
            after = re.findall(r"after=(\w+)", page)[-1]
