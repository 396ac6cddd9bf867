"""Transactions of SQLite, begun and ended here alone: connections are made with ``isolation_level=None``."""

import contextlib
import sqlite3
from collections.abc import Iterator


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """All that is written inside, or none of it. begin: "BEGIN IMMEDIATE", say.

    The caller keeps other threads from the connection.
    """
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:  # COMMIT's own too: what could not be written would else stay open
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
