"""Activation norms: all that a calibration run has to keep of a data set, and their file (docs/format.md).

Importance is separable: sum over samples s of |W_ij| * ||X_s[:, j]||_2 = |W_ij| * a_j with
a_j = sum over s of ||X_s[:, j]||_2 (arXiv 2410.16930, section 3, rewritten). One fp32 vector per distinct input
therefore serves every keep ratio, every contrast and every method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mathneuro_hub.errors import BaseMismatchError, FormatError, ModelError
from mathneuro_hub.files import write_safetensors
from mathneuro_hub.weights import Coverage

FORMAT = "mathneuro-norms"
FORMAT_VERSION = "1"
_NORMS, _POSITIVE = "norms:", "positive:"


@dataclass(frozen=True)
class ActivationNorms:
    """The norms of every distinct input ("site") over one data set.

    Attributes:
        vectors: site -> fp32 [in], sum over samples of the L2 norm of each input column over real tokens. A site is
            named after the first weight it feeds.
        sites: weight name -> site; q, k and v share one, and so do gate and up.
        positive: activation module -> int64 [neurons], over how many real tokens its output was above 0 (what
            LAPE, arXiv 2402.16438, needs).
        samples: samples drawn, repeats counted.
        tokens: real tokens of those samples.
        truncated: samples that the length cap cut.
        provenance: JSON-ready record of the data set, the model and the settings.
    """

    vectors: Mapping[str, Tensor]
    sites: Mapping[str, str]
    positive: Mapping[str, Tensor] = field(default_factory=dict)
    samples: int = 0
    tokens: int = 0
    truncated: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, weight: str) -> Tensor:
        """The norms of the input of ``weight``: fp32 [in].

        Raises:
            ModelError: the calibration did not cover that weight.
        """
        try:
            return self.vectors[self.sites[weight]]
        except KeyError:
            raise ModelError(
                f"These activation norms ({self.name}) do not cover {weight}; calibrate again with the same model "
                "and the same coverage (--include-lm-head)."
            ) from None

    @property
    def name(self) -> str:
        """The data set's name as the user gave it."""
        return str(self.provenance.get("data", {}).get("name", "unnamed"))

    def check_model(self, fingerprint: str, model: str) -> None:
        """Refuse norms that were taken on another model than the one with ``fingerprint``.

        Raises:
            BaseMismatchError
        """
        recorded = self.provenance.get("model", {})
        if recorded.get("fingerprint") != fingerprint:
            raise BaseMismatchError(
                f"The activation norms of {self.name} were taken on {recorded.get('name', 'an unnamed model')} "
                f"(fingerprint {recorded.get('fingerprint')}), not on {model} ({fingerprint}); calibrate again."
            )

    def check_coverage(self, coverage: Coverage) -> None:
        """Refuse norms that lack a covered weight, or whose vectors have another length.

        Raises:
            ModelError
        """
        for weight in coverage.weights.values():
            found = self[weight.name].numel()
            if found != weight.shape[1]:
                raise ModelError(
                    f"The activation norms of {self.name} have {found} entries for {weight.name}, whose input has "
                    f"{weight.shape[1]}; calibrate this model again."
                )

    def save(self, path: Path | str) -> None:
        """Write the file aside and rename it at the end; the same norms give the same bytes."""
        tensors = {_NORMS + site: vector for site, vector in self.vectors.items()}
        tensors |= {_POSITIVE + module: counts for module, counts in self.positive.items()}
        record = {
            "samples": self.samples,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "provenance": dict(self.provenance),
        }
        metadata = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "record": json.dumps(record, sort_keys=True),
            "sites": json.dumps(dict(self.sites), sort_keys=True),
        }
        write_safetensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: Path | str) -> ActivationNorms:
        """Read a norms file.

        Raises:
            FormatError: it is damaged, no norms file, or of a newer version.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                _check_format(metadata, path)
                tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
                record, sites = json.loads(metadata["record"]), json.loads(metadata["sites"])
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{path} is no readable norms file ({error}); calibrate again.") from error
        vectors = {name.removeprefix(_NORMS): t for name, t in tensors.items() if name.startswith(_NORMS)}
        for site, vector in vectors.items():
            if vector.dtype != torch.float32 or vector.dim() != 1 or not bool((vector >= 0).all()):
                raise FormatError(f"{path} is damaged: {site} is no vector of norms; calibrate again.")
        if not set(sites.values()) <= set(vectors):
            raise FormatError(f"{path} is damaged: its table names inputs that it does not hold; calibrate again.")
        positive = {name.removeprefix(_POSITIVE): t for name, t in tensors.items() if name.startswith(_POSITIVE)}
        return cls(vectors, sites, positive, **record)


def _check_format(metadata: Mapping[str, str], path: Path | str) -> None:
    if metadata.get("format") != FORMAT:
        raise FormatError(f"{path} is no norms file of this project; give one that `mathneuro calibrate` wrote.")
    if metadata.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{path} has norms format {metadata.get('format_version')}, this version reads {FORMAT_VERSION}; "
            "upgrade mathneuro-hub."
        )
