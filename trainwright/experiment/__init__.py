"""What a run is asked to do: the sections of an experiment file, as frozen, validated models.

The file is checked whole, before anything runs and before any network call, and all its errors are
reported at once. Each step then reads its own section, passed as one JSON string.
"""

from trainwright.experiment.data import Data, Quality, Query, Runner, Share, Window
from trainwright.experiment.evaluation import Evaluation
from trainwright.experiment.features import Features, JoinLimits
from trainwright.experiment.file import Experiment, json_schema
from trainwright.experiment.materialize import Materialize
from trainwright.experiment.network import (
    FeatureTokenizer,
    Imported,
    LanguageModel,
    Mlp,
    Network,
    Tabular,
    Trees,
    read_network,
)
from trainwright.experiment.registry import Canary, Override, Promotion, PromotionRequest, Registry
from trainwright.experiment.resources import Resources, Size, Steps
from trainwright.experiment.section import Fraction, Name, Section, Time
from trainwright.experiment.training import Tracking, Training
from trainwright.experiment.validation import (
    DriftLimit,
    Gravity,
    Quarantine,
    Severity,
    Suppression,
    Validation,
)

__all__ = [
    "Canary",
    "Data",
    "DriftLimit",
    "Evaluation",
    "Experiment",
    "FeatureTokenizer",
    "Features",
    "Fraction",
    "Gravity",
    "Imported",
    "JoinLimits",
    "LanguageModel",
    "Materialize",
    "Mlp",
    "Name",
    "Network",
    "Override",
    "Promotion",
    "PromotionRequest",
    "Quality",
    "Quarantine",
    "Query",
    "Registry",
    "Resources",
    "Runner",
    "Section",
    "Severity",
    "Share",
    "Size",
    "Steps",
    "Suppression",
    "Tabular",
    "Time",
    "Tracking",
    "Training",
    "Trees",
    "Validation",
    "Window",
    "json_schema",
    "read_network",
]
