"""What a calibration found, as a JSON file under HYPIC_HOME: one a model, named after its fingerprint."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypic_rag.atomic_write import replacing
from hypic_rag.config import home
from hypic_rag.engine.calibration.choice import Thresholds
from hypic_rag.engine.calibration.measurement import Measurement
from hypic_rag.engine.policy import Policy
from hypic_rag.errors import BadInput
from hypic_rag.stored_json import made, parse_object

FOLDER = "calibrations"
FORMAT = "hypic-rag calibration"
VERSION = 2
OF_VERSION_1 = {"order": None, "order_reason": "", "orders": ()}  # it knew nothing of orders


@dataclass(frozen=True)
class OrderMeasurement:
    """An order of passages over ``n`` questions. nll: of the right answers, nats a token, mean of ``each`` question."""

    order: str
    n: int
    nll: float
    each: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """policy: the model's. reason: why. data: what it was measured on. date: UTC, ISO 8601. n: prompts.

    versions: of the packages that computed. measurements: full recompute first. order: of passages, None where none was
    measured; order_reason, orders: why, and all of them.
    """

    model: str
    fingerprint: str
    policy: Policy
    reason: str
    date: str
    data: str
    n: int
    thresholds: Thresholds
    measurements: tuple[Measurement, ...]
    dtype: str
    device: str
    versions: dict[str, str]
    order: str | None = None
    order_reason: str = ""
    orders: tuple[OrderMeasurement, ...] = ()

    def __post_init__(self) -> None:
        if (self.order is None) != (not self.orders):
            raise ValueError("it has an order without measurements of any, or these without an order")

    def fields(self) -> dict[str, Any]:
        """Return the fields as the file has them."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> "Calibration":
        """Make a calibration of what JSON made of ``fields``. Raises ValueError, TypeError, KeyError."""
        values = dict(fields)
        said, version = values.pop("format"), values.pop("version")
        if said != FORMAT or version not in (1, VERSION):
            raise ValueError(f"it says {said!r}, version {version!r}, and not {FORMAT!r}, version {VERSION}")
        if version == 1:
            values = {**values, **OF_VERSION_1}
        values["orders"] = tuple(
            made(OrderMeasurement, {**one, "each": tuple(one["each"])}) for one in values["orders"]
        )
        values["policy"] = _policy(values["policy"])
        values["thresholds"] = made(Thresholds, values["thresholds"])
        values["measurements"] = tuple(
            made(Measurement, {**one, "policy": _policy(one["policy"])}) for one in values["measurements"]
        )
        return made(cls, values)


def calibration_file(fingerprint: str) -> Path:
    """Return where the calibration of a model lies, whether or not it is there."""
    return home() / FOLDER / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}.json"


def read(fingerprint: str) -> Calibration | None:
    """Read the model's calibration; None where it has none. Raises BadInput for a file that cannot be used."""
    file = calibration_file(fingerprint)
    try:
        calibration = Calibration.of_fields(parse_object(file.read_bytes()))
        if calibration.fingerprint != fingerprint:
            raise ValueError(f"it is of another model, {calibration.model}")
        return calibration
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"the calibration {file} cannot be used: {error}. Make it again (hypic-rag calibrate MODEL), or delete it"
        ) from error


def write(calibration: Calibration, file: Path) -> None:
    """Write the file atomically: a reader sees the one before or the whole new one. Raises BadInput where it cannot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as opened:
            opened.write(json.dumps(calibration.fields(), indent=1).encode())
    except OSError as error:
        raise _not_writable(file, error) from error


def check_writable(file: Path) -> None:
    """Raise BadInput where ``write`` would fail: to be told before an hour of measuring, not after."""
    probe = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        if file.is_dir():
            raise IsADirectoryError("it is a folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable(file, error) from error


def _not_writable(file: Path, error: OSError) -> BadInput:
    return BadInput(f"the calibration cannot be written to {file}: {error}. Choose another HYPIC_HOME, or --out FILE")


def _policy(fields: dict[str, Any]) -> Policy:
    return made(Policy, {**fields, "isolation_prefix": tuple(fields["isolation_prefix"])})
