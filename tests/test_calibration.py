"""Activation norms against the plain oracle; what calibration refuses; its file."""

from __future__ import annotations

import json
from pathlib import Path

import models
import oracle
import pytest
import torch
from safetensors.torch import load_file, save_file

from mathneuro_hub import ActivationNorms, Calibrator, calibrate, find_base, find_weights
from mathneuro_hub.calibration.columns import count_positive, sample_norms, sample_norms_plain
from mathneuro_hub.errors import BaseMismatchError, CalibrationError, FormatError, ModelError, SettingError

TOKENIZER = models.tokenizer()


@pytest.mark.parametrize("config", [models.llama(), models.gpt2(), models.opt()], ids=["llama", "gpt2", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_norms_one_by_one_equal_the_oracle(config, dtype):
    model = models.build(config, dtype)
    norms = calibrate(model, TOKENIZER, models.text_set(), batch_size=1)
    expected = oracle.norms(model, TOKENIZER, models.TEXTS)
    for name in find_weights(model).weights:
        assert torch.equal(norms[name], expected[name]), name


@pytest.mark.parametrize("config", [models.llama(), models.gpt2(), models.opt()], ids=["llama", "gpt2", "opt"])
def test_batching_and_padding_change_norms_by_float_noise_only(config):
    model = models.build(config)
    one = calibrate(model, TOKENIZER, models.text_set(), batch_size=1)
    batched = calibrate(model, TOKENIZER, models.text_set(), batch_size=4)
    for site, vector in one.vectors.items():
        torch.testing.assert_close(batched.vectors[site], vector, rtol=1e-5, atol=1e-6)


def test_weights_that_read_one_tensor_share_one_vector():
    norms = calibrate(models.build(models.llama()), TOKENIZER, models.text_set())
    layer = "model.layers.0."
    assert norms.sites[f"{layer}self_attn.k_proj.weight"] == f"{layer}self_attn.q_proj.weight"
    assert norms.sites[f"{layer}self_attn.v_proj.weight"] == f"{layer}self_attn.q_proj.weight"
    assert norms.sites[f"{layer}mlp.up_proj.weight"] == f"{layer}mlp.gate_proj.weight"
    assert norms.sites[f"{layer}mlp.down_proj.weight"] == f"{layer}mlp.down_proj.weight"
    assert len(norms.vectors) == 8
    assert len(norms.sites) == 14


def test_a_sample_drawn_twice_counts_twice():
    model = models.build(models.llama())
    once = calibrate(model, TOKENIZER, models.text_set(models.TEXTS[:1]))
    twice = calibrate(model, TOKENIZER, models.text_set(models.TEXTS[:1] * 2))
    assert twice.samples == 2
    assert twice.tokens == 2 * once.tokens
    for site, vector in once.vectors.items():
        assert torch.equal(twice.vectors[site], 2 * vector)


def test_positive_counts_of_neurons_equal_a_count_by_hand():
    model = models.build(models.llama())
    seen = []
    handle = model.model.layers[0].mlp.act_fn.register_forward_hook(lambda m, a, out: seen.append((out > 0)[0].sum(0)))
    with torch.no_grad():
        for text in models.TEXTS:
            model(torch.tensor([TOKENIZER(text)["input_ids"]]))
    handle.remove()
    norms = calibrate(model, TOKENIZER, models.text_set(), batch_size=4)
    assert torch.equal(norms.positive["model.layers.0.mlp.act_fn"], torch.stack(seen).sum(0))
    assert norms.tokens == sum(len(TOKENIZER(text)["input_ids"]) for text in models.TEXTS)


def test_the_length_cap_is_recorded_and_counts_what_it_cut():
    model = models.build(models.llama())
    norms = calibrate(model, TOKENIZER, models.text_set(), max_length=8)
    lengths = [len(TOKENIZER(text)["input_ids"]) for text in models.TEXTS]
    assert norms.truncated == sum(length > 8 for length in lengths) == 3
    assert norms.tokens == sum(min(length, 8) for length in lengths)
    assert norms.provenance["settings"]["max_length"] == 8


def test_the_model_is_left_as_it_was():
    model = models.build(models.llama()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calibrate(model, TOKENIZER, models.text_set())
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_tensor_of_a_weight_s_size_is_kept():
    model = models.build(models.llama())
    norms = calibrate(model, TOKENIZER, models.text_set())
    kept = sum(vector.numel() for vector in norms.vectors.values())
    assert kept == 2 * (32 + 32 + 32 + 48)  # inputs of q/k/v, o, gate/up and down, in two layers
    assert all(vector.dtype == torch.float32 for vector in norms.vectors.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_name_the_weight(bad):
    model = models.build(models.llama())
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = bad
    with pytest.raises(CalibrationError, match=r"model\.layers\.1\.mlp\.down_proj\.weight is not finite"):
        calibrate(model, TOKENIZER, models.text_set())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_lm_head_is_covered_on_request_and_only_if_untied():
    untied = models.build(models.llama(tie_word_embeddings=False))
    assert "lm_head.weight" not in find_weights(untied).weights
    assert "lm_head.weight" in find_weights(untied, include_lm_head=True).weights
    norms = calibrate(untied, TOKENIZER, models.text_set(), batch_size=1, include_lm_head=True)
    assert torch.equal(norms["lm_head.weight"], oracle.norms(untied, TOKENIZER, models.TEXTS)["lm_head.weight"])
    tied = find_weights(models.build(models.llama()), include_lm_head=True)
    assert "lm_head.weight" not in tied.weights
    with pytest.raises(ModelError, match=r"do not cover lm_head\.weight"):
        calibrate(untied, TOKENIZER, models.text_set())["lm_head.weight"]


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("max_length", 0)])
def test_settings_out_of_range(option, value):
    with pytest.raises(SettingError, match=r"has to be at least 1"):
        calibrate(models.build(models.llama()), TOKENIZER, models.text_set(), **{option: value})


def test_norms_file_round_trip_is_exact_and_its_bytes_are_the_same_every_time(tmp_path: Path):
    norms = calibrate(models.build(models.llama()), TOKENIZER, models.text_set())
    norms.save(tmp_path / "a.safetensors")
    norms.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = ActivationNorms.load(tmp_path / "a.safetensors")
    assert loaded.sites == norms.sites
    assert (loaded.samples, loaded.tokens, loaded.truncated) == (norms.samples, norms.tokens, norms.truncated)
    assert loaded.provenance == json.loads(json.dumps(norms.provenance))
    for table in ("vectors", "positive"):
        mine, theirs = getattr(norms, table), getattr(loaded, table)
        assert sorted(mine) == sorted(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_norms_files_that_are_not_ours_are_refused(tmp_path: Path):
    path = tmp_path / "norms.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(FormatError, match="no readable norms file"):
        ActivationNorms.load(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(FormatError, match="no norms file of this project"):
        ActivationNorms.load(path)
    calibrate(models.build(models.llama()), TOKENIZER, models.text_set()).save(path)
    tensors = load_file(path)
    metadata = {"format": "mathneuro-norms", "format_version": "2", "record": "{}", "sites": "{}"}
    save_file(tensors, path, metadata)
    with pytest.raises(FormatError, match="norms format 2, this version reads 1"):
        ActivationNorms.load(path)
    save_file(tensors, path, metadata | {"format_version": "1", "sites": '{"a.weight": "nowhere"}'})
    with pytest.raises(FormatError, match="names inputs that it does not hold"):
        ActivationNorms.load(path)


def test_finished_norms_are_re_used_and_never_for_another_model_or_data(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MATHNEURO_CACHE", str(tmp_path / "cache"))
    base = find_base(models.save(tmp_path / "model", models.llama()))
    first = Calibrator(base).norms("demo:capitals")
    again = Calibrator(base)
    found = again.norms("demo:capitals")
    assert "model" not in vars(again), "the model was loaded although its norms were there"
    assert all(torch.equal(found.vectors[site], vector) for site, vector in first.vectors.items())
    capped = Calibrator(base, max_length=4)
    capped.norms("demo:capitals")
    assert "model" in vars(capped)
    torch.manual_seed(1)
    other = find_base(models.save(tmp_path / "other", models.llama(), torch.bfloat16))
    assert other.fingerprint != base.fingerprint
    fresh = Calibrator(other)
    fresh.norms("demo:capitals")
    assert "model" in vars(fresh)
    path = tmp_path / "norms.safetensors"
    first.save(path)
    assert Calibrator(base).norms(str(path)).samples == first.samples
    with pytest.raises(BaseMismatchError, match="were taken on model"):
        Calibrator(other).norms(str(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_fast_column_statistics_equal_the_plain_ones(dtype):
    torch.manual_seed(0)
    x = (torch.randn(3, 600, 70) * torch.logspace(-6, 3, 70)).to(dtype)
    x[:, :, 5] = 0.0
    x[:, :, 6] = -0.0
    mask = (torch.arange(600) < torch.tensor([600, 1, 311])[:, None]).long()
    torch.testing.assert_close(sample_norms(x, mask), sample_norms_plain(x, mask), rtol=1e-13, atol=0)
    assert torch.equal(count_positive(x, mask), ((x > 0) & (mask == 1)[:, :, None]).sum(1))
