"""What a server has said that it holds, so that it can be asked for it again after it was killed."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypic_qualify.api import Api, Refused
from hypic_rag.errors import HypicError

WORDS = ("river", "harbour", "winter", "copper", "engine", "letter", "garden", "bridge", "market", "signal")
MOST_UNREADY = 20  # files that are on their way before no more are sent
OPENING = 150  # characters of a text that it is searched by


class Broken(HypicError):
    """The server does not keep what it has said."""


@dataclass(eq=False)
class File:
    """What was answered of one. word: stands in its text and nowhere else. opening: of the text."""

    collection: str
    word: str
    opening: str = ""
    asked_to_go: bool = False
    ready: bool = False


@dataclass
class DurabilityLog:
    """files: by their ids, that the server has taken. gone: words of what it has said to have deleted. doing: requests
    that it has not answered."""

    files: dict[str, File] = field(default_factory=dict)
    collections: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)  # collections that were asked to go, without an answer
    gone: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    doing: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def request(self, what: str) -> Iterator[None]:
        """Note a request in ``doing``, where it stays if it gets no answer."""
        self.doing.add(what)
        yield
        self.doing.discard(what)

    def note_ready(self, file_id: str, files: Mapping[str, Mapping[str, Any]]) -> None:
        """files: by their ids, as the server lists them. One that was taken without an answer was not promised."""
        file = self.files.get(file_id)
        if file is not None and not file.ready and files.get(file_id, {}).get("status") == "ready":
            file.ready = True
            self.counts["ready"] += 1

    def drop(self, file_id: str) -> None:
        self.gone.add(self.files.pop(file_id).word)

    def drop_collection(self, name: str) -> None:
        for file_id in [file_id for file_id, file in self.files.items() if file.collection == name]:
            self.drop(file_id)
        self.collections.discard(name)
        self.going.discard(name)


def text(chance: random.Random, word: str, n_words: int) -> str:
    words = [chance.choice(WORDS) for _ in range(n_words)]
    return f"{first_sentence(word)} {' '.join(words)}. So much of {word}."


def first_sentence(word: str) -> str:
    return f"The {word} is here."


def use(url: str, promises: DurabilityLog, seed: float, ended: threading.Event) -> None:
    """Make collections, send files and delete some, until the server is killed."""
    chance = random.Random(seed)
    with Api(url, seconds=60) as api, contextlib.suppress(Refused):
        while not ended.is_set():
            if not (mine := sorted(promises.collections)) or (len(mine) < 3 and chance.random() < 0.2):
                mine = [f"notes{chance.getrandbits(40):x}"]
                api.make(mine[0])
                promises.collections.add(mine[0])
            if sum(not file.ready for file in promises.files.values()) < MOST_UNREADY:
                _send(api, promises, chance, chance.choice(mine))
            if chance.random() < 0.35:
                _remove_one(api, promises, chance)
            for name in mine:
                _note_ready(api, promises, name)
            time.sleep(chance.uniform(0, 0.2))


def ask(url: str, promises: DurabilityLog, seed: float, ended: threading.Event) -> None:
    """Ask over documents of its own, whose segments are made, written, and evicted again."""
    chance = random.Random(seed)
    with Api(url, seconds=60) as api, contextlib.suppress(Refused):
        while not ended.is_set():
            documents = [text(chance, f"w{chance.getrandbits(30):x}", 60) for _ in range(4)]
            with promises.request("asking"):
                api.chat("Where?", documents=documents, max_tokens=2)
            promises.counts["questions"] += 1
            time.sleep(chance.uniform(0, 1))  # while there are requests, files wait


def _send(api: Api, promises: DurabilityLog, chance: random.Random, collection: str) -> None:
    words = [f"word{chance.getrandbits(60):x}" for _ in range(chance.choice([1, 1, 3]))]
    contents: dict[str, str | bytes] = {
        f"{i}.txt": text(chance, word, chance.choice([20, 100, 1000])) for i, word in enumerate(words)
    }
    openings = [str(content)[:OPENING] for content in contents.values()]
    with promises.request("uploading"):
        sent = api.send(collection, contents)
    for file_id, word, opening in zip(sent, words, openings, strict=True):
        promises.files[file_id] = File(collection, word, opening)
        promises.counts["files"] += 1


def _remove_one(api: Api, promises: DurabilityLog, chance: random.Random) -> None:
    if chance.random() < 0.2:
        name = chance.choice(sorted(promises.collections))
        promises.going.add(name)
        with promises.request("deleting"):
            api.ask("DELETE", f"/v1/collections/{name}")
        promises.drop_collection(name)
        promises.counts["deleted collections"] += 1
    elif promises.files:
        file_id = chance.choice(sorted(promises.files))
        promises.files[file_id].asked_to_go = True
        with promises.request("deleting"):
            api.ask("DELETE", f"/v1/collections/{promises.files[file_id].collection}/files/{file_id}")
        promises.drop(file_id)
        promises.counts["deleted files"] += 1


def _note_ready(api: Api, promises: DurabilityLog, collection: str) -> None:
    if collection in promises.collections:
        files = {file["id"]: file for file in api.files(collection)}
        for file_id in files:
            promises.note_ready(file_id, files)


def check(api: Api, promises: DurabilityLog, wait: bool = False) -> None:
    """Check a server that was started again. wait: until every file is ready. Raises Broken."""
    names = {one["name"] for one in api.ask("GET", "/v1/collections")["data"]}
    for name in promises.going - names:
        promises.drop_collection(name)  # done, though it could not say so
    if lost := promises.collections - names:
        raise Broken(f"collections that had been made are gone: {sorted(lost)}")
    for name in sorted(promises.collections):
        if wait:
            api.wait(name)
        files = {file["id"]: file for file in api.files(name)}
        for file_id, file in [item for item in promises.files.items() if item[1].collection == name]:
            if file_id not in files and file.asked_to_go:
                promises.drop(file_id)
            elif file_id not in files:
                raise Broken(f"the file {file_id} of {name} had been taken and is gone")
            elif files[file_id]["status"] == "failed":
                raise Broken(f"the file {file_id} of {name} failed: {files[file_id]['error']}")
            elif file.ready and files[file_id]["status"] != "ready":
                raise Broken(f"the file {file_id} of {name} was ready and is {files[file_id]['status']}")
            elif (file.ready or wait) and not _is_found(api, file):
                raise Broken(f"the file {file_id} of {name} is ready, and its text is not found")
            promises.note_ready(file_id, files)


def _is_found(api: Api, file: File) -> bool:
    """Search a file by its first sentence, a chunk of its own where the text is long, or by its
    opening, where all is one chunk."""
    questions = filter(None, (first_sentence(file.word), file.opening))
    return any(file.word in one["text"] for question in questions for one in api.search(file.collection, question, 100))
