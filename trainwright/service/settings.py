"""Settings of the service, passed by the command line as one JSON object."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.experiment import Promotion, Registry


@dataclass(frozen=True, kw_only=True)
class Settings(Document):
    """Sources that the service reads, and who may use it.

    Attributes:
        runs: Folder of the runs.
        registry: Section ``registry``; the model's name in a path replaces its own. Empty without a registry.
        promotion: Section ``promotion``.
        kfp_host: Address of the API of Kubeflow Pipelines; empty for runs on this machine alone.
        namespace: The profile's namespace there.
        token_file: File of the token for that API; empty for the one that Kubeflow mounts.
        ca_file: Certificates to trust for that API; empty for the public ones.
        images: HOST/TEAM in front of every image of a run that is submitted there.
        command: The command line of trainwright, which starts runs on this machine.
        auth: ``token``: the caller sends a token. ``gateway``: a gateway sets ``kubeflow-userid``.
        access_token_file: File of the caller's token; empty for a new one, which is printed.
        user: Name of the caller who has the token.
        allowed_hosts: Values of the header ``Host`` that are accepted.
        address: Address to listen on.
        port: Port to listen on; 0 for any free one.
        root_path: Path below which a gateway serves it, such as ``/trainwright``; empty for none.
    """

    FILE: ClassVar[str] = "settings.json"
    runs: str
    registry: dict[str, Any] = field(default_factory=dict)
    promotion: dict[str, Any] = field(default_factory=dict)
    kfp_host: str = ""
    namespace: str = ""
    token_file: str = ""
    ca_file: str = ""
    images: str = ""
    command: tuple[str, ...] = ()
    auth: Literal["token", "gateway"] = "token"
    access_token_file: str = ""
    user: str = "local"
    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost")
    address: str = "127.0.0.1"
    port: int = 8080
    root_path: str = ""

    @property
    def runs_folder(self) -> Path:
        """The folder of the runs."""
        return Path(self.runs)

    def registry_of(self, model: str) -> Registry:
        """Return the section ``registry`` of a model; a request does not wait for a server that is away.

        Raises:
            InputError: No registry is configured, or the name is invalid.
        """
        if not self.registry:
            raise InputError(
                "no registry is configured",
                hint="Start the service with --config EXPERIMENT or --tracking-uri ADDRESS.",
            )
        return Registry.check(self.registry | {"model": model, "retry_s": 0}, "registry")

    def promotion_policy(self) -> Promotion:
        """Return the section ``promotion``."""
        return Promotion.check(self.promotion, "promotion")
