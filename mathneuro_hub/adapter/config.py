"""What an adapter says of itself: ``neurosurgery_config.json`` (docs/format.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mathneuro_hub.errors import FormatError, SettingError

FORMAT_VERSION = "1"
CONFIG_FILE = "neurosurgery_config.json"
MASKS_FILE = "neurosurgery_masks.safetensors"
METHODS = ("mathneuro", "wanda", "random", "magnitude")


@dataclass(frozen=True)
class WeightRecord:
    """One covered weight of the base.

    Attributes:
        shape: [out, in].
        held: entries that the mask holds.
        bf16: hash of the base's values at up to 1,024 masked positions, rounded to bfloat16.
        fp16: the same, rounded to float16 first, as a base loaded in float16 shows them.
    """

    shape: tuple[int, int]
    held: int
    bf16: str
    fp16: str


@dataclass(frozen=True)
class NeurosurgeryConfig:
    """An adapter's method, numbers and origin; complete in JSON, and enough to make the adapter again.

    Attributes:
        method: mathneuro, wanda, random or magnitude; or combined (of two others).
        parameters: every parameter of the method.
        scale: what the masked weights are multiplied by unless the user says otherwise.
        base_model_name_or_path: the base's Hub id, or a local folder's own name.
        revision: the base's commit on the Hub, or None.
        base_fingerprint: of the whole base checkpoint (:attr:`BaseModel.fingerprint`).
        weights: every covered weight.
        total: parameters of the base.
        left_out: [name, parameters, reason] for each parameter that is not covered.
        include_lm_head: whether the output embedding was asked for.
        data: provenance of the norms of the skill and of each contrast.
        versions: library versions at creation.
    """

    method: str
    parameters: Mapping[str, Any]
    scale: float
    base_model_name_or_path: str
    revision: str | None
    base_fingerprint: str
    weights: Mapping[str, WeightRecord]
    total: int
    left_out: tuple[tuple[str, int, str], ...] = ()
    include_lm_head: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    format_version: str = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, "combined"):
            raise SettingError(f"There is no method {self.method!r}; use one of {', '.join(METHODS)}.")
        check_scale(self.scale)

    @property
    def held(self) -> int:
        """Entries that the masks hold."""
        return sum(record.held for record in self.weights.values())

    @property
    def covered(self) -> int:
        """Parameters of the covered weights."""
        return sum(out * into for out, into in (record.shape for record in self.weights.values()))

    @property
    def density(self) -> float:
        """Share of the covered parameters that the masks hold."""
        return self.held / self.covered

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str) -> NeurosurgeryConfig:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: it is damaged or of a newer version; the message names ``origin``.
        """
        try:
            record = json.loads(text)
            version = record["format_version"]
            if version != FORMAT_VERSION:
                raise FormatError(
                    f"{origin} has adapter format {version}, this version reads {FORMAT_VERSION}; upgrade mathneuro-hub."
                )
            known = {entry.name for entry in fields(cls)}
            unknown = sorted(set(record) - known)
            if unknown:
                raise FormatError(f"{origin} has an unknown field {unknown[0]!r}; upgrade mathneuro-hub.")
            record["weights"] = {
                name: WeightRecord(**{**entry, "shape": tuple(entry["shape"])})
                for name, entry in record["weights"].items()
            }
            record["left_out"] = tuple(tuple(entry) for entry in record["left_out"])
            return cls(**record)
        except FormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{origin} is damaged ({error}); fetch or create the adapter again.") from error

    def save(self, folder: Path) -> None:
        (folder / CONFIG_FILE).write_text(self.to_json(), encoding="utf-8")


def check_scale(scale: float) -> None:
    """Refuse a scale that is no finite number.

    Raises:
        SettingError
    """
    if not math.isfinite(scale):
        raise SettingError(f"The scale is {scale}; give a finite number, 0 to prune or for instance 1.1 to strengthen.")
