"""Opens what a promotion stands on: MLflow, and the audit."""

from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.chain import Chain
from trainwright.registry.change import Place
from trainwright.registry.place import audit_at
from trainwright.tracking.server import open_client, persist


def audit_of(registry: Registry) -> str:
    """Return where a registry's audit lies: as it is said, or beside an SQLite file.

    Raises:
        InputError: Nothing says where, and MLflow is a server.
    """
    if place := audit_at(registry.audit, registry.tracking_uri):
        return place
    raise InputError(
        "registry.audit is not set, and promotions are decided by the audit",
        where="registry.audit",
        hint="Name a folder of a shared volume, or gs://BUCKET/audit with a retention policy.",
    )


def opened(registry: Registry, lease_s: float = 30.0, wait_s: float = 300.0) -> Place:
    """Open MLflow and the audit.

    Raises:
        InputError: An address is none.
        DependencyError: MLflow's file was locked for ``registry.retry_s``.
    """
    chain = Chain(audit_of(registry), registry.model)
    uri, retry_s = registry.tracking_uri, float(registry.retry_s)
    client = persist(lambda: open_client(uri), uri, retry_s)
    return Place(client, uri, chain, retry_s, lease_s, wait_s)
