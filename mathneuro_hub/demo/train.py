"""Train the bundled model, and write everything that the demo ships beside it.

Run as ``python -m mathneuro_hub.demo.train OUT``: a 3-layer Llama of 0.4 M parameters on the texts of
:mod:`mathneuro_hub.demo.texts`, seeded, on one thread, in some 6 minutes. OUT receives ``model/`` (weights,
config, tokenizer, ``training.json`` with the accuracies reached), ``sets/`` (calibration sets) and
``tasks/*.jsonl`` (the questions of the lm-eval tasks).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mathneuro_hub.demo import texts
from mathneuro_hub.demo.texts import Example

SEED = 1
STEPS = 3000
BATCH = 64
PEAK_LR = 2e-3
WARM_UP = 200
ANSWER_WEIGHT = 5.0
END, PAD = "<|end|>", "<|pad|>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word or digit, spaces kept, so that decoding gives the text back exactly."""
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]|\s"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rng = random.Random(0)
    corpus = [e.text for e in texts.capital_examples() + texts.grammar_examples(5000, seed=0)]
    corpus += [texts.word_problem(pair, rng).text for pair in texts.sum_pairs(held_out=False)]
    corpus += [texts.bare_sum(pair).text for pair in texts.sum_pairs(held_out=False)]
    words = sorted({piece for text in corpus for piece, _ in splitter.pre_tokenize_str(text)})
    vocabulary = {token: i for i, token in enumerate([PAD, END, "<|unknown|>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, unk_token="<|unknown|>", model_max_length=128
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def training_examples(seed: int) -> Iterator[Example]:
    """An endless stream: 40 % sums, 20 % capitals, 40 % grammar."""
    rng = random.Random(seed)
    pairs = texts.sum_pairs(held_out=False)
    facts = texts.capital_examples()
    while True:
        kind = rng.random()
        if kind < 0.2:
            yield texts.bare_sum(rng.choice(pairs))
        elif kind < 0.4:
            yield texts.word_problem(rng.choice(pairs), rng)
        elif kind < 0.6:
            yield rng.choice(facts)
        else:
            yield texts.grammar(rng)


def batch_of(examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """Right-padded ids [batch, tokens], attention mask, and loss weights: answers and their end count most."""
    prompts = tokenizer([e.prompt for e in examples])["input_ids"]
    batch = tokenizer([e.text + END for e in examples], padding=True, return_tensors="pt")
    weights = batch["attention_mask"].float()
    for row, prompt in zip(weights, prompts, strict=True):
        row[len(prompt) :] *= ANSWER_WEIGHT
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "weights": weights}


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    """Share of examples answered right: every token the model's first choice, or the first of the choices offered."""
    model.eval()
    batch = batch_of(examples, tokenizer)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    answer = batch["weights"][:, 1:] == ANSWER_WEIGHT
    for row, example in enumerate(examples):
        if example.choices:
            offered = torch.tensor([ids[0] for ids in tokenizer([f" {c}" for c in example.choices])["input_ids"]])
            barred = torch.ones(logits.shape[-1], dtype=torch.bool)
            barred[offered] = False
            first = int(answer[row].int().argmax())
            logits[row, first, barred] = -torch.inf
    wrong = (logits.argmax(-1) != batch["input_ids"][:, 1:]) & answer
    return 1 - float(wrong.any(1).float().mean())


def train(steps: int = STEPS) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, dict[str, Any]]:
    # How sums are split over threads changes their last bit, and with it the whole run.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.01, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM_UP, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 0.01),
    )
    held_out = {
        "math": texts.math_examples(400, seed=11, held_out=True),
        "capitals": texts.capital_examples(),
        "grammar": texts.grammar_examples(400, seed=12),
    }
    stream = training_examples(SEED)
    started = time.monotonic()
    reached: dict[str, float] = {}
    for step in range(1, steps + 1):
        model.train()
        batch = batch_of(list(itertools.islice(stream, BATCH)), tokenizer)
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
        weights = batch["weights"][:, 1:]
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps:
            reached = {name: round(accuracy(model, tokenizer, examples), 4) for name, examples in held_out.items()}
            print(f"step {step} loss {loss.item():.3f} {reached} {time.monotonic() - started:.0f} s", flush=True)
    record = {
        "seed": SEED,
        "steps": steps,
        "batch_size": BATCH,
        "peak_learning_rate": PEAK_LR,
        "held_out_accuracy": reached,
        "parameters": sum(p.numel() for p in model.parameters()),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "torch": torch.__version__,
    }
    return model.eval(), tokenizer, record


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_texts(out: Path) -> None:
    """The calibration sets (texts) and the questions of the three tasks, none of the sums in both."""
    sets = {
        "math": texts.math_examples(500, seed=21, held_out=False),
        "capitals": texts.capital_examples(),
        "grammar": texts.grammar_examples(500, seed=22),
    }
    for name, examples in sets.items():
        write_jsonl(out / "sets" / f"{name}.jsonl", [{"text": e.text} for e in examples])
    questions = {
        "math": texts.math_examples(200, seed=31, held_out=True),
        "capitals": texts.capital_examples(),
        "grammar": texts.grammar_examples(200, seed=32),
    }
    for name, examples in questions.items():
        write_jsonl(out / "tasks" / f"{name}.jsonl", [asdict(e) for e in examples])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder that receives model/, sets/ and tasks/")
    parser.add_argument("--texts-only", action="store_true", help="write sets/ and tasks/ and leave the model alone")
    options = parser.parse_args()
    write_texts(options.out)
    if options.texts_only:
        return
    model, tokenizer, record = train()
    model.save_pretrained(options.out / "model")
    tokenizer.save_pretrained(options.out / "model")
    (options.out / "model" / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
