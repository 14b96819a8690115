"""On a CUDA device: the same masks, and every byte restored."""

from __future__ import annotations

import models
import pytest
import torch

from mathneuro_hub import NeurosurgeryModel, calibrate, create_adapter, find_base, find_weights, methods
from mathneuro_hub.masks import top_k, top_k_plain
from mathneuro_hub.weights import LiveWeights

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_weights_and_norms_give_the_same_mask_on_gpu_and_cpu(dtype):
    torch.manual_seed(0)
    weight, norms = torch.randn(300, 200).to(dtype), torch.rand(200)
    counts = [0, 17, 3000, 60000]
    on_gpu = top_k(weight.cuda(), norms.cuda(), counts)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(on_gpu, top_k_plain(weight, norms, counts), strict=True))


def test_calibration_and_masks_agree_with_the_cpu_up_to_float_noise():
    model, tokenizer = models.build(models.llama()), models.tokenizer()
    masks = []
    for device in ("cpu", "cuda"):
        model.to(device)
        skill = calibrate(model, tokenizer, models.text_set())
        contrast = calibrate(model, tokenizer, models.text_set(models.OTHER_TEXTS))
        masks.append(methods.mathneuro(LiveWeights(model), find_weights(model), skill, [contrast], 0.1).to("cpu"))
    assert masks[0].jaccard(masks[1]) >= 0.999


def test_attaching_and_detaching_on_gpu_restores_every_byte():
    base = find_base("demo")
    model = base.load(device="cuda")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attached = NeurosurgeryModel.from_pretrained(model, create_adapter(base, method="magnitude"), scale=0.0)
    attached.set_scale(1.3)
    attached.unload()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
