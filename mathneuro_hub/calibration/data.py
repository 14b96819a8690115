"""A data set in, the texts of a calibration run out, with a record of where each one comes from."""

from __future__ import annotations

import difflib
import hashlib
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathneuro_hub.calibration.forms import (
    CONVENTIONS,
    Row,
    RowError,
    Sample,
    as_text,
    columns_sample,
    convention,
    listed,
    prompt_form,
)
from mathneuro_hub.calibration.presets import Preset, presets
from mathneuro_hub.calibration.sources import READERS, Table, first_line, read_file, read_hub
from mathneuro_hub.errors import DataError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_NUM_SAMPLES = 500
"""What the paper draws (arXiv 2410.16930)."""

_HUB_ID = re.compile(r"(?P<hub_id>\w[\w.-]*/\w[\w.-]*)(:(?P<config>[^/:]+))?")


@dataclass(frozen=True)
class DataSpec:
    """Which texts to draw from which data set; complete in JSON (:func:`dataclasses.asdict`).

    Attributes:
        source: a preset (``gsm8k``, ``math:algebra``), a file, or a Hub id (``owner/name`` or ``owner/name:config``).
        split: of a Hub data set; default the preset's, else ``train``, else the only one there is.
        revision: of a Hub data set: branch, tag or commit.
        columns: read these and join them with a newline.
        prompt: Jinja template over a row's columns, in place of ``columns``.
        num_samples: how many to draw; default 500, or every row where there are fewer.
        seed: of the draw.
        replacement: draw with replacement, as the paper does.
        chat_template: put the tokenizer's chat template around each text: question as user and answer as assistant
            where the data set has both, else the whole text as user.

    Raises:
        SettingError: a value is out of range, or two contradict each other.
    """

    source: str
    split: str | None = None
    revision: str | None = None
    columns: tuple[str, ...] | None = None
    prompt: str | None = None
    num_samples: int | None = None
    seed: int = 0
    replacement: bool = False
    chat_template: bool = False

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise SettingError("The data set is an empty word; give a preset, a file, or a Hub id.")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))
            if not self.columns or not all(self.columns):
                raise SettingError(
                    f"The columns are {list(self.columns)}; name at least one, and none with an empty word."
                )
            if self.prompt is not None:
                raise SettingError("Columns and a prompt were both given; name the columns in the prompt alone.")
        if self.num_samples is not None and self.num_samples < 1:
            raise SettingError(f"The number of samples is {self.num_samples}; it has to be at least 1.")
        if self.seed < 0:
            raise SettingError(f"The seed is {self.seed}; it has to be 0 or more.")
        if self.prompt is not None:
            prompt_form(self.prompt)


@dataclass(frozen=True)
class DataProvenance:
    """Where the texts of a :class:`TextSet` come from; nothing in it tells where a file lay.

    Attributes:
        name: preset or Hub id as the user gave it, or the file's name without its folder.
        preset: the preset that was named, or that the Hub id belongs to; None for any other data set.
        hub_id: ``owner/name``, or None for a file and for a bundled set.
        configs: the Hub configs that were read, in order.
        revision: the commit on the Hub, where known.
        split: the Hub split.
        columns: the columns that were read, or None where a prompt or a preset's own form says it.
        prompt: the Jinja template, or None.
        chat_template: whether the tokenizer's chat template is around the texts.
        num_samples: how many were drawn.
        seed: of the draw.
        replacement: whether rows could be drawn again.
        rows: how many there were to draw from.
        indices: the row of each text, counting from 0.
        content_hash: SHA-256 over the texts, each as UTF-8 with its length before it (8 bytes, little-endian).
    """

    name: str
    preset: str | None
    hub_id: str | None
    configs: tuple[str, ...]
    revision: str | None
    split: str | None
    columns: tuple[str, ...] | None
    prompt: str | None
    chat_template: bool
    num_samples: int
    seed: int
    replacement: bool
    rows: int
    indices: tuple[int, ...]
    content_hash: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class TextSet:
    """Texts to calibrate on.

    Attributes:
        texts: in the order drawn; a row drawn twice is there twice.
        answers_start: per text the character at which its answer starts, or None where that is not known.
        provenance: where they come from.
    """

    texts: tuple[str, ...]
    answers_start: tuple[int, ...] | None
    provenance: DataProvenance

    @classmethod
    def from_texts(cls, texts: Sequence[str], name: str) -> TextSet:
        """Texts that are at hand already, all of them, in their order.

        Raises:
            DataError: there is none.
        """
        if not texts:
            raise DataError(f"The texts {name!r} are none at all; give at least one.")
        provenance = DataProvenance(
            name=name,
            preset=None,
            hub_id=None,
            configs=(),
            revision=None,
            split=None,
            columns=None,
            prompt=None,
            chat_template=False,
            num_samples=len(texts),
            seed=0,
            replacement=False,
            rows=len(texts),
            indices=tuple(range(len(texts))),
            content_hash=_content_hash(tuple(texts)),
        )
        return cls(tuple(texts), None, provenance)

    def __len__(self) -> int:
        return len(self.texts)


def load_texts(spec: DataSpec, tokenizer: PreTrainedTokenizerBase | None = None) -> TextSet:
    """Draw the texts that ``spec`` asks for.

    Args:
        spec: the data set and the draw.
        tokenizer: needed for ``chat_template`` alone.

    Raises:
        DataError: the data set cannot be had, or a drawn row gives no text.
        SettingError: an option that this data set or tokenizer has no use for.
    """
    if spec.chat_template and not getattr(tokenizer, "chat_template", None):
        raise SettingError("The tokenizer has no chat template; leave the chat template out, or use a chat model.")
    source = _open(spec)
    columns, to_sample = _row_form(spec, source)
    indices = _draw(spec, source)
    samples = _samples(source, sorted(set(indices)), to_sample)
    drawn = {index: (sample.text, sample.answer_start) for index, sample in samples.items()}
    if spec.chat_template and tokenizer is not None:
        drawn = {index: _in_chat(tokenizer, sample) for index, sample in samples.items()}
    texts = tuple(drawn[index][0] for index in indices)
    starts = tuple(start for index in indices if (start := drawn[index][1]) is not None)
    provenance = DataProvenance(
        name=source.name,
        preset=source.preset,
        hub_id=source.hub_id,
        configs=source.table.configs,
        revision=source.table.revision,
        split=source.table.split,
        columns=columns,
        prompt=spec.prompt,
        chat_template=spec.chat_template,
        num_samples=len(indices),
        seed=spec.seed,
        replacement=spec.replacement,
        rows=len(source.table.rows),
        indices=indices,
        content_hash=_content_hash(texts),
    )
    return TextSet(texts, starts if len(starts) == len(texts) else None, provenance)


@dataclass(frozen=True)
class _Source:
    name: str
    hub_id: str | None
    preset: str | None
    sample: Callable[[Row], Sample] | None
    table: Table


def _open(spec: DataSpec) -> _Source:
    known = presets()
    name, _, config = spec.source.rpartition(":")
    if spec.source in known or (name in known and known[name].hub_id and config):
        preset = spec.source if spec.source in known else name
        return _open_preset(spec, known, preset, None if spec.source in known else config)
    if os.path.exists(spec.source) or spec.source.lower().endswith(tuple(READERS)):
        _refuse_hub_options(spec)
        return _Source(Path(spec.source).name, None, None, None, read_file(Path(spec.source)))
    if match := _HUB_ID.fullmatch(spec.source):
        hub_id, config = match["hub_id"], match["config"]
        for preset, entry in known.items():
            if entry.hub_id == hub_id:
                return _open_preset(spec, known, preset, config)
        table = read_hub(hub_id, [config] if config else [], spec.split, spec.revision)
        return _Source(spec.source, hub_id, None, None, table)
    near = difflib.get_close_matches(spec.source, known, cutoff=0.5) or list(known)
    raise DataError(
        f"{spec.source!r} is no preset, no file that exists, and no Hub id (owner/name); "
        f"did you mean {' or '.join(near) if len(near) < 3 else 'one of ' + ', '.join(near)}?"
    )


def _open_preset(spec: DataSpec, known: Mapping[str, Preset], name: str, config: str | None) -> _Source:
    preset = known[name]
    if preset.hub_id is not None:
        configs = [config] if config else preset.configs
        table = read_hub(preset.hub_id, configs, spec.split or preset.split, spec.revision)
    else:
        _refuse_hub_options(spec)
        with resources.as_file(resources.files("mathneuro_hub.demo") / "sets" / str(preset.file)) as path:
            table = read_file(path)
    return _Source(spec.source, preset.hub_id, name, preset.sample, table)


def _refuse_hub_options(spec: DataSpec) -> None:
    for option, value in (("split", spec.split), ("revision", spec.revision)):
        if value is not None:
            raise SettingError(f"{spec.source} is a file and has no {option} {value!r}; leave the {option} out.")


def _row_form(spec: DataSpec, source: _Source) -> tuple[tuple[str, ...] | None, Callable[[Row], Sample]]:
    there = source.table.columns
    if spec.prompt is not None:
        return None, prompt_form(spec.prompt)
    if (columns := spec.columns) is not None:
        if absent := [column for column in columns if column not in there]:
            raise DataError(f"{source.name} has no column {absent[0]!r}; its columns are {listed(there)}.")
        return columns, lambda row: Sample("\n".join(as_text(row[column], column) for column in columns))
    if source.sample is not None:
        return None, _preset_form(source.sample, source)
    if (found := convention(there)) is None:
        usual = "; ".join("+".join(entry) for entry in CONVENTIONS)
        raise DataError(
            f"{source.name} has none of the usual columns ({usual}) to make a text of; its columns are "
            f"{listed(there)}: choose with --columns or --prompt."
        )
    return found, lambda row: columns_sample(row, found)


def _preset_form(sample: Callable[[Row], Sample], source: _Source) -> Callable[[Row], Sample]:
    def make(row: Row) -> Sample:
        try:
            return sample(row)
        except RowError:
            raise
        except (LookupError, TypeError, ValueError, SyntaxError, RecursionError) as error:
            raise RowError(f"is not shaped like the preset {source.preset} ({first_line(error)})") from error

    return make


def _draw(spec: DataSpec, source: _Source) -> tuple[int, ...]:
    """Rows to take, from ``random.Random(seed).random()`` alone.

    It is the one part of that module that Python promises never to change. Without replacement every row gets a key
    and the lowest come first, so that a smaller draw is the start of a larger one.
    """
    rows = len(source.table.rows)
    if not rows:
        raise DataError(f"{source.name} has no rows; give a data set with at least one.")
    rng = random.Random(spec.seed)
    if spec.replacement:
        return tuple(int(rng.random() * rows) for _ in range(spec.num_samples or DEFAULT_NUM_SAMPLES))
    wanted = spec.num_samples or min(DEFAULT_NUM_SAMPLES, rows)
    if wanted > rows:
        raise DataError(
            f"{source.name} has {rows} rows, fewer than the {wanted} samples asked for; lower --num-samples, or draw "
            "with --replacement."
        )
    keys = [rng.random() for _ in range(rows)]
    return tuple(sorted(range(rows), key=keys.__getitem__)[:wanted])


def _samples(source: _Source, indices: list[int], to_sample: Callable[[Row], Sample]) -> dict[int, Sample]:
    samples: dict[int, Sample] = {}
    failed: list[tuple[int, str]] = []
    for index in indices:
        row = source.table.rows[index]
        try:
            samples[index] = _usable(to_sample({column: row.get(column) for column in source.table.columns}))
        except RowError as error:
            failed.append((index, str(error)))
    if failed:
        index, reason = failed[0]
        others = f", and {len(failed) - 1} more of the {len(indices)} drawn give no text" if len(failed) > 1 else ""
        raise DataError(
            f"Row {index} of {source.name} (counting from 0) {reason}{others}; correct or remove what gives no text."
        )
    return samples


def _usable(sample: Sample) -> Sample:
    if not sample.text.strip():
        raise RowError("gives an empty text")
    try:
        sample.text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"holds half a surrogate pair at character {error.start} of its text") from error
    return sample


def _in_chat(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> tuple[str, int | None]:
    import jinja2

    messages = [{"role": "user", "content": sample.question}]
    if sample.answer is not None:
        messages.append({"role": "assistant", "content": sample.answer})
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except jinja2.TemplateError as error:
        raise SettingError(
            f"The tokenizer's chat template fails ({first_line(error)}); leave the chat template out."
        ) from error
    # Templates may trim what they are given, and one that rewrites the answer leaves its place unknown.
    start = text.rfind(sample.answer.strip()) if sample.answer is not None else -1
    return text, start if start >= 0 else None


def _content_hash(texts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
