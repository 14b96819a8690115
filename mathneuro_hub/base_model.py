"""A base model by folder, Hub id or the word ``demo``: found, fingerprinted, and loaded only when it has to be."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mathneuro_hub.demo import MODEL_FOLDER
from mathneuro_hub.errors import ModelError, SettingError
from mathneuro_hub.remote import fetch
from mathneuro_hub.weights import CheckpointWeights, Coverage, checkpoint_files, find_checkpoint_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DEMO = "demo"
CHECKPOINT_PATTERNS = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "LICENSE*", "README.md"]
"""What of a Hub repository is fetched: never pickles, and no second copy of the weights in another format."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class BaseModel:
    """A base model whose checkpoint lies in a folder.

    Attributes:
        name: as the user gave it: ``demo``, a folder, or a Hub id.
        folder: where config, tokenizer and safetensors files are.
        repo_id: the Hub id, or None for a local folder.
        revision: the commit on the Hub, or None for a local folder.
    """

    name: str
    folder: Path
    repo_id: str | None = None
    revision: str | None = None

    @property
    def public_name(self) -> str:
        """A name that can be published: the Hub id, or a local folder's own name without its path."""
        return self.repo_id or (DEMO if self.name == DEMO else self.folder.resolve().name)

    @cached_property
    def config(self) -> PretrainedConfig:
        from transformers import AutoConfig

        try:
            config: PretrainedConfig = AutoConfig.from_pretrained(self.folder)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The config of {self.name} cannot be read ({_first_line(error)}); "
                "check that the folder holds a transformers checkpoint."
            ) from error
        return config

    @cached_property
    def weights(self) -> CheckpointWeights:
        """The values, read from the checkpoint's files."""
        return CheckpointWeights(self.folder)

    def coverage(self, include_lm_head: bool = False) -> Coverage:
        return find_checkpoint_weights(self.config, include_lm_head)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits over the config and, for every file, its tensor table, size and 4 KiB at five places.

        Cheap for a checkpoint of any size; names this checkpoint in caches and norms files.
        """
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        for file in sorted(set(checkpoint_files(self.folder).values())):
            path = self.folder / file
            size = path.stat().st_size
            digest.update(f"{file}:{size}".encode())
            with path.open("rb") as handle:
                digest.update(handle.read(8 + int.from_bytes(handle.read(8), "little")))
                for fifth in range(1, 6):
                    handle.seek(max(0, size * fifth // 5 - _SAMPLE_BYTES))
                    digest.update(handle.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:32]

    def load(self, dtype: str = "auto", device: str | None = None, device_map: str | None = None) -> PreTrainedModel:
        """The model in evaluation mode.

        Args:
            dtype: auto (as stored), float32, bfloat16 or float16.
            device: default the first CUDA device if there is one, else the CPU.
            device_map: instead of ``device``, how accelerate spreads the model.

        Raises:
            SettingError: a dtype or device that is not known or not there.
            ModelError: the checkpoint cannot be loaded.
        """
        from transformers import AutoModelForCausalLM

        if dtype not in DTYPES:
            raise SettingError(f"There is no dtype {dtype!r} to load in; use one of {', '.join(DTYPES)}.")
        place = _device(device) if device_map is None else None
        checkpoint_files(self.folder)
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=dtype, device_map=device_map
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"{self.name} cannot be loaded: {_first_line(error)}") from error
        if place is not None:
            model.to(place)
        return model.eval()

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.folder)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The tokenizer of {self.name} cannot be loaded ({_first_line(error)}); add its files to the folder."
            ) from error
        return tokenizer

    @cached_property
    def card(self) -> str | None:
        """The text of its model card, if it has one."""
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

    def describe(self) -> dict[str, Any]:
        """What identifies the base in files that travel."""
        return {"name": self.public_name, "revision": self.revision, "fingerprint": self.fingerprint}


def find_base(
    model: str | Path,
    revision: str | None = None,
    *,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> BaseModel:
    """Find ``model``: ``demo`` (the bundled one), a folder, or a Hub id, which is fetched into the usual cache.

    Raises:
        ModelError: it does not exist, is gated, or holds no safetensors checkpoint.
    """
    name = str(model)
    if name == DEMO:
        return BaseModel(DEMO, MODEL_FOLDER)
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise ModelError(f"The folder {name} has no config.json; give the folder of a transformers checkpoint.")
        return BaseModel(name, Path(name))
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists():
        raise ModelError(f"The model folder {name} does not exist; give a checkpoint folder, a Hub id, or 'demo'.")
    path = fetch(
        name,
        "model",
        revision=revision,
        patterns=CHECKPOINT_PATTERNS,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        raises=ModelError,
    )
    return BaseModel(name, path, repo_id=name, revision=path.name)


def _device(name: str | None) -> torch.device:
    there = torch.cuda.is_available()
    try:
        device = torch.device(name or ("cuda" if there else "cpu"))
    except RuntimeError as error:
        raise SettingError(f"There is no device {name!r}; use cpu, cuda, or for instance cuda:1.") from error
    if device.type == "cuda" and not (there and (device.index or 0) < torch.cuda.device_count()):
        raise SettingError(f"The device {name} is not there ({torch.cuda.device_count()} CUDA devices); use cpu.")
    return device


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
