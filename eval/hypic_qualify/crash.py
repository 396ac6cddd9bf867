"""Kills a server with SIGKILL at any moment, again and again, and sees whether it keeps what it has said."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypic_eval.machine import commit as this_commit
from hypic_eval.machine import describe_machine
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile, row_key

from hypic_qualify.api import Api, Refused
from hypic_qualify.durability_log import Broken, DurabilityLog, ask, check, use
from hypic_qualify.folder import check_databases, check_nothing_left_over, check_remote, under_way
from hypic_qualify.process import NoServer, Server, started
from hypic_qualify.tiny_model import make

VERSION = 2
LONGEST = 2.0  # seconds that a server is used before it is killed
WAIT_EVERY = 20  # kills before all files are waited for, so that the next ones meet some that are ready
DISK_BUDGET = 3_000_000
SMALL = {"HYPIC_DISK_BUDGET": str(DISK_BUDGET), "HYPIC_HOST_MEMORY": "1MB", "HYPIC_CHUNK_TOKENS": "64"}
"""Room for some dozens of segments, so that nearly every write evicts."""
PHASES = ("asking", "uploading", "deleting", "ingesting", "writing", "evicting", "writing behind")
COUNTED = ("files", "ready", "deleted files", "deleted collections", "questions")
NOTES = [
    "A server over a tiny model, with a remote tier in a folder, is killed while files are sent, ingested and deleted, "
    "collections made and deleted, and questions asked whose segments are written, evicted and written behind. Then "
    "every database is checked, and the next server is asked for everything that was answered; at the end for all "
    "texts.",
    "Under way: kills that cut this off. Asking, uploading, deleting: a request had no answer yet. Ingesting: a taken "
    "file was not ready. Evicting: the disk tier was full, so that every segment written evicts another. Writing: a "
    "segment's file was left unfinished. Writing behind: the segment stored last had not reached the remote.",
]


def run_crash(
    folder: Path,
    n: int,
    seed: int = 0,
    row_file: RowFile | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Kill servers in ``folder`` n times; it is left as it is. What is broken is in the results' samples.

    row_file: kills that it has are not made again; those that are left begin in an empty folder.
    """
    rows = row_file or RowFile(None)
    keys = [row_key({"version": VERSION, "seed": seed, "number": number, "longest": LONGEST}) for number in range(n)]
    left = [number for number, key in enumerate(keys) if rows.get(key) is None]

    def note(killed: Mapping[str, Any]) -> None:
        rows.append(keys[killed["number"]], {**killed, "commit": this_commit()})
        on_progress(sum(key in rows.rows for key in keys), n)

    if left:
        kill_each(folder, left, seed, note)
    return summarise([rows.rows[key] for key in keys])


def kill_each(folder: Path, numbers: Sequence[int], seed: int, note: Callable[[Mapping[str, Any]], None]) -> None:
    """Kill a server once for each number. note: called with each kill once the next server was asked. After a broken
    promise the next has a new folder."""
    home = folder / f"home-{numbers[0]}"
    settings = {**SMALL, "HYPIC_MODEL": str(make(folder / "model"))}
    left, promises, killed = list(numbers), DurabilityLog(), None
    while True:
        remote = home / "remote"
        try:
            with started(home, settings={**settings, "HYPIC_REMOTE": remote.as_uri()}, how="forkserver") as server:
                with Api(server.url) as api:
                    check(api, promises, wait=not left or left[0] % WAIT_EVERY == WAIT_EVERY - 1)
                check_nothing_left_over(home / "server", promises.gone)
                if killed is not None:
                    note({**killed, "broken": None})
                if not left:
                    return
                killed = use_and_kill(server, promises, left.pop(0), seed)
            killed["under_way"] += under_way(home / "server", remote, DISK_BUDGET, killed["began"])
            check_databases(home / "server")
            check_remote(remote)
        except (Broken, Refused, NoServer) as error:
            if killed is None:  # it has not lived to be killed
                raise
            note({**killed, "broken": str(error)})
            if not left:
                return
            home, promises, killed = folder / f"home-{left[0]}", DurabilityLog(), None


def use_and_kill(server: Server, promises: DurabilityLog, number: int, seed: int) -> dict[str, Any]:
    chance = random.Random(f"{seed} {number}")
    moment = round(chance.uniform(0.02, LONGEST), 2)
    promises.doing = set()
    ended, began = threading.Event(), time.time()
    clients = [
        threading.Thread(target=work, args=(server.url, promises, chance.random(), ended)) for work in (use, ask)
    ]
    for client in clients:
        client.start()
    time.sleep(moment)
    server.kill()
    ended.set()
    for client in clients:
        client.join()
    counts, promises.counts = promises.counts, Counter()
    return {
        "number": number,
        "began": began,
        "moment_s": moment,
        "counts": dict(counts),
        "under_way": sorted(promises.doing),
    }


def summarise(kills: Sequence[dict[str, Any]]) -> Results:
    """Sum kills up. kills: rows as ``run_crash`` keeps them."""

    def row(task: str, metric: str, arrow: str, unit: str, value: float, goal: float | None = None) -> ResultRow:
        mode = "killed at any moment"
        about = (task, VERSION, "files of words", len(kills), mode, metric, arrow, unit, value, None)
        return ResultRow(*about, "tiny", commits(kills), goal=goal)

    broken = [f"after kill {kill['number'] + 1}: {kill['broken']}" for kill in kills if kill["broken"]]
    cut_off = Counter(what for kill in kills for what in kill["under_way"])
    counts: Counter[str] = sum((Counter(kill["counts"]) for kill in kills), Counter())
    rows = [
        row("crash", "kills", "", "kills", len(kills)),
        row("crash", "broken promises", "↓", "kills", len(broken), goal=0),
        *(row("crash", name, "", "files", counts[name]) for name in COUNTED),
        *(row("crash: under way", name, "", "kills", cut_off[name]) for name in PHASES),
    ]
    samples = {"broken": broken, "moments_s": [kill["moment_s"] for kill in kills]}
    return Results("crash", describe_machine(), rows, NOTES, samples=samples)
