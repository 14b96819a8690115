"""What an evaluation found, question by question, complete in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mathneuro_hub.errors import EvaluationError, FormatError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class MetricScores:
    """One metric of one task, after one filter, with its value for every question.

    Attributes:
        task: the task's name in lm-eval.
        metric: for instance ``exact_match`` or ``acc``.
        filter: how the answer was taken from the model's text, for instance ``strict-match`` or
            ``flexible-extract``; ``none`` where the task names none.
        higher_is_better: None where lm-eval does not say.
        values: question id -> value. An id is a hash of the question, its choices, its answer and the whole prompt.
    """

    task: str
    metric: str
    filter: str
    higher_is_better: bool | None
    values: Mapping[str, float]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def score(self) -> float:
        """The mean over the questions."""
        return math.fsum(self.values.values()) / self.n

    @property
    def stderr(self) -> float | None:
        """Sample standard deviation over sqrt(n), as lm-eval's ``mean_stderr``; None for a single question."""
        if self.n < 2:
            return None
        mean = self.score
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values.values()) / (self.n - 1) / self.n)

    @property
    def binary(self) -> bool:
        """Every value is 0 or 1."""
        return all(value in (0.0, 1.0) for value in self.values.values())


@dataclass(frozen=True)
class TaskScores:
    """One task, or the questions of all tasks of a group taken together.

    Attributes:
        shots: worked examples before each question; None for a group whose tasks differ in it.
        version: the task's version in lm-eval.
        metrics: every metric under every filter, in lm-eval's order.
        left_out: metrics that are no mean over questions (perplexity, corpus F1), as ``metric,filter``. They have
            no value per question and so no paired comparison.
        truncated: prompts that were longer than the model's context and lost their beginning; in a multiple-choice
            task every choice is a prompt.
        seconds: wall time.
    """

    task: str
    shots: int | None
    version: str
    metrics: tuple[MetricScores, ...]
    left_out: tuple[str, ...] = ()
    truncated: int = 0
    seconds: float = 0.0

    @property
    def primary(self) -> MetricScores:
        """The metric to name when there is room for one.

        ``acc`` (multiple choice), else ``exact_match`` (generation), else the first one that the task lists. Of
        several filters the first that the task lists, which in lm-eval is the strict one; picking the filter with
        the better score would favour a model after the fact.
        """
        for name in ("acc", "exact_match"):
            for scores in self.metrics:
                if scores.metric == name:
                    return scores
        return self.metrics[0]

    def metric(self, metric: str, filter_name: str) -> MetricScores:
        """
        Raises:
            EvaluationError: the task does not report it.
        """
        for scores in self.metrics:
            if (scores.metric, scores.filter) == (metric, filter_name):
                return scores
        known = ", ".join(f"{scores.metric},{scores.filter}" for scores in self.metrics)
        raise EvaluationError(f"{self.task} does not report {metric},{filter_name}; it reports {known}.")


@dataclass(frozen=True)
class EvaluationSettings:
    """Everything that a score depends on, apart from the weights.

    Attributes:
        model: a name that can be published, never a path.
        tasks: names as asked for: tasks, groups or tags.
        batch_size: questions per forward pass; scores shift with it.
        limit: only the first questions of each task; None for all.
        num_fewshot: worked examples asked for; None for what each task says (see ``TaskScores.shots``).
        apply_chat_template: whether prompts went through the tokenizer's chat template.
        seed: of the worked examples and of any sampling.
        max_length: the model's context in tokens.
        dtype: of the weights, for instance ``bfloat16``.
        device: kind of device, with the name of a GPU.
        include_path: the name, without its path, of the user's own folder of tasks.
        versions: library -> version.
    """

    model: str
    tasks: tuple[str, ...]
    batch_size: int
    limit: int | None
    num_fewshot: int | None
    apply_chat_template: bool
    seed: int
    max_length: int
    dtype: str
    device: str
    include_path: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class EvaluationRun:
    """One model on some tasks.

    Attributes:
        label: what was evaluated, for instance ``base`` or ``mathneuro, scale 0``.
        tasks: every task by name, in the order they ran.
        groups: group -> its tasks, in the order that lm-eval lists them.
        seconds: wall time, loading of the tasks included.
    """

    label: str
    tasks: Mapping[str, TaskScores]
    settings: EvaluationSettings
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def scores(self) -> dict[str, TaskScores]:
        """Groups first, each with the questions of its tasks pooled, then the tasks.

        Only metrics that all tasks of a group share are pooled, and a group without any is left out.
        """
        pooled = {name: _pool(name, [self.tasks[task] for task in tasks]) for name, tasks in self.groups.items()}
        return {name: scores for name, scores in pooled.items() if scores.metrics} | dict(self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_dict` gives an equal run back. n, score and stderr are there for readers."""
        record = {"format_version": FORMAT_VERSION} | asdict(self)
        for name, scores in self.tasks.items():
            for entry, metric in zip(record["tasks"][name]["metrics"], scores.metrics, strict=True):
                entry |= {"n": metric.n, "score": metric.score, "stderr": metric.stderr}
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> EvaluationRun:
        """
        Raises:
            FormatError: not what :meth:`to_dict` makes, or made by a newer version.
        """
        try:
            version = record["format_version"]
            if version != FORMAT_VERSION:
                raise FormatError(
                    f"The evaluation results are of format version {version!r} and this library reads "
                    f"{FORMAT_VERSION}; update mathneuro-hub."
                )
            return cls(
                label=record["label"],
                tasks={name: _task(entry) for name, entry in record["tasks"].items()},
                settings=EvaluationSettings(**record["settings"] | {"tasks": tuple(record["settings"]["tasks"])}),
                groups={name: tuple(tasks) for name, tasks in record["groups"].items()},
                seconds=record["seconds"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"The evaluation results cannot be read ({error!r}); evaluate again.") from error


def _task(entry: Mapping[str, Any]) -> TaskScores:
    metrics = tuple(
        MetricScores(
            m["task"], m["metric"], m["filter"], m["higher_is_better"], {k: float(v) for k, v in m["values"].items()}
        )
        for m in entry["metrics"]
    )
    if not metrics or not all(m.values for m in metrics):
        raise ValueError(f"task {entry['task']} has no values")
    return TaskScores(**{**entry, "metrics": metrics, "left_out": tuple(entry["left_out"])})


def _pool(name: str, tasks: list[TaskScores]) -> TaskScores:
    tables = [{(m.metric, m.filter, m.higher_is_better): m.values for m in task.metrics} for task in tasks]
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    return TaskScores(
        task=name,
        shots=tasks[0].shots if len({task.shots for task in tasks}) == 1 else None,
        version=", ".join(sorted({task.version for task in tasks})),
        metrics=tuple(
            MetricScores(
                name,
                *key,
                {
                    f"{task.task}:{question}": value
                    for task, table in zip(tasks, tables, strict=True)
                    for question, value in table[key].items()
                },
            )
            for key in shared
        ),
        left_out=tuple(sorted({metric for task in tasks for metric in task.left_out})),
        truncated=sum(task.truncated for task in tasks),
        seconds=sum(task.seconds for task in tasks),
    )
