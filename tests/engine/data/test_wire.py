"""What travels between workers and device keeps every value."""

import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from quintet.engine.data import wire
from quintet.engine.data.stream import Loaded
from quintet.engine.data.wire import UNIT, Fractions, Slots, mapped, padded, to_floats, widened


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


def of_worker(collate, batches=1, ahead=4):
    """What one worker sends, and its slots."""
    slots = Slots(1, ahead)
    loaded = DataLoader(
        range(batches),
        batch_size=1,
        num_workers=1,
        prefetch_factor=ahead,
        collate_fn=partial(slots.collated, collate),
        multiprocessing_context="fork",
    )
    return iter(loaded), slots


def sent(data):
    (parcel,), slots = of_worker(lambda _: data)
    return parcel.opened(), slots


def test_the_batch_of_a_worker_arrives_through_its_slot_with_every_value():
    half, mask = torch.ones(3, dtype=torch.bfloat16), torch.tensor([[True], [False]])
    fractions = Fractions(torch.ones(2, dtype=torch.int16))
    strided, number = torch.arange(6).reshape(2, 3).T, torch.tensor(7.0)
    data = {"a": [strided, torch.rand(70_001)], "b": (torch.zeros(0, 4), mask), "c": half}
    data |= {"d": fractions, "e": number, "text": "x"}
    received, _ = sent(data)
    assert received["text"] == "x"
    assert torch.equal(received["d"].values, fractions.values)
    flat = (*received["a"], *received["b"], received["c"], received["e"])
    for got, tensor in zip(flat, (*data["a"], *data["b"], half, number), strict=True):
        assert not got.is_shared()
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor)
    received["c"].add_(1)  # may be written to


def test_padded_rows_are_made_in_the_slot_itself():
    def collate(_):
        batch = padded([torch.ones(3)], 5)
        return batch, batch.data_ptr() == wire._writing._slot.data_ptr()

    (parcel,), _ = of_worker(collate)
    batch, in_place = parcel.opened()
    assert in_place
    assert batch.tolist() == [[1, 1, 1, 0, 0]]
    assert parcel.used == 20


def test_no_slot_is_written_before_it_was_received():
    """The worker is as far ahead as it may be, and slots are used again, zeroed."""

    def collate(items):
        return padded([torch.full((items[0] % 7 + 1,), float(items[0]))], 7)

    parcels, _ = of_worker(collate, batches=40, ahead=2)
    for number, parcel in enumerate(parcels):
        time.sleep(0.002)
        count = number % 7 + 1
        assert parcel.opened().tolist() == [[float(number)] * count + [0.0] * (7 - count)]


def test_what_does_not_fit_into_a_slot_is_sent_by_torch(monkeypatch):
    monkeypatch.setattr(wire, "SLOT", 4096)
    received, slots = sent([torch.ones(100), torch.ones(2000), torch.arange(3)])
    assert slots.size == 4096
    assert [x.sum().item() for x in received] == [100, 2000, 3]
    assert [x.is_shared() for x in received] == [False, True, False]


def test_without_memory_to_share_batches_are_sent_by_torch(monkeypatch):
    monkeypatch.setattr(wire.memory, "available", lambda: 0)
    (received,), _ = of_worker(lambda _: torch.ones(3))
    assert received.tolist() == [1, 1, 1]


def test_the_loader_pins_a_batch_in_one_piece(monkeypatch):
    """What its thread does for a GPU, without one."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    (parcel,), slots = of_worker(lambda _: Loaded({"a": torch.arange(9)}, [7], torch.ones(1), []))
    loaded = pin_memory(parcel, "cuda")
    assert len(pinned) == 1
    assert loaded.data["a"].tolist() == list(range(9))
    assert (loaded.ids, loaded.keys.tolist()) == ([7], [1.0])
    slots.free()
    assert not parcel.opened().data["a"].any()  # its memory was given back


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_batches_of_workers_are_pinned():
    (parcel,), _ = of_worker(lambda _: {"a": torch.arange(3)})
    assert pin_memory(parcel)["a"].is_pinned()
