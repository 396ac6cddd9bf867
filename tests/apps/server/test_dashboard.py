"""deploy/grafana/hypic-rag.json: names metrics and labels that the server has."""

import json
import re
from pathlib import Path

import pytest
from operated import client, make_service

from hypic_rag.engine import Generation, Policy
from hypic_rag.engine.outputs import Report, SegmentUse

DASHBOARD = json.loads((Path(__file__).parents[3] / "deploy" / "grafana" / "hypic-rag.json").read_text("utf-8"))
TARGETS = [(panel, target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
NAME = re.compile(r"\b(?:hypic|process)_\w+")
GROUPED = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By the names of the series that a server gives which has done everything once."""
    service = make_service(tmp_path_factory.mktemp("server"))
    seen = service.loop.requests.watch("acme/")
    seen.admitted()
    seen.token()
    seen.ended("ok", Generation("", (1,), "stop", Report(Policy(), 9, 9, 0, (SegmentUse(9, "host"),), 0.0, 0.0)))
    service.engine.cache._misses["never_seen"] += 1
    service.metrics.ingested("ready")
    with client(service) as http:
        http.get("/health")
        text = http.get("/metrics").text
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#") and (match := re.match(r"(\w+)(?:\{(.*)\})? ", line)):
            found.setdefault(match[1], set()).update(re.findall(r"(\w+)=\"", match[2] or ""))
    return found


@pytest.mark.parametrize("panel, target", TARGETS, ids=[f"{p['title']} {t['refId']}" for p, t in TARGETS])
def test_what_a_panel_asks_for_is_there(panel: dict, target: dict, labels: dict[str, set[str]]) -> None:  # type: ignore[type-arg]
    names = NAME.findall(target["expr"])
    assert names and set(names) <= set(labels), names
    grouped = {label for group in GROUPED.findall(target["expr"]) for label in group.split(", ") if label}
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    for name in names:
        assert grouped <= labels[name], (name, grouped)
    assert shown <= grouped
    assert target["expr"].count("(") == target["expr"].count(")")


def test_every_metric_of_ours_is_shown(labels: dict[str, set[str]]) -> None:
    shown = {re.sub(r"_bucket$", "", name) for _, target in TARGETS for name in NAME.findall(target["expr"])}
    shown |= set(NAME.findall(json.dumps(DASHBOARD["templating"])))
    ours = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in labels if name.startswith("hypic_")}
    totals = {name.removesuffix("_total") for name in ours}
    assert {name.removesuffix("_total") for name in shown if name.startswith("hypic_")} == totals


def test_panels_have_places_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
