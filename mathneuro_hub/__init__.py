"""Find the few weights of a language model that carry one skill, edit them, and share the edit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mathneuro_hub._version import __version__

if TYPE_CHECKING:
    from mathneuro_hub.adapter import (
        NeurosurgeryAdapter,
        NeurosurgeryConfig,
        NeurosurgeryModel,
        bake,
        combine_adapters,
        create_adapter,
        export_peft,
        shira_config,
    )
    from mathneuro_hub.base_model import BaseModel, find_base
    from mathneuro_hub.calibration import ActivationNorms, Calibrator, DataSpec, TextSet, calibrate, load_texts
    from mathneuro_hub.errors import MathNeuroError
    from mathneuro_hub.masks import Mask, MaskSet
    from mathneuro_hub.publishing.hub import find_adapters, push_adapter
    from mathneuro_hub.weights import Coverage, Weight, find_weights

_WHERE = {
    "ActivationNorms": "calibration",
    "BaseModel": "base_model",
    "Calibrator": "calibration",
    "Coverage": "weights",
    "DataSpec": "calibration",
    "Mask": "masks",
    "MaskSet": "masks",
    "MathNeuroError": "errors",
    "NeurosurgeryAdapter": "adapter",
    "NeurosurgeryConfig": "adapter",
    "NeurosurgeryModel": "adapter",
    "TextSet": "calibration",
    "Weight": "weights",
    "bake": "adapter",
    "calibrate": "calibration",
    "combine_adapters": "adapter",
    "create_adapter": "adapter",
    "export_peft": "adapter",
    "find_adapters": "publishing.hub",
    "find_base": "base_model",
    "find_weights": "weights",
    "load_texts": "calibration",
    "push_adapter": "publishing.hub",
    "shira_config": "adapter",
}

__all__ = [
    "ActivationNorms",
    "BaseModel",
    "Calibrator",
    "Coverage",
    "DataSpec",
    "Mask",
    "MaskSet",
    "MathNeuroError",
    "NeurosurgeryAdapter",
    "NeurosurgeryConfig",
    "NeurosurgeryModel",
    "TextSet",
    "Weight",
    "__version__",
    "bake",
    "calibrate",
    "combine_adapters",
    "create_adapter",
    "export_peft",
    "find_adapters",
    "find_base",
    "find_weights",
    "load_texts",
    "push_adapter",
    "shira_config",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import mathneuro_hub`` and ``mathneuro --help`` stay light."""
    if name in _WHERE:
        return getattr(import_module(f"mathneuro_hub.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
