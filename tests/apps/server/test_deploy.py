"""deploy/: what nginx and systemd themselves say of the files, and a server behind this nginx."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from tiny_server import Running

DEPLOY = Path(__file__).parents[3] / "deploy"
OURS = "http://127.0.0.1:8000"
BELOW = "    location /rag/ {{ proxy_pass {server}/; }}\n    location = /metrics"

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def behind_nginx(server: Running, tmp_path: Path) -> Iterator[str]:
    """The address of an nginx before the server, with TLS, on a port that is not 443."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", tmp_path / "key", "-out", tmp_path / "pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    site = (DEPLOY / "nginx.conf").read_text()
    for said, here in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/rag.example.pem": str(tmp_path / "pem"),
        "/etc/ssl/rag.example.key": str(tmp_path / "key"),
        OURS: server.url,
        "    location = /metrics": BELOW.format(server=server.url),
    }.items():
        assert said in site
        site = site.replace(said, here)
    (tmp_path / "site").write_text(site)
    paths = "".join(
        f"{one}_temp_path {tmp_path}/{one};" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "conf").write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error; daemon off; master_process off; events {{}}\n"
        f"http {{ access_log off; {paths} include {tmp_path}/site; }}\n"
    )
    checked = subprocess.run(["nginx", "-t", "-c", tmp_path / "conf"], capture_output=True, text=True)
    assert checked.returncode == 0 and "[warn]" not in checked.stderr, checked.stderr
    process = subprocess.Popen(["nginx", "-c", tmp_path / "conf"])
    try:
        deadline = time.monotonic() + 10
        while not _listens(port):  # the pid file is there already: `nginx -t` writes it
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@needs_nginx
def test_the_page_and_answers_come_through_nginx(behind_nginx: str) -> None:
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 3, "stream": True}
    with httpx.Client(verify=False, headers={"Origin": behind_nginx}, timeout=60) as http:
        for base in (behind_nginx, f"{behind_nginx}/rag"):
            page = http.get(f"{base}/")
            assert "<title>" in page.text and page.headers["strict-transport-security"]
            assert http.get(f"{base}/static/app.js").status_code == 200
            streamed = http.post(f"{base}/v1/chat/completions", json=body)
            assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
            assert http.post(f"{base}/v1/tokens", headers={"Origin": "https://evil.example"}).status_code == 403
        assert http.get(f"{behind_nginx}/metrics").status_code == 403


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "hypic-rag.service").read_text()
    (tmp_path / "hypic-rag.service").write_text(unit.replace("/opt/hypic-rag/bin/hypic-rag", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "hypic-rag.service"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "RestartPreventExitStatus=2" in unit.splitlines()


def test_compose_builds_a_target_of_the_containerfile_and_stops_slowly_enough() -> None:
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    containerfile = (DEPLOY / "Containerfile").read_text()
    assert f" AS {service['build']['target']}\n" in containerfile
    assert "--stop-timeout 60" in containerfile and service["stop_grace_period"] == "60s"
