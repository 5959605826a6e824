"""Definitions reach the registry by a plan that was looked at, and by nothing else."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.materialize.shop import Shop
from trainwright.errors import InputError
from trainwright.materialize.__main__ import main
from trainwright.materialize.definitions import ApplyPlan, apply_plan, format_plan, make_plan

DEFINITIONS = """
from datetime import timedelta
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.types import Int64

product = Entity(name="product", value_type=ValueType.INT64)
source = FileSource(path="stock.parquet", timestamp_field="event", created_timestamp_column="created")
stock = FeatureView(
    name="stock", entities=[product], ttl=timedelta(hours={ttl}), source=source, online=True,
    schema=[Field(name="stock", dtype=Int64)],
)
"""


@pytest.fixture
def repository(tmp_path: Path, make_shop: Callable[..., Shop]) -> Path:
    """A repository with definitions and rows that was never applied."""
    shop = make_shop().apply()
    shop.add("stock", [])
    (shop.repository / "offline" / "stock" / "stock.parquet").rename(shop.repository / "stock.parquet")
    (shop.repository / "registry.db").unlink()
    (shop.folder / "online.db").unlink()
    write(shop.repository, ttl=1)
    return shop.repository


def write(repository: Path, *, ttl: int) -> None:
    (repository / "definitions.py").write_text(DEFINITIONS.format(ttl=ttl))


def files(repository: Path) -> list[Path]:
    return sorted(repository.parent.rglob("*"))


def test_a_plan_says_what_is_new_and_writes_nothing(repository: Path) -> None:
    before = files(repository)
    lines = format_plan(make_plan(str(repository)))
    assert "+ feature view stock" in lines
    assert "+ entity product" in lines
    assert files(repository) == before


def test_a_plan_is_the_same_each_time_it_is_made(repository: Path) -> None:
    assert make_plan(str(repository)).digest == make_plan(str(repository)).digest


def test_an_approved_plan_is_applied_and_then_nothing_is_left_to_do(repository: Path) -> None:
    apply_plan(str(repository), make_plan(str(repository)))
    plan = make_plan(str(repository))
    assert plan.changes == ()
    assert format_plan(plan) == [f"{plan.project}: the registry has these definitions already."]
    with sqlite3.connect(repository.parent / "online.db") as database:
        assert len(database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()) == 1


def test_a_change_after_the_review_is_refused_and_nothing_is_applied(repository: Path) -> None:
    approved = make_plan(str(repository))
    write(repository, ttl=2)
    with pytest.raises(InputError, match=f"{approved.digest[:12]} was approved"):
        apply_plan(str(repository), approved)
    assert not any(change.action != "CREATE" for change in make_plan(str(repository)).changes)


def test_a_plan_that_was_applied_by_someone_else_meanwhile_is_refused(repository: Path) -> None:
    approved = make_plan(str(repository))
    apply_plan(str(repository), approved)
    with pytest.raises(InputError, match="the definitions or the registry changed since"):
        apply_plan(str(repository), approved)


def test_a_changed_property_is_shown_before_and_after(repository: Path) -> None:
    apply_plan(str(repository), make_plan(str(repository)))
    write(repository, ttl=2)
    assert format_plan(make_plan(str(repository))) == [
        "~ feature view stock",
        '    ttl: "3600s" -> "7200s"',
    ]


def test_a_view_that_goes_is_shown_with_what_is_lost(repository: Path) -> None:
    apply_plan(str(repository), make_plan(str(repository)))
    text = (repository / "definitions.py").read_text()
    (repository / "definitions.py").write_text(text[: text.index("stock = FeatureView")])
    lines = format_plan(make_plan(str(repository)))
    place = lines.index("- feature view stock")
    assert lines[place + 1] == "    its rows in the online store are deleted"


def test_definitions_that_are_not_python_are_an_error_that_names_them(repository: Path) -> None:
    (repository / "definitions.py").write_text("stock = = 3")
    with pytest.raises(InputError, match="the definitions cannot be read: SyntaxError"):
        make_plan(str(repository))


def test_the_commands_write_a_plan_and_apply_it(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    main(["plan", str(repository), "--output", str(path)])
    shown = capsys.readouterr().out.splitlines()
    digest = ApplyPlan.read(path).digest[:12]
    assert shown[-1] == f"plan {digest} in {path}"
    main(["apply", str(repository), "--plan", str(path)])
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"plan {digest} is applied.")


def test_no_run_of_data_applies_anything() -> None:
    """Feast's apply is called behind the reviewed plan, and for the private registry of a fetched copy."""
    library = Path(__file__).resolve().parents[2] / "trainwright"
    calling = {
        path.relative_to(library).as_posix()
        for path in library.rglob("*.py")
        if ".apply(" in path.read_text() and "feast" in path.read_text()
    }
    assert calling == {"featurestore/repository.py", "materialize/definitions.py"}
