"""Data sets in, texts out: files, the draw, chat templates, presets, and bad input."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mathneuro_hub.calibration.data import DataSpec, TextSet, load_texts
from mathneuro_hub.calibration.presets import mmlu_sample, presets, race_sample
from mathneuro_hub.errors import DataError, SettingError

QUESTIONS = [{"question": f"What is {i} + {i}?", "solution": f"It is {2 * i}.\n#### {2 * i}"} for i in range(10)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def load(path: Path, **options: Any) -> TextSet:
    return load_texts(DataSpec(str(path), **options))


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet", ".CSV"])
def test_every_file_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"set{suffix.lower()}", QUESTIONS).rename(tmp_path / f"set{suffix}")
    drawn = load(path)
    expected = [f"Question: {row['question']}\n\nAnswer: {row['solution']}" for row in QUESTIONS]
    assert sorted(drawn.texts) == sorted(expected)
    assert drawn.texts == tuple(expected[i] for i in drawn.provenance.indices)
    assert drawn.answers_start is not None
    for text, start, index in zip(drawn.texts, drawn.answers_start, drawn.provenance.indices, strict=True):
        assert text[start:] == QUESTIONS[index]["solution"]


def test_json_may_keep_its_rows_under_data_and_files_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps({"version": 1, "data": [{"text": "one"}]}), encoding="utf-8-sig")
    assert load(path).texts == ("one",)


def test_a_line_separator_inside_a_json_string_ends_no_row(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    assert load(write_rows(tmp_path / "set.jsonl", [{"text": text}])).texts == (text,)


def test_a_csv_cell_keeps_line_breaks_commas_quotes_and_digits_as_they_are(tmp_path: Path) -> None:
    text = 'a, "b"\r\n007'
    assert load(write_rows(tmp_path / "set.csv", [{"text": text}])).texts == (text,)


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        (["text", "qa", "question", "answer"], ("text",)),
        (["question", "answer", "qa", "choices"], ("qa",)),
        (["solution", "answer", "question"], ("question", "answer")),
        (["problem", "solution", "question"], ("question", "solution")),
        (["problem", "solution", "level"], ("problem", "solution")),
        (["question", "answer", "choices", "solution"], ("question", "solution")),
    ],
)
def test_texts_are_found_by_convention(tmp_path: Path, columns: list[str], used: tuple[str, ...]) -> None:
    drawn = load(write_rows(tmp_path / "set.json", [{column: f"its {column}" for column in columns}]))
    assert drawn.provenance.columns == used
    first, *second = (f"its {column}" for column in used)
    assert drawn.texts == ((f"Question: {first}\n\nAnswer: {second[0]}") if second else first,)
    assert (drawn.answers_start is None) == (not second)


@pytest.mark.parametrize("columns", [["body"], ["question", "answer", "options"], ["question", "answer", "choices"]])
def test_without_a_convention_the_columns_that_are_there_are_listed(tmp_path: Path, columns: list[str]) -> None:
    path = write_rows(tmp_path / "set.json", [dict.fromkeys(columns, "x")])
    with pytest.raises(DataError, match=f"(?s){columns[-1]}.*--columns or --prompt"):
        load(path)


def test_columns_are_joined_with_a_newline_and_numbers_become_text(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.json", [{"a": "x", "b": 7, "text": "not this"}])
    drawn = load(path, columns=("b", "a"))
    assert drawn.texts == ("7\nx",)
    assert drawn.provenance.columns == ("b", "a")


def test_a_prompt_sees_every_column_and_keeps_its_line_breaks(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.json", [{"q": "1+1", "options": ["1", "2"], "right": 1, "hint": None}])
    prompt = "Q: {{ q }}{% if hint %}!{% endif %}\n<b>&{{ options[right] }}\n"
    drawn = load(path, prompt=prompt)
    assert drawn.texts == ("Q: 1+1\n<b>&2\n",)
    assert drawn.provenance.prompt == prompt
    assert drawn.provenance.columns is None


# --- bad files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b" \n\n", "is empty"),
        ("a.csv", b"text\n", "no rows"),
        ("a.csv", b"text\ncaf\xe9\n", "byte 0xe9 at offset 8 .*save it again as UTF-8"),
        ("a.csv", "text\nx\n".encode("utf-16"), "byte 0xff at offset 0"),
        ("a.csv", b"text,b\nx,y\nx,y,z\n", "3 cells in the row that ends on line 3, and 2 columns"),
        ("a.csv", b"text,b\nx\n", "1 cells in the row that ends on line 2"),
        ("a.csv", b'text\n"open\n', "no valid CSV around line"),
        ("a.csv", b"text\n" + b"x" * 140_000, "no valid CSV .*JSONL"),
        ("a.csv", b"text,text\nx,y\n", "more than one column 'text'"),
        ("a.csv", b"text,b\n,y\n", "Row 0 of a.csv .*has no text in 'text'"),
        ("a.json", b'{"text": "x"}', "holds no rows"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b'["x"]', "Row 0 of .* is a str"),
        ("a.json", b'{"text": "x"}\n{"text": "y"}', "rename it to .jsonl"),
        ("a.json", b"[" * 100_000, "no valid JSON"),
        ("a.json", b'[{"text": NaN}]', "has no text in 'text'"),
        ("a.json", b'[{"text": {"a": 1}}]', "has a dict in 'text'"),
        ("a.json", b'[{"text": "\\ud800"}]', "half a surrogate pair at character 0"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text":\n', "no valid JSON on line 3"),
        ("a.jsonl", b"7\n", "Row 0 of .* is a int"),
        ("a.parquet", b"PAR1 and no more", "no readable Parquet"),
        ("a.txt", b"x", r"ends in .txt; give a file that is one of .csv, .json, .jsonl, .parquet"),
        ("a", b"x", "ends in nothing"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        load(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    for folder in (tmp_path, tmp_path / "folder.csv"):
        with pytest.raises(DataError, match="is a folder"):
            load(folder)


@pytest.mark.parametrize(
    "source", ["gsm8", "demo:maths", "math:", "demo:", "https://example.org/a/b", "../a/b", "a\0b"]
)
def test_a_source_that_is_nothing_offers_presets(source: str) -> None:
    with pytest.raises(DataError, match=r"did you mean .*(gsm8k|demo:math)"):
        load_texts(DataSpec(source))


def test_rows_without_text_are_counted_never_skipped(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a"} for _ in range(8)]
    rows[2]["answer"] = rows[5]["answer"] = "  "
    del rows[6]["question"]
    with pytest.raises(
        DataError, match=r"Row 2 of set.json \(counting from 0\) has no text in 'answer', and 2 more of"
    ):
        load(write_rows(tmp_path / "set.json", rows))


def test_an_absent_column_lists_those_that_are_there(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.csv", QUESTIONS)
    with pytest.raises(DataError, match="no column 'answer'; its columns are 'question', 'solution'"):
        load(path, columns=("question", "answer"))
    with pytest.raises(DataError, match=r"'answer' is undefined.*its columns are 'question', 'solution'"):
        load(path, prompt="{{ question }}{{ answer }}")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("{{ hint }}", "Row 0 of set.json .*no value for something that the prompt prints"),
        ("{{ number }}", "no value for something"),
        ("{{ text[0] / 0 }}", "fails in the prompt"),
        ("{{ text.__class__ }}", "__class__"),
        ("{{ text.__class__.__mro__ }}", "__class__"),
        ("{% if hint %}x{% endif %}", "an empty text"),
    ],
)
def test_a_prompt_that_fails_on_a_row_says_how(tmp_path: Path, prompt: str, message: str) -> None:
    path = write_rows(tmp_path / "set.json", [{"text": "x", "hint": None, "number": float("nan")}])
    with pytest.raises(DataError, match=message):
        load(path, prompt=prompt)


@pytest.mark.parametrize("option", [{"split": "test"}, {"revision": "main"}])
def test_a_file_has_no_split_and_no_revision(tmp_path: Path, option: dict[str, Any]) -> None:
    path = write_rows(tmp_path / "set.csv", QUESTIONS)
    for source in (str(path), "demo:math"):
        with pytest.raises(SettingError, match=f"has no {next(iter(option))}"):
            load_texts(DataSpec(source, **option))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": " "}, "empty word"),
        ({"num_samples": 0}, "number of samples is 0"),
        ({"num_samples": -3}, "number of samples is -3"),
        ({"seed": -1}, "seed is -1"),
        ({"columns": ()}, "at least one"),
        ({"columns": ("a", "")}, "empty word"),
        ({"columns": ("a",), "prompt": "{{ a }}"}, "both"),
        ({"prompt": "{{ a"}, "no valid Jinja template .line 1"),
        ({"prompt": "{{ a | nosuch }}"}, "nosuch"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DataSpec(**{"source": "gsm8k", **options})


# --- the draw ----------------------------------------------------------------------------------------------------


def test_a_draw_is_fixed_by_its_seed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.csv", QUESTIONS)
    # Golden: the draw must never change with a version of Python or of this project.
    assert load(path, num_samples=4, seed=1).provenance.indices == (9, 8, 0, 3)
    assert load(path, num_samples=6, seed=1, replacement=True).provenance.indices == (1, 8, 7, 2, 4, 4)


@given(rows=st.integers(1, 40), seed=st.integers(0, 2**64), data=st.data())
def test_draws_without_replacement_are_distinct_and_nested(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("draw") / "set.jsonl"
    write_rows(path, [{"text": f"text {i}"} for i in range(rows)])
    wanted = data.draw(st.integers(1, rows))
    everything, some = load(path, seed=seed), load(path, seed=seed, num_samples=wanted)
    assert sorted(everything.provenance.indices) == list(range(rows))
    assert some.provenance.indices == everything.provenance.indices[:wanted]
    assert some.texts == everything.texts[:wanted]


def test_the_default_is_500_or_every_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.jsonl", [{"text": str(i)} for i in range(510)])
    drawn = load(path)
    assert (len(drawn), drawn.provenance.num_samples, drawn.provenance.rows) == (500, 500, 510)
    assert len(load(path, num_samples=510)) == 510
    assert len(load(write_rows(tmp_path / "few.jsonl", [{"text": "x"}] * 12))) == 12


def test_more_samples_than_rows_need_replacement(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.csv", QUESTIONS)
    with pytest.raises(DataError, match=r"10 rows, fewer than the 11 samples.*--replacement"):
        load(path, num_samples=11)
    assert set(load(path, replacement=True).provenance.indices) == set(range(10))
    assert len(load(path, replacement=True)) == 500
    assert len(load(path, num_samples=11, replacement=True)) == 11


# --- provenance --------------------------------------------------------------------------------------------------


def test_provenance_is_json_and_names_no_folder(tmp_path: Path) -> None:
    drawn = load(write_rows(tmp_path / "mine.csv", QUESTIONS), num_samples=3, seed=5)
    record = drawn.provenance.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["name"] == "mine.csv"
    assert str(tmp_path) not in json.dumps(record)
    assert (record["hub_id"], record["rows"], record["seed"], record["chat_template"]) == (None, 10, 5, False)
    digest = hashlib.sha256()
    for text in drawn.texts:
        digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
    assert record["content_hash"] == digest.hexdigest()


def test_the_content_hash_tells_where_texts_end(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "one.json", [{"text": "ab"}, {"text": "ab"}])
    other = write_rows(tmp_path / "other.json", [{"text": "aba"}, {"text": "b"}])
    assert load(one).provenance.content_hash != load(other).provenance.content_hash


def test_a_spec_survives_json() -> None:
    spec = DataSpec("gsm8k", columns=("a", "b"), seed=3, replacement=True)
    assert DataSpec(**json.loads(json.dumps(asdict(spec)))) == spec


# --- chat templates ----------------------------------------------------------------------------------------------

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"


def chat_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"x": 0}, "x")))
    tokenizer.chat_template = template
    return tokenizer


def test_a_chat_template_takes_question_as_user_and_answer_as_assistant(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.json", [{"question": "7 or 8?", "answer": " 8\n"}])
    drawn = load_texts(DataSpec(str(path), chat_template=True), chat_tokenizer(CHAT))
    assert drawn.texts == ("<user>Question: 7 or 8?</user><assistant>8</assistant>",)
    assert drawn.answers_start == (drawn.texts[0].index("8</assistant>"),)
    assert drawn.provenance.chat_template


def test_a_chat_template_takes_a_whole_text_as_user(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.json", [{"text": "x"}])
    drawn = load_texts(DataSpec(str(path), chat_template=True), chat_tokenizer(CHAT))
    assert drawn.texts == ("<user>x</user>",)
    assert drawn.answers_start is None


def test_a_chat_template_that_hides_the_answer_leaves_its_place_unknown(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.json", [{"question": "q", "answer": "a long answer"}])
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert load_texts(DataSpec(str(path), chat_template=True), tokenizer).answers_start is None


def test_a_tokenizer_without_or_with_a_failing_chat_template_is_refused(tmp_path: Path) -> None:
    spec = DataSpec(str(write_rows(tmp_path / "set.json", [{"text": "x"}])), chat_template=True)
    for tokenizer in (None, chat_tokenizer(None)):
        with pytest.raises(SettingError, match="no chat template"):
            load_texts(spec, tokenizer)
    with pytest.raises(SettingError, match=r"fails .*no users please"):
        load_texts(spec, chat_tokenizer("{{ raise_exception('no users please') }}"))


# --- presets -----------------------------------------------------------------------------------------------------


def test_the_bundled_sets_load_by_name() -> None:
    bundled = [name for name in presets() if name.startswith("demo:")]
    assert {"demo:math", "demo:capitals"} <= set(bundled)
    for name in bundled:
        drawn = load_texts(DataSpec(name))
        assert drawn.provenance.name == drawn.provenance.preset == name
        assert len(drawn) >= 100


def test_an_mmlu_row_becomes_question_choices_and_the_right_answer() -> None:
    row = {"question": "Whose?", "subject": "law", "choices": ["Ada's", 'a "b"', "c\\d", "e"], "answer": 2}
    sample = mmlu_sample(row)
    assert sample.text == "Question: Whose?\n\nChoices: ['Ada's', 'a \"b\"', 'c\\d', 'e']\n\nAnswer: c\\d"
    assert sample.answer_start == len(sample.text) - 3


def test_a_race_row_becomes_article_and_its_first_question() -> None:
    problems = [
        {"question": "Who _ it?", "options": ["Ada", "Ben", "Cleo", "Dan"], "answer": "B"},
        {"question": "Why?", "options": ["w", "x", "y", "z"], "answer": "A"},
    ]
    sample = race_sample({"article": "Ben did.", "problems": repr(problems)})
    assert sample.text == (
        "Article: Ben did.\n\nQuestion: Who _ it?\n\nChoices: ['Ada', 'Ben', 'Cleo', 'Dan']\n\nAnswer: Ben"
    )
    assert sample.text[sample.answer_start :] == "Ben"


def test_what_only_some_data_sets_need_is_not_imported_for_all() -> None:
    code = (
        "import sys; from mathneuro_hub.calibration.data import DataSpec, load_texts; load_texts(DataSpec('demo:math'));"
        "print(sorted({'datasets', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    root = str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
