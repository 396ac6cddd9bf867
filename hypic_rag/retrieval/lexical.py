"""The lexical index: words of chunks in store.sqlite, ranked by BM25 (SQLite's FTS5).

It is derived from the rows of ``chunks`` and kept by triggers in the same transactions, whichever program writes.
Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

import math
import re
import sqlite3
from collections.abc import Sequence, Set

TITLE_WEIGHT = 3.0  # a word of a title counts as so many of the text
COMMON_SHARE, COMMON_CHUNKS = 0.1, 1000
"""A word in more than this share of the chunks, and in more than so many, is not looked for: it tells little, and every
chunk that has it would have to be scored."""
MOST_WORDS = 64  # of a question that are looked for
FUNCTION_WORDS = frozenset(
    """a an and any are as at be been but by can could did do does for from had has have he her his how i if in is it
    its me my no not of on or our she so that the their them there they this to was we were what when where which who
    whom whose why will with would you your""".split()  # noqa: SIM905
)
"""Of English: in a small store they would be as rare as others, and say as little."""
WORD = re.compile(r"[^\W_]+")
TABLES = """
CREATE VIRTUAL TABLE lexical USING fts5 (
    title, text, content = 'chunks', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER lexical_insert AFTER INSERT ON chunks BEGIN
    INSERT INTO lexical (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER lexical_delete AFTER DELETE ON chunks BEGIN
    INSERT INTO lexical (lexical, rowid, title, text) VALUES ('delete', old.id, old.title, old.text);
END;
CREATE TRIGGER lexical_update AFTER UPDATE OF title, text ON chunks BEGIN
    INSERT INTO lexical (lexical, rowid, title, text) VALUES ('delete', old.id, old.title, old.text);
    INSERT INTO lexical (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
"""
TRIGGERS = ("lexical_insert", "lexical_delete", "lexical_update")
SHADOWS = ("lexical_data", "lexical_idx", "lexical_docsize", "lexical_config")
NAMES = {"lexical", *TRIGGERS, *SHADOWS}


def is_supported(connection: sqlite3.Connection) -> bool:
    """Tell whether this SQLite has FTS5; nearly all have."""
    return connection.execute("SELECT name FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def is_there(connection: sqlite3.Connection) -> bool:
    """Tell whether the index exists, whole as to its tables and triggers."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'lexical%'")}
    return names >= NAMES and is_supported(connection)


def make_whole(connection: sqlite3.Connection) -> None:
    """Make the index where it is missing, and make it again where it is not what the chunks give.

    Inside a transaction that writes. Takes about as long as reading all texts. Nothing, where SQLite has no FTS5.
    """
    if not is_supported(connection):
        return
    if not is_there(connection):
        _drop(connection)
        for statement in _statements():
            connection.execute(statement)
        _command(connection, "rebuild")
        return
    try:
        connection.execute("INSERT INTO lexical (lexical, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError:
        _command(connection, "rebuild")


def optimize(connection: sqlite3.Connection) -> None:
    """Merge the index's parts into one, in which no word of a removed chunk is left; in a transaction that writes."""
    if is_there(connection):
        _command(connection, "optimize")


def matches(connection: sqlite3.Connection, question: str, k: int) -> list[int]:
    """Return the ids of the up to ``k`` chunks with the question's words, the best by BM25 first.

    None where no word is found, or where there is no index.
    """
    if not is_there(connection) or not (words := _telling(connection, question)):
        return []
    rows = connection.execute(
        "SELECT rowid AS id FROM lexical WHERE lexical MATCH ? ORDER BY bm25(lexical, ?, 1.0), rowid LIMIT ?",
        (" OR ".join(words), TITLE_WEIGHT, k),
    )
    return [row[0] for row in rows]


def coverage(connection: sqlite3.Connection, question: str, ids: Sequence[int]) -> dict[int, float]:
    """Return which share of the question each of these chunks has, by its words' inverse document frequencies.

    Words that no chunk has, and function words, do not count. Empty where there is no index, or none of the question's
    words in it.
    """
    if not ids or not is_there(connection):
        return {}
    n_chunks = connection.execute("SELECT count(*) AS n_chunks FROM chunks").fetchone()[0]
    total, of_chunk = 0.0, dict.fromkeys(ids, 0.0)
    within = f"SELECT rowid AS id FROM lexical WHERE lexical MATCH ? AND rowid IN ({','.join('?' * len(ids))})"
    for word in _words(question, but=FUNCTION_WORDS):
        n = connection.execute("SELECT count(*) FROM lexical WHERE lexical MATCH ?", (word,)).fetchone()[0]
        weight = math.log(1 + (n_chunks - n + 0.5) / (n + 0.5)) if n else 0.0
        total += weight
        for row in connection.execute(within, (word, *ids)):
            of_chunk[row[0]] += weight
    return {i: weight / total for i, weight in of_chunk.items()} if total else {}


def _words(question: str, but: Set[str] = frozenset()) -> list[str]:
    """Return the question's words, quoted, each once."""
    words = (word for word in dict.fromkeys(WORD.findall(question.lower())) if word not in but)
    return [f'"{word}"' for word in words][:MOST_WORDS]


def _telling(connection: sqlite3.Connection, question: str) -> list[str]:
    """Return the question's words, quoted, without the common ones; all, where there are no others."""
    words = _words(question)
    n_chunks = connection.execute("SELECT count(*) AS n_chunks FROM chunks").fetchone()[0]
    bound = max(COMMON_CHUNKS, int(COMMON_SHARE * n_chunks))
    if n_chunks <= bound:
        return words
    count = "SELECT count(*) AS n_chunks FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)"
    return [word for word in words if connection.execute(count, (word, bound + 1)).fetchone()[0] <= bound] or words


def _drop(connection: sqlite3.Connection) -> None:
    for trigger in TRIGGERS:
        connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    connection.execute("DROP TABLE IF EXISTS lexical")


def _statements() -> list[str]:
    """Split TABLES: ``executescript`` would end the transaction around."""
    statements, rest = [], ""
    for part in TABLES.split(";\n"):
        rest += part + ";\n"
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements


def _command(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("INSERT INTO lexical (lexical) VALUES (?)", (name,))
