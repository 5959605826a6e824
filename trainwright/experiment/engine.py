"""Section ``engine``: what processes the rows of the data steps."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import AliasChoices, Field, model_validator

from trainwright.experiment.section import Name, Section

ENGINE = AliasChoices("engine", "runner")
"""The key of an engine in a section, and its name in version 0.1."""

_DIRECT = ("", "DirectRunner", "direct", "FnApiRunner")


class DataEngine(Section):
    """Engine that processes the rows; the result is the same with each."""

    name: str = Field(
        "local",
        pattern=r"^(local|(\w+\.)*\w+Runner)$",
        description="`local`, or a Beam runner such as `FlinkRunner`.",
    )
    workers: int = Field(2, ge=1, le=1024, description="Processes of `local`.")
    options: tuple[Name, ...] = Field(
        (), description="Beam options, such as `--environment_config=beam-{step}:50000`; `{step}`: the step."
    )
    store: Name | None = Field(None, description="Folder or bucket where Beam's workers leave results.")

    @model_validator(mode="before")
    @classmethod
    def _from_runner(cls, data: Any) -> Any:
        """Read the form of version 0.1: ``engine`` is ``processes`` or ``beam``."""
        if not isinstance(data, Mapping) or "engine" not in data:
            return data
        rest, mark = {key: value for key, value in data.items() if key != "engine"}, "--runner="
        if data["engine"] == "processes":
            return rest | {"name": "local"}
        if data["engine"] != "beam":
            raise ValueError(f"engine is {data['engine']!r}; write `engine: {{name: local}}`")
        options = rest.get("options", ())
        if not isinstance(options, list | tuple) or not all(isinstance(x, str) for x in options):
            return rest  # the check of the types rejects it
        runner = next((x.removeprefix(mark) for x in reversed(options) if x.startswith(mark)), "")
        others = [x for x in options if not x.startswith(mark)]
        return rest | {"name": "DirectRunner" if runner in _DIRECT else runner, "options": others}

    @model_validator(mode="after")
    def _options_have_their_engine(self) -> Self:
        if self.options and not self.is_beam:
            raise ValueError(f"options {list(self.options)} need a Beam runner; name is {self.name}")
        if any(option.startswith("--runner") for option in self.options):
            raise ValueError("options name a runner; write it as engine.name")
        return self

    @property
    def is_beam(self) -> bool:
        """Tell whether a Beam runner processes the rows."""
        return self.name != "local"

    @property
    def is_remote(self) -> bool:
        """Tell whether other machines do the work: they reach no folder of the step's own."""
        return self.name not in {"local", "DirectRunner"}
