"""Which policy is in force for a model, and why: what the user gave, else its calibration, else the default."""

from dataclasses import dataclass, replace
from typing import Any

from hypic_rag.engine.calibration.record import Calibration, read
from hypic_rag.engine.policy import Policy


@dataclass(frozen=True)
class ActivePolicy:
    """given: names of the settings that the user gave. calibration: the model's, None where it has none."""

    policy: Policy
    calibration: Calibration | None
    given: tuple[str, ...]

    @property
    def why(self) -> str:
        """``default``, ``calibrated on 2026-05-01 (n=8)``, or what was given and where the rest is from."""
        rest = "default"
        if self.calibration is not None:
            rest = f"calibrated on {self.calibration.date[:10]} (n={self.calibration.n})"
        if not self.given:
            return rest
        given = f"given: {', '.join(self.given)}"
        all_given = self.policy.mode == "full" or {"seam_tokens", "compose"} <= set(self.given)
        return given if all_given else f"{given}; the rest {rest}"


def policy_in_force(
    fingerprint: str, *, mode: str | None = None, seam_tokens: int | None = None, compose: str | None = None
) -> ActivePolicy:
    """Return the policy in force for a model: what is given (None: not given), else its calibration, else the default.
    Who gives a seam or a composition wants cached segments, also where calibration says full.

    Raises BadInput for a value that no policy has, or for a calibration that cannot be read.
    """
    calibration = read(fingerprint)
    policy = Policy() if calibration is None else calibration.policy
    asked: dict[str, Any] = {"mode": mode, "seam_tokens": seam_tokens, "compose": compose}
    given = {name: value for name, value in asked.items() if value is not None}
    if given:
        policy = replace(policy, **{"mode": "hypic", **given})
    return ActivePolicy(policy, calibration, tuple(given))
