"""A training that pauses 60 ms at each step: ``-m tests.train.paused SPEC.json``, under torchrun."""

import runpy
import time

from trainwright.imports import uncollected

with uncollected():
    from trainwright.train import recorder
    from trainwright.train.loop import StepReport


class PausedRecorder(recorder.TrainingRecorder):
    """Records each step, and pauses."""

    def on_step(self, step: StepReport) -> None:
        super().on_step(step)
        time.sleep(0.06)


if __name__ == "__main__":
    recorder.TrainingRecorder = PausedRecorder  # type: ignore[misc]
    runpy.run_module("trainwright.train", run_name="__main__", alter_sys=True)
