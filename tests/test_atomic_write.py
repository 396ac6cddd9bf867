"""A file is there whole or not at all, wherever the disk fails, and what is told is why."""

import errno
import os
from pathlib import Path

import pytest

from hypic_rag.atomic_write import clear_away, replacing


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
@pytest.mark.parametrize("unlink_fails", [False, True])
def test_what_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str, unlink_fails: bool
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        if unlink_fails:
            patch.setattr("pathlib.Path.unlink", lambda *_: fail())
        with pytest.raises(OSError) as raised, replacing(path) as file:
            file.write(b"new")
    assert (raised.value.errno, raised.value.filename) == (code, str(path))
    assert path.read_text() == "old"
    assert unlink_fails or list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with replacing(path) as file:
        file.write(b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and path.read_bytes() == b"whole"
    clear_away(tmp_path / "nothing" / "there")
