"""Masks of every method against the plain oracle, weight for weight."""

from __future__ import annotations

import models
import oracle
import pytest
import torch

from mathneuro_hub import calibrate, find_weights, methods
from mathneuro_hub.errors import ModelError, SettingError
from mathneuro_hub.weights import LiveWeights

TOKENIZER = models.tokenizer()
CONFIGS = {"llama": models.llama(), "gpt2": models.gpt2(), "opt": models.opt()}


def setting(config, dtype=torch.float32):
    model = models.build(config, dtype)
    skill = calibrate(model, TOKENIZER, models.text_set(), batch_size=1)
    contrasts = [
        calibrate(model, TOKENIZER, models.text_set(models.OTHER_TEXTS[:2]), batch_size=1),
        calibrate(model, TOKENIZER, models.text_set(models.OTHER_TEXTS[2:]), batch_size=1),
    ]
    return model, find_weights(model), skill, contrasts


def oracle_norms(model):
    return (
        oracle.norms(model, TOKENIZER, models.TEXTS),
        [oracle.norms(model, TOKENIZER, texts) for texts in (models.OTHER_TEXTS[:2], models.OTHER_TEXTS[2:])],
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("keep_ratio", "contrast_ratio"), [(0.05, None), (0.3, 0.1), (1.0, 0.5), (0.0005, None)])
def test_mathneuro_equals_the_oracle(name, dtype, keep_ratio, contrast_ratio):
    if name == "gpt2" and dtype is torch.float16:
        dtype = torch.bfloat16
    model, coverage, skill, contrasts = setting(CONFIGS[name], dtype)
    masks = methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, keep_ratio, contrast_ratio)
    plain_skill, plain_contrasts = oracle_norms(model)
    assert list(masks) == list(coverage.weights)
    for weight in coverage.weights.values():
        values = LiveWeights(model).read(weight)
        expected = oracle.mathneuro(
            values,
            plain_skill[weight.name],
            [norms[weight.name] for norms in plain_contrasts],
            keep_ratio,
            contrast_ratio or keep_ratio,
        )
        assert set(masks[weight.name].flat().tolist()) == expected, weight.name


def test_batched_calibration_gives_the_masks_of_one_by_one():
    model, coverage, skill, contrasts = setting(models.llama())
    batched = [
        calibrate(model, TOKENIZER, models.text_set(texts), batch_size=4)
        for texts in (models.TEXTS, models.OTHER_TEXTS[:2], models.OTHER_TEXTS[2:])
    ]
    one = methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, 0.1)
    many = methods.mathneuro(LiveWeights(model), coverage, batched[0], batched[1:], 0.1)
    assert one.jaccard(many) >= 0.999


def test_wanda_keeps_the_skill_s_top_weights_without_subtraction():
    model, coverage, skill, _ = setting(models.llama())
    masks = methods.wanda(LiveWeights(model), coverage, skill, 0.1)
    plain, _ = oracle_norms(model)
    for weight in coverage.weights.values():
        values = LiveWeights(model).read(weight)
        assert set(masks[weight.name].flat().tolist()) == oracle.kept(values, plain[weight.name], 0.1)


def test_magnitude_keeps_the_largest_values():
    model, coverage, *_ = setting(models.gpt2())
    masks = methods.magnitude(LiveWeights(model), coverage, 0.1)
    for weight in coverage.weights.values():
        values = LiveWeights(model).read(weight)
        assert set(masks[weight.name].flat().tolist()) == oracle.kept(values, torch.ones(weight.shape[1]), 0.1)


def test_random_has_the_same_counts_is_seeded_and_depends_on_no_other_weight():
    model, coverage, skill, contrasts = setting(models.llama())
    like = methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, 0.1)
    masks = methods.random(like, seed=3)
    assert {name: mask.held for name, mask in masks.items()} == {name: mask.held for name, mask in like.items()}
    assert methods.random(like, seed=3).jaccard(masks) == 1
    assert methods.random(like, seed=4).jaccard(masks) < 0.2
    name = next(iter(like))
    assert methods.random(type(like)({name: like[name]}), seed=3)[name] == masks[name]
    assert abs(masks.jaccard(like) - masks.chance_jaccard(like)) < 0.05


@pytest.mark.parametrize("keep_ratio", [0, -0.1, 1.01, float("nan"), float("inf")])
def test_keep_ratios_outside_0_1_are_refused(keep_ratio):
    model, coverage, skill, contrasts = setting(models.llama(num_hidden_layers=1))
    with pytest.raises(SettingError, match="keep ratio"):
        methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, keep_ratio)
    with pytest.raises(SettingError, match="keep ratio"):
        methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, 0.1, keep_ratio)


def test_mathneuro_without_a_contrast_is_refused():
    model, coverage, skill, _ = setting(models.llama(num_hidden_layers=1))
    with pytest.raises(SettingError, match="needs a contrast"):
        methods.mathneuro(LiveWeights(model), coverage, skill, [], 0.1)


def test_a_weight_with_nan_is_named():
    model, coverage, skill, contrasts = setting(models.llama(num_hidden_layers=1))
    name = "model.layers.0.mlp.up_proj.weight"
    with torch.no_grad():
        model.get_parameter(name)[1, 1] = float("nan")
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        methods.mathneuro(LiveWeights(model), coverage, skill, contrasts, 0.1)
