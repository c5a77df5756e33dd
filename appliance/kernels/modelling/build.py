"""Builds a model of transformers' code, or of a checkpoint's own, with our attention, and loads its weights."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from appliance.kernels.errors import BindError
from appliance.kernels.model_source import ModelSource
from appliance.kernels.modelling import attention
from appliance.kernels.modelling.own_code import import_class

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_SHOWN = 8  # names in one error


def build_model(source: ModelSource) -> Any:
    """Returns the model with its weights, to evaluate. Raises BindError with what is missing, or what the code raised.

    It runs the code that `source` names.
    """
    ALL_ATTENTION_FUNCTIONS.register(attention.NAME, attention.answer)
    ALL_MASK_ATTENTION_FUNCTIONS.register(attention.NAME, attention.make_mask)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs has no types
    try:
        model_class = _model_class(source)
        _check_class(model_class)
        model, told = model_class.from_pretrained(
            source.folder,
            config=_config(source),
            dtype=DTYPES[source.dtype],
            attn_implementation=attention.NAME,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except BindError:
        raise
    except Exception as error:  # the code of a model may raise anything
        words = str(error).strip().splitlines()
        told = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
        raise BindError(f"{source.model_class} cannot be built: {told}") from error
    _check_weights(told)
    return model.eval().requires_grad_(False)


def takes(forward: Callable[..., Any], name: str) -> bool:
    """Returns whether a function takes an argument of this name, by itself or among any others."""
    parameters = inspect.signature(forward).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _model_class(source: ModelSource) -> Any:
    if source.code_folder is not None:
        return import_class(source.model_class, source.code_folder)
    found = getattr(transformers, source.model_class, None)
    if found is None:
        message = f"transformers {transformers.__version__} has no class {source.model_class}"
        raise BindError(message, hint="install a version of transformers that has it")
    return found


def _config(source: ModelSource) -> Any:
    if source.config_class is not None and source.code_folder is not None:
        own = import_class(source.config_class, source.code_folder)
        return own.from_dict(dict(source.config))
    return transformers.CONFIG_MAPPING[source.config["model_type"]].from_dict(dict(source.config))


def _check_class(model_class: Any) -> None:
    """Raises BindError if models of this class do not take attention from outside, or keep states of their own."""
    if not getattr(model_class, "_supports_attention_backend", False):
        problem = "does not take attention from outside (_supports_attention_backend)"
    elif getattr(model_class, "_is_stateful", False):
        problem = "keeps states of its own besides keys and values"
    elif not takes(model_class.forward, "position_ids"):
        problem = "takes no positions (position_ids)"
    else:
        return
    raise BindError(f"{model_class.__name__} {problem}, so it cannot run over our cache")


def _check_weights(told: dict[str, Any]) -> None:
    """Raises BindError unless every weight of the model was loaded, and every tensor of the checkpoint was read."""
    for what, kind in (("the checkpoint lacks", "missing_keys"), ("no part of the model reads", "unexpected_keys")):
        names: Sequence[str] = sorted(told.get(kind) or ())
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise BindError(f"{what} {len(names)} tensors: {', '.join(names[:_SHOWN])}{more}")
