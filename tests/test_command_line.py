"""What every command of both programs has: text in and out whatever the encoding, and an output that may be lost."""

import json
import os
import subprocess
import sys

import pytest

ODD = "é 中 😀 \udcff"
PROGRAM = """
import json, sys, types
from hypic_rag import command_line
from hypic_rag.errors import BadInput

def say(text: str) -> None: print(json.dumps({"text": text}, ensure_ascii=False))
def echo() -> None: print(ascii(sys.stdin.readline()))
def many() -> None:
    for n in range(100_000): print(n)
def now() -> None: print(1, flush=True)
def complain(text: str) -> None: raise BadInput(text)
def lose(path: str) -> None: open(path)
def work() -> None:
    with open(sys.argv[0] + ".out", "w") as file: print(file.fileno(), file=file)

commands = []
for function in (say, echo, many, now, complain, lose, work):
    module = types.ModuleType(function.__name__)
    module.run = function
    commands.append(module)
command_line.run(command_line.make_app(commands, "", "", ""), "hypic")
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(PROGRAM)
    return file


def shell(program, line, encoding="utf-8:strict", stdin=b"", unbuffered=""):
    """Of a line in which $P is the program: exit code, standard output, standard error."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": unbuffered}
    environment |= {"P": f"{sys.executable} {program}"}
    command = ["bash", "-o", "pipefail", "-c", os.fsencode(line)]
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode("latin-1")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "latin-1", "ascii", "utf-8:surrogateescape"])
def test_json_stays_json_in_any_encoding(program, encoding):
    code, out, err = shell(program, f"$P say '{ODD}'", encoding)
    assert (code, err) == (0, "")
    assert json.loads(out.decode(encoding.partition(":")[0])) == {"text": ODD}
    assert ("中".encode() in out) == encoding.startswith("utf-8")


LINES = {  # the line; exit code; what is printed, and what is said
    "bytes that are no UTF-8": ("$P echo", 0, ascii("caf\ufffd?\n"), ""),
    "an error of such text": (f"$P complain '{ODD}'", 1, "", "error: \\u00e9 \\u4e2d \\ud83d\\ude00 \\udcff"),
    "a full disk": ("$P say x > /dev/full", 1, "", "error: the output cannot be written: No space left on device"),
    "a full disk, at once": ("$P now > /dev/full", 1, "", "error: the output cannot be written: No space left"),
    "a full disk, much": ("$P many > /dev/full", 1, "", "error: the output cannot be written: No space left"),
    "a reader that has gone": ("$P say x | true", 1, "", ""),
    "a reader that goes": ("$P many | head -1", 1, "0", ""),
    "help for nobody": ("$P --help > /dev/full", 1, "", "error: the output cannot be written"),
    "no output": ("$P say x >&-", 0, "", ""),
    "no input": ("$P echo <&-", 0, "''", ""),
    "nothing to say errors to": ("$P complain x 2>&-", 1, "", ""),
    "a full disk for errors": ("$P complain x 2>/dev/full", 1, "", ""),
    "an error of the system": ("$P lose /nowhere/at/all", 1, "", "error: No such file or directory: /nowhere/at/all. "),
    "such an error, of odd bytes": ("$P lose $'/\\xff'", 1, "", "error: No such file or directory: /\\xff. Check"),
    "bad usage": ("$P nonsense", 2, "", "No such command 'nonsense'"),
}


@pytest.mark.parametrize("line, code, out, err", LINES.values(), ids=LINES)
def test_a_command_ends_with_a_sentence_and_its_code(program, line, code, out, err):
    for unbuffered in ("", "1") if ">" in line else ("",):
        encoding = "ascii" if "complain" in line else "utf-8:strict"
        done = shell(program, line, encoding, b"caf\xe9?\n", unbuffered)
        assert (done[0], done[1].decode().strip()) == (code, out), done
        assert err in done[2] if err else done[2] == ""
        assert not any(word in done[2] for word in ("Traceback", "Exception ignored")), done


def test_files_do_not_get_the_numbers_of_closed_streams(program):
    assert shell(program, "$P work <&- >&- 2>&-")[0] == 0
    assert int((program.parent / "program.py.out").read_text()) > 2
