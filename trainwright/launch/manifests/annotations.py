"""Annotations and labels that identify a job to launchers and the janitor."""

RUN_ID = "trainwright/run-id"
"""What the job belongs to: the ``run`` of the :class:`~trainwright.launch.job.Job`."""

SPEC_SHA256 = "trainwright/spec-sha256"
"""The digest of the job."""

FOLDER = "trainwright/folder"
"""The folder of the attempt that the job's pods write into."""

ATTEMPT = "trainwright/attempt"
"""The name of the attempt; also a label of its pods, since jobs of several attempts have the same name."""

LEASE_UNTIL = "trainwright/lease-until"
"""Until when a launcher looks after the job, ISO 8601 in UTC; it moves this on while it lives."""

OUTAGE_S = "trainwright/outage-s"
"""Seconds for which the job's launcher retries during an outage of the API: for so long after
its lease a job that belongs to nobody else is not swept away."""

MANAGED_BY = "app.kubernetes.io/managed-by"
"""Label: ``trainwright`` on every job and pod of ours."""

OURS = "trainwright"

TASK = "trainwright/task"
"""Label: the step that the job belongs to."""

RUN = "trainwright/run"
"""Label: the first 16 digits of the run's digest, since a run's address does not fit into a label."""

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD_PRIORITY = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME = "kueue.x-k8s.io/max-exec-time-seconds"

REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"

NO_SIDECAR = "sidecar.istio.io/inject"
"""Annotation: a mesh's sidecar would keep the pod alive after its training, and encrypt what NCCL sends."""

NOT_EVICTED = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation: the cluster autoscaler may not empty the node to save it."""
