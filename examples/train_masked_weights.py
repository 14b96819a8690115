"""Train only the weights that carry a skill, with stock PEFT, and look at what moved.

The bundled model adds two-digit numbers. Its math weights, and nothing else, are trained for a few steps on a new
rule: the answer is one more than the sum. Run it with ``python examples/train_masked_weights.py``; it takes seconds.
"""

from __future__ import annotations

import torch
from peft import get_peft_model

from mathneuro_hub import Calibrator, create_adapter, find_base, shira_config
from mathneuro_hub.demo.texts import bare_sum, capital_examples, sum_pairs

STEPS, BATCH, LEARNING_RATE = 40, 32, 5e-3

# PEFT makes sparse tensors, and torch wants to be told whether to check each of them.
torch.sparse.check_sparse_tensor_invariants.disable()
torch.manual_seed(0)

base = find_base("demo")
calibrator = Calibrator(base)
adapter = create_adapter(
    base,
    skill=calibrator.norms("demo:math"),
    contrasts=[calibrator.norms("demo:capitals"), calibrator.norms("demo:grammar")],
)
model, tokenizer = base.load(dtype="float32"), base.tokenizer()
before = {name: value.clone() for name, value in model.state_dict().items()}


def loss_on(texts: list[str], model: torch.nn.Module) -> torch.Tensor:
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss


def new_rule(pairs: list[tuple[int, int]]) -> list[str]:
    return [f"{bare_sum(pair).prompt} {sum(pair) + 1}" for pair in pairs]


train_pairs = sum_pairs(held_out=False)
tests = {
    "new rule, held-out sums": new_rule(sum_pairs(held_out=True)[:200]),
    "capitals, as a control": [example.text for example in capital_examples()],
}


@torch.no_grad()
def losses(model: torch.nn.Module) -> list[float]:
    return [loss_on(texts, model).item() for texts in tests.values()]


trainable = get_peft_model(model, shira_config(adapter, model))
start = losses(trainable)
optimizer = torch.optim.AdamW([p for p in trainable.parameters() if p.requires_grad], LEARNING_RATE, weight_decay=0.0)
for _ in range(STEPS):
    drawn = [train_pairs[i] for i in torch.randint(len(train_pairs), (BATCH,)).tolist()]
    loss_on(new_rule(drawn), trainable).backward()
    optimizer.step()
    optimizer.zero_grad()
end = losses(trainable)

after = trainable.merge_and_unload().state_dict()
inside = outside = 0
for name, value in before.items():
    moved = after[name] != value
    masked = adapter.masks[name].dense() if name in adapter.masks else torch.zeros_like(moved)
    inside += int((moved & masked).sum())
    outside += int((moved & ~masked).sum())

held, total = adapter.masks.held, adapter.config.total
print(f"Trained {held:,} of {total:,} weights for {STEPS} steps of {BATCH} sums.")
print(f"Moved inside the masks:  {inside:,} of {held:,}")
print(f"Moved outside the masks: {outside:,} of {total - held:,}")
for name, first, last in zip(tests, start, end, strict=True):
    print(f"Loss per token, {name}: {first:.3f} before, {last:.3f} after")
