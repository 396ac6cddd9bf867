"""Which policy suits a model: measured against full recompute, chosen, kept, and in force from then on."""

from hypic_rag.engine.calibration.active_policy import ActivePolicy, policy_in_force
from hypic_rag.engine.calibration.choice import Choice, Thresholds, choose, policy_text
from hypic_rag.engine.calibration.measurement import Measurement, candidates, measure, prompt_room
from hypic_rag.engine.calibration.record import (
    Calibration,
    OrderMeasurement,
    calibration_file,
    check_writable,
    read,
    write,
)
from hypic_rag.engine.calibration.run import calibrate

__all__ = [
    "ActivePolicy",
    "Calibration",
    "Choice",
    "Measurement",
    "OrderMeasurement",
    "Thresholds",
    "calibrate",
    "calibration_file",
    "candidates",
    "check_writable",
    "choose",
    "measure",
    "policy_in_force",
    "policy_text",
    "prompt_room",
    "read",
    "write",
]
