import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.artifacts import Environment, Model, ModelFile, Record, Trial
from trainwright.documents import digest_file, digest_text
from trainwright.verdicts import AT_LEAST, NotJudged, Rule, Verdict

SOURCE, DATA, TRAINING_SET, PREDICTIONS = (digest_text(name) for name in ("source", "data", "set", "scores"))
LOCKS = {
    step: digest_text(f"lock of {step}")
    for step in ("ingest", "join", "train", "validate", "evaluate", "smoke_test")
}

MEASURED = {
    "scores": 1.0,
    "scores that are no numbers": 0.0,
    "scores that differ at a second call": 0.0,
    "rows or outputs beside the signature": 0.0,
    "scores outside 0 to 1": 0.0,
}


def record(step: str, inputs: dict[str, str], outputs: dict[str, str], *parents: Record) -> Record:
    place = Environment(
        name=step,
        lock_sha256=LOCKS[step],
        library="0.1.0",
        library_sha256="ab" * 32,
        python="3.11.7",
        platform="linux-x86_64",
    )
    return Record(
        step=step,
        headline=f"{step} did well",
        started="2026-11-20T10:00:00+00:00",
        seconds=1.5,
        environment=place,
        inputs=inputs,
        outputs=outputs,
        parents=parents,
    )


@dataclass
class Run:
    """The folders that a run leaves for register: a model, two verdicts, and the records of all steps."""

    root: Path
    weights: str = "weights"
    data_decision: str = "PASS"
    model_decision: str = "PASS"
    inputs: tuple[tuple[str, str], ...] = (("distance", "int64"), ("carrier", "string"), ("engines", "int64"))
    baseline_version: str = ""
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.ingested = record("ingest", {"source": SOURCE}, {"data": DATA})
        joined = {"training_set": TRAINING_SET, "service": digest_text("service")}
        self.joined = record("join", {"entities": DATA}, joined, self.ingested)
        self._write_model()
        self._write_verdicts()
        self.write_trial()

    @property
    def folders(self) -> tuple[Path, str, Path, Path, Path]:
        data, model, trial = (self.root / name for name in ("data_verdict", "model_verdict", "trial"))
        return self.root / "model", self.model.digest, data, model, trial

    def _write_model(self) -> None:
        folder = self.root / "model"
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_text(self.weights)
        signature = {
            "schema_version": 1,
            "inputs": [
                *({"name": name, "type": kind, "kind": "number"} for name, kind in self.inputs),
                {"name": "time", "type": "timestamp[us, tz=UTC]", "kind": "time"},
            ],
            "target": {"name": "late", "kind": "binary", "classes": 2},
            "outputs": [{"name": "score", "type": "double", "meaning": "probability of late = 1"}],
        }
        (folder / "signature.json").write_text(json.dumps(signature))
        rows = [[None, "UA", 2, "2013-01-01 10:00:00"]]
        example: dict[str, Any] = {"columns": ["distance", "carrier", "engines", "time"], "data": rows}
        (folder / "input_example.json").write_text(json.dumps(example))
        self.model = Model(
            files=tuple(
                ModelFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))
                for path in sorted(folder.iterdir())
            ),
            kind="mlp",
            inputs=("distance", "carrier", "engines", "time"),
            label="late",
            training_data=TRAINING_SET,
            config={"network": {"hidden": [256, 128], "dropout": 0.1}, "training": {"epochs": 3}},
            metrics={"train_loss": 0.3127},
            parents={"feature_service": "5e" * 32, "view flights": "f1" * 32},
        )
        self.model.write(folder)
        made = {"model": self.model.digest, "predictions": PREDICTIONS}
        self.trained = record("train", {"training_set": TRAINING_SET}, made, self.joined)
        self.trained.write(folder)

    def _write_verdicts(self) -> None:
        self.write_verdict("data_verdict", self.data_decision, {"data": DATA})
        judged = {"predictions": PREDICTIONS, "predictions.model": self.model.digest}
        self.write_verdict("model_verdict", self.model_decision, judged)

    def write_verdict(self, name: str, decision: str, judged: dict[str, str]) -> Verdict:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        value, broken = (0.71, "FAIL") if decision == "PASS" else (0.51, decision)
        rules = (Rule(name="min_auc", value=value, limit=0.6, test=AT_LEAST, broken=broken),)
        verdict = Verdict(
            decision=decision,
            rules=rules,
            judged=judged,
            not_judged=(NotJudged(name="carrier = HA", reason="3 positives"),),
            baseline_version=self.baseline_version if name == "model_verdict" else "",
        )
        verdict.write(folder)
        step, parent = ("validate", self.ingested) if name == "data_verdict" else ("evaluate", self.trained)
        record(step, judged, {"verdict": verdict.digest}, parent).write(folder)
        return verdict

    def write_trial(self, *, passed: bool = True) -> Trial:
        folder = self.root / "trial"
        folder.mkdir(exist_ok=True)
        trial = Trial(
            model=self.model.digest,
            input_example=digest_file(self.root / "model" / "input_example.json"),
            said="5 rows scored" if passed else "killed by signal 11",
            scores="ab" * 32 if passed else "",
            measured=MEASURED if passed else {},
            environment=self.trained.environment,
        )
        return self.tried(trial)

    def tried(self, trial: Trial) -> Trial:
        """Write a trial with the record of the step that made it."""
        inputs = {"model": self.model.digest}
        record("smoke_test", inputs, {"trial": trial.digest}, self.trained).write(self.root / "trial")
        trial.write(self.root / "trial")
        return trial
