"""What a run is asked to do: the sections of an experiment file, as frozen, validated models.

The file is checked whole, before anything runs and before any network call, and all its errors are
reported at once. Each step then reads its own section, passed as one JSON string.
"""

from trainwright.experiment.data import Data, Quality, Query, Runner, Share, Window
from trainwright.experiment.evaluation import Evaluation, Registry
from trainwright.experiment.features import Features, JoinLimits
from trainwright.experiment.file import Experiment, json_schema
from trainwright.experiment.materialize import Materialize
from trainwright.experiment.section import Fraction, Name, Section, Time
from trainwright.experiment.training import Network, Resources, Training
from trainwright.experiment.validation import (
    DriftLimit,
    Gravity,
    Quarantine,
    Severity,
    Suppression,
    Validation,
)

__all__ = [
    "Data",
    "DriftLimit",
    "Evaluation",
    "Experiment",
    "Features",
    "Fraction",
    "Gravity",
    "JoinLimits",
    "Materialize",
    "Name",
    "Network",
    "Quality",
    "Quarantine",
    "Query",
    "Registry",
    "Resources",
    "Runner",
    "Section",
    "Severity",
    "Share",
    "Suppression",
    "Time",
    "Training",
    "Validation",
    "Window",
    "json_schema",
]
