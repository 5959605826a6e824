"""Results of runs on this machine, as objects that a notebook shows."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.authoring.terminal import duration
from trainwright.errors import InputError
from trainwright.local.run_folder import LOG, Request, Task, Tasks
from trainwright.verdicts import Verdict

_FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 40em; border: 0" sandbox></iframe>'


@dataclass(frozen=True)
class StepOutputs:
    """The result of one step: ``result["model"]`` is an output, the path of an artifact or a value.

    Attributes:
        task: Its name, state, headline, decision, seconds and error, as the run's folder has them.
        folder: Its folder, with ``log.txt``.
    """

    task: Task
    folder: Path

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Paths of artifacts and values of parameters by name; a single return value is ``Output``."""
        return {name: Path(one.uri) for name, one in self.task.outputs.items()} | self.task.parameters

    def __getitem__(self, name: str) -> Any:
        """Return one output; raise InputError if there is none of that name."""
        if name not in self.outputs:
            raise InputError(
                f"step {self.task.step} has no output {name!r}",
                where=str(self.folder),
                hint=f"It has {', '.join(self.outputs) or 'none: it did not finish'}.",
            )
        return self.outputs[name]

    @property
    def state(self) -> str:
        """Return ``done``, ``cached``, ``failed``, ``stopped`` or ``skipped``."""
        return self.task.state

    @property
    def decision(self) -> str:
        """The decision of a gate; empty for other steps."""
        return self.task.decision

    @property
    def headline(self) -> str:
        """The result in one line; of a failed step, its error."""
        return self.task.headline or str(self.task.error.get("what", ""))

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of its output ``metrics``, such as ``auc``; empty if it has none."""
        output = self.task.outputs.get("metrics")
        known = output.metadata if output else {}
        return {name: value for name, value in known.items() if not isinstance(value, str)}

    @property
    def page(self) -> Path | None:
        """The report as an HTML file, if the step wrote one."""
        return next(iter(self.task.pages()), None)

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / LOG

    def __repr__(self) -> str:
        """Return its name, state and headline."""
        return f"<{self.task.step} {self.state}: {self.headline}>"

    def _repr_html_(self) -> str:
        return _shown(self.page) or _table([self])


@dataclass(frozen=True)
class LocalRun:
    """A run on this machine, read from its folder.

    Attributes:
        folder: Its folder.
        pipeline: Name of the pipeline; of a single step, of the component.
        state: ``running``, ``done``, ``held`` by a gate, ``failed`` or ``cancelled``.
        steps: The result of each step by name, in the order of their end.
    """

    folder: Path
    pipeline: str
    state: str
    steps: Mapping[str, StepOutputs]

    @classmethod
    def read(cls, folder: Path) -> "LocalRun":
        """Read a run; raise InputError if the folder has none."""
        request, tasks = Request.read(folder), Tasks.read(folder)
        steps = {task.step: StepOutputs(task, folder / task.step) for task in tasks.tasks}
        return cls(folder, request.pipeline, tasks.state, steps)

    @property
    def id(self) -> str:
        """Its short name."""
        return self.folder.name

    @cached_property
    def verdict(self) -> Verdict | None:
        """The decision of ``evaluate`` with every rule; None if it was not reached."""
        return self._verdict("evaluate")

    @cached_property
    def data_verdict(self) -> Verdict | None:
        """The decision of ``validate`` with every rule; None if it was not reached."""
        return self._verdict("validate")

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of ``evaluate``, such as ``auc``; empty if it was not reached."""
        evaluated = self._by_verb("evaluate")
        return evaluated.metrics if evaluated else {}

    @property
    def model(self) -> Path | None:
        """The folder of the trained model; None if there is none."""
        found: Path | None = self._output("train", "model")
        return found

    @property
    def version(self) -> str:
        """The number under which the model is registered; empty if it is not."""
        return str(self._output("register", "Output") or "")

    def predictions(self) -> Path:
        """Return the folder of the scored evaluation rows, a snapshot of Parquet files.

        Raises:
            InputError: The run trained no model.
        """
        found = self._output("train", "predictions")
        if found is None:
            raise InputError(
                f"run {self.id} has no predictions: train did not finish", where=str(self.folder)
            )
        return Path(found)

    @property
    def page(self) -> Path | None:
        """The page of the run, an HTML file with links to every report; None if there is none."""
        found = self._by_verb("summarize")
        return found.page if found else None

    def _by_verb(self, verb: str) -> StepOutputs | None:
        finished = (step for step in self.steps.values() if step.task.verb == verb and step.task.finished)
        return next(finished, None)

    def _output(self, verb: str, name: str) -> Any:
        step = self._by_verb(verb)
        return step.outputs.get(name) if step else None

    def _verdict(self, verb: str) -> Verdict | None:
        folder = self._output(verb, "verdict")
        return Verdict.read(folder) if folder else None

    def __repr__(self) -> str:
        """Return its pipeline, name and state, and the headline of each step."""
        lines = [f"<{self.pipeline} {self.id}: {self.state}>"]
        lines += [f"  {step.task.step:<20} {step.headline}".rstrip() for step in self.steps.values()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _shown(self.page) or _table(list(self.steps.values()))


def _shown(page: Path | None) -> str:
    """Return a report in a frame of its own, so that its style does not reach the notebook; empty if none."""
    if page is None or not page.is_file():
        return ""
    return _FRAME.format(html.escape(page.read_text(), quote=True))


def _table(steps: list[StepOutputs]) -> str:
    """Return one row per step: name, state, time, result."""
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align: left'>{html.escape(text)}</td>"
            for text in (step.task.step, step.state, duration(step.task.seconds), step.headline)
        )
        + "</tr>"
        for step in steps
    )
    return f"<table>{rows}</table>"
