"""Golden bytes of the two files: a change here is a change of the format (docs/format.md)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from mathneuro_hub import ActivationNorms, Mask, MaskSet
from mathneuro_hub.adapter.fingerprint import record_weight
from mathneuro_hub.masks import save_masks

NORMS_HEADER = (
    b'{"__metadata__":{"format":"mathneuro-norms","format_version":"1",'
    b'"record":"{\\"provenance\\": {\\"data\\": {\\"name\\": \\"set\\"}}, \\"samples\\": 3, \\"tokens\\": 9, \\"truncated\\": 1}",'
    b'"sites":"{\\"a.weight\\": \\"a.weight\\", \\"b.weight\\": \\"a.weight\\"}"},'
    b'"norms:a.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},'
    b'"positive:act":{"dtype":"I64","shape":[2],"data_offsets":[12,28]}}'
)


def test_norms_file(tmp_path: Path):
    norms = ActivationNorms(
        {"a.weight": torch.tensor([0.0, 1.0, 2.5])},
        {"a.weight": "a.weight", "b.weight": "a.weight"},
        {"act": torch.tensor([4, 258])},
        3,
        9,
        1,
        {"data": {"name": "set"}},
    )
    norms.save(tmp_path / "norms.safetensors")
    content = (tmp_path / "norms.safetensors").read_bytes()
    header = NORMS_HEADER + b" " * (-len(NORMS_HEADER) % 8)
    assert content[:8] == len(header).to_bytes(8, "little")
    assert content[8 : 8 + len(header)] == header
    assert content[8 + len(header) :].hex() == "000000000000803f00002040" + "0400000000000000" + "0201000000000000"


def test_mask_file(tmp_path: Path):
    masks = MaskSet(
        {
            "a.weight": Mask.from_flat((5, 3), torch.tensor([1, 2, 4, 7, 9, 13])),
            "b.weight": Mask.from_dense(torch.ones(3, 5, dtype=torch.bool)),
        }
    )
    save_masks(tmp_path / "masks.safetensors", masks)
    content = (tmp_path / "masks.safetensors").read_bytes()
    header = (
        b'{"__metadata__":{"format":"mathneuro-masks","format_version":"1",'
        b'"shapes":"{\\"a.weight\\":[5,3],\\"b.weight\\":[3,5]}"},'
        b'"a.weight":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},'
        b'"b.weight":{"dtype":"U8","shape":[4],"data_offsets":[9,13]}}'
    )
    header += b" " * (-len(header) % 8)
    assert content[:8] == len(header).to_bytes(8, "little")
    assert content[8 : 8 + len(header)] == header
    assert content[8 + len(header) :].hex() == "010102030" + "12a011a03" + "05011f00"


def test_fingerprint_of_a_weight():
    """Rounded by hand: 1/3 is 0x3eab in bfloat16; 1 + 2**-8 + 2**-14 is 0x3f81, but 0x3f80 through float16."""
    values = torch.tensor([[1 / 3, 0.0], [0.0, 1 + 2**-8 + 2**-14]])
    record = record_weight(values, Mask.from_dense(values != 0))
    assert (record.shape, record.held) == ((2, 2), 2)
    assert record.bf16 == hashlib.sha256(bytes.fromhex("ab3e813f")).hexdigest()[:32]
    assert record.fp16 == hashlib.sha256(bytes.fromhex("ab3e803f")).hexdigest()[:32]


def test_fingerprint_samples_1024_evenly_spaced_positions_by_column_then_row():
    values = torch.arange(4096.0).view(64, 64)
    record = record_weight(values, Mask.from_dense(torch.ones(64, 64, dtype=torch.bool)))
    sampled = values.T.flatten()[::4].to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    assert record.bf16 == hashlib.sha256(sampled).hexdigest()[:32]
