"""A stand-in for a Kubernetes cluster: real HTTP for the real client, and jobs whose pods really run.

    from tests.launch.standin import cluster

    with cluster(tmp_path, python=local.sibling_python("torch")) as running:
        jobs = k8s.CustomObjectsApi(running.api_client())
        running.faults.commit_then_drop(verbs=("create",), chance=0.3, times=None)
        jobs.create_namespaced_custom_object("kubeflow.org", "v1", "team", "pytorchjobs", manifest,
                                             field_validation="Strict")
        running.wait(lambda: running.objects("PyTorchJob"))
        running.nodes.evict("tw-train-worker-0")
        assert "delete" not in {call.verb for call in running.calls}

What there is:

- ``cluster(folder, ...)``: ``processes=False``: pods run until ``nodes.end(pod, code)``, or as ``nodes.plan``
  says; ``operator=False``: no controllers, jobs stay as they are, a test sets conditions with ``condition``;
  ``kueue=True``: jobs with a queue's label wait for it. ``folder`` is every claim, wherever it is mounted.
- ``faults``: drop, commit_then_drop, slow, refuse, error, busy, outage; by verb, resource, name, chance,
  number. Watches: ``close_watches``, ``expire`` (410), ``bookmark``.
- ``account(user, rules, namespace)``: a token that may do what a Role says; ``calls``: every call with the
  ``right`` that it takes.
- ``operator``: stop, start, outage; ``order`` of the replica types, where the real one's is chance.
- ``nodes``: plan, end, end_together, kill (``oom``), signal, pid, evict (api, taint, preemption), starve,
  taint, lose, remove, add.
- ``apply_runtime()``: what an administrator applies for TrainJobs. ``trainer.collect(job)``: its JobSet is
  gone. ``kueue``: add_queue, add_priority, slots, manual, most, admit, preempt, deactivate.
- ``verbs``: ``quotas``, ``terminating``, ``webhook``, ``schemas`` (such as ``trainjob-2.2``).
  ``put``, ``edit``, ``find``, ``objects``: past all
  checks.
- ``wait(holds)``: until something holds; ``settle()``: until the controllers have nothing more to do at once.

What it is held against: ``test_standin_recordings`` replays what was recorded of a real operator,
``test_standin_queues`` compares with recordings of a real Trainer and a real Kueue (``streams``).
"""

from tests.launch.standin.access import Call
from tests.launch.standin.answers import Refused
from tests.launch.standin.clusters import Cluster, cluster

__all__ = ["Call", "Cluster", "Refused", "cluster"]
