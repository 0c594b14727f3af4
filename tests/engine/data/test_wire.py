"""Small types between workers and device keep every value."""

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from quintet.engine.data.stream import Loaded
from quintet.engine.data.wire import (
    SMALL,
    UNIT,
    Fractions,
    InlineTensor,
    mapped,
    padded,
    to_floats,
    widened,
    with_inline,
    without_inline,
    zeros,
)


def whole_range() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_fraction_is_exact_as_a_float(dtype):
    floats = to_floats(whole_range(), dtype)
    assert floats.dtype == dtype
    assert torch.equal((floats * 32768).long(), whole_range().long())
    assert floats.min() == -1
    assert floats.max() == 1 - UNIT


def test_rows_of_16_bits_are_padded_as_fractions():
    batch = padded([whole_range()[:5], whole_range()[:3]], 6)
    assert isinstance(batch, Fractions)
    assert batch.shape == (2, 6)
    assert batch.values[1].tolist() == [-32768, -32767, -32766, 0, 0, 0]


def test_one_row_of_floats_makes_a_batch_of_floats_with_the_same_values():
    floats = torch.tensor([0.1, -0.7])
    batch = padded([whole_range()[:3], floats], 4)
    assert isinstance(batch, torch.Tensor)
    assert batch.tolist()[0] == [-1.0, -1 + UNIT, -1 + 2 * UNIT, 0.0]
    assert torch.equal(batch[1, :2], floats)


def test_latents_keep_their_channels():
    assert padded([torch.ones(2, 7), torch.ones(3, 7)], 5).shape == (2, 5, 7)


def test_only_fractions_are_widened():
    ids = torch.tensor([3, 4], dtype=torch.int16)
    data = {"sound": Fractions(ids), "ids": ids, "more": [(ids, "text")], "none": None}
    wide = widened(data)
    assert wide["sound"].tolist() == [3 * UNIT, 4 * UNIT]
    assert wide["ids"] is ids
    assert wide["more"] == [(ids, "text")]
    assert wide["none"] is None


def test_the_function_reaches_every_tensor():
    seen = []
    tensor = torch.ones(1)
    mapped(seen.append, {"a": tensor, "b": [tensor, (tensor, Fractions(tensor))], "c": "text"})
    assert len(seen) == 4


class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index


def shared(items):
    batch = zeros((3, 4), torch.int16)
    return batch, batch.is_shared(), bool(batch.any())


def of_worker(data):
    """What one worker sends."""
    loaded = DataLoader(
        [data], batch_size=1, num_workers=1, collate_fn=lambda rows: with_inline(*rows)
    )
    return next(iter(loaded))


def test_small_tensors_of_a_worker_are_sent_in_the_message():
    large, half = torch.rand(SMALL // 4 + 1), torch.ones(3, dtype=torch.bfloat16)
    fractions = Fractions(torch.ones(2, dtype=torch.int16))
    empty, mask = torch.zeros(0, 4), torch.tensor([[True], [False]])
    data = {"a": [torch.arange(6).reshape(2, 3), large], "b": (empty, mask), "c": half}
    data |= {"d": fractions, "text": "x"}
    sent = of_worker(data)
    inside = [type(x) is InlineTensor for x in (*sent["a"], *sent["b"], sent["c"])]
    assert inside == [True, False, True, True, False]
    received = without_inline(sent)
    assert not any(x.is_shared() for x in (received["a"][0], *received["b"]))
    assert received["text"] == "x"
    assert torch.equal(received["d"].values, fractions.values)
    for got, given in zip((*received["a"], *received["b"]), (*data["a"], *data["b"])):
        assert got.dtype == given.dtype
        assert torch.equal(got, given)
    received["a"][0].add_(1)  # may be written to


def test_data_of_the_main_process_is_not_inline():
    data = {"a": torch.arange(3)}
    assert with_inline(data)["a"] is data["a"]


def test_the_loader_pins_small_tensors_wherever_they_are(monkeypatch):
    """What its thread does for a GPU, without one."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    data = {"a": InlineTensor(torch.arange(2)), "b": [InlineTensor(torch.arange(1))], "text": "x"}
    pinned = pin_memory(Loaded(data, [7], InlineTensor(torch.tensor([3])), []), "cuda")
    assert pinned.data["a"].tolist() == [100, 101]
    assert pinned.data["b"][0].tolist() == [100]
    assert pinned.keys.tolist() == [103]
    assert (pinned.data["text"], pinned.ids) == ("x", [7])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_small_tensors_are_pinned():
    assert pin_memory(InlineTensor(torch.arange(3))).is_pinned()


def test_a_batch_of_a_worker_is_zeros_in_shared_memory():
    for batch, was_shared, any_set in DataLoader(Made(), 1, collate_fn=shared, num_workers=1):
        assert was_shared
        assert not any_set
        assert batch.shape == (3, 4)
        assert not batch.any()
    assert not zeros((3, 4), torch.int16).is_shared()
