"""The truth about how a job ended, and why: pure functions over what was seen of it.

Feed an :class:`Observed` with what a watch or a list gives, and ask :func:`standing` while the job runs and
:func:`diagnose` whether and how it has ended.
"""

from trainwright.launch.diagnosis.incident import Incident, incidents
from trainwright.launch.diagnosis.interruption import (
    Interruption,
    Loss,
    charged,
    interruptions,
    losses,
    spent,
    spent_by_attempt,
)
from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.refusal import refused
from trainwright.launch.diagnosis.report import Report, left_in, of_error_file, of_rank
from trainwright.launch.diagnosis.standing import Standing, standing
from trainwright.launch.diagnosis.timeline import Timeline
from trainwright.launch.diagnosis.timeline import of as timeline
from trainwright.launch.diagnosis.usage import gpu_s
from trainwright.launch.diagnosis.verdict import Outcome, Success, diagnose, gave_up
from trainwright.launch.diagnosis.waiting import Waiting, waiting

__all__ = [
    "Incident",
    "Interruption",
    "Loss",
    "Observed",
    "Outcome",
    "Report",
    "Standing",
    "Success",
    "Timeline",
    "Waiting",
    "charged",
    "diagnose",
    "gave_up",
    "gpu_s",
    "incidents",
    "interruptions",
    "left_in",
    "losses",
    "of_error_file",
    "of_rank",
    "refused",
    "spent",
    "spent_by_attempt",
    "standing",
    "timeline",
    "waiting",
]
