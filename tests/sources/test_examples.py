"""Every example of docs/sources.md is a section that an experiment may have."""

import re
from pathlib import Path

import pytest
import yaml

from trainwright.experiment import Data
from trainwright.sources.inference import declared_types
from trainwright.sources.sql_statement import POSTGRES, checked

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sources.md").read_text()
SHARED, *EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["source"])
def test_example_is_a_section_that_is_taken(example: dict[str, object]) -> None:
    data = Data.check(SHARED | example, "docs/sources.md")
    assert set(declared_types(data.types)) == set(data.types)
    if data.sql:
        for text in (data.sql.select, data.sql.version or ""):
            assert checked(text, data.sql.tables, data.sql.parameters, POSTGRES, "data.sql")
