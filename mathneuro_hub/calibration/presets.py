"""Which data sets have a name of their own here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from mathneuro_hub.calibration.forms import Row, Sample, as_text


@dataclass(frozen=True)
class Preset:
    """A data set with a name of its own.

    Attributes:
        hub_id: the data set on the Hub, or None for one that ships with the package.
        configs: the configs that are read, one after the other.
        split: the split that is read unless the user names another.
        sample: makes the text of a row where the columns alone do not say how; None for :func:`convention`.
        file: the file in ``mathneuro_hub/demo/sets`` of one that ships with the package.
    """

    hub_id: str | None = None
    configs: tuple[str, ...] = ()
    split: str | None = None
    sample: Callable[[Row], Sample] | None = None
    file: str | None = None


def _listing(choices: Sequence[str]) -> str:
    # Single quotes and nothing escaped, as in the research data; a Python repr would change quotes with the content.
    return "Choices: ['" + "', '".join(choices) + "']"


def mmlu_sample(row: Row) -> Sample:
    """A row of cais/mmlu: ``question``, ``choices`` (list of str), ``answer`` (index of the right one)."""
    choices = [as_text(choice, "choices") for choice in row["choices"]]
    # A dict, since the Hub writes -1 for a label that is not known.
    answer = dict(enumerate(choices))[row["answer"]]
    return Sample(f"Question: {as_text(row['question'], 'question')}\n\n{_listing(choices)}", answer)


def race_sample(row: Row) -> Sample:
    """A row of EleutherAI/race: ``article`` and ``problems``, a Python literal of a list of questions.

    One text per article, with its first question: lm-eval's ``race`` task scores the last one, on the same articles.
    """
    problem = ast.literal_eval(row["problems"])[0]
    options = [as_text(option, "options") for option in problem["options"]]
    article, question = as_text(row["article"], "article"), as_text(problem["question"], "question")
    answer = dict(zip("ABCD", options, strict=True))[problem["answer"]]
    return Sample(f"Article: {article}\n\nQuestion: {question}\n\n{_listing(options)}", answer)


_HUB_PRESETS: dict[str, Preset] = {
    "gsm8k": Preset("openai/gsm8k", ("main",), "train"),
    "math": Preset(
        "EleutherAI/hendrycks_math",
        (
            "algebra",
            "counting_and_probability",
            "geometry",
            "intermediate_algebra",
            "number_theory",
            "prealgebra",
            "precalculus",
        ),
        "train",
    ),
    "mmlu": Preset("cais/mmlu", ("all",), "validation", mmlu_sample),
    "race": Preset("EleutherAI/race", ("high",), "test", race_sample),
}


def presets() -> dict[str, Preset]:
    """Every preset by name; the bundled sets are called ``demo:NAME``."""
    folder = resources.files("mathneuro_hub.demo") / "sets"
    files = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    demo = {f"demo:{file.removesuffix('.jsonl')}": Preset(file=file) for file in files if file.endswith(".jsonl")}
    return {**_HUB_PRESETS, **demo}
