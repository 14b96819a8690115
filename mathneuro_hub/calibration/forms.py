"""How a row becomes a text: by the names of its columns, by a Jinja prompt, or in a form of a preset's own.

The prompt form is the one of the research data's ``qa`` column (arXiv 2410.16930): question and worked answer as one
text, ``Question: ...``, where there are any ``Choices: [...]``, and ``Answer: ...``, a blank line between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mathneuro_hub.calibration.sources import first_line
from mathneuro_hub.errors import SettingError

if TYPE_CHECKING:
    import jinja2

Row = Mapping[str, Any]


class Sample(NamedTuple):
    """One row as text: a question with its answer, or, where ``answer`` is None, a text as a whole."""

    question: str
    answer: str | None = None

    @property
    def text(self) -> str:
        return self.question if self.answer is None else f"{self.question}\n\nAnswer: {self.answer}"

    @property
    def answer_start(self) -> int | None:
        """Character of :attr:`text` at which the answer starts."""
        return None if self.answer is None else len(self.text) - len(self.answer)


CONVENTIONS: tuple[tuple[str, ...], ...] = (
    ("text",),
    ("qa",),
    ("question", "answer"),
    ("question", "solution"),
    ("problem", "solution"),
)
"""The columns that are read when the user names none: the first of these whose columns are all there."""

_MULTIPLE_CHOICE = {"choices", "options"}


class RowError(ValueError):
    """A row that gives no text; the message completes "row 3 ..."."""


def is_missing(value: object) -> bool:
    """None and NaN, as which files and libraries hand over a cell that is not there."""
    return value is None or value != value


def as_text(value: object, column: str) -> str:
    """A cell as text; numbers as Python writes them.

    Raises:
        RowError: it is missing, blank, or no text at all.
    """
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise RowError(f"has no text in {column!r}")
    if not isinstance(value, str | int | float):
        raise RowError(f"has a {type(value).__name__} in {column!r}, which is no text")
    return str(value)


def columns_sample(row: Row, columns: Sequence[str]) -> Sample:
    """The text of the columns of a :data:`CONVENTIONS` entry.

    Raises:
        RowError: a cell is missing, blank, or no text.
    """
    cells = [as_text(row[column], column) for column in columns]
    return Sample(*cells) if len(cells) == 1 else Sample(f"Question: {cells[0]}", cells[1])


def convention(columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns of the first convention that ``columns`` meet, or None.

    ``question`` with ``answer`` is not taken where there are ``choices`` or ``options`` too: the answer is then a
    number or a letter, which says nothing without them.
    """
    there = set(columns)
    for wanted in CONVENTIONS:
        if there.issuperset(wanted) and not (wanted == ("question", "answer") and there & _MULTIPLE_CHOICE):
            return wanted
    return None


def prompt_form(prompt: str) -> Callable[[Row], Sample]:
    """What renders ``prompt`` over a row's columns, in Jinja's sandbox.

    Raises:
        SettingError: the template is not valid. What it returns raises RowError.
    """
    import jinja2

    template = _compile(prompt)

    def make(row: Row) -> Sample:
        try:
            return Sample(template.render(row))
        except RowError:
            raise
        except jinja2.UndefinedError as error:
            raise RowError(f"fails in the prompt ({first_line(error)}; its columns are {listed(row)})") from error
        except Exception as error:  # A template can fail in any way that Python can.
            raise RowError(f"fails in the prompt ({first_line(error)})") from error

    return make


def _compile(prompt: str) -> jinja2.Template:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    def refuse_missing(value: object) -> object:
        if is_missing(value):
            raise RowError("has no value for something that the prompt prints")
        return value

    environment = SandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        finalize=refuse_missing,
        keep_trailing_newline=True,
        autoescape=False,  # the result is a model's input, never HTML
    )
    try:
        return environment.from_string(prompt)
    except jinja2.TemplateSyntaxError as error:
        raise SettingError(
            f"The prompt is no valid Jinja template (line {error.lineno}: {error}); correct it."
        ) from error


def listed(columns: Iterable[str]) -> str:
    """Names of columns for a message."""
    return ", ".join(repr(column if len(column) <= 40 else column[:40] + "...") for column in columns)
