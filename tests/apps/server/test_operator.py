"""``/v1/tenants``: what the operator sees of tenants, and that a tenant leaves without a trace."""

from pathlib import Path

from collecting import SECRET, make_service, serving, text

from hypic_rag.engine import Sampling


def test_a_tenant_is_listed_and_leaves_without_a_trace(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server", no_keys=True)
    _, theirs = service.keys.add("acme")
    service.keys.add("idle", valid_seconds=0.0)
    operator = {"Authorization": f"Bearer {service.keys.add(None)[1]}"}
    with serving(service) as anybody:
        acme, other = anybody.of("acme"), anybody.of("other")
        for api in (acme, other):
            api.make()
            (file,) = api.send(harbour=f"{SECRET} {text('harbour')}")
            api.until("ready", file)
        engine = service.engine.within("acme/")  # as of documents that came in a request
        engine.generate(engine.format.prompt("Who?", [engine.format.document(SECRET)]), Sampling(max_new_tokens=1))

        def listed() -> dict[str, tuple[int, int, int]]:
            answer = acme.client.get("/v1/tenants", headers=operator)
            assert answer.status_code == 200, answer.text
            data = answer.json()["data"]
            assert all(one["bytes"] > 0 for one in data)
            return {one["id"]: (one["n_keys"], one["n_collections"], one["n_files"]) for one in data}

        assert listed() == {"acme": (1, 1, 1), "other": (0, 1, 1)}
        for headers in ({}, {"Authorization": f"Bearer {theirs}"}):
            assert acme.client.get("/v1/tenants", headers=headers).status_code in (401, 403)
            assert acme.client.delete("/v1/tenants/other", headers=headers).status_code in (401, 403)

        gone = acme.client.delete("/v1/tenants/acme", headers=operator).json()
        assert gone == {"id": "acme", "object": "tenant", "deleted": True, "n_keys": 1, "n_collections": 1}
        assert listed() == {"other": (0, 1, 1)}
        assert service.keys.find(theirs) is None
        assert not list((tmp_path / "server" / "collections" / "acme").iterdir())
        assert not [name for name in service.engine.cache.disk.by_namespace() if name.startswith("acme/")]
        assert acme.client.delete("/v1/tenants/acme", headers=operator).json()["n_collections"] == 0
        assert acme.client.delete("/v1/tenants/No Name", headers=operator).status_code == 404
        assert other.found("harbour matters")
