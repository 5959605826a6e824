"""The columns that an experiment names, so that `resolve` finds a wrong name before anything is read."""

import itertools

from trainwright.experiment import Experiment, LanguageModel
from trainwright.experiment.data import EVERY, FEATURES, SERVED


def columns_of_rows(experiment: Experiment) -> dict[str, list[str]]:
    """Return the columns that the source has to have, by the keys that name them.

    A feature service may bring the columns of an evaluation; `join` checks them then. Rules on findings may
    name a column that is missing. Under `SERVED` are columns of the serving log. `EVERY` stands for all
    columns that no other key of `features` leaves out.
    """
    data, validation, features = experiment.data, experiment.validation, experiment.features
    roles = {"key": data.key, "time": data.time, "label": data.label, "split_by": data.split_by}
    named = {f"data.{role}": [name] for role, name in roles.items() if name}
    named |= {
        "data.disjoint": list(data.disjoint),
        "data.quality.max_missing": list(data.quality.max_missing),
        "validation.drift": list(validation.drift),
        "validation.ignore": list(validation.ignore),
        "features.request": list(features.request),
        "features.known_after": list(features.known_after),
        "features.exclude": list(features.exclude),
    }
    if isinstance(experiment.network, LanguageModel):
        named["network.text" if experiment.network.text else "network.tokens"] = [experiment.network.column]
    elif not (features.service or features.request):
        named[FEATURES] = [EVERY]
    if (log := validation.serving_log) and log.format == "auto":
        named[SERVED] = list(log.columns.values())
    if not features.service:
        evaluation = experiment.evaluation
        named |= {
            "features.needed": list(features.needed),
            "features.limits.max_missing": list(features.limits.max_missing),
            "evaluation.slices": list(evaluation.slices),
            "evaluation.crosses": list(itertools.chain.from_iterable(evaluation.crosses)),
            "evaluation.fairness.by": list(evaluation.fairness.by) if evaluation.fairness else [],
            "evaluation.cluster": [evaluation.cluster] if evaluation.cluster else [],
        }
    return {key: names for key, names in named.items() if names}
