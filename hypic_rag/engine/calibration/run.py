"""A calibration from prompts to the policy chosen; nothing is written here."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import hypic_rag
from hypic_rag.engine.calibration.choice import Thresholds, choose
from hypic_rag.engine.calibration.measurement import candidates, measure
from hypic_rag.engine.calibration.record import Calibration
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

if TYPE_CHECKING:
    from hypic_rag.engine.engine import SegmentEngine


def calibrate(
    engine: "SegmentEngine",
    prompts: Sequence[Prompt],
    data: str,
    thresholds: Thresholds | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Measure every candidate on the prompts and choose. ``record.write`` puts the result in force.

    data: the prompts' name, for the record. on_progress: as ``measure``.
    """
    if not prompts:
        raise BadInput("there is no prompt to calibrate on: give at least one, with documents")
    thresholds = thresholds or Thresholds()
    measurements = measure(engine, prompts, candidates(engine), on_progress)
    choice = choose(measurements, thresholds)
    return Calibration(
        model=engine.model_name,
        fingerprint=engine.fingerprint,
        policy=choice.policy,
        reason=choice.reason,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data,
        n=len(prompts),
        thresholds=thresholds,
        measurements=tuple(measurements),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=str(engine.device),
        versions={
            "hypic-rag": hypic_rag.__version__,
            **{package: version(package) for package in ("torch", "transformers")},
        },
    )
