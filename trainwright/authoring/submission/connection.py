"""A connection to the API of Kubeflow Pipelines: who asks, how long, and what a lost answer means.

The calls are those of ``kfp_server_api``, which is generated from the published OpenAPI description. The
generated client repeats nothing here: what is safe to repeat is decided in one place, below.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import kfp_server_api
import urllib3

from trainwright.authoring.submission.answers import Client
from trainwright.authoring.submission.troubles import (
    CONFLICT,
    FAILURES,
    NOT_FOUND,
    REFUSED,
    Patience,
    Trouble,
    trouble,
)
from trainwright.errors import DependencyError, InputError, PermissionRefused

CLUSTER_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")
"""Where Kubeflow mounts a pod's token for the API; kfp's own client takes it from there as well."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the API is, and how it is reached.

    Attributes:
        host: Its address, such as ``https://kubeflow.example/pipeline``.
        namespace: The profile's namespace; empty for an installation without profiles.
        token_file: File of the token, read again at every call; None for the one Kubeflow mounts, if any.
        ca_file: Certificates to trust; None for the public ones.
        connect_s: Seconds to wait for a connection.
        answer_s: Seconds to wait for an answer.
    """

    host: str
    namespace: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    connect_s: float = 5.0
    answer_s: float = 60.0

    def link(self, run_id: str) -> str:
        """Return the page of a run in the UI."""
        return f"{self.host.rstrip('/')}/#/runs/details/{run_id}"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The services of the API, and how they are called.

    Attributes:
        place: Where they are.
        client: The generated client.
        patience: How long a call is tried; each call starts with a fresh one.
    """

    place: Place
    client: kfp_server_api.ApiClient
    patience: Patience = field(default_factory=Patience)

    @property
    def pipelines(self) -> kfp_server_api.PipelineServiceApi:
        """Pipelines and their versions."""
        return kfp_server_api.PipelineServiceApi(self.client)

    @property
    def uploads(self) -> kfp_server_api.PipelineUploadServiceApi:
        """Packages."""
        return kfp_server_api.PipelineUploadServiceApi(self.client)

    @property
    def experiments(self) -> kfp_server_api.ExperimentServiceApi:
        """Experiments."""
        return kfp_server_api.ExperimentServiceApi(self.client)

    @property
    def runs(self) -> kfp_server_api.RunServiceApi:
        """Runs."""
        return kfp_server_api.RunServiceApi(self.client)

    @property
    def recurring(self) -> kfp_server_api.RecurringRunServiceApi:
        """Recurring runs."""
        return kfp_server_api.RecurringRunServiceApi(self.client)

    def once(self, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """Call once. What can go wrong is in :data:`~trainwright.authoring.submission.troubles.FAILURES`."""
        limits = (self.place.connect_s, self.place.answer_s)
        return call(*given, _request_timeout=limits, **named)

    def read(self, what: str, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """Look something up, as often as patience has it.

        Raises:
            TrainwrightError: It was refused, or no good answer came in time.
        """
        patience = dataclasses.replace(self.patience)
        while True:
            try:
                return self.once(call, *given, **named)
            except FAILURES as failure:
                patience.wait(trouble(failure, what, self.place.host))

    def read_if_there(self, what: str, call: Callable[..., T], *given: Any, **named: Any) -> T | None:
        """Look something up; None if there is no such thing."""
        patience = dataclasses.replace(self.patience)
        while True:
            try:
                return self.once(call, *given, **named)
            except FAILURES as failure:
                met = trouble(failure, what, self.place.host)
                if met.missing:
                    return None
                elsewhere = met.status == NOT_FOUND  # of a gateway that does not know its routes yet
                patience.wait(dataclasses.replace(met, passing=met.passing or elsewhere))

    def pages(self, what: str, call: Callable[..., Any], entries: str, **named: Any) -> list[Any]:
        """Return all entries of a list, whatever the number of its pages.

        Raises:
            TrainwrightError: It was refused, no good answer came in time, or the list has no end.
        """
        found: list[Any] = []
        token, seen = "", {""}
        while True:
            page = self.read(what, call, page_token=token, page_size=100, **named)
            found += getattr(page, entries) or []
            token = page.next_page_token or ""
            if not token:
                return found
            if token in seen:
                raise DependencyError(f"{what}: the list has no end", where=self.place.host)
            seen.add(token)

    def made(
        self, what: str, look: Callable[[], T | None], call: Callable[..., Any], *given: Any, **named: Any
    ) -> tuple[T, bool]:
        """Return what is there, or else make it: once, even if the answer to the making is lost.

        Args:
            what: The making in words.
            look: Finds what is to be made; None if it is not there.
            call: Makes it.
            given: What the call is given.
            named: What it is given by name.

        Returns:
            What is there now, and whether making it was tried: that it was there before is certain if not.

        Raises:
            TrainwrightError: It was refused, or it is not there in time.
        """
        patience, tried, made = dataclasses.replace(self.patience), False, False
        while True:
            if (there := look()) is not None:
                return there, tried
            if made:  # never a second time
                text = f"{what} succeeded, and what was made is not to be found"
                patience.wait(Trouble(error=DependencyError(text, where=self.place.host), passing=True))
                continue
            tried = True
            try:
                self.once(call, *given, **named)
                made = True
            except FAILURES as failure:
                met = trouble(failure, what, self.place.host)
                # A refusal may come because it is so already: a run that ended before it was stopped.
                refused = not met.passing and met.status not in REFUSED
                if refused and (there := look()) is not None:
                    return there, tried
                # A conflict says that somebody else has made it just now: it will be found.
                patience.wait(dataclasses.replace(met, passing=met.passing or met.status == CONFLICT))

    def check(self) -> tuple[str, ...]:
        """Ask the API whether it is there, and is what it should be.

        Returns:
            What is not wrong, and not as the caller may think.

        Raises:
            TrainwrightError: It is not; or it has profiles, and no namespace is named.
        """
        if self.profiles() or not self.place.namespace:
            return ()
        return (f"this installation has no profiles: --namespace {self.place.namespace} has no effect",)

    def profiles(self) -> bool:
        """Say whether the installation has profiles (multi-user mode).

        Raises:
            TrainwrightError: What answers is not the API; or it has profiles, and no namespace is named.
        """
        health = kfp_server_api.HealthzServiceApi(self.client)
        answer = self.read("asking for its health", health.healthz_service_get_healthz)
        if answer.multi_user is None:
            raise PermissionRefused(
                "what answers is not the API of Kubeflow Pipelines: it may be a page to log in",
                where=self.place.host,
                hint="Name the address of the API, and a token that its gateway accepts (--token-file).",
            )
        if answer.multi_user and not self.place.namespace:
            raise InputError(
                "this installation has profiles, and no namespace is named",
                where=self.place.host,
                hint="Name your profile's: --namespace team-a.",
            )
        return bool(answer.multi_user)


def connect(place: Place, patience: Patience | None = None) -> Connection:
    """Connect to an API; nothing is asked yet.

    Raises:
        InputError: The address is none, the token cannot be read, or it would travel in the clear.
    """
    scheme, name = _address(place.host)
    settings = kfp_server_api.Configuration(host=place.host.rstrip("/"))
    settings.retries = urllib3.Retry(0, redirect=False, raise_on_redirect=False)
    settings.ssl_ca_cert = os.fspath(place.ca_file) if place.ca_file else None
    source = place.token_file or (CLUSTER_TOKEN if CLUSTER_TOKEN.exists() else None)
    if source:
        if scheme == "http" and not _stays_inside(name):
            hint = "Use https://, or port-forward the API to this machine."
            raise InputError("the token would travel unencrypted", where="--host", hint=hint)
        settings.api_key_prefix["authorization"] = "Bearer"
        settings.api_key["authorization"] = _token(source)
        settings.refresh_api_key_hook = lambda changed: _renew(changed, source)
    return Connection(place=place, client=Client(settings), patience=patience or Patience())


def _address(host: str) -> tuple[str, str]:
    """Return scheme and name of an address, which is not repeated if it is none: it may hold a secret."""
    with contextlib.suppress(ValueError):  # brackets that do not close, a port that is no number
        parts = urlsplit(host)
        beside = parts.username or parts.query or parts.fragment or parts.port == 0
        if parts.scheme in {"http", "https"} and parts.hostname and not beside and host.isprintable():
            return parts.scheme, parts.hostname
    raise InputError(
        "--host is no address of an API",
        where="--host",
        hint="Write it as https://HOST/PATH, without a name, a password or a query.",
    )


def _stays_inside(host: str) -> bool:
    """Say whether what is sent to a host stays on this machine or in this cluster."""
    return host in LOOPBACK or host.endswith((".svc", ".svc.cluster.local"))


def _renew(settings: kfp_server_api.Configuration, source: Path) -> None:
    """Read the token again; while its file is being written anew, the last one stays."""
    with contextlib.suppress(InputError):
        settings.api_key["authorization"] = _token(source)


def _token(path: Path) -> str:
    """Read a token; the file may be replaced while a run is followed.

    A header takes no other text: the error of the HTTP library would repeat it.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[!-~]+", token := path.read_text().strip()):
            return token
    raise InputError(
        "there is no token in this file", where=str(path), hint="One line of ASCII, nothing else."
    )
