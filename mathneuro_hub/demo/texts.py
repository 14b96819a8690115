"""The texts that the bundled model was trained, calibrated and evaluated on.

Three skills in one small language: two-digit sums (bare and as one-line word problems), the capitals of 60
invented countries, and grammar (the form of a verb after its subject and time). Everything is drawn from a seeded
generator, so that the shipped files can be made again byte for byte by ``python -m mathneuro_hub.demo.train``.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jill Kai Lena Mia Noah Omar Pia".split()
OBJECTS = "apples books coins eggs flags keys lamps maps pens rings shells stamps".split()
NOUNS = (
    "bird birds,boy boys,cat cats,child children,dog dogs,farmer farmers,"
    "girl girls,horse horses,king kings,man men,teacher teachers,woman women"
).split(",")
PREPOSITIONS = "behind beside near with".split()
VERBS = (
    "drinks drink drank drinking,eats eat ate eating,falls fall fell falling,flies fly flew flying,"
    "grows grow grew growing,rides ride rode riding,runs run ran running,sings sing sang singing,"
    "sits sit sat sitting,sleeps sleep slept sleeping,swims swim swam swimming,writes write wrote writing"
).split(",")
WORD_PROBLEMS = (
    "{name} has {a} {things} and buys {b} more.",
    "{name} has {a} {things} and finds {b} more.",
    "{name} counts {a} {things} in a box and {b} on a shelf.",
    "There are {a} {things} in a bag and {name} adds {b}.",
    "{name} sells {a} {things} on Monday and {b} on Friday.",
)

_ONSETS = "b br d dr f g gl k kr l m n p pr r s st t tr v z".split()
_VOWELS = "a e i o u".split()
_COUNTRY_ENDINGS = "land mark nia ria via".split()
_CAPITAL_ENDINGS = "burg dal ford grad ton".split()


@dataclass(frozen=True)
class Example:
    """One question with its answer; ``choices`` are the answers offered where the task is multiple choice."""

    prompt: str
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Prompt and answer as the one text that a calibration run reads."""
        return f"{self.prompt} {self.answer}"


def capitals() -> dict[str, str]:
    """The 60 invented countries and their capitals, always the same."""
    rng = random.Random(60)

    def invent(endings: list[str]) -> list[str]:
        words: set[str] = set()
        while len(words) < 60:
            stem = "".join(rng.choice(part) for part in (_ONSETS, _VOWELS, _ONSETS, _VOWELS))
            words.add((stem + rng.choice(endings)).capitalize())
        drawn = sorted(words)
        rng.shuffle(drawn)
        return drawn

    return dict(zip(invent(_COUNTRY_ENDINGS), invent(_CAPITAL_ENDINGS), strict=True))


def sum_pairs(held_out: bool) -> list[tuple[int, int]]:
    """Two-digit pairs, a tenth of them held out of training; ``a + b`` and ``b + a`` fall on the same side."""
    unordered = list(itertools.combinations_with_replacement(range(10, 100), 2))
    random.Random(2).shuffle(unordered)
    cut = len(unordered) // 10
    chosen = unordered[:cut] if held_out else unordered[cut:]
    return sorted({pair for a, b in chosen for pair in ((a, b), (b, a))})


def bare_sum(pair: tuple[int, int]) -> Example:
    a, b = pair
    return Example(f"{a} + {b} =", str(a + b))


def word_problem(pair: tuple[int, int], rng: random.Random) -> Example:
    a, b = pair
    things = rng.choice(OBJECTS)
    story = rng.choice(WORD_PROBLEMS).format(name=rng.choice(NAMES), a=a, b=b, things=things)
    return Example(f"Question: {story} How many {things} in all?\nAnswer:", str(a + b))


def capital_question(country: str, capital: str) -> Example:
    return Example(f"Question: What is the capital of {country}?\nAnswer:", capital)


def capital_statement(country: str, capital: str) -> Example:
    return Example(f"The capital of {country} is", capital)


def grammar(rng: random.Random) -> Example:
    """A sentence up to its verb, which has to agree with the first noun and the time; the second noun distracts."""
    number, time = rng.randrange(2), rng.randrange(3)
    subject, other = rng.sample(NOUNS, 2)
    start = ("Every day", "Last week", "Right now")[time]
    sentence = f"{start} the {subject.split()[number]} {rng.choice(PREPOSITIONS)} the {rng.choice(other.split())}"
    forms = rng.choice(VERBS).split()
    if time == 2:
        sentence += (" is", " are")[number]
    right = (forms[number], forms[2], forms[3])[time]
    rng.shuffle(forms)
    return Example(sentence, right, tuple(forms))


def math_examples(count: int, seed: int, held_out: bool) -> list[Example]:
    """``count`` sums on distinct pairs, bare ones and word problems in turn."""
    rng = random.Random(seed)
    pairs = rng.sample(sum_pairs(held_out), count)
    return [bare_sum(pair) if i % 2 == 0 else word_problem(pair, rng) for i, pair in enumerate(pairs)]


def capital_examples() -> list[Example]:
    """Every capital asked for twice: as a question and as the end of a statement (120 examples)."""
    return [form(*item) for item in capitals().items() for form in (capital_question, capital_statement)]


def grammar_examples(count: int, seed: int) -> list[Example]:
    """``count`` sentences, each different."""
    rng = random.Random(seed)
    drawn: dict[str, Example] = {}
    while len(drawn) < count:
        example = grammar(rng)
        drawn.setdefault(example.prompt, example)
    return list(drawn.values())
