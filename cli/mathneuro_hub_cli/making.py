"""From options to an adapter: what `surgery create` and `surgery push` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.base_model import BaseModel
    from mathneuro_hub.calibration import ActivationNorms, Calibrator
    from mathneuro_hub_cli.output import Output


@dataclass(frozen=True)
class Made:
    """An adapter with what it was made from.

    Attributes:
        adapter: the adapter.
        norms: of the skill and of each contrast, in this order.
        calibrator: holds the loaded model where one was needed.
    """

    adapter: NeurosurgeryAdapter
    norms: list[ActivationNorms]
    calibrator: Calibrator


@dataclass(frozen=True)
class AdapterMaker:
    """The options of calibration and method, named as on the command line."""

    skill: str | None
    contrasts: tuple[str, ...]
    keep_ratio: float
    contrast_keep_ratio: float | None
    scale: float
    method: str
    num_samples: int | None
    seed: int
    replacement: bool
    chat_template: bool
    max_length: int | None
    batch_size: int
    include_lm_head: bool
    dtype: str
    device: str | None
    device_map: str | None
    use_cache: bool

    def check(self) -> None:
        """Refuse what cannot be made before anything is paid for."""
        from mathneuro_hub.adapter import check_request

        check_request(
            self.method,
            self.skill is not None,
            len(self.contrasts),
            self.keep_ratio,
            self.contrast_keep_ratio,
            self.scale,
        )

    def make(self, base: BaseModel, out: Output) -> Made:
        """Calibrate as far as norms are missing, and compute the masks."""
        from mathneuro_hub.adapter import create_adapter
        from mathneuro_hub.calibration.calibrator import Calibrator
        from mathneuro_hub.calibration.data import DataSpec

        calibrator = Calibrator(
            base,
            batch_size=self.batch_size,
            max_length=self.max_length,
            include_lm_head=self.include_lm_head,
            dtype=self.dtype,
            device=self.device,
            device_map=self.device_map,
            use_cache=self.use_cache,
            report=lambda name, done, total: out.progress(f"Calibrating on {name}", done, total, "samples"),
        )

        def norms(source: str) -> ActivationNorms:
            if source.endswith(".safetensors"):
                return calibrator.norms(source)
            return calibrator.norms(
                DataSpec(
                    source,
                    num_samples=self.num_samples,
                    seed=self.seed,
                    replacement=self.replacement,
                    chat_template=self.chat_template,
                )
            )

        skill = norms(self.skill) if self.skill else None
        contrasts = [norms(source) for source in self.contrasts]
        adapter = create_adapter(
            base,
            method=self.method,
            skill=skill,
            contrasts=contrasts,
            keep_ratio=self.keep_ratio,
            contrast_keep_ratio=self.contrast_keep_ratio,
            scale=self.scale,
            seed=self.seed,
            include_lm_head=self.include_lm_head,
        )
        return Made(adapter, ([skill] if skill else []) + contrasts, calibrator)
