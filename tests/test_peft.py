"""PEFT: an exported adapter is the attached one, training moves masked weights alone, and a LoRA is never edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import models
import pytest
import torch
from mathneuro_hub_cli.failures import guarded
from mathneuro_hub_cli.main import app
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mathneuro_hub import (
    MaskSet,
    NeurosurgeryAdapter,
    NeurosurgeryModel,
    calibrate,
    create_adapter,
    export_peft,
    find_base,
    find_weights,
    shira_config,
)
from mathneuro_hub.adapter.fingerprint import record_weight
from mathneuro_hub.errors import BaseMismatchError, ModelError, OutputError, SettingError
from mathneuro_hub.masks import Mask

ROOT = Path(__file__).parent.parent
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
TOKENS = torch.tensor([[5, 9, 30, 12, 7, 40], [11, 2, 3, 60, 61, 8]])
UP = "model.layers.0.mlp.up_proj.weight"

# PEFT's own: torch remarks on the sparse tensors it makes, transformers on a name it still uses.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


def uneven(base, **options) -> NeurosurgeryAdapter:
    """The largest weights of the model, fewer in each next weight and none in the last, so that padding is needed."""
    adapter = create_adapter(base, method="magnitude", keep_ratio=0.2, **options)
    masks, last = {}, len(adapter.masks) - 1
    for place, (name, mask) in enumerate(adapter.masks.items()):
        held = mask.held * (last - place) // last
        masks[name] = Mask.from_flat(mask.shape, mask.flat()[torch.randperm(mask.held)[:held]])
    return adapter_of(base, adapter, masks)


def adapter_of(base, adapter, masks) -> NeurosurgeryAdapter:
    coverage = base.coverage(adapter.config.include_lm_head)
    weights = {n: record_weight(base.weights.read(w), masks[n]) for n, w in coverage.weights.items()}
    return NeurosurgeryAdapter(replace(adapter.config, weights=weights), MaskSet(masks))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return models.save(tmp_path_factory.mktemp("base") / "llama", models.llama())


@pytest.fixture(scope="module")
def base(folder):
    return find_base(folder)


@pytest.fixture(scope="module")
def adapter(base):
    torch.manual_seed(0)
    return uneven(base)


def load(folder: Path, dtype: torch.dtype | str = "auto"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def attached(folder: Path, adapter: NeurosurgeryAdapter, scale: float, dtype: torch.dtype | str = "auto"):
    return NeurosurgeryModel.from_pretrained(load(folder, dtype), adapter, scale=scale).merge_and_unload()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("scale", [0.0, 1.1])
@pytest.mark.parametrize("stored", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "config", [models.llama(tie_word_embeddings=False, num_hidden_layers=3), models.opt()], ids=["llama", "opt"]
)
def test_stock_peft_loads_the_very_model_that_attaching_gives(tmp_path, config, stored, scale):
    base = find_base(models.save(tmp_path / "base", config, stored, max_shard_size="20KB"))
    adapter = uneven(base, include_lm_head=True)
    export_peft(adapter, base, tmp_path / "peft", scale=scale)
    for dtype in {stored, torch.float32} if stored is not torch.float64 else {stored}:
        expected = attached(base.folder, adapter, scale, dtype)
        loaded = PeftModel.from_pretrained(load(base.folder, dtype), tmp_path / "peft")
        assert torch.equal(logits(loaded), logits(expected))
        assert not torch.equal(logits(loaded), logits(load(base.folder, dtype)))
        merged = snapshot(loaded.merge_and_unload())
        assert all(torch.equal(merged[name], value) for name, value in expected.state_dict().items())


@pytest.mark.parametrize("scale", [-2.1, 0.3, 3.7])
def test_other_scales_and_dtypes_are_within_one_rounding(tmp_path, folder, base, adapter, scale):
    export_peft(adapter, base, tmp_path / "peft", scale=scale)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        plain = snapshot(load(folder, dtype))
        merged = PeftModel.from_pretrained(load(folder, dtype), tmp_path / "peft").merge_and_unload().state_dict()
        for name, value in attached(folder, adapter, scale, dtype).state_dict().items():
            # A base that is loaded in a narrower dtype is rounded itself, before it is scaled.
            rounding = torch.finfo(dtype).eps * (1 + abs(scale)) * plain[name].double().abs()
            assert ((merged[name].double() - value.double()).abs() <= rounding).all(), name


def test_the_recommended_scale_is_the_default_and_the_base_is_named_without_its_path(tmp_path, folder, base, adapter):
    export_peft(adapter.with_scale(0.5), base, tmp_path / "peft")
    loaded = PeftModel.from_pretrained(load(folder), tmp_path / "peft")
    assert torch.equal(logits(loaded), logits(attached(folder, adapter, 0.5)))
    with loaded.disable_adapter():
        assert torch.equal(logits(loaded), logits(load(folder)))
    text = (tmp_path / "peft" / "adapter_config.json").read_text()
    assert json.loads(text)["base_model_name_or_path"] == "llama"
    assert str(folder.parent) not in text
    assert {path.name for path in (tmp_path / "peft").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def test_every_value_lies_in_the_mask_and_padding_is_zero(tmp_path, base, adapter):
    export_peft(adapter, base, tmp_path / "peft", scale=0.0)
    tensors = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    rank = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["r"]
    padded = 0
    for name, mask in adapter.masks.items():
        path = "base_model.model." + name.removesuffix(".weight")
        if not mask.held:
            assert f"{path}.shira_weight" not in tensors
            continue
        rows, columns = tensors.pop(f"{path}.shira_indices").long()
        values = tensors.pop(f"{path}.shira_weight")
        assert values.numel() == rank * sum(mask.shape)
        flat = rows * mask.shape[1] + columns
        assert Mask.from_flat(mask.shape, flat.unique()) == mask
        assert not values[mask.held :].any()
        padded += values.numel() - mask.held
    assert padded > 0
    assert not tensors


def test_the_same_export_has_the_same_bytes_and_peft_can_save_and_load_it_again(
    tmp_path, folder, base, adapter, monkeypatch
):
    for name in ("a", "b"):
        export_peft(adapter, base, tmp_path / name)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    loaded = PeftModel.from_pretrained(load(folder), tmp_path / "a")
    monkeypatch.chdir(folder.parent)  # where PEFT finds the base by the name that the export recorded
    loaded.save_pretrained(tmp_path / "again")
    again = PeftModel.from_pretrained(load(folder), tmp_path / "again")
    assert torch.equal(logits(again), logits(loaded))


def test_peft_finds_the_base_by_the_recorded_name(tmp_path, base, adapter, monkeypatch):
    export_peft(adapter, base, tmp_path / "peft")
    monkeypatch.chdir(base.folder.parent)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "peft")
    assert torch.equal(logits(loaded), logits(attached(base.folder, adapter, adapter.scale)))


def train(model, steps: int = 3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_training_moves_the_masked_weights_and_nothing_else(tmp_path, folder, adapter, dtype):
    model = load(folder, dtype)
    before, start = snapshot(model), logits(model)
    trainable = get_peft_model(model, shira_config(adapter, model))
    assert torch.equal(logits(trainable), start)
    assert all("shira_weight" in name for name, p in trainable.named_parameters() if p.requires_grad)
    first = train(trainable, steps=1)
    assert train(trainable, steps=4) < first
    trained = logits(trainable)
    trainable.save_pretrained(tmp_path / "trained")
    merged = trainable.merge_and_unload()
    assert torch.equal(logits(merged), trained)
    after = merged.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        moved = after[name] != value
        mask = adapter.masks.get(name)
        if mask is None or not mask.held:
            assert not moved.any(), name
        else:
            assert not (moved & ~mask.dense()).any(), name
            assert moved[mask.dense()].float().mean() > 0.9, name
    again = PeftModel.from_pretrained(load(folder, dtype), tmp_path / "trained")
    assert torch.equal(logits(again), trained)


def test_an_exported_adapter_trains_on_within_the_mask(tmp_path, folder, base, adapter):
    export_peft(adapter, base, tmp_path / "peft")
    before = snapshot(load(folder))
    trainable = PeftModel.from_pretrained(load(folder), tmp_path / "peft", is_trainable=True)
    train(trainable)
    after = trainable.merge_and_unload().state_dict()
    for name, mask in adapter.masks.items():
        assert not ((after[name] != before[name]) & ~mask.dense()).any(), name
    assert not torch.equal(after[UP], attached(folder, adapter, adapter.scale).state_dict()[UP])


def test_the_config_belongs_to_one_model_object(folder, adapter):
    config = shira_config(adapter, load(folder))
    with pytest.raises(ModelError, match="made for another model object"):
        get_peft_model(load(folder), config)


def test_what_shira_cannot_hold_is_refused_by_name(tmp_path, base, adapter):
    gpt2 = find_base(models.save(tmp_path / "gpt2", models.gpt2()))
    conv = create_adapter(gpt2, method="magnitude")
    message = r"transformer\.h\.0\.attn\.c_attn\.weight belongs to a Conv1D"
    with pytest.raises(ModelError, match=message):
        export_peft(conv, gpt2, tmp_path / "peft")
    with pytest.raises(ModelError, match=message):
        shira_config(conv, load(gpt2.folder))

    dense = create_adapter(base, method="magnitude", keep_ratio=0.9)
    message = (
        r"up_proj\.weight holds 1382 entries and needs rank 18 .* and .*q_proj\.weight \[32, 32\] has room for rank 16"
    )
    masks = {n: m if n == UP else Mask.empty(m.shape) for n, m in dense.masks.items()}
    alone = adapter_of(base, dense, masks)
    export_peft(alone, base, tmp_path / "one")
    with pytest.raises(ModelError, match=r"needs rank 18"):
        export_peft(dense, base, tmp_path / "peft")
    masks |= {n: m for n, m in adapter.masks.items() if "layers.1.self_attn.q_proj" in n}
    with pytest.raises(ModelError, match=message):
        export_peft(adapter_of(base, dense, masks), base, tmp_path / "peft")

    empty = adapter_of(base, dense, {n: Mask.empty(m.shape) for n, m in dense.masks.items()})
    with pytest.raises(ModelError, match="holds no weight at all"):
        export_peft(empty, base, tmp_path / "peft")
    assert not (tmp_path / "peft").exists()


def test_a_linear_layer_with_a_forward_of_its_own_is_refused(folder, adapter):
    class Router(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    model = load(folder)
    model.get_submodule(UP.removesuffix(".weight")).__class__ = Router
    with pytest.raises(ModelError, match=r"up_proj\.weight belongs to a Router"):
        shira_config(adapter, model)


def test_another_base_a_taken_folder_and_a_scale_that_is_no_number(tmp_path, folder, base, adapter):
    other = find_base(models.save(tmp_path / "other", models.llama(intermediate_size=64)))
    with pytest.raises(BaseMismatchError, match=r"has shape \[64, 32\] here"):
        export_peft(adapter, other, tmp_path / "peft")
    with pytest.raises(BaseMismatchError, match=r"has shape \[64, 32\] here"):
        shira_config(adapter, load(other.folder))
    with pytest.raises(BaseMismatchError, match="unedited"):
        shira_config(adapter, attached(folder, adapter, 0.0))
    with pytest.raises(SettingError, match="finite"):
        export_peft(adapter, base, tmp_path / "peft", scale=float("nan"))
    assert not (tmp_path / "peft").exists()
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "kept").write_text("kept")
    with pytest.raises(OutputError, match="--overwrite"):
        export_peft(adapter, base, tmp_path / "peft")
    assert (tmp_path / "peft" / "kept").read_text() == "kept"
    export_peft(adapter, base, tmp_path / "peft", overwrite=True)
    assert not (tmp_path / "peft" / "kept").exists()


@pytest.mark.parametrize("wrap", ["wrapper", "wrapped", "integrated", "shira"])
def test_a_model_with_a_peft_adapter_is_refused_with_the_reason_and_left_alone(folder, adapter, wrap):
    model = load(folder)
    if wrap == "shira":
        given = get_peft_model(model, shira_config(adapter, model))
    elif wrap == "integrated":
        model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        given = model
    else:
        wrapper = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        given = wrapper if wrap == "wrapper" else model
    before = snapshot(given)
    reason = r"carries a PEFT adapter, .*; call merge_and_unload\(\) on it, or load the base model alone"
    for refused in (
        lambda: find_weights(given),
        lambda: calibrate(given, models.tokenizer(), models.text_set()),
        lambda: NeurosurgeryModel.from_pretrained(given, adapter),
        lambda: shira_config(adapter, given),
    ):
        with pytest.raises(ModelError, match=reason):
            refused()
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


def test_after_the_lora_is_merged_it_is_a_base_of_its_own(tmp_path, folder, adapter):
    lora = get_peft_model(load(folder), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    merged = lora.merge_and_unload()
    assert calibrate(merged, models.tokenizer(), models.text_set()).samples == len(models.TEXTS)
    with pytest.raises(BaseMismatchError, match=r"q_proj\.weight holds other values"):
        NeurosurgeryModel.from_pretrained(merged, adapter)
    merged.save_pretrained(tmp_path / "merged")
    own = create_adapter(find_base(tmp_path / "merged"), method="magnitude")
    before = logits(merged)
    edited = NeurosurgeryModel.from_pretrained(merged, own, scale=0.0)
    assert not torch.equal(logits(edited), before)
    assert torch.equal(logits(edited.unload()), before)


def test_a_lora_removed_without_merging_leaves_the_base(folder, adapter):
    expected = logits(attached(folder, adapter, 0.0))
    lora = get_peft_model(load(folder), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    edited = NeurosurgeryModel.from_pretrained(lora.unload(), adapter, scale=0.0)
    assert torch.equal(logits(edited), expected)


def test_the_command_writes_what_the_function_does(tmp_path, folder, base, adapter, capsys):
    adapter.save_pretrained(tmp_path / "a")
    command = ["surgery", "export", "-a", str(tmp_path / "a"), "-m", str(folder), "--peft", str(tmp_path / "peft")]
    assert guarded(lambda: app([*command, "--scale", "0", "--format", "json"])) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["scale"], said["edited"]) == (0.0, adapter.config.held)
    export_peft(adapter, base, tmp_path / "direct", scale=0.0)
    for file in (tmp_path / "direct").iterdir():
        assert (tmp_path / "peft" / file.name).read_bytes() == file.read_bytes()
    assert said["bytes"] == sum(path.stat().st_size for path in (tmp_path / "peft").iterdir())
    assert guarded(lambda: app(command)) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert guarded(lambda: app([*command, "--overwrite", "--format", "quiet"])) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'peft'}\n"


def test_the_example_trains_the_masked_weights_and_says_so(tmp_path):
    script = ROOT / "examples" / "train_masked_weights.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MATHNEURO_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    inside, outside = (
        re.search(rf"Moved {side} the masks: +([\d,]+) of", finished.stdout)[1] for side in ("inside", "outside")
    )
    assert (inside != "0", outside) == (True, "0")
    before, after = re.search(r"new rule.*: (\S+) before, (\S+) after", finished.stdout).groups()
    assert float(after) < 0.9 * float(before)


def test_the_page_s_code_runs_as_printed(tmp_path, folder, base, adapter, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_peft(adapter, base, "math-peft")
    adapter.save_pretrained("math")
    page = (ROOT / "docs" / "how-to" / "peft.md").read_text(encoding="utf-8")
    loading, training = (part.split("```")[0] for part in page.split("```python\n")[1:])
    spoken: dict[str, object] = {}
    exec(loading.replace("org/base", str(folder)), spoken)
    assert torch.equal(logits(spoken["model"]), logits(attached(folder, adapter, adapter.scale)))
    spoken["model"] = load(folder)
    exec(training, spoken)
    assert torch.equal(logits(spoken["trainable"]), logits(load(folder)))
