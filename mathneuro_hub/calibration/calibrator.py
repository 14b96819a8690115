"""Norms of one base model over any number of data sets: from a norms file, from the cache, or from forward passes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mathneuro_hub._version import __version__
from mathneuro_hub.base_model import BaseModel
from mathneuro_hub.calibration.data import DataSpec, load_texts
from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.errors import FormatError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from mathneuro_hub.calibration.data import TextSet

Report = Callable[[str, int, int], None]
"""Called with (data set, samples done, samples in all); samples in all are 0 when the cache had the norms."""


def norms_cache() -> Path:
    """The folder of cached norms: ``$MATHNEURO_CACHE``, or ``~/.cache/mathneuro``, and ``norms`` in it."""
    root = os.environ.get("MATHNEURO_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "mathneuro") / "norms"


@dataclass
class Calibrator:
    """Takes norms of ``base``; the model is loaded when a forward pass is first needed, and only then.

    Attributes:
        base: the base model.
        batch_size, max_length, include_lm_head: as in :func:`mathneuro_hub.calibration.run.calibrate`.
        dtype, device, device_map: how the model is loaded.
        use_cache: re-use finished norms, and keep new ones.
        report: progress.
    """

    base: BaseModel
    batch_size: int = 8
    max_length: int | None = None
    include_lm_head: bool = False
    dtype: str = "auto"
    device: str | None = None
    device_map: str | None = None
    use_cache: bool = True
    report: Report = field(default=lambda name, done, total: None)

    @cached_property
    def model(self) -> PreTrainedModel:
        return self.base.load(self.dtype, self.device, self.device_map)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.base.tokenizer()

    def norms(self, source: str | DataSpec) -> ActivationNorms:
        """Norms over ``source``: a norms file (checked against the base), or any data set.

        Raises:
            BaseMismatchError: a norms file of another model.
            DataError, SettingError, CalibrationError: as loading the texts and running the model raise them.
        """
        if isinstance(source, str) and source.endswith(".safetensors"):
            if not Path(source).is_file():
                raise FormatError(f"There is no norms file {source}; make it with `mathneuro calibrate -o {source}`.")
            norms = ActivationNorms.load(source)
            norms.check_model(self.base.fingerprint, self.base.name)
            return norms
        spec = DataSpec(source) if isinstance(source, str) else source
        texts = load_texts(spec, self.tokenizer if spec.chat_template else None)
        path = norms_cache() / f"{self._key(texts)}.safetensors"
        if self.use_cache and path.is_file():
            self.report(spec.source, 0, 0)
            return ActivationNorms.load(path)
        norms = self._run(spec.source, texts)
        if self.use_cache:
            norms.save(path)
        return norms

    def _run(self, name: str, texts: TextSet) -> ActivationNorms:
        from mathneuro_hub.calibration.run import calibrate

        return calibrate(
            self.model,
            self.tokenizer,
            texts,
            batch_size=self.batch_size,
            max_length=self.max_length,
            include_lm_head=self.include_lm_head,
            base=self.base.describe(),
            on_progress=lambda done, total: self.report(name, done, total),
        )

    def _key(self, texts: TextSet) -> str:
        """Everything that determines the norms. The batch size is not in it: it changes them by float noise only."""
        parts = [
            __version__,
            self.base.describe(),
            texts.provenance.to_dict(),
            [self.max_length, self.include_lm_head, self.dtype],
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
