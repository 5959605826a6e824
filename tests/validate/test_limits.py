"""Every column gets a limit, and a limit that could never be exceeded is refused."""

import pytest

from trainwright.errors import InputError
from trainwright.experiment import Validation
from trainwright.validate.policy import JENSEN_SHANNON, L_INFINITY, Limit, plan
from trainwright.validate.schema import parse_schema

SCHEMA = parse_schema(
    """
    feature { name: "id" type: BYTES } feature { name: "at" type: INT }
    feature { name: "tenure_days" type: INT } feature { name: "plan" type: BYTES }
    feature { name: "weekday" type: INT int_domain { is_categorical: true } }
    """,
    where="here",
)
ROLES = {"key": "id", "time": "at", "label": "weekday"}
STRICT = {"comparator": L_INFINITY, "threshold": 0.01}


def limits(**section: object) -> tuple[Limit, ...]:
    return plan(SCHEMA, Validation.check(section, "test"), ROLES)


def test_every_column_but_key_and_time_has_a_limit_that_fits_what_it_holds() -> None:
    assert limits(numeric_threshold=0.2, categorical_threshold=0.03) == (
        Limit("tenure_days", "numbers", JENSEN_SHANNON, 0.2),
        Limit("plan", "categories", L_INFINITY, 0.03),
        Limit("weekday", "categories", L_INFINITY, 0.03),
    )


def test_a_column_keeps_its_own_limit_and_an_ignored_one_has_none() -> None:
    own = {"plan": {"comparator": JENSEN_SHANNON, "threshold": 0.4}, "weekday": STRICT}
    assert limits(drift=own, ignore=["tenure_days"]) == (
        Limit("plan", "categories", JENSEN_SHANNON, 0.4),
        Limit("weekday", "categories", L_INFINITY, 0.01),
    )


def test_an_infinity_norm_on_numbers_is_refused_because_tfdv_reports_0_for_ever() -> None:
    with pytest.raises(InputError, match=r"tenure_days: .*use jensen_shannon_divergence for numeric"):
        limits(drift={"tenure_days": STRICT})


def test_all_faults_of_the_section_are_named_at_once_with_close_matches() -> None:
    with pytest.raises(InputError) as error:
        limits(
            current="train",
            drift={"plam": STRICT, "plan": STRICT, "tenure_days": STRICT},
            ignore=["plan", "week_day"],
        )
    lines = error.value.what.splitlines()
    assert lines[0] == "found 5 errors"
    assert "current and previous are both 'train'" in lines[1]
    assert lines[2] == "  drift.plam: no column 'plam' in the schema; did you mean plan?"
    assert lines[3] == "  drift.plan: also in ignore"
    assert "tenure_days" in lines[4]
    assert lines[5] == "  ignore: no column 'week_day' in the schema; did you mean weekday, tenure_days?"
