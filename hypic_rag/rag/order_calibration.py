"""Which order of passages suits a model and a store: measured on the store's own texts, and in force from then on.

A question asks how a passage of the store goes on; what does is the right answer, and how likely the model finds it, in
nats a token, is compared between the orders. So no questions of a user's are needed, and none are kept.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import cast, get_args

from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.engine.calibration import OrderMeasurement, calibration_file, read
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt
from hypic_rag.rag.order import DEFAULT_ORDER, Order, arrange
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.prompting import prompt_over
from hypic_rag.rag.search import Retriever
from hypic_rag.retrieval.sample_prompts import continued
from hypic_rag.retrieval.store import Store

ORDERS: tuple[Order, ...] = get_args(Order)
ANSWER_TOKENS = 16
LEAST_QUESTIONS = 4
SEED = 0


def order_in_force(fingerprint: str, given: str | None) -> tuple[Order, str]:
    """Return the order for a model, and why: what is given, else what its calibration chose, else the default.

    Raises BadInput for a calibration that cannot be read.
    """
    if given is not None:
        return _known(given, "given"), "given"
    calibration = read(fingerprint)
    if calibration is None or calibration.order is None:
        return DEFAULT_ORDER, "default"
    where = f"in the calibration {calibration_file(fingerprint)}"
    return _known(calibration.order, where), f"calibrated on {calibration.date[:10]} (n={calibration.orders[0].n})"


def measure_orders(
    engine: SegmentEngine,
    store: Store,
    search: Retriever,
    policy: Policy,
    *,
    n_questions: int,
    top_k: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[OrderMeasurement, ...]:
    """Measure every order on up to ``n_questions`` passages of the store, drawn at random and always the same.

    Those are left out for which fewer than two passages are found, or their own is not among them. on_progress: called
    with passages done and passages in all.
    Raises BadInput where too few are left to tell anything, ContextTooLong where the model has no room for one.
    """
    nll = {order: list[float]() for order in ORDERS}
    chunks = [(chunk.id, asked) for chunk in store.chunks() if (asked := continued(chunk.text)) is not None]
    drawn = random.Random(SEED).sample(chunks, min(n_questions, len(chunks)))
    for done, (chunk_id, (question, follows)) in enumerate(drawn, 1):
        found = search.retrieve(question, top_k)
        if len(found) > 1 and f"chunk:{chunk_id}" in {one.id for one in found}:
            answer = engine.format.encode(follows)[:ANSWER_TOKENS]
            prompts = _prompts(engine, question, found)
            of = {prompt: engine.score(prompt, answer, policy).nll for prompt in set(prompts.values())}
            for order, prompt in prompts.items():
                nll[order].append(of[prompt])
        on_progress(done, len(drawn))
    n = len(nll[DEFAULT_ORDER])
    if n < LEAST_QUESTIONS:
        raise BadInput(
            f"the order of passages cannot be measured: {n} of {len(drawn)} passages drawn from {store.folder} were "
            f"found among others, and {LEAST_QUESTIONS} are needed. Ingest more documents first, or raise --top-k"
        )
    return tuple(OrderMeasurement(order, n, statistics.fmean(values), tuple(values)) for order, values in nll.items())


def choose_order(measured: Sequence[OrderMeasurement]) -> tuple[Order, str]:
    """Choose the order under which right answers are likeliest, where it is so beyond noise, else the default; and say
    why. Noise: two standard errors of the difference, question by question."""
    of = {one.order: one for one in measured}
    usual = of[DEFAULT_ORDER]
    best = min(measured, key=lambda one: (one.nll, one.order != DEFAULT_ORDER))
    if best is usual:
        return DEFAULT_ORDER, f"right answers are likeliest, {best.nll:.3f} nats a token (n={best.n})"
    gains = [mine - other for mine, other in zip(usual.each, best.each, strict=True)]
    gain, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    told = f"{gain:.3f} ± {2 * error:.3f} nats a token better than {DEFAULT_ORDER} (n={best.n})"
    if gain > 2 * error:
        return cast(Order, best.order), told
    return DEFAULT_ORDER, f"the default, as nothing is better beyond noise: {best.order} is {told}"


def _prompts(engine: SegmentEngine, question: str, found: Sequence[Passage]) -> dict[Order, Prompt]:
    """Return the prompt of every order, over the passages that fit: the same in all. Raises ContextTooLong."""
    _, n_dropped = prompt_over(engine, question, [(one.title, one.text) for one in found], ANSWER_TOKENS)
    kept = found[: len(found) - n_dropped]
    return {
        order: engine.format.prompt(
            question, [(one.title, one.text) for one in arrange(kept, order, lambda one: one.place)]
        )
        for order in ORDERS
    }


def _known(order: str, where: str) -> Order:
    if order not in ORDERS:
        raise BadInput(f"the order {order!r}, {where}, is none of {', '.join(ORDERS)}")
    return order
