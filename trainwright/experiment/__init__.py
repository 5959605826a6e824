"""The sections of an experiment file as frozen, validated models.

``configure`` checks the whole file before any other step runs, without network calls, and reports all errors
together. Each step then reads its own section, passed as one JSON object.
"""

from trainwright.experiment.data import CsvFormat, Data, DataEngine, Quality, Query, Share, Window
from trainwright.experiment.evaluation import Evaluation
from trainwright.experiment.experiment import Experiment
from trainwright.experiment.features import Features, JoinLimits, Materialize
from trainwright.experiment.network import (
    Auto,
    FeatureTokenizer,
    Imported,
    LanguageModel,
    Mlp,
    Network,
    Tabular,
    Trees,
    read_network,
)
from trainwright.experiment.registry import (
    Canary,
    InferenceService,
    Override,
    Promotion,
    PromotionRequest,
    Registry,
    Serving,
)
from trainwright.experiment.resources import Resources, Steps
from trainwright.experiment.run import (
    Alert,
    Budget,
    Prices,
    RunSettings,
    SharedBudget,
    Smtp,
    StartedBy,
    Triggers,
)
from trainwright.experiment.section import Section
from trainwright.experiment.training import ResolvedTraining, Tracking, Training, Tuning
from trainwright.experiment.validation import (
    Quarantine,
    ServingLog,
    Severity,
    SeverityRule,
    Suppression,
    Validation,
)

__all__ = [
    "Alert",
    "Auto",
    "Budget",
    "Canary",
    "CsvFormat",
    "Data",
    "DataEngine",
    "Evaluation",
    "Experiment",
    "FeatureTokenizer",
    "Features",
    "Imported",
    "InferenceService",
    "JoinLimits",
    "LanguageModel",
    "Materialize",
    "Mlp",
    "Network",
    "Override",
    "Prices",
    "Promotion",
    "PromotionRequest",
    "Quality",
    "Quarantine",
    "Query",
    "Registry",
    "ResolvedTraining",
    "Resources",
    "RunSettings",
    "Section",
    "Serving",
    "ServingLog",
    "Severity",
    "SeverityRule",
    "Share",
    "SharedBudget",
    "Smtp",
    "StartedBy",
    "Steps",
    "Suppression",
    "Tabular",
    "Tracking",
    "Training",
    "Trees",
    "Triggers",
    "Tuning",
    "Validation",
    "Window",
    "read_network",
]
