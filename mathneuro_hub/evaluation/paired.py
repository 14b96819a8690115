"""Base and edited model on the same questions, in one load; finished reports are kept and found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryModel
from mathneuro_hub.adapter.adapter import random_control
from mathneuro_hub.base_model import BaseModel
from mathneuro_hub.calibration.calibrator import norms_cache
from mathneuro_hub.evaluation.harness import evaluate
from mathneuro_hub.evaluation.report import EvaluationReport, load_reports, save_reports
from mathneuro_hub.evaluation.results import EvaluationRun
from mathneuro_hub.versions import versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Report = Callable[[str, int, int], None]
"""Called with (what is being scored, questions done, questions in all)."""


@dataclass(frozen=True)
class PairedEvaluation:
    """Which questions, and how they are put.

    Attributes:
        tasks: lm-eval names.
        include_path: folder with tasks of one's own.
        limit: only the first questions of each task.
        batch_size: questions per forward pass, the same for every run.
        control: also score a random mask of the same size at the same scale.
        dtype, device, device_map: how the base is loaded.
        use_cache: find a finished report again, and keep a new one.
    """

    tasks: Sequence[str]
    include_path: Path | None = None
    limit: int | None = None
    batch_size: int = 8
    control: bool = False
    dtype: str = "auto"
    device: str | None = None
    device_map: str | None = None
    use_cache: bool = True

    def run(
        self,
        base: BaseModel,
        adapter: NeurosurgeryAdapter,
        *,
        model: PreTrainedModel | None = None,
        report: Report = lambda what, done, total: None,
    ) -> EvaluationReport:
        """Score ``base``, and the edit at the adapter's recommended scale.

        Args:
            base: the adapter's base.
            adapter: the edit.
            model: the base, where it is loaded already.
            report: progress.

        Raises:
            EvaluationError, SettingError: as :func:`mathneuro_hub.evaluation.harness.evaluate` raises them.
            BaseMismatchError: the adapter belongs to another base.
        """
        path = norms_cache().parent / "evaluations" / f"{self._key(base, adapter)}.json"
        if self.use_cache and path.is_file():
            return load_reports(path)[0]
        live = model if model is not None else base.load(self.dtype, self.device, self.device_map)
        tokenizer = base.tokenizer()

        def score(label: str) -> EvaluationRun:
            return evaluate(
                live,
                tokenizer,
                self.tasks,
                include_path=self.include_path,
                limit=self.limit,
                batch_size=self.batch_size,
                label=label,
                model_name=base.public_name,
                on_progress=lambda done, total: report(label, done, total),
            )

        def edited(edit: NeurosurgeryAdapter, label: str) -> EvaluationRun:
            attached = NeurosurgeryModel(live, edit)
            try:
                return score(label)
            finally:
                attached.unload()

        found = EvaluationReport(
            score("base"),
            edited(adapter, f"scale {adapter.scale:g}"),
            adapter.scale,
            edited(random_control(base, adapter), "random mask") if self.control else None,
        )
        if self.use_cache:
            save_reports(path, [found])
        return found

    def _key(self, base: BaseModel, adapter: NeurosurgeryAdapter) -> str:
        """Everything that the scores depend on: the weights before and after the edit, the questions, the arithmetic."""
        digest = hashlib.sha256()
        for name, mask in adapter.masks.items():
            digest.update(name.encode() + mask.counts.numpy().tobytes() + mask.rows.numpy().tobytes())
        cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        parts = [
            [base.describe(), digest.hexdigest(), adapter.scale],
            [list(self.tasks), str(self.include_path), self.limit, self.batch_size, self.control],
            [self.dtype, self.device, self.device_map, cuda],
            [versions(), metadata.version("lm_eval")],
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
