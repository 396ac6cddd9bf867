"""``hypic-rag keys``: who may use the server."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from hypic_apps.cli import options

if TYPE_CHECKING:
    from hypic_apps.server.auth.keys import Key, Keys


def add(
    tenant: Annotated[
        str | None, Option(metavar="NAME", help="Whose key: documents and segments are a tenant's.")
    ] = None,
    operator: Annotated[bool, Option("--operator", help="A key for /metrics alone, of no tenant.")] = False,
    name: Annotated[str, Option(metavar="LABEL", help="What it is for, to be known by in keys list.")] = "",
) -> None:
    """Make a key and print it, once: only its hash is kept. A running server knows it at once."""
    from hypic_apps import session

    if (tenant is None) != operator:
        raise BadParameter("say whose key it is: --tenant NAME, or --operator for one that opens /metrics")
    keys = _keys()
    is_first = not keys.exist
    key, secret = keys.add(tenant, name)
    session.say(
        f"key {key.id} of {_owner(key)}; it is not shown again. To take it back: hypic-rag keys revoke {key.id}"
    )
    if is_first:
        session.say(
            "From now on the server asks everybody for a key. What was made without keys is the tenant local's: "
            "hypic-rag keys add --tenant local"
        )
    print(secret)


def list_(as_json: options.Json = False) -> None:
    """Show all keys, revoked ones too; not the keys themselves, which nobody has."""
    found = _keys().all()
    if as_json:
        print(json.dumps([dataclasses.asdict(key) for key in found], ensure_ascii=False, indent=2))
        return
    for key in found:
        state = "in force" if key.revoked is None else f"revoked {_day(key.revoked)}"
        print(f"{key.id}  {_owner(key):<20}  made {_day(key.created)}  {state:<18}  {key.label}".rstrip())
    if not found:
        print("no keys: the server asks for none, and listens to this machine alone")


def revoke(key_id: Annotated[str, Argument(metavar="ID", help="As keys list shows it.")]) -> None:
    """Refuse a key from now on. A running server does so with the next request."""
    from hypic_apps import session

    key = _keys().revoke(key_id)
    session.say(f"key {key.id} of {_owner(key)} is revoked")


def _keys() -> "Keys":
    from hypic_apps.server.auth.keys import Keys
    from hypic_rag.collections.opening import server_folder

    return Keys(server_folder())


def _owner(key: "Key") -> str:
    return "the operator" if key.tenant is None else key.tenant


def _day(seconds: float) -> str:
    import time

    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
