"""The neurosurgery adapter: which weights, how much, of which base, and how it came about."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathneuro_hub import methods
from mathneuro_hub.adapter.config import CONFIG_FILE, MASKS_FILE, METHODS, NeurosurgeryConfig, check_scale
from mathneuro_hub.adapter.fingerprint import check_base, record_weight
from mathneuro_hub.adapter.location import find_adapter
from mathneuro_hub.base_model import DEMO, BaseModel, find_base
from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.errors import FormatError, ModelError, SettingError
from mathneuro_hub.files import replacing_folder
from mathneuro_hub.masks import MaskSet, keep_count, load_masks, save_masks
from mathneuro_hub.versions import versions
from mathneuro_hub.weights import Coverage, WeightSource

OPERATIONS = {"union": operator.or_, "intersect": operator.and_, "difference": operator.sub}


@dataclass(frozen=True)
class NeurosurgeryAdapter:
    """Masks with a recommended scale and the base they belong to; values of weights are never stored.

    Attributes:
        config: everything but the masks.
        masks: weight name -> mask.
    """

    config: NeurosurgeryConfig
    masks: MaskSet

    @property
    def scale(self) -> float:
        """The recommended scale."""
        return self.config.scale

    def with_scale(self, scale: float) -> NeurosurgeryAdapter:
        """The same masks with another recommended scale."""
        return replace(self, config=replace(self.config, scale=scale))

    def check_base(self, source: WeightSource, coverage: Coverage) -> None:
        """Refuse another base (:func:`mathneuro_hub.adapter.fingerprint.check_base`)."""
        check_base(self.config, self.masks, source, coverage)

    def save_pretrained(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write config and masks to ``folder``, aside first, renamed when complete.

        Raises:
            OutputError: the folder exists and ``overwrite`` is off, or it cannot be written.
        """
        with replacing_folder(Path(folder), overwrite) as aside:
            self.write_to(aside)

    def write_to(self, folder: Path) -> None:
        """Write config and masks into an existing folder."""
        self.config.save(folder)
        save_masks(folder / MASKS_FILE, self.masks)

    @classmethod
    def from_pretrained(
        cls,
        repo_or_dir: Path | str,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> NeurosurgeryAdapter:
        """Read an adapter from a folder or from the Hub (:func:`mathneuro_hub.adapter.location.find_adapter`).

        Raises:
            FormatError: a file is missing, damaged, or of a newer version.
            HubError: the repo is missing, private, gated or not cached, or the Hub cannot be reached.
        """
        folder = find_adapter(
            repo_or_dir, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
        config_path, masks_path = folder / CONFIG_FILE, folder / MASKS_FILE
        try:
            text = config_path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{config_path} is damaged ({error}); fetch or create the adapter again.") from error
        config = NeurosurgeryConfig.from_json(text, str(config_path))
        if not masks_path.is_file():
            raise FormatError(
                f"{repo_or_dir} has a config but no masks ({MASKS_FILE}); it is a baked model, or incomplete."
            )
        masks, _ = load_masks(masks_path)
        expected = {name: (record.shape, record.held) for name, record in config.weights.items()}
        if {name: (mask.shape, mask.held) for name, mask in masks.items()} != expected:
            raise FormatError(f"The masks and the config in {repo_or_dir} are not of one adapter; fetch it again.")
        return cls(config, masks)

    def find_base(
        self,
        model: Path | str | None = None,
        revision: str | None = None,
        *,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> BaseModel:
        """The base that the adapter names, at the revision it names, or ``model`` in its place.

        Raises:
            ModelError: it cannot be had; a base that was a local folder has to be given, where it is not here.
        """
        name, recorded = self.config.base_model_name_or_path, self.config.revision
        if model is None and recorded is None and name != DEMO and not Path(name).is_dir():
            raise ModelError(
                f"The adapter's base is a local folder named {name!r}, which is not here; give that base (--model, or "
                "the loaded model)."
            )
        return find_base(
            name if model is None else model,
            revision or (recorded if model in (None, name) else None),
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        revision: str | None = None,
        create_pr: bool = False,
        commit_message: str | None = None,
        token: str | None = None,
    ) -> str:
        """Publish the adapter with its card (:func:`mathneuro_hub.publishing.hub.push_adapter`); gives the URL."""
        # Publishing stands above adapters and imports them.
        import mathneuro_hub

        return mathneuro_hub.push_adapter(
            self,
            repo_id,
            private=private,
            revision=revision,
            create_pr=create_pr,
            commit_message=commit_message,
            token=token,
        )


def create_adapter(
    base: BaseModel,
    *,
    method: str = "mathneuro",
    skill: ActivationNorms | None = None,
    contrasts: Sequence[ActivationNorms] = (),
    keep_ratio: float = 0.05,
    contrast_keep_ratio: float | None = None,
    scale: float = 1.1,
    seed: int = 0,
    include_lm_head: bool = False,
) -> NeurosurgeryAdapter:
    """Compute the masks of ``method`` on ``base``, straight from its checkpoint; the model is not loaded.

    Args:
        base: the base model.
        method: mathneuro; wanda (no subtraction); random (as many entries per weight as mathneuro would take);
            magnitude (needs no norms).
        skill: norms over the skill's texts, taken on ``base``.
        contrasts: norms over other texts, taken on ``base``.
        keep_ratio: share of each weight kept, in (0, 1].
        contrast_keep_ratio: the same for the contrasts; default ``keep_ratio``.
        scale: the recommended scale.
        seed: of the random method's draw.
        include_lm_head: also edit the output embedding, where it is not tied.

    Raises:
        SettingError: an option outside what it may be, or norms that the method needs are missing.
        BaseMismatchError: norms that were taken on another model.
        ModelError: norms that do not cover every weight.
    """
    check_request(method, skill is not None, len(contrasts), keep_ratio, contrast_keep_ratio, scale)
    coverage = base.coverage(include_lm_head)
    used = [] if method == "magnitude" or skill is None else [skill, *(contrasts if method != "wanda" else ())]
    for norms in used:
        norms.check_model(base.fingerprint, base.name)
        norms.check_coverage(coverage)
    parameters: dict[str, Any] = {"keep_ratio": keep_ratio}
    if method in ("mathneuro", "random"):
        parameters["contrast_keep_ratio"] = keep_ratio if contrast_keep_ratio is None else contrast_keep_ratio
    if method == "random":
        parameters["seed"] = seed
    masks = _masks(base.weights, coverage, method, skill, contrasts, parameters)
    if masks.held == 0:
        raise SettingError(
            f"Method {method} with keep ratio {keep_ratio} holds no weight at all; raise the keep ratio, "
            "or give contrasts that differ from the skill."
        )
    return _assemble(
        base,
        coverage,
        masks,
        method=method,
        parameters=parameters,
        scale=scale,
        data=_data_record(skill, contrasts) if used else {},
    )


def combine_adapters(
    base: BaseModel, first: NeurosurgeryAdapter, second: NeurosurgeryAdapter, operation: str, scale: float
) -> NeurosurgeryAdapter:
    """The union, intersection or difference of two adapters' masks, as an adapter of its own.

    Args:
        base: the base of both.
        first: the left side; a difference is ``first`` without ``second``.
        second: the right side.
        operation: ``union``, ``intersect`` or ``difference``.
        scale: the recommended scale of the result.

    Raises:
        SettingError: an unknown operation, adapters that cover different weights, or an empty result.
        BaseMismatchError: one of them belongs to another base.
    """
    if operation not in OPERATIONS:
        raise SettingError(f"There is no operation {operation!r}; use one of {', '.join(OPERATIONS)}.")
    coverage = base.coverage(first.config.include_lm_head)
    for adapter in (first, second):
        adapter.check_base(base.weights, coverage)
    masks = OPERATIONS[operation](first.masks, second.masks)
    if masks.held == 0:
        raise SettingError(f"The {operation} of the two masks holds no weight at all; compare them first.")
    sides = [
        {"method": side.config.method, "parameters": dict(side.config.parameters), "data": dict(side.config.data)}
        for side in (first, second)
    ]
    return _assemble(
        base,
        coverage,
        masks,
        method="combined",
        parameters={"operation": operation},
        scale=scale,
        data={"combined": sides},
    )


def random_control(base: BaseModel, adapter: NeurosurgeryAdapter, seed: int = 0) -> NeurosurgeryAdapter:
    """An adapter with as many entries per weight as ``adapter``, drawn at random, at the same scale: its control."""
    return _assemble(
        base,
        base.coverage(adapter.config.include_lm_head),
        methods.random(adapter.masks, seed),
        method="random",
        parameters={"seed": seed},
        scale=adapter.scale,
        data={},
    )


def _assemble(
    base: BaseModel,
    coverage: Coverage,
    masks: MaskSet,
    *,
    method: str,
    parameters: Mapping[str, Any],
    scale: float,
    data: Mapping[str, Any],
) -> NeurosurgeryAdapter:
    config = NeurosurgeryConfig(
        method=method,
        parameters=parameters,
        scale=scale,
        base_model_name_or_path=base.public_name,
        revision=base.revision,
        base_fingerprint=base.fingerprint,
        weights={w.name: record_weight(base.weights.read(w), masks[w.name]) for w in coverage.weights.values()},
        total=coverage.total,
        left_out=tuple((entry.name, entry.numel, entry.reason) for entry in coverage.left_out),
        include_lm_head=coverage.include_lm_head,
        data=data,
        versions=versions(),
    )
    return NeurosurgeryAdapter(config, masks)


def check_request(
    method: str,
    has_skill: bool,
    contrasts: int,
    keep_ratio: float,
    contrast_keep_ratio: float | None,
    scale: float,
) -> None:
    """Refuse what :func:`create_adapter` would refuse, before any calibration is paid for.

    Raises:
        SettingError: an option outside what it may be, or data sets that the method needs are missing.
    """
    if method not in METHODS:
        raise SettingError(f"There is no method {method!r}; use one of {', '.join(METHODS)}.")
    check_scale(scale)
    for ratio in (keep_ratio, contrast_keep_ratio):
        if ratio is not None:
            keep_count(ratio, 1)
    if method != "magnitude" and not has_skill:
        raise SettingError(f"Method {method!r} needs activation norms of the skill; give them (--skill).")
    if method in ("mathneuro", "random") and not contrasts:
        raise SettingError(
            f"Method {method!r} needs a contrast to take away; give one (--contrast), or use method 'wanda'."
        )


def _masks(
    source: WeightSource,
    coverage: Coverage,
    method: str,
    skill: ActivationNorms | None,
    contrasts: Sequence[ActivationNorms],
    parameters: Mapping[str, Any],
) -> MaskSet:
    keep_ratio = parameters["keep_ratio"]
    if method == "magnitude" or skill is None:
        return methods.magnitude(source, coverage, keep_ratio)
    if method == "wanda":
        return methods.wanda(source, coverage, skill, keep_ratio)
    masks = methods.mathneuro(source, coverage, skill, contrasts, keep_ratio, parameters["contrast_keep_ratio"])
    return methods.random(masks, parameters["seed"]) if method == "random" else masks


def _data_record(skill: ActivationNorms | None, contrasts: Sequence[ActivationNorms]) -> dict[str, Any]:
    def record(norms: ActivationNorms) -> dict[str, Any]:
        counts = {"samples": norms.samples, "tokens": norms.tokens, "truncated": norms.truncated}
        return {**norms.provenance.get("data", {}), **counts, "settings": norms.provenance.get("settings", {})}

    return {
        "skill": record(skill) if skill else None,
        "contrasts": [record(norms) for norms in contrasts],
    }
