"""Whoever waits for kernels to be compiled is told why; nobody else is."""

import time

import pytest

from hypic_rag.engine.device import compile_notice


def test_a_long_pass_is_explained(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with compile_notice.patience():
        pass
    time.sleep(0.05)
    assert not caplog.messages
    monkeypatch.setattr(compile_notice, "SECONDS", 0.01)
    with compile_notice.patience():
        time.sleep(0.3)
    assert caplog.messages == [compile_notice.MESSAGE]
