"""The socket that the server will listen on. Imports no torch: an address that cannot be had is told at once."""

import socket

from hypic_rag.errors import BadInput


def bound_socket(host: str, port: int) -> socket.socket:
    """Bind a socket that does not yet listen: an address that cannot be had is told before the
    model is loaded. Raises BadInput."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise BadInput(f"cannot listen on {host}, port {port}: {error}. Choose another --port or --host") from error
    return made
