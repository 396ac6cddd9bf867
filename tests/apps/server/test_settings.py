"""Every setting of the server: in config.py, in ``serve --help``, and in the table of docs/serving.md."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hypic_rag.config import SETTINGS, Settings, format_bytes
from hypic_rag.errors import BadInput

ROOT = Path(__file__).parents[3]
NOT_OF_SERVE = {"store", "collection", "tenant", "log_questions"}  # of ask, chat and ingest
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


def shown(value: object, is_size: bool) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_size and isinstance(value, int):
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def row(name: str) -> str:
    declared = SETTINGS[name]
    return f"| `{name}` | {shown(getattr(Settings(), name), declared['metavar'] == 'SIZE')} | {declared['help']} |"


OF_SERVE = [name for name in SETTINGS if name not in NOT_OF_SERVE]


def test_the_table_is_what_the_code_says() -> None:
    table = "\n".join(map(row, OF_SERVE))
    section = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `\w+` \| .*$", section, re.MULTILINE) == table.splitlines(), table


def test_every_setting_is_an_option_of_serve() -> None:
    command = [sys.executable, "-m", "hypic_apps.cli.main", "serve", "-h"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    options = {word.rstrip(",") for word in done.stdout.split() if word.startswith("--")}
    assert options == {"--" + name.replace("_", "-") for name in OF_SERVE} | {"--help"}


def test_file_environment_and_flags_agree(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('allowed_origins = ["https://a.example/", "http://localhost:3000"]\nno_keys = true\nport = 81\n')
    settings = Settings.load({"metrics_open": True, "max_body": "1MB"}, environment={"HYPIC_PORT": "82"}, file=file)
    assert settings.allowed_origins == ("https://a.example", "http://localhost:3000")
    assert (settings.no_keys, settings.metrics_open, settings.port, settings.max_body) == (True, True, 82, 10**6)
    environment = {"HYPIC_ALLOWED_ORIGINS": "https://a.example, *", "HYPIC_METRICS_OPEN": "yes"}
    settings = Settings.load({"no_keys": None}, environment=environment, file=tmp_path / "none")
    assert (settings.allowed_origins, settings.metrics_open, settings.no_keys) == (
        ("https://a.example", "*"),
        True,
        False,
    )


WRONG = {
    "a port": ({"port": "70000"}, "at most 65535"),
    "no limit": ({"max_body": "unlimited"}, "needs a size like 100MB"),
    "an empty limit": ({"max_upload": "0"}, "needs a size like 100MB"),
    "a page, not an origin": ({"allowed_origins": "https://a.example/page"}, "is no origin"),
    "a name, not an origin": ({"allowed_origins": "a.example"}, "is no origin"),
    "a proxy's name": ({"trusted_proxies": "nginx"}, "Write it like 127.0.0.1"),
    "a network's host": ({"trusted_proxies": ["10.0.0.1/8"]}, "has host bits set"),
    "a format": ({"log_format": "xml"}, "none of text, json"),
}


@pytest.mark.parametrize("given, message", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_told_what_to_do(given: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        Settings.load(given, environment={}, file=tmp_path / "none")


def test_variables_in_deploy_and_on_the_page_are_settings() -> None:
    known = {"HYPIC_" + name.upper() for name in SETTINGS} | {"HYPIC_HOME", "HYPIC_NAME"}
    for file in ("deploy/Containerfile", "deploy/compose.yaml", "deploy/hypic-rag.service", "docs/serving.md"):
        assert set(re.findall(r"HYPIC_[A-Z_]*[A-Z]", (ROOT / file).read_text("utf-8"))) <= known, file
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        assert set(tomllib.loads(block)) <= set(SETTINGS)


def test_the_container_has_the_torch_of_the_scripts() -> None:
    (version,) = re.findall(r"version=(\S+)", (ROOT / "scripts" / "setup.sh").read_text())
    for file in ("Containerfile", "hypic-rag.service"):
        assert set(re.findall(r"torch==(\S+)", (ROOT / "deploy" / file).read_text())) == {version}
