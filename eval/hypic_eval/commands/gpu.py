"""``hypic-eval gpu``: what the engine does on a GPU, on the shape of Qwen3.5-35B-A3B."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    import torch

FIGURES = ("ttft", "breakdown", "prefill", "bytes", "host", "decode", "load")


def run(
    only: Annotated[str, Option(help=f"Comma-separated figures; all unless given: {', '.join(FIGURES)}.")] = "",
    out: Annotated[Path, Option("--out", help="Where the results go, after every figure.")] = Path("gpu.json"),
    shape: Annotated[
        Literal["full", "tiny"], Option(help="full: Qwen3.5-35B-A3B's, 65 GiB of weights. tiny: to see that it runs.")
    ] = "full",
    device: Annotated[str, Option(help="cuda, cuda:1; cpu with --shape tiny.")] = "cuda",
    dtype: Annotated[Literal["bfloat16", "float32"] | None, Option(help="Default: bfloat16 on a GPU.")] = None,
    segments: Annotated[
        str, Option(help="How many a prompt; each number is measured, and the slope between.")
    ] = "16,32",
    tokens: Annotated[int | None, Option(min=9, help="Tokens a segment. Default: 1024, or 48 of a tiny shape.")] = None,
    question: Annotated[int, Option(min=1, help="Tokens of the question.")] = 64,
    repetitions: Annotated[int | None, Option("--n", min=1, help="Of each way. Default: 10, or 2.")] = None,
    requests: Annotated[int | None, Option(min=1, help="Under load and in decoding. Default: 32, or 3.")] = None,
    memory: Annotated[
        float | None, Option("--device-memory", help="GiB of the engine's pools. Default: the engine's own choice.")
    ] = None,
    thorough: Annotated[
        bool, Option(help="Try full recompute in chunks too (on an H200: 1.6 to 2.2 times slower at 16k).")
    ] = False,
    layers: Annotated[int | None, Option(min=4, help="Fewer layers than the shape has.")] = None,
    hidden: Annotated[int | None, Option(min=64, help="Another hidden size.")] = None,
    experts: Annotated[int | None, Option(min=8, help="Another number of experts.")] = None,
) -> None:
    """Measure the engine on a GPU: random weights of a large hybrid's shape, made on the device.

    Checks come first: a tiny model in float32 against Hugging Face and against a CPU, then the large one against its
    plain forward. ttft: first token, warm against full recompute by the Hugging Face model with
    flash-linear-attention, and the cost of each further segment. breakdown: a warm pass and a decode step by kernel.
    prefill: what the transition adds to the plain forward. bytes: of a segment, as computed and by each codec. host:
    entries in host memory. decode: ms a token, spliced against contiguous keys. load: many requests at once, and where
    their segments came from. Each figure stands beside its goal, its floor and how it was
    measured; the full shape, unchanged, on a GPU is held to the goals.

    On a machine without a GPU: hypic-eval gpu --shape tiny --device cpu
    """
    figures = chosen_figures(only)
    counts = chosen_counts(segments)
    where = chosen_device(device, shape)

    import torch
    from transformers.utils import logging

    from hypic_eval.gpu.bench import WorkloadSizes
    from hypic_eval.gpu.clock import ProgressLines
    from hypic_eval.gpu.run import run_gpu
    from hypic_eval.gpu.shape import config_of

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # the table says what ran without its kernels
    full = shape == "full"
    sizes = WorkloadSizes(
        counts,
        tokens or (1024 if full else 48),
        question,
        repetitions or (10 if full else 2),
        requests or (32 if full else 3),
        32 if full else 4,
    )
    changes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_experts": experts}
    config = config_of(shape, **changes)
    changed = any(value is not None for value in changes.values())
    name = "the shape of Qwen3.5-35B-A3B" if full and not changed else f"a model of {config.num_hidden_layers} layers"
    n_bytes = None if memory is None else int(memory * 2**30)
    kind = getattr(torch, dtype or ("bfloat16" if where.type == "cuda" else "float32"))
    held = full and not changed and where.type == "cuda"
    _, failures = run_gpu(name, config, sizes, where, kind, n_bytes, figures, held, ProgressLines(), out, thorough)
    hold_to_goals(show(out), failures)


def chosen_figures(only: str) -> list[str]:
    names = [name.strip() for name in only.split(",") if name.strip()] or list(FIGURES)
    if unknown := [name for name in names if name not in FIGURES]:
        raise BadInput(f"there is no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    return names


def chosen_counts(segments: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(count) for count in segments.split(",")}))
    except ValueError:
        counts = ()
    if not counts or counts[0] < 2:
        raise BadInput(f"--segments is {segments!r}; give numbers of 2 or more, as in 16,32")
    return counts


def chosen_device(device: str, shape: str) -> "torch.device":
    import torch

    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"--device is {device!r}: give cuda, cuda:1 or, for the tiny shape, cpu") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "this measures on an NVIDIA GPU (the full shape needs one of 100 GB), and torch finds none here. To see "
            "that the command runs: hypic-eval gpu --shape tiny --device cpu"
        )
    if where.type == "cpu" and shape == "full":
        raise BadInput("the full shape's 65 GiB of weights are not for a CPU: add --shape tiny, or take --device cuda")
    return where
