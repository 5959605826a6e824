"""The kinds of jobs that a cluster knows: how they are addressed, and how their pods are found."""

from dataclasses import dataclass

FOREGROUND, BACKGROUND = "Foreground", "Background"
"""How the API deletes an object: after what it owns, or at once and what it owns later."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of jobs.

    Attributes:
        kind: What Kubernetes calls it.
        group: Its API group.
        version: The version that is spoken.
        pods: Label of its pods whose value is the job's name.
        container: The container that trains.
        operator: What has to be installed for it.
        removes_itself: Whether a job that has ended is removed after a while.
        propagation: How the API deletes a job with all that belongs to it. Trainer 2.3 creates the JobSet of
            a TrainJob again for as long as the object is there, and a deletion in the foreground keeps it.
        inner_job: Suffix that names the batch Job which creates the pods; empty where the operator does.
    """

    kind: str
    group: str
    version: str
    pods: str
    container: str
    operator: str
    removes_itself: bool
    propagation: str = FOREGROUND
    inner_job: str = ""

    @property
    def name(self) -> str:
        """What it is called here: the launcher's name."""
        return self.kind.lower()

    @property
    def plural(self) -> str:
        """Its name in addresses, and in the rules of a Role."""
        return f"{self.name}s"

    @property
    def full(self) -> str:
        """The name that commands and errors of the API use: ``pytorchjobs.kubeflow.org``."""
        return f"{self.plural}.{self.group}"


PYTORCHJOB = Kind(
    kind="PyTorchJob",
    group="kubeflow.org",
    version="v1",
    pods="training.kubeflow.org/job-name",
    container="pytorch",
    operator="the Kubeflow training operator v1",
    removes_itself=True,
)
TRAINJOB = Kind(
    kind="TrainJob",
    group="trainer.kubeflow.org",
    version="v1alpha1",
    pods="jobset.sigs.k8s.io/jobset-name",
    container="node",
    operator="Kubeflow Trainer v2",
    removes_itself=False,
    propagation=BACKGROUND,
    inner_job="-node-0",
)
KINDS = {kind.name: kind for kind in (PYTORCHJOB, TRAINJOB)}
