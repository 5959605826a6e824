"""Values of the placeholders of Kubeflow Pipelines, such as ``{{$.pipeline_job_schedule_time_utc}}``."""

import re

LEFT_OVER = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]|\{\$.*?\}")


def filled(text: str) -> str:
    """Return a value that Kubeflow gives a step; '' where it is still the placeholder.

    The driver of KFP 2.17 puts the scheduled time of a recurring run there, and the time of its creation for
    any other run. An older driver, and a run on one machine, leave it as it is.

    Args:
        text: The value of a parameter that a pipeline sets to a placeholder.
    """
    return "" if LEFT_OVER.fullmatch(text) else text
