"""Which of the measured policies is the model's: the smallest seam that is about as good as any, or full recompute."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypic_rag.engine.calibration.measurement import Measurement
from hypic_rag.engine.policy import Policy
from hypic_rag.errors import BadInput


@dataclass(frozen=True)
class Thresholds:
    """When a policy is good enough, and how much may be given up for a smaller seam.

    max_kl: most continuation KL to full, nats a token. At 0.5 a token that full gives is on average 1.6 times less
    likely under the policy.
    min_same_first: least share of prompts whose first token is that of full.
    distance: among those that are good enough, a policy counts as good as the best within this many nats a token.
    """

    max_kl: float = 0.5
    min_same_first: float = 0.5
    distance: float = 0.05

    def __post_init__(self) -> None:
        for name, value in (("max_kl", self.max_kl), ("distance", self.distance)):
            if not value >= 0:  # NaN neither
                raise BadInput(f"{name} is {value}; give 0 nats a token or more")
        if not 0 <= self.min_same_first <= 1:
            raise BadInput(f"min_same_first is {self.min_same_first}; give a share from 0 to 1")


@dataclass(frozen=True)
class Choice:
    """reason: a sentence with the figures that decided."""

    policy: Policy
    reason: str


def choose(measurements: Sequence[Measurement], thresholds: Thresholds) -> Choice:
    """Choose the policy of a model. Where it is full recompute, its seam and the rest
    are those of the nearest other."""
    measured = [
        one for one in measurements if one.policy.mode != "full" and one.segment_bytes and not math.isnan(one.kl)
    ]
    if not measured:
        raise BadInput(
            "there is nothing to choose from: under every policy either no segment was cached, because all are "
            "shorter than the seam, or the model gave no finite logits. Calibrate with longer documents"
        )
    good = [one for one in measured if one.kl <= thresholds.max_kl and one.same_first >= thresholds.min_same_first]
    if not good:
        nearest = min(measured, key=lambda one: one.kl)
        return Choice(
            replace(nearest.policy, mode="full"),
            f"no policy is good enough: the nearest ({policy_text(nearest.policy)}) has a KL of {nearest.kl:.3f} nats "
            f"a token (at most {thresholds.max_kl:g}) and the first token of full in {nearest.same_first:.0%} of "
            f"{nearest.n} prompts (at least {thresholds.min_same_first:.0%})",
        )
    best = min(good, key=lambda one: one.kl)
    near = [one for one in good if one.kl <= best.kl + thresholds.distance]
    chosen = min(near, key=lambda one: (one.policy.seam_tokens, one.kl))
    reason = (
        f"of the {len(good)} of {len(measured)} policies that are good enough, the smallest seam within "
        f"{thresholds.distance:g} nats a token of the best ({policy_text(best.policy)}, {best.kl:.3f}): {chosen.kl:.3f}"
    )
    if chosen is best:
        reason = (
            f"the nearest to full of the {len(good)} of {len(measured)} policies that are good enough, "
            f"{best.kl:.3f} nats a token"
        )
        if best.policy.seam_tokens:
            reason += f", and no smaller seam is within {thresholds.distance:g} of it"
    return Choice(chosen.policy, reason)


def policy_text(policy: Policy) -> str:
    """Describe a policy for people: ``hypic, seam 8, exact``."""
    if policy.mode == "full":
        return "full"
    prefix = f", behind token {' '.join(map(str, policy.isolation_prefix))}" if policy.isolation_prefix else ""
    return f"{policy.mode}, seam {policy.seam_tokens}, {policy.compose}{prefix}"
