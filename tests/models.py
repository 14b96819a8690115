"""Pico models built from their transformers configs, with seeded weights and the bundled tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, OPTConfig, PretrainedConfig

from mathneuro_hub.calibration.data import TextSet
from mathneuro_hub.demo import MODEL_FOLDER

TEXTS = (
    "12 + 34 = 46",
    "Question: Ben counts 63 eggs in a box and 37 on a shelf. How many eggs in all?\nAnswer: 100",
    "99 + 10 = 109",
    "Question: Mia has 41 coins and buys 17 more. How many coins in all?\nAnswer: 58",
)
OTHER_TEXTS = (
    "Every day the cat beside the dogs drinks",
    "Last week the kings near the horse sat",
    "Right now the children beside the dogs are eating",
)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


def llama(**changes: Any) -> PretrainedConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaConfig(
        **{
            **sizes,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 1,
            **changes,
        },
        vocab_size=len(tokenizer()),
        max_position_embeddings=128,
    )


def gpt2() -> PretrainedConfig:
    return GPT2Config(
        vocab_size=len(tokenizer()), n_embd=32, n_head=4, n_layer=2, n_positions=128, bos_token_id=1, eos_token_id=1
    )


def opt() -> PretrainedConfig:
    return OPTConfig(
        vocab_size=len(tokenizer()), hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def build(config: PretrainedConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A model with weights larger than the usual start, so that masks and edits show in the logits."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.2)
    return model.to(dtype).eval()


def save(folder: Path, config: PretrainedConfig, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """A checkpoint folder with tokenizer."""
    build(config, dtype).save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)
    return folder


def text_set(texts: tuple[str, ...] = TEXTS, name: str = "texts") -> TextSet:
    return TextSet.from_texts(texts, name)
