"""Who may reach a server that asks for no keys."""

import ipaddress

from hypic_rag.config import Settings
from hypic_rag.errors import BadInput


def check_exposure(settings: Settings, has_keys: bool) -> None:
    """Raise BadInput where anybody on the network, or any web page, could ask a server without keys."""
    if has_keys and not settings.no_keys:
        return
    if not settings.no_keys and not is_loopback(settings.host):
        raise BadInput(
            f"--host {settings.host} can be reached from other machines, and there are no API keys. "
            "Make one first: hypic-rag keys add --tenant NAME; or let everybody in: --no-keys"
        )
    if "*" in settings.allowed_origins:
        raise BadInput(
            "--allowed-origins * without API keys lets every web page that anybody here looks at use this server. "
            "Name the pages, or make keys first: hypic-rag keys add --tenant NAME"
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
