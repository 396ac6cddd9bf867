"""store.json: what a store was made with, and whether that is what is in use now."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag import default_model
from hypic_rag.atomic_write import replacing
from hypic_rag.config import home
from hypic_rag.errors import BadInput, StoreDamaged, StoreMismatch
from hypic_rag.stored_json import made, parse_object

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

FILE = "store.json"
FORMAT = "hypic-rag store"
VERSION = 1
MOST = 2**31  # of a size


@dataclass(frozen=True)
class Manifest:
    """The settings that every chunk of a store shares; fixed when the store is created."""

    store_id: str  # also in the database, so that files of two stores are not taken for one
    model: str
    model_fingerprint: str
    prompt_format: str
    embedder: str
    embedder_fingerprint: str
    dimension: int
    chunk_tokens: int
    chunk_overlap: int

    def write(self, folder: Path) -> None:
        """Write the file atomically: a reader sees none or the whole one."""
        with replacing(folder / FILE) as file:
            file.write(json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """Read the file; None where there is none. Raises StoreDamaged, StoreMismatch (written
        by another version), BadInput."""
        try:
            values = parse_object((folder / FILE).read_bytes())
            if values.pop("format") != FORMAT:
                raise ValueError(f"it does not say {FORMAT!r}")
            version = values.pop("version")
            if version == VERSION:
                manifest = made(cls, values)
                sizes = (manifest.dimension, manifest.chunk_tokens, manifest.chunk_overlap + 1)
                if not all(0 < size < MOST for size in sizes):
                    raise ValueError(f"its sizes are {str(sizes)[:80]}")
                return manifest
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            why = f"{folder / FILE} cannot be read: {error.strerror}. Check its permissions, and the disk"
            raise BadInput(why) from error
        except (ValueError, KeyError) as error:
            raise StoreDamaged(f"{folder / FILE} cannot be read: {error}. {how_to_rebuild(folder)}") from error
        raise StoreMismatch(
            f"store {folder} has format version {version}, this program reads version {VERSION}. "
            f"Use the program that made it, or move the folder away and ingest again."
        )

    def check_engine(self, engine: "SegmentEngine", folder: Path) -> None:
        """Raise StoreMismatch unless the store was made with exactly this engine's model and prompt format."""
        name = engine.model_name
        if engine.fingerprint != self.model_fingerprint:
            former, present = self.model_fingerprint[:12], engine.fingerprint[:12]
            if self.is_of(engine):
                raise StoreMismatch(
                    f"store {folder} was made with other weights of the model {self.model} (fingerprint {former}) "
                    f"than it has now (fingerprint {present}), as an upgrade brings, and nothing that was prefilled "
                    f"with them can be used. Prefill its documents again, with one command: hypic-rag ingest (with "
                    f"the --collection or --store that you ask; no path is needed)."
                )
            raise StoreMismatch(
                f"store {folder} was made with model {self.model} (fingerprint {former}), but the model in use is "
                f"{name} (fingerprint {present}). Use --model {self.model}, or ingest into another folder with "
                f"--model {name}."
            )
        if not engine.format.made(self.prompt_format):
            raise StoreMismatch(
                f"store {folder} was made with prompt format {self.prompt_format}, but {name} now has "
                f"{engine.format.version} (its chat template has changed). Restore the template, or ingest again "
                f"into another folder."
            )

    def is_of(self, engine: "SegmentEngine") -> bool:
        """Return whether the engine's model is called as the store's, be its weights the same or others."""
        return self.model == opens_again(engine)

    def check_embedder(self, name: str, fingerprint: str, folder: Path) -> None:
        """Raise StoreMismatch unless the index was made with exactly this embedder."""
        if fingerprint != self.embedder_fingerprint:
            raise StoreMismatch(
                f"the index of store {folder} was made with embedder {self.embedder} (fingerprint "
                f"{self.embedder_fingerprint[:12]}), but the embedder in use is {name} (fingerprint "
                f"{fingerprint[:12]}). Use --embedder {self.embedder}, or ingest into another folder with "
                f"--embedder {name}."
            )

    def check_chunking(self, chunk_tokens: int | None, chunk_overlap: int | None, folder: Path) -> None:
        """Raise StoreMismatch where sizes are asked for (not None) that differ from the store's."""
        for what, asked, has in (
            ("chunks", chunk_tokens, self.chunk_tokens),
            ("an overlap", chunk_overlap, self.chunk_overlap),
        ):
            if asked is not None and asked != has:
                raise StoreMismatch(
                    f"store {folder} has {what} of {has} tokens, but {asked} was asked for. Leave the size "
                    f"out, or ingest into another folder."
                )


def opens_again(engine: "SegmentEngine") -> str:
    """Return what ``SegmentEngine.from_pretrained`` takes to get the same model: "default", a folder or a hub
    name."""
    source = Path(engine.model.name_or_path)
    if engine.model_name == default_model.NAME and source.is_relative_to(home()):
        return "default"  # not its folder, which moves with HYPIC_HOME
    return str(source.resolve()) if source.is_dir() else engine.model_name


def how_to_rebuild(folder: Path) -> str:
    return (
        f"Move {folder} away and ingest your documents again. (Cached segments can be kept: put the old "
        f"{folder.name}/segments into the new folder.)"
    )
