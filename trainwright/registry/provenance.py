"""Check evidence: each document by the record of the step that made it, each decision by its numbers.

A record is no signature. Whoever can write every document and every record can write a consistent story:
docs/trust.md says what that means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.artifacts import Model, Record, Trial
from trainwright.errors import InputError, ModelRefused
from trainwright.verdicts import BASELINE, Verdict

_AGAIN = "Run the step that makes it again, and those after it: documents of several runs do not mix."

_SNAPSHOT = {"join": "training_set", "ingest": "data"}
"""Name of the snapshot that a step makes, by step."""

_SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "join": ("entities", {"ingest": "data"}),
    "train": ("training_set", _SNAPSHOT),
    "score": ("training_set", _SNAPSHOT),
    "validate": ("data", {"ingest": "data"}),
    "evaluate": ("predictions", {"train": "predictions", "score": "predictions"}),
    "smoke_test": ("model", {"train": "model"}),
}
"""Main input of a step, and the output that it is, by the step that made it."""


@dataclass(frozen=True)
class Evidence:
    """A model with its evidence: manifest, both verdicts, smoke test, and the records of all steps.

    Attributes:
        records: Those that lie beside the documents, or these and all that they contain.
        target: Kind of the target in the model's signature; empty for a language model.
        where: Where it was read, for errors.
    """

    model: Model
    data_verdict: Verdict
    model_verdict: Verdict
    trial: Trial
    target: str
    records: Sequence[Record]
    where: str

    def check(self) -> str:
        """Check every digest and decision; return the digest of the data that the model came from.

        Raises:
            InputError: A record is missing or says something else than a document, a document is about
                another model or other data, or a verdict does not follow from its numbers.
            ModelRefused: The trial failed.
        """
        require_recomputed(self.data_verdict, "the data verdict", self.where)
        require_recomputed(self.model_verdict, "the model verdict", self.where)
        _require_no_excuse(self.model_verdict, self.where)
        rows = self.model.training_data
        trained = self._record("train", "model", self.model.digest, training_set=rows)
        data = self._origin(trained).outputs["data"]
        self._check_data(data, self._source(trained))
        self._check_predictions()
        if self.trial.model != self.model.digest:
            raise self._error(
                f"the trial is about model {self.trial.model[:12]}, not {self.model.digest[:12]}"
            )
        self._origin(self._record("smoke_test", "trial", self.trial.digest, model=self.model.digest))
        if problems := self.trial.problems(self.target):
            raise ModelRefused(
                f"the model was tried and did not answer: {'; '.join(problems)}", where=self.where
            )
        return data

    def _check_data(self, data: str, made: Record) -> None:
        """Require that the data verdict is the one of `join`, or of `validate` if `join` wrote none.

        ``made`` is the record of the step that made the training set.
        """
        judged = self.data_verdict.judged.get("data", "")
        if judged != data:
            raise self._error(
                f"the data verdict is about data {judged[:12] or '(none named)'}, but the model came from "
                f"{data[:12]}"
            )
        if not made.outputs.get("verdict"):
            self._origin(self._record("validate", "verdict", self.data_verdict.digest, data=data))
            return
        # A reused training has the record of an earlier join of its training set: look for the later one.
        joined = self._record(made.step, "verdict", self.data_verdict.digest, entities=data)
        if (about := joined.outputs.get("training_set", "")) != self.model.training_data:
            raise self._error(
                f"the data verdict is about training set {about[:12]}, the model was trained on "
                f"{self.model.training_data[:12]}"
            )
        carried = joined.inputs.get("data_verdict", "")
        judges = [
            parent.outputs.get("verdict")
            for parent in joined.parents
            if parent.step == "validate" and parent.inputs.get("data") == data
        ]
        if carried not in judges:
            raise self._error(
                f"join read data verdict {carried[:12] or '(none)'}, and its record has none of validate "
                f"that made it from data {data[:12]}",
                "Pass the verdict of validate to join.",
            )

    def _check_predictions(self) -> None:
        """Require that the evaluated predictions are those of this model, on the rows of its training set."""
        judged, digest, rows = self.model_verdict.judged, self.model.digest, self.model.training_data
        about = judged.get("predictions.model", digest), judged.get("predictions.training_set", rows)
        if about[0] != digest:
            raise self._error(f"the model verdict is about model {about[0][:12]}, not about {digest[:12]}")
        if about[1] != rows:
            raise self._error(
                f"the model was judged on rows of data {about[1][:12]}, it was made from {rows[:12]}"
            )
        predictions = judged.get("predictions", "")
        evaluated = self._record("evaluate", "verdict", self.model_verdict.digest, predictions=predictions)
        made = self._source(evaluated)
        model = made.outputs.get("model") if made.step == "train" else made.inputs.get("model")
        if (model, made.inputs.get("training_set")) != (digest, rows):
            raise self._error(
                f"nothing shows that the predictions that were judged ({predictions[:12] or 'none named'}) "
                f"are those of model {digest[:12]} on its own rows",
                "Register the model with the verdict of the evaluate step that read its own predictions.",
            )
        self._origin(evaluated)

    def _record(self, step: str, name: str, made: str, **inputs: str) -> Record:
        """Return the record of the step that made a document from these inputs."""
        own = [record for record in self.records if record.step == step]
        found = [record for record in own if record.outputs.get(name) == made]
        if not found:
            said = ", ".join(record.outputs.get(name, "nothing")[:12] for record in own)
            has = f"its records say {said}" if own else "there is none"
            raise self._error(
                f"expected the record ({Record.FILE}) of {step} that made {name} {made[:12]}; {has}"
            )
        for record in found:
            if inputs.items() <= record.inputs.items():
                return record
        read = {input_name: found[0].inputs.get(input_name, "none")[:12] for input_name in inputs}
        expected = {input_name: digest[:12] for input_name, digest in inputs.items()}
        raise self._error(f"{step} read {read} to make {name} {made[:12]}, expected {expected}")

    def _source(self, record: Record) -> Record:
        """Return the record of the step that made the main input of another."""
        name, sources = _SOURCES[record.step]
        digest = record.inputs.get(name, "")
        for parent in record.parents:
            if digest and parent.outputs.get(sources.get(parent.step, "")) == digest:
                return parent
        raise self._error(
            f"{record.step} read {name} {digest[:12] or '(none named)'}, and its record has no record of "
            f"{' or '.join(sources)} that made it"
        )

    def _origin(self, record: Record) -> Record:
        """Follow a record to the `ingest` that it came from."""
        while record.step in _SOURCES:
            record = self._source(record)
        return record

    def _error(self, problem: str, hint: str = _AGAIN) -> InputError:
        return InputError(problem, where=self.where, hint=hint)


def require_recomputed(verdict: Verdict, name: str, where: str) -> None:
    """Require that a verdict's decision follows from its numbers.

    Raises:
        InputError: It does not.
    """
    if verdict.decision != (found := verdict.recomputed()):
        raise InputError(
            f"{name} says {verdict.decision}, its numbers say {found}",
            where=where,
            hint="It was changed by hand: run the step that judges again.",
        )


def _require_no_excuse(verdict: Verdict, where: str) -> None:
    """Reject a model's verdict with a rule that passes beyond its limit, but for the missing baseline."""
    if excused := [rule.name for rule in verdict.rules if rule.excused and rule.name != BASELINE]:
        raise InputError(
            f"rule {excused[0]!r} of the model verdict is beyond its limit and passes all the same",
            where=where,
            hint="evaluate excuses only a missing baseline: run it again.",
        )
