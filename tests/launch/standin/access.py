"""Who may do what, and what everybody did."""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.launch.standin.answers import forbidden, unauthorized
from tests.launch.standin.resources import Address, Object, Resource

OWN_REVIEW = "selfsubjectaccessreviews"


class Call(NamedTuple):
    """A call that was made.

    Attributes:
        verb: As a Role names it: ``create``, ``get``, ``list``, ``watch``, ``update``, ``patch``, ``delete``,
            ``deletecollection``.
        group: API group.
        resource: Plural name.
        subresource: Such as ``log``; empty for the object itself.
        name: Of the object; empty for a list.
        namespace: Where.
        user: Who called.
        code: What was answered; 0 if the call was cut off.
        at: When it came, in seconds of ``time.monotonic()``.
        dry_run: Whether nothing was stored.
    """

    verb: str
    group: str
    resource: str
    subresource: str
    name: str
    namespace: str
    user: str
    code: int
    at: float
    dry_run: bool = False

    @property
    def right(self) -> tuple[str, str, str]:
        """What a Role has to grant for it: group, resource (``pods/log``) and verb."""
        part = f"/{self.subresource}" if self.subresource else ""
        return self.group, self.resource + part, self.verb


@dataclass(frozen=True)
class Account:
    """Somebody who calls.

    Attributes:
        user: Name in refusals.
        rules: Those of a Role; ``None``: may do anything.
        namespace: Where the rules hold; empty: everywhere, as those of a ClusterRole do.
    """

    user: str
    rules: Sequence[Object] | None = None
    namespace: str = ""

    def may(self, verb: str, address: Address) -> bool:
        """Tell whether a call is allowed."""
        if self.rules is None:
            return True
        if self.namespace and address.namespace != self.namespace:
            return False
        part = f"/{address.subresource}" if address.subresource else ""
        full = address.resource.plural + part
        return any(
            _has(rule["apiGroups"], address.resource.group)
            and (_has(rule["resources"], full) or (part and f"*{part}" in rule["resources"]))
            and _has(rule["verbs"], verb)
            and (not rule.get("resourceNames") or address.name in rule["resourceNames"])
            for rule in self.rules
        )


def _has(entries: Sequence[str], wanted: str) -> bool:
    return "*" in entries or wanted in entries


@dataclass
class Accounts:
    """Everybody who may call at all, by token.

    Attributes:
        by_token: Accounts by token.
        anonymous: Whether the server takes requests without a token (``--anonymous-auth``).
    """

    by_token: dict[str, Account] = field(default_factory=dict)
    anonymous: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, account: Account) -> str:
        """Let somebody in; return the token."""
        token = secrets.token_hex(8)
        with self._lock:
            self.by_token[token] = account
        return token

    def let_see_health(self, header: str) -> None:
        """Let a call of ``/readyz`` pass: a role of Kubernetes' own allows it to all, but a bad token is 401.

        Raises:
            Refused: The token is nobody's, or there is none and the server takes no such requests.
        """
        if header or not self.anonymous:
            self.of(header)

    def of(self, header: str) -> Account:
        """Return who a header ``Authorization`` stands for.

        Raises:
            Refused: Nobody.
        """
        account = self.by_token.get(header.removeprefix("Bearer "))
        if account is None:
            raise unauthorized()
        return account


def allow(account: Account, verb: str, address: Address) -> None:
    """Let a call pass.

    Raises:
        Refused: The account may not make it.
    """
    if account.may(verb, address):
        return
    resource, part = address.resource, f"/{address.subresource}" if address.subresource else ""
    where = f'in the namespace "{address.namespace}"' if address.namespace else "at the cluster scope"
    what = f'cannot {verb} resource "{resource.plural}{part}" in API group "{resource.group}" {where}'
    raise forbidden(resource, address.name, f'User "{account.user}" {what}')


def review(accounts: Accounts, caller: Account, body: Object) -> Object:
    """Answer a review of rights: of the caller's own, or of an account that is named in it."""
    spec = body["spec"]
    what = spec["resourceAttributes"]
    named = spec.get("user")
    about = next((one for one in accounts.by_token.values() if one.user == named), None) if named else caller
    resource = Resource(what.get("group", ""), "", what["resource"], "")
    address = Address(resource, what.get("namespace", ""), what.get("name", ""), what.get("subresource", ""))
    allowed = bool(about and about.may(what["verb"], address))
    return body | {"status": {"allowed": allowed}}
