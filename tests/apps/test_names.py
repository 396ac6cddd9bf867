"""Names and paths that lead nowhere: one sentence that says what to do, from every command that takes one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = "n" * 300
DEEP = "/".join(["d" * 200] * 25)  # beyond PATH_MAX
BYTES = "caf\udce9"  # as a name that is not UTF-8 arrives
TOO_LONG, NO_HOME = "File name too long", "Could not determine home directory. Give an absolute path"

LINES = {  # arguments; exit code; words
    "a long store, ingest": (("ingest", "DOCS", "--store", LONG), 1, TOO_LONG),
    "a long store, ask": (("ask", "Who?", "--store", LONG), 1, TOO_LONG),
    "a long store, chat": (("chat", "--store", LONG), 1, TOO_LONG),
    "a long store, info": (("info", "--store", LONG), 1, TOO_LONG),
    "a long store, cache": (("cache", "ls", "--store", LONG), 1, TOO_LONG),
    "a long store, import": (("cache", "import", "DOCS", "--store", LONG), 1, TOO_LONG),
    "a long store, audit": (("audit", "--store", LONG), 1, TOO_LONG),
    "a deep store": (("ask", "Who?", "--store", f"/tmp/{DEEP}"), 1, TOO_LONG),
    "nobody's home": (("ask", "Who?", "--store", "~nobody-here/store"), 1, NO_HOME),
    "no store here": (("ask", "Who?", "--store", "."), 1, "no store in"),
    "no store above": (("ask", "Who?", "--store", ".."), 1, "no store in"),
    "no store in a folder": (("ask", "Who?", "--store", "a/b"), 1, "no store in"),
    "no store of this name": (("ask", "Who?", "--store", BYTES), 1, "no store in"),
    "no name": (("ask", "Who?", "--store", ""), 2, "needs a text"),
    "a blank name": (("ask", "Who?", "--store", " "), 2, "needs a text"),
    "a long model": (("info", "--model", LONG), 1, TOO_LONG),
    "nobody's model": (("info", "--model", "~nobody-here/m"), 1, NO_HOME),
    "a model that is no UTF-8": (("info", "--model", BYTES), 1, "is not UTF-8"),
    "a long embedder": (("ingest", "DOCS", "--embedder", LONG), 1, TOO_LONG),
    "nobody's embedder": (("ingest", "DOCS", "--embedder", "~nobody-here/e"), 1, NO_HOME),
    "a long path": (("ingest", LONG), 1, TOO_LONG),
    "nobody's path": (("ingest", "~nobody-here/docs"), 1, NO_HOME),
    "a path that is no UTF-8": (("ingest", BYTES), 1, "caf\\xe9'. Check the path"),
    "long questions": (("audit", "--questions", LONG), 1, TOO_LONG),
    "nobody's questions": (("audit", "--questions", "~nobody-here/q"), 1, NO_HOME),
    "a long archive": (("cache", "import", LONG), 1, TOO_LONG),
    "no archive": (("cache", "import", BYTES), 2, "there is no file"),
    "long data": (("calibrate", "--data", LONG), 1, TOO_LONG),
    "an odd key": (("keys", "revoke", BYTES), 1, "there are no keys"),
    "an odd tenant": (("keys", "add", "--tenant", BYTES), 1, "cannot name a tenant"),
    "an odd label": (("keys", "add", "--tenant", "acme", "--name", BYTES), 1, "cannot be shown"),
}


@pytest.mark.parametrize("arguments, code, words", LINES.values(), ids=LINES)
def test_a_name_that_leads_nowhere_is_told(cli, home: Path, documents: Path, arguments, code, words) -> None:
    (home / "stores").mkdir(parents=True)
    done = cli(*(documents if argument == "DOCS" else argument for argument in arguments))
    assert (done.code, done.out) == (code, ""), done
    said = done.err.splitlines()[-1]
    assert words in said.replace("\\\\", "\\"), done.err
    assert said.startswith("error: ") or code == 2


HOMES = {  # HYPIC_HOME and HOME; config.toml, or None; exit code; words
    "beyond PATH_MAX": (f"/tmp/{DEEP}", "/tmp", None, 2, TOO_LONG),
    "no UTF-8": ("/tmp/caf\udce9", "/tmp", None, 2, "caf\\xe9 is not UTF-8"),
    "a home folder that is no UTF-8": ("", "/tmp/caf\udce9", None, 2, "caf\\xe9/.hypic-rag is not UTF-8"),
    "nobody's": ("~nobody-here", "/tmp", None, 2, NO_HOME),
    "NUL in a name": ("HOME", "/tmp", 'store = "a\\u0000b"', 2, "has a NUL character"),
    "settings that are a folder": ("HOME", "/tmp", "", 2, "cannot be opened: Is a directory"),
    "settings that are nested": ("HOME", "/tmp", "top_k = " + "[" * 5000, 2, "cannot be read"),
}


@pytest.mark.parametrize("place, home_folder, config, code, words", HOMES.values(), ids=HOMES)
def test_a_home_that_cannot_be_used_is_told(cli, home: Path, monkeypatch, place, home_folder, config, code, words):
    monkeypatch.setenv("HOME", home_folder)
    home.mkdir()
    if config == "":
        (home / "config.toml").mkdir()
    elif config is not None:
        (home / "config.toml").write_text(config)
    run = type(cli)(cli.func, str(home) if place == "HOME" else place, *cli.args[1:])
    done = run("ask", "Who?")
    assert (done.code, done.out) == (code, ""), done
    assert words in done.err.replace("\\\\", "\\")


def test_a_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from hypic_apps.cli.main import main; main()"
    for line in (("ask", "Who?", "--store", "./s"), ("ingest", "docs"), ("cache", "ls", "--store", "./s")):
        environment = {**os.environ, "HYPIC_HOME": str(tmp_path / "home")}
        here.mkdir(exist_ok=True)
        done = subprocess.run([sys.executable, "-c", code, *line], cwd=here, env=environment, capture_output=True)
        said = done.stderr.decode().splitlines()[-1]
        assert done.returncode == 1 and "No such file or directory. Give an absolute path" in said, said
