"""The Python interface: run pipelines and single components, read runs, and predict.

``import trainwright`` offers everything of this package; importing it loads no heavy module. An error is an
exception of :mod:`trainwright.errors` with the message that the command line prints. A gate that holds a
model or rejects data is no error: the run has the ``state`` held.
"""

from trainwright.api.prediction import ScoredFile, predict
from trainwright.api.runs import LocalRun, StepOutputs, init, open_run, run, step

__all__ = ["LocalRun", "ScoredFile", "StepOutputs", "init", "open_run", "predict", "run", "step"]
