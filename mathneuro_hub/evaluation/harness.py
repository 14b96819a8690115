"""lm-eval in process, on a model that is already loaded.

Every task runs on its own, so that its batches, and with them its scores, do not depend on which other tasks were
asked for. Nothing is cached between models, and no text that a model writes is ever executed.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import numbers
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.utils
import lm_eval.api.task
import numpy as np
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mathneuro_hub.errors import EvaluationError, SettingError
from mathneuro_hub.evaluation.results import EvaluationRun, EvaluationSettings, MetricScores, TaskScores
from mathneuro_hub.versions import versions

Progress = Callable[[int, int], None]
"""Called with (questions answered, questions in all)."""

_UNREACHABLE = (ConnectionError, LocalEntryNotFoundError)


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    seed: int = 0,
    label: str = "base",
    model_name: str | None = None,
    on_progress: Progress | None = None,
) -> EvaluationRun:
    """Score ``model`` as it is now, wherever it is, in the dtype it has.

    Args:
        tasks: names of lm-eval tasks, groups or tags.
        include_path: folder with tasks of your own as YAML; they win over lm-eval's of the same name.
        limit: only the first questions of each task.
        batch_size: questions per forward pass. Never ``auto``: another batch size shifts scores, and base and edited
            model have to be scored alike.
        num_fewshot: worked examples instead of each task's own number; tasks that fix it at 0 keep 0.
        apply_chat_template: put prompts through the tokenizer's chat template, worked examples as turns.
        seed: of the worked examples, and of sampling where a task samples. The generators of python, numpy and
            torch are left as they were.
        label: name of the run.
        model_name: name to record, for instance the Hub id; else the model's own, without any path.

    Raises:
        EvaluationError: an unknown task, a task whose data cannot be had, that runs code or that is no mean over
            questions, or a failure while running.
        SettingError: no task named, or a folder, limit, batch size, number of worked examples, seed or chat template
            that cannot be used.
    """
    started = time.monotonic()
    _check(tokenizer, tasks, include_path, limit, batch_size, num_fewshot, apply_chat_template, seed)
    training = model.training
    try:
        with _quiet(), _generators_kept():
            loaded, groups = _load(tuple(dict.fromkeys(tasks)), include_path)
            counts = {name: _questions(name, task, limit) for name, task in loaded.items()}
            lm = _Model(model, tokenizer, batch_size)
            done = 0
            scores: dict[str, TaskScores] = {}
            for name, task in loaded.items():
                report = _reporter(on_progress, done, counts[name], sum(counts.values()))
                scores[name] = _run(lm, name, task, limit, num_fewshot, apply_chat_template, seed, report)
                done += counts[name]
            settings = EvaluationSettings(
                model=model_name or _public_name(model),
                tasks=tuple(tasks),
                batch_size=batch_size,
                limit=limit,
                num_fewshot=num_fewshot,
                apply_chat_template=apply_chat_template,
                seed=seed,
                max_length=lm.max_length,
                dtype=str(model.dtype).removeprefix("torch."),
                device=_device(model),
                include_path=include_path.resolve().name if include_path else None,
                versions=versions() | {"lm_eval": metadata.version("lm_eval")},
            )
    finally:
        model.train(training)
    return EvaluationRun(label, scores, settings, groups, time.monotonic() - started)


class _Model(HFLM):  # type: ignore[misc]
    """HFLM around a loaded model: no progress bars, a count of truncated prompts, and a call per answer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
        # lm-eval gives a tokenizer without a padding token one; the caller's stays as it is.
        own = tokenizer if tokenizer.pad_token_id is not None else deepcopy(tokenizer)
        super().__init__(pretrained=model, tokenizer=own, batch_size=batch_size)
        self.truncated = 0
        self.answered = 0
        self.requests = 0
        self.report: Callable[[float], None] = lambda share: None
        self.cache_hook = self

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        """lm-eval calls its cache's hook with every answer; here it only counts."""
        self.answered += 1
        self.report(self.answered / self.requests)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> Any:
        self.answered, self.requests = 0, len(requests)
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> Any:
        self.answered, self.requests = 0, len(requests)
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> Any:
        self.answered, self.requests = 0, len(requests)
        return super().generate_until(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, override_bs: int | None = None) -> Any:
        self.truncated += sum(len(context) + len(rest) > self.max_length + 1 for _, context, rest in requests)
        return super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = super().tok_batch_encode(strings, padding_side, truncation=truncation)
        if left_truncate_len:
            self.truncated += int((mask.sum(1) > left_truncate_len).sum())
            ids, mask = ids[:, -left_truncate_len:], mask[:, -left_truncate_len:]
        return ids, mask


def _run(
    lm: _Model,
    name: str,
    task: Any,
    limit: int | None,
    num_fewshot: int | None,
    apply_chat_template: bool,
    seed: int,
    report: Callable[[float], None],
) -> TaskScores:
    started = time.monotonic()
    own = task.get_config("num_fewshot")
    shots = own or 0 if num_fewshot is None or own == 0 else num_fewshot
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed)
    transformers.set_seed(seed)
    lm.truncated, lm.report = 0, report
    try:
        found = lm_evaluate(
            lm,
            {"tasks": {name: task}},
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=apply_chat_template,
            confirm_run_unsafe_code=False,
        )
    except torch.OutOfMemoryError as error:
        raise EvaluationError(
            f"The device ran out of memory on task {name} at batch size {lm.batch_size}; lower the batch size, for "
            "base and edited model alike."
        ) from error
    except Exception as error:
        raise EvaluationError(f"Task {name} failed while running: {_first_line(error)}") from error
    metrics, left_out = _metrics(name, found, task.higher_is_better())
    if not metrics:
        raise EvaluationError(
            f"Task {name} reports only {', '.join(left_out)}, which is no mean over questions and cannot be compared "
            "question by question; leave it out."
        )
    return TaskScores(
        name, shots, str(task.VERSION), metrics, left_out, lm.truncated, round(time.monotonic() - started, 2)
    )


def _metrics(name: str, found: Any, better: Any) -> tuple[tuple[MetricScores, ...], tuple[str, ...]]:
    """Each metric under each filter whose aggregate in lm-eval is the mean of its values per question."""
    values: dict[tuple[str, str], dict[str, Any]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for sample in found["samples"][name]:
        filter_name = sample["filter"]
        question = _short_hash(sample["doc_hash"], sample["prompt_hash"], sample["target_hash"])
        seen[filter_name, question] += 1
        if (repeat := seen[filter_name, question]) > 1:
            question = f"{question}-{repeat}"
        for metric in sample["metrics"]:
            values.setdefault((metric, filter_name), {})[question] = sample[metric]
    kept: list[MetricScores] = []
    left_out: list[str] = []
    for (metric, filter_name), by_question in values.items():
        reported = found["results"][name].get(f"{metric},{filter_name}")
        if all(isinstance(value, (numbers.Real, np.bool_)) for value in by_question.values()):
            floats = {question: float(value) for question, value in by_question.items()}
            mean = math.fsum(floats.values()) / len(floats)
            if isinstance(reported, numbers.Real) and math.isclose(mean, reported, rel_tol=1e-9, abs_tol=1e-12):
                kept.append(MetricScores(name, metric, filter_name, better.get(metric), floats))
                continue
        left_out.append(f"{metric},{filter_name}")
    return tuple(kept), tuple(left_out)


def _load(names: tuple[str, ...], include_path: Path | None) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Tasks by name, and the tasks of each group; lm-eval's own index (10 s) is built only if a name needs it."""
    manager = _task_manager(include_path, _stamp(include_path), include_defaults=include_path is None)
    if not all(_complete(name, manager.task_index) for name in names):
        manager = _task_manager(include_path, _stamp(include_path), include_defaults=True)
    for name in names:
        if name not in manager.all_tasks:
            near = get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists lm-eval's tasks."
            where = f" nor in {include_path}" if include_path else ""
            raise EvaluationError(f"There is no task {name!r} in lm-eval{where}; {hint}")
    tasks: dict[str, Any] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        try:
            loaded = manager.load([name])
        except Exception as error:
            raise EvaluationError(_load_failure(name, error)) from error
        tasks |= loaded["tasks"]
        groups |= {g: tuple(t.task_name for t in group.get_all_tasks()) for g, group in loaded["groups"].items()}
    for name, task in tasks.items():
        if getattr(task, "UNSAFE_CODE", False):
            raise EvaluationError(
                f"Task {name} executes what the model writes, which this library never does; leave it out."
            )
    return tasks, groups


@functools.lru_cache(maxsize=4)
def _task_manager(include_path: Path | None, stamp: tuple[Any, ...], include_defaults: bool) -> TaskManager:
    return TaskManager(include_path=str(include_path) if include_path else None, include_defaults=include_defaults)


def _complete(name: str, index: Mapping[str, Any]) -> bool:
    """Whether ``index`` alone can build ``name``: a task, or a group of tasks that are all in it. A tag never is
    complete, since tasks outside may carry it."""
    entry = index.get(name)
    if entry is None or entry.kind.name == "TAG":
        return False
    if entry.kind.name != "GROUP":
        return True
    members = entry.cfg.get("task")
    return isinstance(members, list) and all(isinstance(m, str) and _complete(m, index) for m in members)


def _stamp(include_path: Path | None) -> tuple[Any, ...]:
    """Changes when a task file of the folder does, so that an index is used again only while it holds."""
    if include_path is None:
        return ()
    return tuple(sorted((str(path), path.stat().st_mtime_ns) for path in include_path.rglob("*.yaml")))


def _load_failure(name: str, error: BaseException) -> str:
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    if any(isinstance(link, _UNREACHABLE) for link in chain):
        return (
            f"The data of task {name} is not in the local cache and the Hub cannot be reached; run the task once with "
            "a network, or choose tasks with local data."
        )
    return f"Task {name} cannot be loaded: {_first_line(chain[0])}"


def _questions(name: str, task: Any, limit: int | None) -> int:
    try:
        count = len(task.eval_docs)
    except Exception as error:
        raise EvaluationError(f"The questions of task {name} cannot be read: {_first_line(error)}") from error
    return count if limit is None else min(limit, count)


def _reporter(on_progress: Progress | None, done: int, count: int, total: int) -> Callable[[float], None]:
    if on_progress is None:
        return lambda share: None
    return lambda share: on_progress(done + int(share * count), total)


def _check(
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    include_path: Path | None,
    limit: int | None,
    batch_size: int,
    num_fewshot: int | None,
    apply_chat_template: bool,
    seed: int,
) -> None:
    if not tasks or isinstance(tasks, str):
        raise SettingError(f"Tasks are a list with at least one name, not {tasks!r}.")
    if include_path is not None and not include_path.is_dir():
        raise SettingError(f"The folder of tasks {include_path} does not exist; give one that holds lm-eval YAML.")
    least_values = {
        "limit": (limit, 1),
        "batch size": (batch_size, 1),
        "num_fewshot": (num_fewshot, 0),
        "seed": (seed, 0),
    }
    for name, (value, least) in least_values.items():
        if value is not None and (type(value) is not int or value < least):
            raise SettingError(f"The {name} is a whole number from {least} on, not {value!r}.")
    if apply_chat_template and not tokenizer.chat_template:
        raise SettingError("The tokenizer has no chat template; evaluate without one.")


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no log lines of lm-eval and transformers below an error; all as before afterwards."""
    logger = logging.getLogger("lm_eval")
    level, verbosity = logger.level, transformers.logging.get_verbosity()
    bars = [module for module in (datasets, huggingface_hub.utils) if not module.are_progress_bars_disabled()]
    bar = lm_eval.api.task.tqdm
    logger.setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    for module in bars:
        module.disable_progress_bars()
    lm_eval.api.task.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        lm_eval.api.task.tqdm = bar
        for module in bars:
            module.enable_progress_bars()
        transformers.logging.set_verbosity(verbosity)
        logger.setLevel(level)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """lm-eval seeds every generator there is; the caller's go on from where they were."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def _public_name(model: PreTrainedModel) -> str:
    name = str(model.config._name_or_path)
    if not name:
        return type(model).__name__
    is_path = name.startswith((".", "~")) or "\\" in name or Path(name).is_absolute() or Path(name).exists()
    return Path(name.replace("\\", "/")).resolve().name if is_path else name


def _device(model: PreTrainedModel) -> str:
    kind = str(model.device.type)
    return f"{kind} ({torch.cuda.get_device_name(model.device)})" if kind == "cuda" else kind


def _short_hash(*hashes: str) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
