"""Rows of a file or of a Hub data set, and every way in which they can fail to be had."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathneuro_hub.errors import DataError
from mathneuro_hub.remote import endpoint

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Table:
    """Rows with named columns.

    Attributes:
        columns: their names, in the order of the source.
        rows: mappings from column to value; a row of a JSON file may lack columns.
        configs: the Hub configs they come from.
        split: the Hub split they come from.
        revision: the commit on the Hub, where known.
    """

    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    configs: tuple[str, ...] = ()
    split: str | None = None
    revision: str | None = None


def read_file(path: Path) -> Table:
    """The rows of a CSV, JSON, JSONL or Parquet file.

    Raises:
        DataError: it cannot be read, is empty, or holds no rows.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; give one file in it.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}; give a file that is one of {', '.join(READERS)}.")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    if not content.strip():
        raise DataError(f"{path} is empty; give a file with at least one row.")
    table = reader(path, content)
    if not table.rows:
        raise DataError(f"{path} has no rows; give a file with at least one.")
    return table


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: byte {content[error.start]:#04x} at offset {error.start} ({error.reason}); "
            "save it again as UTF-8."
        ) from None


def _read_csv(path: Path, content: bytes) -> Table:
    reader = csv.reader(io.StringIO(_decode(path, content), newline=""), strict=True)
    try:
        columns = next(reader)
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise DataError(f"{path} has more than one column {twice[0]!r}; rename one.")
        rows = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{path} has {len(cells)} cells in the row that ends on line {reader.line_num}, and "
                    f"{len(columns)} columns in its header; quote cells that hold a comma or a line break."
                )
            rows.append(dict(zip(columns, cells, strict=True)))
    except csv.Error as error:
        raise DataError(
            f"{path} is no valid CSV around line {reader.line_num} ({error}); quote its cells, or save it as JSONL."
        ) from error
    return Table(tuple(columns), rows)


def _read_json(path: Path, content: bytes) -> Table:
    try:
        found = json.loads(_decode(path, content))
    except (json.JSONDecodeError, RecursionError) as error:
        remedy = "rename it to .jsonl if it has one object per line" if "Extra data" in str(error) else "correct it"
        raise DataError(f"{path} is no valid JSON ({error}); {remedy}.") from error
    if isinstance(found, dict) and "data" in found:
        found = found["data"]
    if not isinstance(found, list):
        raise DataError(f"{path} holds no rows; give a list of objects, or an object with such a list as 'data'.")
    return _table(path, found)


def _read_jsonl(path: Path, content: bytes) -> Table:
    rows = []
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for number, line in enumerate(_decode(path, content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path} is no valid JSON on line {number} ({error}); give one object per line.") from error
    return _table(path, rows)


def _read_parquet(path: Path, content: bytes) -> Table:
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is no readable Parquet file ({first_line(error)}); write it again.") from error
    return Table(tuple(table.column_names), table.to_pylist())


def _table(path: Path, rows: list[Any]) -> Table:
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"Row {number} of {path} is a {type(row).__name__}; make every row an object with columns.")
    return Table(tuple(dict.fromkeys(column for row in rows for column in row)), rows)


READERS: dict[str, Callable[[Path, bytes], Table]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def read_hub(hub_id: str, configs: Sequence[str], split: str | None, revision: str | None) -> Table:
    """The rows of a Hub data set, through ``datasets``' own cache; the offline switches of the Hub clients hold.

    Args:
        hub_id: ``owner/name``.
        configs: read one after the other; none of them for the default config.
        split: default ``train``, or the only one there is.
        revision: branch, tag or commit.

    Raises:
        DataError: it is not there, gated, lacks the config or split, or cannot be reached.
    """
    import datasets

    parts, shas = [], []
    for config in configs or (None,):
        builder = _builder(hub_id, config, revision)
        shas.append(builder.hash)
        try:
            builder.download_and_prepare()
            chosen = _choose_split(hub_id, builder.config.name, list(builder.info.splits or ()), split)
            parts.append((builder.config.name, chosen, builder.as_dataset(split=chosen)))
        except DataError:
            raise
        except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
            raise DataError(f"{hub_id} cannot be read: {first_line(error)}") from error
    table = datasets.concatenate_datasets([part for _, _, part in parts])
    sha = shas[0] if len(set(shas)) == 1 and _COMMIT.fullmatch(str(shas[0])) else None
    names = tuple(name for name, _, _ in parts)
    return Table(tuple(table.column_names), table, names, parts[0][1], sha)


def _builder(hub_id: str, config: str | None, revision: str | None) -> Any:
    import datasets

    page = f"{endpoint()}/datasets/{hub_id}"
    try:
        builder = datasets.load_dataset_builder(hub_id, name=config, revision=revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        if "gated" in str(error):
            raise DataError(f"{hub_id} is gated; ask for access at {page} and log in with `hf auth login`.") from error
        if "Revision" in str(error):
            raise DataError(f"{hub_id} has no revision {revision!r}; give a branch, tag or commit of it.") from error
        raise DataError(
            f"There is no data set {hub_id} on the Hub (or it is private and this login may not see it), and no file "
            "of that name; check the spelling, or log in with `hf auth login`."
        ) from error
    except ConnectionError as error:
        raise DataError(
            f"{hub_id} is not in the local cache and the Hub cannot be reached; connect once, or give a file."
        ) from error
    except ValueError as error:
        # Every way in which `datasets` refuses a config ends in a list of those that are.
        if known := re.search(r"[Aa]vailable.*\[(.+)\]", str(error)):
            wanted = f"has no config {config!r}" if config else "has several configs"
            raise DataError(f"{hub_id} {wanted}; choose {hub_id}:CONFIG with one of {known[1]}.") from error
        raise DataError(f"{hub_id} cannot be read: {first_line(error)}") from error
    except (datasets.exceptions.DatasetsError, OSError, RuntimeError) as error:
        raise DataError(f"{hub_id} cannot be read: {first_line(error)}") from error
    # What `datasets` finds in its cache while the Hub is away can be of any revision.
    if revision and type(builder).__module__.endswith(".cache.cache") and builder.hash != revision:
        raise DataError(
            f"The cached copy of {hub_id} is of commit {builder.hash}, and the Hub cannot be reached to look up "
            f"revision {revision!r}; connect, or leave the revision out."
        )
    return builder


def _choose_split(hub_id: str, config: str, there: list[str], split: str | None) -> str:
    chosen = split or ("train" if "train" in there or len(there) != 1 else there[0])
    if chosen not in there:
        raise DataError(f"{hub_id}:{config} has no split {chosen!r}; choose one with --split from {', '.join(there)}.")
    return chosen


def first_line(error: Exception) -> str:
    """What went wrong, without the traceback that some libraries put into their messages."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
