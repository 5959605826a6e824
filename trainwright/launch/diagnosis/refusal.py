"""What a refusal of the Kubernetes API amounts to, before there is any job."""

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.launch.diagnosis import redaction
from trainwright.launch.failure import Failure


def refused(error: TrainwrightError) -> Failure:
    """Return the failure of a job that could not be created, from the error that the API's answer became."""
    quota = "quota" in error.what and isinstance(error, DependencyError)
    kind = "QUOTA_WAIT" if quota else "CONFIG"
    if isinstance(error, TransientError):
        kind = "INFRASTRUCTURE"
    elif not quota and not isinstance(error, InputError | PermissionRefused | DependencyError):
        kind = "UNKNOWN"
    return Failure.of(
        kind,
        redaction.clean(error.what),
        reason=type(error).__name__,
        evidence=redaction.bounded([error.what]),
        advice=error.hint,
        code=error.code,
    )
