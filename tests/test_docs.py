"""The documents name files that exist, every export is documented, and docstrings say what functions do."""

import ast
import importlib
import operator
import re
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest

import hypic_rag

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LIBRARY = [ROOT / folder for folder in ("hypic_rag", "kernels", "apps", "eval")]
NO_VERB = re.compile(  # a first word in the third person or the plural ends in s; an argument's note is "x: ..."
    r"(A|About|After|All|Also|An|Around|At|Back|Before|Below|Both|By|Each|Empty|Every|Everything|False|For|From|How|If"
    r"|In|Into|It|Kept|Made|Most|No|Nobody|None|Nothing|Number|Of|On|One|Only|Over|Some|Something|That|The|There|Those"
    r"|To|True|Two|Under|Until|Up|What|When|Where|Whether|Which|Who|Whose|Why|With|Without|[A-Z]\w*[^\Ws]s)[.,;]?"
    r"|[A-Z][a-z]+:|\(.*"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[document.name for document in DOCUMENTS])
def test_paths_in_documents_exist(document: Path) -> None:
    named = re.findall(r"`((?:hypic_rag|kernels|apps|eval|tests|docs|scripts)/[\w./-]+)`", document.read_text("utf-8"))
    linked = re.findall(r"\]\((?!https?:)([\w./-]+)\)", document.read_text("utf-8"))
    bare = re.findall(r"`([a-z_]+\.py)`", document.read_text("utf-8"))
    tracked = {
        path.name for folder in ("hypic_rag", "kernels", "apps", "eval") for path in (ROOT / folder).rglob("*.py")
    }
    missing = [path for path in named if not (ROOT / path).exists()] + sorted(set(bare) - tracked)
    missing += [path for path in linked if not (document.parent / path).exists()]
    assert not missing, missing


def test_each_hop_of_the_architecture_calls_the_next() -> None:
    """At most six calls, none of which comes back to a package that was left."""
    section = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("\n## Hops\n")[1].split("\n## ")[0]
    lists = [re.findall(r"^\d+\. `([\w/]+)\.py:([\w.]+)`", text, re.M) for text in section.split("\n\n")]
    lists = [hops for hops in lists if hops]
    assert len(lists) == 4 and section.count(". `") == sum(map(len, lists))
    for hops in lists:
        assert len(hops) <= 7
        packages = [path.split("/")[1] for path, _ in hops]
        assert len([*groupby(packages)]) == len(set(packages)), packages
        for (path, name), (_, called) in pairwise(hops):
            operator.attrgetter(name)(importlib.import_module(path.replace("/", ".")))
            calls = {
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
                for node in ast.walk(ast.parse((ROOT / f"{path}.py").read_text("utf-8")))
                if isinstance(node, ast.Call)
            }
            assert called.split(".")[-1] in calls, f"{name} does not call {called}"
        operator.attrgetter(hops[-1][1])(importlib.import_module(hops[-1][0].replace("/", ".")))


def test_every_export_is_documented_and_importable() -> None:
    for name in hypic_rag.__all__:
        assert (getattr(hypic_rag, name).__doc__ or "").strip(), name


def test_the_page_of_results_is_made_from_the_saved_files() -> None:
    """Regenerate: hypic-eval table docs/results/*.json > docs/results.md"""
    files = sorted(map(str, (ROOT / "docs" / "results").glob("*.json")))
    command = [sys.executable, "-m", "hypic_eval.cli", "table", *files]
    made = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert made.stdout == (ROOT / "docs" / "results.md").read_text("utf-8")


@pytest.mark.parametrize("page", ["performance", "serving"])
def test_the_figures_of_a_page_are_the_saved_ones(page: str) -> None:
    """Regenerate the table: hypic-eval table docs/PAGE/*.json"""
    files = sorted(map(str, (ROOT / "docs" / page).glob("*.json")))
    command = [sys.executable, "-m", "hypic_eval.cli", "table", *files]
    made = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert made.stdout.strip() in (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def test_the_page_of_models_is_what_the_code_says() -> None:
    """Regenerate: hypic-eval models > docs/models.md"""
    command = [sys.executable, "-m", "hypic_eval.cli", "models"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert made.stdout == (ROOT / "docs" / "models.md").read_text("utf-8")


@pytest.mark.parametrize("word", ["Of", "The", "None.", "Raises", "Bytes", "(N,", "Atomic:"])
def test_a_first_word_that_is_no_verb_is_noticed(word: str) -> None:
    assert NO_VERB.fullmatch(word)


@pytest.mark.parametrize("word", ["Return", "Pass", "Note", "Discard", "q,", "x:", "R:", "``model``:"])
def test_a_verb_and_an_arguments_note_pass(word: str) -> None:
    assert not NO_VERB.fullmatch(word)


def test_docstrings_say_what_functions_do_and_what_classes_are() -> None:
    """Of a function in the imperative ("Return the ...", "Measure ..."), of a class or a property what it is."""
    wrong = []
    for file in sorted(path for folder in LIBRARY for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            word = first.partition(" ")[0]
            is_noun = isinstance(node, ast.ClassDef) or any("property" in ast.unparse(d) for d in node.decorator_list)
            if word in ("Of", "As") if is_noun else NO_VERB.fullmatch(word):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {first}")
    assert not wrong, "\n".join(wrong)
