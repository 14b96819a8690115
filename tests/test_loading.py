"""Loading by name: folders before the Hub, an adapter alone with its base, and what is said when something is missing."""

from __future__ import annotations

from dataclasses import replace

import models
import pytest
import torch

from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryModel, create_adapter
from mathneuro_hub.adapter.adapter import random_control
from mathneuro_hub.base_model import find_base
from mathneuro_hub.errors import FormatError, HubError, ModelError, SettingError


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A base in the folder ``base`` and an adapter of it in ``team/math``, below the working folder."""
    monkeypatch.chdir(tmp_path)
    models.save(tmp_path / "base", models.llama())
    adapter = create_adapter(find_base("base"), method="magnitude", scale=0.0)
    adapter.save_pretrained("team/math")
    return adapter


def test_a_folder_wins_over_a_hub_id_of_its_name(made):
    assert NeurosurgeryAdapter.from_pretrained("team/math").config == made.config
    assert NeurosurgeryAdapter.from_pretrained("team/math/").config == made.config
    with pytest.raises(FormatError, match="base holds no adapter"):
        NeurosurgeryAdapter.from_pretrained("base")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        NeurosurgeryAdapter.from_pretrained("team/other")
    with pytest.raises(HubError, match="local_files_only"):
        NeurosurgeryAdapter.from_pretrained("team/other", local_files_only=True, revision="v1")


def test_an_adapter_alone_brings_its_base(made, tmp_path, monkeypatch):
    alone = NeurosurgeryModel.from_pretrained("team/math", scale=0.5)
    both = NeurosurgeryModel.from_pretrained(find_base("base").load(), "team/math", scale=0.5)
    for name, value in both.get_base_model().state_dict().items():
        assert torch.equal(value, alone.get_base_model().state_dict()[name])
    alone.load_adapter("team/math", "again")
    assert alone.active_adapters == ["default", "again"]
    assert NeurosurgeryModel.from_pretrained(made).scales == {"default": 0.0}
    create_adapter(find_base("demo"), method="magnitude").save_pretrained("of-demo")
    assert type(NeurosurgeryModel.from_pretrained("of-demo").get_base_model()).__name__ == "LlamaForCausalLM"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="local folder named 'base', which is not here"):
        NeurosurgeryModel.from_pretrained(tmp_path / "team/math")
    assert made.find_base(tmp_path / "base").folder == tmp_path / "base"


def test_what_is_not_a_model_or_not_an_adapter(made):
    model = find_base("base").load()
    with pytest.raises(SettingError, match="no adapter to attach"):
        NeurosurgeryModel.from_pretrained(model)
    with pytest.raises(SettingError, match="base is to be the base and is not loaded"):
        NeurosurgeryModel.from_pretrained("base", "team/math")


def test_a_base_with_a_commit_is_looked_for_on_the_hub_only_at_it(made):
    hub = replace(made, config=replace(made.config, base_model_name_or_path="org/base", revision="1f" * 20))
    with pytest.raises(ModelError, match=f"org/base at revision {'1f' * 20} is not in the local cache"):
        hub.find_base()


def test_publishing_needs_a_base_that_others_can_load(made):
    with pytest.raises(HubError, match=r"'base' is not on the Hub.*--base-id"):
        made.push_to_hub("team/math")
    hub = replace(made, config=replace(made.config, base_model_name_or_path="org/base", revision="1f" * 20))
    with pytest.raises(HubError, match="no login"):
        hub.push_to_hub("team/math")
    with pytest.raises(SettingError, match="holds characters that no token has") as refused:
        hub.push_to_hub("team/math", token="hf_secret\n")
    assert "hf_secret" not in str(refused.value)


def test_the_control_is_as_large_and_elsewhere(made):
    base = find_base("base")
    control = random_control(base, made)
    control.check_base(base.weights, base.coverage())
    assert control.scale == made.scale
    assert {name: mask.held for name, mask in control.masks.items()} == {n: m.held for n, m in made.masks.items()}
    assert (control.masks & made.masks).held < made.masks.held / 2
