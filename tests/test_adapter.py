"""Adapters: made, saved, loaded, attached, detached, baked; and every base that is not theirs refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import models
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathneuro_hub import (
    Calibrator,
    NeurosurgeryAdapter,
    NeurosurgeryModel,
    bake,
    combine_adapters,
    create_adapter,
    find_base,
)
from mathneuro_hub.adapter.config import CONFIG_FILE, MASKS_FILE
from mathneuro_hub.errors import BaseMismatchError, FormatError, ModelError, OutputError, SettingError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make(base, **options):
    calibrator = Calibrator(base, use_cache=False, include_lm_head=options.get("include_lm_head", False))
    settings = {"keep_ratio": 0.1, "scale": 1.1, **options}
    return create_adapter(
        base,
        skill=calibrator.norms("demo:math"),
        contrasts=[calibrator.norms("demo:capitals")],
        **settings,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return models.save(tmp_path_factory.mktemp("base") / "llama", models.llama())


@pytest.fixture(scope="module")
def base(folder):
    return find_base(folder)


@pytest.fixture(scope="module")
def adapter(base):
    return make(base)


@pytest.fixture(scope="module")
def random_adapter(base):
    return make(base, method="random", keep_ratio=0.3)


def load(folder: Path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bytes(model, before) -> bool:
    state = model.state_dict()
    return state.keys() == before.keys() and all(
        torch.equal(state[name].contiguous().view(torch.uint8), before[name].contiguous().view(torch.uint8))
        for name in before
    )


def expected_edit(before, adapter, scale):
    """The edit by hand: each masked value times the scale in fp32, rounded once."""
    edited = dict(before)
    for name, mask in adapter.masks.items():
        dense = mask.dense()
        values = before[name]
        edited[name] = torch.where(dense, (values.float() * torch.tensor(scale)).to(values.dtype), values)
    return edited


def test_a_created_adapter_says_what_it_is(base, adapter):
    config = adapter.config
    assert config.held == adapter.masks.held > 0
    assert config.covered == adapter.masks.numel
    assert config.density == adapter.masks.density
    assert config.base_model_name_or_path == "llama"
    assert config.total == sum(p.numel() for p in load(base.folder).parameters())
    left_out = {name: reason for name, _, reason in config.left_out}
    assert left_out["model.embed_tokens.weight"] == "embedding"
    assert config.covered + sum(numel for _, numel, _ in config.left_out) == config.total
    assert config.data["skill"]["name"] == "demo:math"
    assert str(base.folder.parent) not in config.to_json()


def test_save_and_load_give_an_equal_adapter_and_equal_bytes(adapter, tmp_path):
    adapter.save_pretrained(tmp_path / "a")
    loaded = NeurosurgeryAdapter.from_pretrained(tmp_path / "a")
    assert loaded.config.to_json() == adapter.config.to_json()
    assert all(loaded.masks[name] == mask for name, mask in adapter.masks.items())
    loaded.save_pretrained(tmp_path / "b")
    for file in (CONFIG_FILE, MASKS_FILE):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1.1, -2.0])
def test_attaching_scales_the_masked_weights_and_detaching_restores_every_byte(folder, adapter, dtype, scale):
    model = load(folder, dtype)
    before = snapshot(model)
    attached = NeurosurgeryModel.from_pretrained(model, adapter, scale=scale)
    assert same_bytes(model, expected_edit(before, adapter, scale))
    with attached.disable_adapter():
        assert same_bytes(model, before)
    attached.set_scale(1.5)
    assert same_bytes(model, expected_edit(before, adapter, 1.5))
    attached.set_scale(1.0)
    assert same_bytes(model, before)
    for step in range(20):
        attached.set_scale(0.9 + step / 100)
    assert attached.unload() is model
    assert same_bytes(model, before)


@pytest.mark.parametrize(
    "config", [models.llama(tie_word_embeddings=False), models.gpt2(), models.opt()], ids=["llama", "gpt2", "opt"]
)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_attach_and_bake_give_identical_bytes(tmp_path, config, dtype):
    folder = models.save(tmp_path / "base", config, dtype, max_shard_size="20KB")
    base = find_base(folder)
    adapter = (
        make(base, include_lm_head=config.model_type == "llama")
        if dtype is not torch.float16
        else make(base, method="magnitude")
    )
    bake(base, adapter, tmp_path / "baked", scale=0.7)
    model = load(folder, "auto")
    NeurosurgeryModel.from_pretrained(model, adapter, scale=0.7).merge_and_unload()
    assert same_bytes(load(tmp_path / "baked", "auto"), snapshot(model))
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in (tmp_path / "baked").iterdir()} == names
    assert len([name for name in names if name.endswith(".safetensors")]) > 1
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert (tmp_path / "baked" / path.name).read_bytes() == path.read_bytes()


def test_the_wrapper_behaves_like_the_model(folder, adapter):
    model = load(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("12 + 34 =", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain = model(tokens).logits
        modules = [name for name, _ in model.named_modules()]
        attached = NeurosurgeryModel.from_pretrained(model, adapter, scale=0.0)
        assert not torch.equal(attached(tokens).logits, plain)
        with attached.disable_adapter():
            assert torch.equal(attached(tokens).logits, plain)
        assert attached.generate(tokens, max_new_tokens=2, do_sample=False).shape == (1, tokens.shape[1] + 2)
        assert [name for name, _ in model.named_modules()] == modules
        merged = attached.merge_and_unload()
        assert merged is model
        assert not torch.equal(merged(tokens).logits, plain)
    with pytest.raises(ModelError, match="was unloaded"):
        attached(tokens)


def test_several_adapters_multiply_where_they_overlap_and_zero_wins(folder, adapter, random_adapter):
    model = load(folder)
    before = snapshot(model)
    attached = NeurosurgeryModel.from_pretrained(model, adapter, scale=2.0)
    attached.add_adapter("other", random_adapter.with_scale(3.0))
    assert (adapter.masks & random_adapter.masks).held > 0

    def factors(first, second):
        return {
            name: torch.where(mask.dense(), first, 1.0) * torch.where(random_adapter.masks[name].dense(), second, 1.0)
            for name, mask in adapter.masks.items()
        }

    def matches(first, second):
        state = model.state_dict()
        return all(torch.equal(state[name], before[name] * factor) for name, factor in factors(first, second).items())

    assert matches(2.0, 3.0)
    attached.set_scale(0.0, "other")
    assert matches(2.0, 0.0)
    attached.set_adapter("default")
    assert matches(2.0, 1.0)
    attached.set_adapter(["default", "other"])
    attached.delete_adapter("default")
    assert matches(1.0, 0.0)
    assert attached.active_adapters == ["other"]
    attached.set_scale(3.0)
    attached.unload()
    assert same_bytes(model, before)


def test_scales_and_names_that_make_no_sense_are_refused_and_change_nothing(folder, adapter):
    model = load(folder)
    attached = NeurosurgeryModel.from_pretrained(model, adapter)
    before = snapshot(model)
    for scale in (float("nan"), float("inf")):
        with pytest.raises(SettingError, match="give a finite number"):
            attached.set_scale(scale)
        with pytest.raises(SettingError, match="give a finite number"):
            adapter.with_scale(scale)
    with pytest.raises(SettingError, match="no adapter 'nobody'"):
        attached.set_scale(1.0, "nobody")
    with pytest.raises(SettingError, match="'default' is attached already"):
        attached.add_adapter("default", adapter)
    for again in (model, attached):
        with pytest.raises(ModelError, match="attached already"):
            NeurosurgeryModel.from_pretrained(again, adapter)
    assert same_bytes(model, before)


def test_a_scale_below_the_dtype_s_precision_is_warned_of_with_what_it_changes(folder, adapter):
    model = load(folder, torch.bfloat16)
    attached = NeurosurgeryModel.from_pretrained(model, adapter)
    with pytest.warns(UserWarning, match=r"Scale 1\.002 is closer to 1 than bfloat16 can express: it changes (\d+) of"):
        attached.set_scale(1.002)
    attached.set_scale(1.01)
    attached.unload()


@pytest.mark.parametrize("stored", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("loaded", [*DTYPES.values(), torch.float64], ids=[*DTYPES, "fp64"])
def test_the_same_base_in_another_float_dtype_is_accepted(tmp_path, stored, loaded):
    folder = models.save(tmp_path / "base", models.llama(num_hidden_layers=1), stored)
    adapter = make(find_base(folder), method="magnitude")
    NeurosurgeryModel.from_pretrained(load(folder, loaded), adapter).unload()


def test_another_base_is_refused_and_left_alone(folder, base, adapter, tmp_path):
    other = load(folder)
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        other.get_parameter(name).add_(adapter.masks[name].dense() * 0.01)
    before = snapshot(other)
    with pytest.raises(BaseMismatchError, match=r"up_proj\.weight holds other values here"):
        NeurosurgeryModel.from_pretrained(other, adapter)
    assert same_bytes(other, before)
    wider = models.save(tmp_path / "wider", models.llama(intermediate_size=64))
    with pytest.raises(BaseMismatchError, match=r"has shape \[64, 32\] here and \[48, 32\] there"):
        NeurosurgeryModel.from_pretrained(load(wider), adapter)
    with pytest.raises(BaseMismatchError, match="no editable weight"):
        NeurosurgeryModel.from_pretrained(models.build(models.gpt2()), adapter)
    with pytest.raises(BaseMismatchError):
        bake(find_base(wider), adapter, tmp_path / "baked")
    assert not (tmp_path / "baked").exists()
    attached = NeurosurgeryModel.from_pretrained(load(folder), adapter, scale=0.0)
    edited = attached.merge_and_unload()
    with pytest.raises(BaseMismatchError, match="unedited"):
        NeurosurgeryModel.from_pretrained(edited, adapter)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / CONFIG_FILE).unlink(), "holds no adapter"),
        (lambda f: (f / MASKS_FILE).unlink(), "has a config but no masks"),
        (lambda f: (f / CONFIG_FILE).write_text("{"), "is damaged"),
        (lambda f: (f / CONFIG_FILE).write_bytes(b"\xff\xfe"), "is damaged"),
        (lambda f: _edit_config(f, format_version="9"), "adapter format 9, this version reads 1"),
        (lambda f: _edit_config(f, surprise=1), "unknown field 'surprise'"),
        (lambda f: _edit_config(f, scale="x"), "is damaged"),
        (lambda f: _edit_config(f, method="guess"), "no method 'guess'"),
        (lambda f: _edit_config(f, weights={}), "not of one adapter"),
        (lambda f: (f / MASKS_FILE).write_bytes(b"12345678"), MASKS_FILE),
    ],
)
def test_damaged_adapters_are_refused(adapter, tmp_path, damage, message):
    adapter.save_pretrained(tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(FormatError, match=message):
        NeurosurgeryAdapter.from_pretrained(tmp_path / "a")


def _edit_config(folder: Path, **changes) -> None:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_existing_outputs_are_replaced_only_on_request_and_only_when_complete(base, adapter, tmp_path):
    out = tmp_path / "out"
    adapter.save_pretrained(out)
    with pytest.raises(OutputError, match="--overwrite"):
        adapter.save_pretrained(out)
    with pytest.raises(OutputError, match="--overwrite"):
        bake(base, adapter, out)

    def fail(folder: Path) -> None:
        raise RuntimeError("stopped half way")

    with pytest.raises(RuntimeError):
        bake(base, adapter, out, overwrite=True, finish=fail)
    assert NeurosurgeryAdapter.from_pretrained(out).masks.held == adapter.masks.held
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    bake(base, adapter, out, overwrite=True)
    assert (out / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_baking_leaves_behind_what_would_hold_the_unedited_model(base, adapter, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(base.folder, folder)
    for name in ("pytorch_model.bin", "consolidated.safetensors", "model.gguf"):
        (folder / name).write_bytes(b"weights in another format")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    bake(find_base(folder), adapter, tmp_path / "baked")
    names = {path.name for path in (tmp_path / "baked").iterdir()}
    assert "chat_template.jinja" in names
    assert not names & {"pytorch_model.bin", "consolidated.safetensors", "model.gguf"}


def test_no_space_is_said_before_anything_is_written(base, adapter, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OutputError, match=r"the disk has 0\.0 GB left"):
        bake(base, adapter, tmp_path / "baked")
    assert not any(tmp_path.iterdir())


def test_combining_adapters(base, adapter, random_adapter):
    union = combine_adapters(base, adapter, random_adapter, "union", 1.2)
    assert all(union.masks[n] == adapter.masks[n] | random_adapter.masks[n] for n in adapter.masks)
    assert (union.scale, union.config.method) == (1.2, "combined")
    shared = combine_adapters(base, adapter, random_adapter, "intersect", 1.0)
    assert shared.config.held == (adapter.masks & random_adapter.masks).held
    rest = combine_adapters(base, adapter, random_adapter, "difference", 1.0)
    assert rest.config.held + shared.config.held == adapter.config.held
    NeurosurgeryModel.from_pretrained(load(base.folder), union).unload()
    with pytest.raises(SettingError, match="holds no weight"):
        combine_adapters(base, adapter, adapter, "difference", 1.0)
    with pytest.raises(SettingError, match="no operation 'xor'"):
        combine_adapters(base, adapter, adapter, "xor", 1.0)


def test_methods_that_need_norms_ask_for_them(base):
    for method in ("mathneuro", "wanda", "random"):
        with pytest.raises(SettingError, match="needs activation norms of the skill"):
            create_adapter(base, method=method)
    with pytest.raises(SettingError, match="no method 'guess'"):
        create_adapter(base, method="guess")
    assert create_adapter(base, method="magnitude").config.data == {}


def test_base_models_that_cannot_be_used(tmp_path, folder):
    with pytest.raises(ModelError, match="does not exist"):
        find_base(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        find_base(tmp_path / "empty")
    shutil.copytree(folder, tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").rename(tmp_path / "bin" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no safetensors checkpoint"):
        find_base(tmp_path / "bin").load()
    with pytest.raises(ModelError, match="not in the local cache"):
        find_base("some-org/some-model")


def test_the_checkpoint_and_the_live_model_give_the_same_values(base, folder):
    from mathneuro_hub.weights import LiveWeights

    live, stored = LiveWeights(load(folder, "auto")), load_file(folder / "model.safetensors")
    for name, weight in base.coverage().weights.items():
        assert torch.equal(base.weights.read(weight), live.read(weight))
        assert torch.equal(base.weights.read(weight), stored[name])


def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path):
    """A limit on file sizes stands in for a full disk: the write really fails, in the middle of a file."""
    code = (
        "import resource, sys\n"
        "from mathneuro_hub import bake, create_adapter, find_base\n"
        "base = find_base('demo'); adapter = create_adapter(base, method='magnitude')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    bake(base, adapter, sys.argv[1])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    finished = subprocess.run([sys.executable, "-c", code, str(tmp_path / "baked")], capture_output=True, text=True)
    assert finished.stdout.startswith("OutputError"), finished.stdout + finished.stderr
    assert "cannot be written: File too large; nothing was left behind" in finished.stdout
    assert not any(tmp_path.iterdir())
