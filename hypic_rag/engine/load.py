"""Load a model and its tokenizer through transformers: the default one, a local folder, or a hub name."""

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from hypic_rag import default_model
from hypic_rag.config import home
from hypic_rag.engine import models
from hypic_rag.engine.attention import IMPLEMENTATION
from hypic_rag.engine.fingerprint import TOKENIZER, WEIGHTS, fingerprint, states
from hypic_rag.errors import BadInput, ModelNotReady
from hypic_rag.paths import absolute, exists, utf8
from hypic_rag.prompt import PromptFormat

DEFAULT = "default"


@dataclass(frozen=True)
class Loaded:
    """A model as transformers loads it, its mixers not yet swapped, and what stands for it in keys."""

    model: Any
    tokenizer: Any
    name: str
    fingerprint: str
    tokenizer_fingerprint: str


def load(model: str | Path, dtype: torch.dtype | str | None, device: torch.device | str | None) -> Loaded:
    """Load a model, its tokenizer and its format. Raises ModelNotReady where it is not there or broken,
    UnsupportedModel before anything large is read."""
    device = _device(device)
    dtype = _dtype(dtype, device)
    name, source = _locate(model)
    before = _states(source)
    bar_is_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a library draws nothing on its caller's terminal
    try:
        _register_classes(source, name, device)
        config = AutoConfig.from_pretrained(source).get_text_config()
        architecture = (config.architectures or ["the model"])[0]
        models.check_supported(config.model_type, f"{name} ({architecture})", lambda: models.mixers_of(config))
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation=IMPLEMENTATION)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        what = next(iter(str(error).strip().splitlines()), type(error).__name__)  # the rest is advice to others
        raise ModelNotReady(f"the model {name} cannot be loaded: {what.rstrip('.')}. {_remedy(source)}") from error
    except Exception as error:
        if type(error).__module__.startswith("safetensors"):
            raise ModelNotReady(f"the weights of {name} are damaged: {error}. {_remedy(source)}") from error
        raise
    finally:
        if bar_is_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    if isinstance(source, Path):
        try:
            weights, texts = fingerprint(source, WEIGHTS), fingerprint(source, TOKENIZER)
        except OSError as error:
            raise ModelNotReady(f"the files of {name} cannot be read: {error}. {_remedy(source)}") from error
        if _states(source) != before:  # entries of one model would be kept under the name of another
            raise ModelNotReady(
                f"the files of {name} in {source} were changed while they were being loaded. "
                "Load it again when they are whole"
            )
    else:
        weights = texts = f"hub:{source}@{_revision(source)}"
    return Loaded(loaded.to(device), tokenizer, name, weights, texts)


def end_tokens(model: Any, tokenizer: Any, prompt_format: PromptFormat) -> frozenset[int]:
    """Collect the tokens that end an answer: the model's, the tokenizer's, and what
    closes a turn in the chat template."""
    given = model.generation_config.eos_token_id if model.generation_config else None
    ends = set(given if isinstance(given, list) else [given]) | {
        tokenizer.eos_token_id,
        *prompt_format.answer_end,
    }
    return frozenset(end for end in ends if end is not None)


def _locate(model: str | Path) -> tuple[str, Path | str]:
    """Return (name for people, folder or hub name)."""
    if str(model) == DEFAULT:
        return default_model.NAME, default_model.ensure(home())
    folder = utf8(absolute(model))
    main = folder / "refs" / "main"
    if exists(main):  # models--ORG--NAME of the hub's cache: the commit that it had last
        name = folder.resolve().name.removeprefix("models--").replace("--", "/")
        return name, (folder / "snapshots" / main.read_text().strip()).resolve()
    if exists(folder) and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotReady(
                f"{folder} has no config.json, so it is not a Hugging Face model folder. "
                "Give --model the folder that holds config.json and the weights"
            )
        return folder.resolve().name, folder.resolve()
    if isinstance(model, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model):
        return model, model
    raise ModelNotReady(
        f"there is no model folder {model!s}. Give --model default, an existing folder, "
        "or a name on the Hugging Face hub like Qwen/Qwen3.5-4B"
    )


def _states(source: Path | str) -> object:
    """Read the states of a folder's files; None for a name on the hub, whose files are named after their contents."""
    return states(source, (*WEIGHTS, *TOKENIZER, "*.index.json")) if isinstance(source, Path) else None


def _register_classes(source: Path | str, name: str, device: torch.device) -> None:
    """Import the package of the model's classes, where they are not transformers' own."""
    kind = str(PretrainedConfig.get_config_dict(source)[0].get("model_type"))
    package = getattr(models.MODEL_TYPES.get(kind), "REGISTERED_BY", None)
    if package is None:
        return
    try:
        import_module("fla.models")  # `import fla` alone says nothing where Triton is missing
    except ImportError as error:
        raise ModelNotReady(
            f"{name} is a {kind} model of the package {package}, which cannot be imported: {error}. "
            f"Install it with: pip install '{package}[cuda]'"
        ) from error
    if device.type == "cpu":
        raise ModelNotReady(
            f"{name} is a {kind} model of the package {package}, whose kernels need a GPU, and the device is cpu. "
            "Use --device cuda on a machine that has one"
        )


def _revision(name: str) -> str:
    """Return the commit that the hub's name stood for when its files were fetched; their folder is named after it."""
    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        raise ModelNotReady(f"the files of {name} are not in the Hugging Face cache, so its revision is unknown")
    return Path(config).parent.name


def _remedy(source: Path | str) -> str:
    if isinstance(source, Path):
        return "Check the folder, or download it again"
    return (
        "Check the name and the network; offline, only models already in the Hugging Face cache can be used "
        "(or give a local folder)"
    )


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        if str(device).startswith("cuda") and torch.version.cuda is None:
            why = "this torch is built for CPUs only. Install one for CUDA (pip install --force-reinstall torch)"
        else:
            why = f"{str(error).splitlines()[0][:200]}. Use cpu, or cuda where nvidia-smi shows a GPU"
        raise BadInput(f"the device {device!s} cannot be used: {why}") from error
    return chosen


def _dtype(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    """Choose float32 on a CPU, where half precision is slower and no smaller in what matters; bfloat16 on a GPU."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise BadInput(f"{dtype!r} is no floating-point type: use float32, bfloat16 or float16")
    return found
