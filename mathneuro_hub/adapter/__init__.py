"""Adapters: saved, loaded, attached to a model, baked into a checkpoint."""

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter, check_request, combine_adapters, create_adapter
from mathneuro_hub.adapter.baking import bake
from mathneuro_hub.adapter.config import NeurosurgeryConfig
from mathneuro_hub.adapter.model import NeurosurgeryModel
from mathneuro_hub.adapter.peft_export import export_peft, shira_config

__all__ = [
    "NeurosurgeryAdapter",
    "NeurosurgeryConfig",
    "NeurosurgeryModel",
    "bake",
    "check_request",
    "combine_adapters",
    "create_adapter",
    "export_peft",
    "shira_config",
]
