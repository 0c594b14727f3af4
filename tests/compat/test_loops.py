"""Models in training loops and calls written for the older packages."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import quintet
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import BuiltinMeshes


def learns(model: Any, loss_of: Any, steps: int = 12) -> bool:
    """Whether a few steps of the reader's own loop lower the loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        loss = loss_of()
        assert isinstance(loss, Tensor)
        assert loss.ndim == 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0]


def autoencoder() -> Any:
    torch.manual_seed(0)
    return quintet.MeshAutoencoder(dim=16, message_dim=8, encoder_layers=1, decoder_layers=1)


def transformer() -> Any:
    held = autoencoder()
    small = {"dim": 16, "layers": 1, "heads": 1, "head_dim": 16, "fine_heads": 1, "text_layers": 1}
    return quintet.MeshTransformer(held, **small, fine_layers=1, fine_head_dim=16, max_faces=16)


def meshes() -> dict[str, Any]:
    """A padded batch."""
    data = BuiltinMeshes(MeshDataConfig(max_faces=16, builtin_count=4), "train")
    items = [data.keyed(index, None) for index in range(4)]
    vertices, faces = (
        [torch.as_tensor(item[name]) for item in items] for name in ("vertices", "faces")
    )
    return {
        "vertices": pad_sequence(vertices, batch_first=True),
        "faces": pad_sequence(faces, batch_first=True, padding_value=-1),
        "text": [item["text"] for item in items],
    }


def test_the_loss_of_a_mesh_autoencoder_is_a_tensor() -> None:
    model, batch = autoencoder(), meshes()
    batch = {name: batch[name] for name in ("vertices", "faces")}
    assert learns(model, lambda: model(**batch))
    assert torch.equal(model(**batch), model(batch["vertices"], batch["faces"]).loss)


def test_the_loss_of_a_mesh_transformer_is_a_tensor() -> None:
    model, batch = transformer(), meshes()
    inputs = {"vertices": batch["vertices"], "faces": batch["faces"], "texts": batch["text"]}
    assert learns(model, lambda: model(**inputs))
    codes = model.autoencoder.tokenize(batch["vertices"], batch["faces"])
    model.eval()
    assert torch.equal(model(codes=codes, texts=batch["text"]), model(**inputs))
    with pytest.raises(ValueError, match="give vertices and faces"):
        model(texts=batch["text"])


@pytest.mark.parametrize("kind", ["image", "video"])
def test_the_loss_of_a_tokenizer_is_a_tensor(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = quintet.VQGanVAE(dim=8, channel_multipliers=(1,), patch_size=4, num_res_blocks=1)
    pixels = torch.rand(2, 3, 16, 16)
    if kind == "video":
        model = quintet.VideoTokenizer(init_dim=8, max_dim=8, patch_size=4, layers=("residual",))
        pixels = torch.rand(2, 3, 3, 16, 16)
    assert learns(model, lambda: model(pixels, return_loss=True))
    output = model(pixels)
    weights = model.Losses()
    error = output.output - pixels
    expected = weights.l1 * error.abs().mean() + weights.l2 * error.square().mean()
    if kind == "video":
        expected = expected + weights.temporal * error.diff(dim=2).abs().mean()
    loss = model(pixels, return_loss=True)
    torch.testing.assert_close(loss, expected + output.quantiser_loss)
    for name in ("return_discr_loss", "return_recons"):
        with pytest.raises(TypeError, match=f"{name}=True is not supported: "):
            model(pixels, **{name: True})


def test_a_tokenizer_is_copied_for_evaluation() -> None:
    model = quintet.VQGanVAE(dim=8, layers=2, num_res_blocks=1, codebook_size=64)
    copied = model.copy_for_eval()
    assert model.training
    assert not copied.training
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(copied.tokenize(images), model.tokenize(images))
    assert copied.tokenize(images).shape == (1, *[model.get_encoded_fmap_size(16)] * 2)


def test_flattened_ids_are_decoded() -> None:
    small = {"init_dim": 8, "max_dim": 8, "patch_size": 4, "layers": ("residual", "compress_time")}
    model = quintet.VideoTokenizer(image_size=16, **small)
    ids = model.tokenize(torch.rand(2, 3, 5, 16, 24))
    clips = model.decode_from_code_indices(ids)
    assert torch.equal(model.decode_from_code_indices(ids.flatten(1), size=(16, 24)), clips)
    square = model.tokenize(torch.rand(2, 3, 5, 16, 16))
    assert model.decode_from_code_indices(square.flatten(1)).shape == (2, 3, 5, 16, 16)
    with pytest.raises(ValueError, match="size="):
        quintet.VideoTokenizer(**small).decode_from_code_indices(ids.flatten(1))


def test_mulan_takes_texts_by_position() -> None:
    torch.manual_seed(0)
    small = {"dim": 16, "layers": 1, "heads": 1, "text_dim": 16, "text_layers": 1, "text_heads": 1}
    model = quintet.MuLaN(sample_rate=8000, n_fft=256, hop_length=128, n_mels=32, **small)
    wavs, texts = torch.randn(4, 8000) / 4, ["low", "high", "fast", "slow"]
    assert learns(model, lambda: model(wavs, texts))
    model.eval()
    ids = torch.randint(2, 200, (4, 9))
    assert torch.equal(model(wavs, texts), model(wavs=wavs, raw_texts=texts))
    assert torch.equal(model(wavs, ids), model(wavs, texts=ids))


def test_generation_takes_prompts_and_lengths_as_before() -> None:
    model = transformer()
    prompt = torch.randint(0, 13_824, (3, 2, 6))
    with pytest.warns(FutureWarning, match="max_seq_len=36 is now max_faces=6"):
        codes = model.generate(prompt=prompt, max_seq_len=36, return_codes=True)
    assert codes.shape == (3, 6, 6)
    assert torch.equal(codes[:, :2], prompt)
    flat = model.generate(prompt=prompt.flatten(1), max_faces=6, return_codes=True)
    assert torch.equal(flat, codes)
    with pytest.raises(ValueError, match=r"whole faces of 6 codes each, not \(3, 7\)"):
        model.generate(prompt=prompt.flatten(1)[:, :7])
    with pytest.raises(TypeError, match="give top_k or top_p"):
        model.generate(filter_logits_fn=print)
    with pytest.raises(TypeError, match="unknown argument 'wings'"):
        model.generate(wings=2)
