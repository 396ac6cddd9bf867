"""Whose request it is: a tenant's segments, collections and conversations are its own."""

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hypic_apps.server.auth.keys import Key, Keys
from hypic_apps.server.auth.usage import KeyUsage
from hypic_apps.server.errors import ApiError, api_error, response
from hypic_apps.server.observability import logs
from hypic_rag.collections.tenant import Tenant
from hypic_rag.errors import NoRoom

OPEN = frozenset({"/", "/favicon.ico", "/health", "/ready"})
"""What needs no key: the page, which has nothing of anybody's in it, and what load balancers ask."""
STATIC = "/static/"
"""The page's files: open, too."""
METRICS = "/metrics"
TENANTS = "/v1/tenants"
"""The operator's, and below it: lists and deletes what is of tenants."""


LOCAL = Tenant("local")
"""Everybody's, where the server has no API keys."""


async def tenant(request: Request) -> Tenant:
    """Return the request's tenant: a route's dependency."""
    found: Tenant = request.state.tenant
    return found


Asking = Annotated[Tenant, Depends(tenant)]


class NoKey(ApiError):
    """The request has no key, or one that is not in force."""

    def __init__(self, message: str):
        super().__init__(401, message, code="invalid_api_key")


class WrongKey(ApiError):
    """The key is in force, but not for this path."""

    def __init__(self, message: str):
        super().__init__(403, message, "permission_error", "wrong_kind_of_key")


class Authentication:
    """ASGI: notes whose request it is, and refuses it where that cannot be told.

    Every path that is not in OPEN needs a key, so that a route that somebody adds is closed until it is named there. It
    is asked before anything of the body is read: a dependency of FastAPI's runs once an upload has come in whole.
    no_keys, metrics_open: as in the settings. Nothing of a key is kept between requests.
    """

    def __init__(self, app: ASGIApp, keys: Keys, usage: KeyUsage, no_keys: bool, metrics_open: bool):
        self.app, self.keys, self.usage = app, keys, usage
        self.no_keys, self.metrics_open = no_keys, metrics_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                state = scope.setdefault("state", {})
                state["tenant"] = self._whose(scope["path"], Headers(scope=scope))
            except (ApiError, NoRoom) as raised:
                error = api_error(raised)
                headers = {"Connection": "close"}  # what of a body is still to come is not wanted
                if error.status == 401:
                    headers["WWW-Authenticate"] = 'Bearer realm="hypic-rag"'
                await response(error, headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _whose(self, path: str, headers: Headers) -> Tenant | None:
        """Return whose request it is; None where a path is nobody's. Raises NoKey, WrongKey."""
        if path in OPEN or path.startswith(STATIC) or (path == METRICS and self.metrics_open):
            return None
        is_of_tenants = path == TENANTS or path.startswith(f"{TENANTS}/")
        if (self.no_keys or not self.keys.exist) and not is_of_tenants:
            return LOCAL
        key = self._key(headers)
        if path == METRICS or is_of_tenants:
            if key.tenant is not None:
                about = "metrics tell" if path == METRICS else f"{TENANTS} tells"
                raise WrongKey(f"{about} of all tenants: use an operator's key (hypic-rag keys add --operator)")
            return None
        if key.tenant is None:
            raise WrongKey("this is an operator's key, which opens /metrics and /v1/tenants alone: use a tenant's key")
        self.usage.check(key, path)
        return Tenant(key.tenant)

    def _key(self, headers: Headers) -> Key:
        given = headers.getlist("authorization")
        scheme, _, secret = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not secret.strip():
            raise NoKey("this server asks for an API key: send the header Authorization: Bearer KEY")
        key = self.keys.find(secret.strip())
        if key is None:
            raise NoKey(
                "the API key is not known here, was revoked or has expired: ask whoever runs this server for another"
            )
        logs.line()["key"] = key.id
        return key
