"""Run a model over texts and keep the norms of what enters each weight: forward passes only, no gradients.

Source: Math Neurosurgery, arXiv 2410.16930, section 3. Norms are taken per sample over real tokens, accumulated in
fp64 and rounded once to fp32.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.activations import ACT2CLS

from mathneuro_hub.calibration.columns import count_positive, sample_norms, sample_norms_plain
from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.errors import CalibrationError, DataError, SettingError
from mathneuro_hub.versions import versions
from mathneuro_hub.weights import Coverage, find_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from mathneuro_hub.calibration.data import TextSet

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) after every batch."""

_ACTIVATIONS = tuple({entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()} - {nn.Identity})


@dataclass(frozen=True)
class _Samples:
    """Token ids of the distinct samples with how often each was drawn."""

    ids: list[list[int]]
    times: list[int]
    truncated: int

    @property
    def drawn(self) -> int:
        return sum(self.times)

    @property
    def tokens(self) -> int:
        return sum(len(ids) * times for ids, times in zip(self.ids, self.times, strict=True))


def calibrate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: TextSet,
    *,
    batch_size: int = 8,
    max_length: int | None = None,
    include_lm_head: bool = False,
    base: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> ActivationNorms:
    """Activation norms of ``model`` over ``texts``.

    Args:
        model: any causal language model, any ``device_map``; used as it is, in evaluation mode.
        tokenizer: the model's.
        texts: the samples; one drawn several times counts as often and is run once.
        batch_size: samples per forward pass; they are sorted by length, and padding never counts.
        max_length: longest sample in tokens; default what the model and tokenizer allow. What it cuts is counted in
            ``truncated``.
        include_lm_head: also take the norms of the output embedding's input, where it is not tied.
        base: what identifies the model (:meth:`BaseModel.describe`), kept in the provenance.
        on_progress: called after every batch.

    Raises:
        CalibrationError: activations are not finite, or their shape hides which sample they belong to.
        DataError: a text without a single token.
    """
    if batch_size < 1:
        raise SettingError(f"The batch size is {batch_size}; it has to be at least 1.")
    coverage = find_weights(model, include_lm_head)
    cap = _length_cap(model, tokenizer, max_length)
    samples = _tokenize(tokenizer, texts, cap)
    run = _Run(coverage)
    was_training = model.training
    model.eval()
    try:
        with run.attached(model), torch.no_grad():
            _forward_all(model, coverage, samples, batch_size, run, on_progress)
    finally:
        model.train(was_training)

    vectors, sites = run.vectors()
    provenance = {
        "data": texts.provenance.to_dict(),
        "model": base or {"name": getattr(model.config, "_name_or_path", ""), "revision": None, "fingerprint": None},
        "settings": {"max_length": cap, "include_lm_head": include_lm_head, "dtype": str(model.dtype).split(".")[-1]},
        "versions": versions(),
    }
    return ActivationNorms(
        vectors, sites, run.positive_counts(), samples.drawn, samples.tokens, samples.truncated, provenance
    )


def _length_cap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> int:
    if max_length is not None and max_length < 1:
        raise SettingError(f"The length cap is {max_length} tokens; it has to be at least 1.")
    allowed = int(min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 2**31))
    return min(max_length or allowed, allowed)


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: TextSet, cap: int) -> _Samples:
    times: dict[str, int] = {}
    for text in texts.texts:
        times[text] = times.get(text, 0) + 1
    # A chat template has put the special tokens in already.
    encoded = tokenizer(
        list(times), add_special_tokens=not texts.provenance.chat_template, verbose=False, return_attention_mask=False
    )["input_ids"]
    for text, ids in zip(times, encoded, strict=True):
        if not ids:
            raise DataError(f"The text {text[:40]!r} of {texts.provenance.name} has no tokens; remove it from the set.")
    drawn = list(times.values())
    truncated = sum(n for ids, n in zip(encoded, drawn, strict=True) if len(ids) > cap)
    return _Samples([ids[:cap] for ids in encoded], drawn, truncated)


def _forward_all(
    model: PreTrainedModel,
    coverage: Coverage,
    samples: _Samples,
    batch_size: int,
    run: _Run,
    on_progress: Progress | None,
) -> None:
    entry = _entry_point(model, coverage)
    device = model.get_input_embeddings().weight.device
    # Longest first: a run that does not fit fails at once, not near its end.
    order = sorted(range(len(samples.ids)), key=lambda i: -len(samples.ids[i]))
    done = 0
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        ids, mask = _pad([samples.ids[i] for i in batch])
        times = torch.tensor([samples.times[i] for i in batch], dtype=torch.float64)
        run.begin(mask, times)
        try:
            entry(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
        except torch.OutOfMemoryError as error:
            raise CalibrationError(
                f"{len(batch)} samples of {ids.shape[1]} tokens do not fit in memory; lower the batch size "
                f"({batch_size}) or the length cap."
            ) from error
        if start == 0:
            run.check_finite()
        done += int(times.sum())
        if on_progress is not None:
            on_progress(done, samples.drawn)
    run.check_finite()


def _entry_point(model: PreTrainedModel, coverage: Coverage) -> nn.Module:
    """The base model where no covered weight lies outside it: logits over the vocabulary would be computed in vain."""
    base: nn.Module = model.base_model
    inside = {id(parameter) for parameter in base.parameters()}
    if all(id(model.get_parameter(name)) in inside for name in coverage.weights):
        return base
    return cast(nn.Module, model)


def _pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids and attention mask, int64 [batch, tokens]."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


@dataclass
class _Run:
    """The hooks of one calibration run and what they add up."""

    coverage: Coverage
    sums: dict[str, Tensor] = field(default_factory=dict)  # site -> fp64 [in]
    sites: dict[str, str] = field(default_factory=dict)  # weight -> site
    positive: dict[str, Tensor] = field(default_factory=dict)  # activation module -> int64 [neurons]
    mask: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [batch, tokens], on the CPU
    times: Tensor = field(default_factory=lambda: torch.empty(0))  # fp64 [batch], on the CPU
    seen: dict[int, tuple[weakref.ref[Tensor], int, str]] = field(default_factory=dict)

    def begin(self, mask: Tensor, times: Tensor) -> None:
        self.mask, self.times = mask, times
        self.seen.clear()

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        handles = [
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(
                partial(self._on_input, name), with_kwargs=True
            )
            for name in self.coverage.weights
        ]
        handles += [
            module.register_forward_hook(partial(self._on_activation, path))
            for path, module in model.named_modules()
            if isinstance(module, _ACTIVATIONS)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _on_input(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x: Tensor = args[0] if args else next(iter(kwargs.values()))
        site = self._site_of(name, x)
        if self.sites.setdefault(name, site) != site:
            raise CalibrationError(
                f"{name} shares its input with {self.sites[name]} in one batch and with {site} in another; "
                "this architecture routes inputs in a way that calibration does not follow."
            )
        if site != name:
            return
        x = self._by_sample(name, x)
        norms = sample_norms(x, self.mask) if x.device.type == "cpu" else sample_norms_plain(x, self.mask)
        total = (norms * self.times.to(x.device)[:, None]).sum(0)
        self.sums[site] = self.sums[site].to(total.device) + total if site in self.sums else total

    def _site_of(self, name: str, x: Tensor) -> str:
        """The first weight of this pass that the very same tensor entered."""
        known = self.seen.get(id(x))
        if known is not None and known[0]() is x and known[1] == x._version:
            return known[2]
        self.seen[id(x)] = (weakref.ref(x), x._version, name)
        return name

    def _on_activation(self, path: str, module: nn.Module, args: Any, output: Tensor) -> None:
        if not isinstance(output, Tensor) or output.shape[-1] == 1:
            return
        x = self._by_sample(path, output)
        counts = (count_positive(x, self.mask) * self.times.to(x.device, torch.int64)[:, None]).sum(0)
        self.positive[path] = self.positive[path].to(counts.device) + counts if path in self.positive else counts

    def _by_sample(self, name: str, x: Tensor) -> Tensor:
        """``x`` as [batch, tokens, in]; some architectures flatten the first two."""
        batch, tokens = self.mask.shape
        if x.shape[:-1] == (batch, tokens):
            return x
        if x.shape[:-1] == (batch * tokens,):
            return x.view(batch, tokens, -1)
        raise CalibrationError(
            f"The input of {name} has shape {list(x.shape)}, which does not tell the {batch} samples of {tokens} tokens "
            "apart; this architecture is not covered yet."
        )

    def check_finite(self) -> None:
        for site, total in self.sums.items():
            if not bool(torch.isfinite(total).all()):
                raise CalibrationError(
                    f"The input of {site} is not finite (NaN or infinity); check the model, or load it in bfloat16 or "
                    "float32 (--dtype)."
                )

    def vectors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        missing = [name for name in self.coverage.weights if name not in self.sites]
        if missing:
            raise CalibrationError(
                f"{len(missing)} covered weights saw no input, the first is {missing[0]}; "
                "this architecture calls them in a way that calibration does not follow."
            )
        return {site: total.float().cpu() for site, total in self.sums.items()}, dict(self.sites)

    def positive_counts(self) -> dict[str, Tensor]:
        return {path: counts.cpu() for path, counts in self.positive.items()}
