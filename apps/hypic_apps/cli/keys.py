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
    operator: Annotated[bool, Option("--operator", help="For /metrics and /v1/tenants alone, of no tenant.")] = False,
    name: Annotated[str, Option(metavar="LABEL", help="What it is for, to be known by in keys list.")] = "",
    expires: Annotated[str | None, Option(metavar="AGE", help="From when on it is refused: 12h, 30d, 52w.")] = None,
    requests_per_minute: Annotated[int | None, Option(min=1, metavar="N", help="The most; more are a 429.")] = None,
    tokens_per_day: Annotated[
        int | None, Option(min=1, metavar="N", help="The most, of prompts and answers together, by UTC.")
    ] = None,
) -> None:
    """Make a key and print it, once: only its hash is kept. A running server knows it at once."""
    from hypic_apps import session
    from hypic_apps.cache_folders import seconds_of

    if (tenant is None) != operator:
        raise BadParameter("say whose key it is: --tenant NAME, or --operator for /metrics and /v1/tenants")
    keys = _keys()
    is_first = not keys.exist
    key, secret = keys.add(
        tenant,
        name,
        valid_seconds=None if expires is None else seconds_of(expires),
        requests_per_minute=requests_per_minute,
        tokens_per_day=tokens_per_day,
    )
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
        print(
            f"{key.id}  {_owner(key):<20}  made {_day(key.created)}  {_state(key):<18}  "
            f"{_limits(key)}{key.label}".rstrip()
        )
    if not found:
        print("no keys: the server asks for none, and listens to this machine alone")


def usage(
    days: Annotated[int, Option(min=1, metavar="N", help="Today and the days before it, by UTC.")] = 30,
    as_json: options.Json = False,
) -> None:
    """Show what each key was used for, by day: requests that ended well, tokens of prompts and of answers."""
    import time

    keys = _keys()
    owners = {key.id: key for key in keys.all()}
    found = keys.used(since=int(time.time() // 86_400) - days + 1)
    if as_json:
        rows = [
            {**dataclasses.asdict(one), "day": _day(one.day * 86_400), "tenant": owners[one.key_id].tenant}
            for one in found
        ]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for one in found:
        key = owners[one.key_id]
        print(
            f"{_day(one.day * 86_400)}  {key.id}  {_owner(key):<20}  {one.requests:>9,} requests  "
            f"{one.prompt_tokens:>13,} prompt tokens  {one.generated_tokens:>11,} generated  {key.label}".rstrip()
        )
    if not found:
        print("nothing was asked with a key")


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


def _state(key: "Key") -> str:
    import time

    if key.revoked is not None:
        return f"revoked {_day(key.revoked)}"
    if key.expires is None:
        return "in force"
    return f"{'until' if key.is_in_force(time.time()) else 'expired'} {_day(key.expires)}"


def _limits(key: "Key") -> str:
    told = [(key.requests_per_minute, "requests a minute"), (key.tokens_per_day, "tokens a day")]
    return "".join(f"{n:,} {what}  " for n, what in told if n is not None)


def _day(seconds: float) -> str:
    import time

    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
