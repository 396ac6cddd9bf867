"""The first passes of a process, which set up torch."""

from hypic_rag.engine import Policy, Sampling, SegmentEngine


def warm_up(engine: SegmentEngine, policy: Policy) -> None:
    """Answer a prompt under ``policy`` and in full, so that no side of a comparison of the two carries the set-up."""
    prompt = engine.format.prompt("Ready?", [("", "A text to warm up with. " * 8)])
    for mode in (policy, Policy(mode="full")):
        engine.generate(prompt, Sampling(1), mode)
