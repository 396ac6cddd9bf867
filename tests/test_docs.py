"""The documents name files that exist, and every export is documented."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hypic_rag

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=[document.name for document in DOCUMENTS])
def test_paths_in_documents_exist(document: Path) -> None:
    named = re.findall(r"`((?:hypic_rag|kernels|apps|eval|tests|docs|scripts)/[\w./-]+)`", document.read_text("utf-8"))
    linked = re.findall(r"\]\((?!https?:)([\w./-]+)\)", document.read_text("utf-8"))
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [path for path in linked if not (document.parent / path).exists()]
    assert not missing, missing


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
