"""A ClapModel of transformers, adopted."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import quintet
from adopting import CLAP_SOUNDS, Library, clap_processor, folder, network
from campaign.subjects import replaced
from quintet.engine.errors import RunError
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.music.clap.model import TOWERS, AdoptedClap, ClapMel
from quintet.music.clap.task import ClapTask
from quintet.music.recipes import clap_tiny
from quintet.nn.contrastive import global_loss
from quintet.shared.adopt.folder import quiet

transformers: Any = Library("transformers")

RATE, TEXTS = CLAP_SOUNDS["sampling_rate"], ["a slow melody on strings", "drums", "a", "fast"]


def sounds(rate: int = RATE, seconds: int = 1) -> tuple[Tensor, Tensor]:
    """Noise, a loud tone, a quiet one and a very short one, padded, and their lengths."""
    longest = rate * seconds
    lengths = torch.tensor([longest, longest * 3 // 8, longest // 2, 300])
    noise = torch.randn(4, longest, generator=torch.Generator().manual_seed(0)) * 0.1
    tone = torch.sin(torch.arange(longest) * 0.3)
    wavs = torch.stack([noise[0], tone, 1e-3 * tone, noise[3]])
    return wavs * (torch.arange(longest) < lengths[:, None]), lengths


def features(extractor: Any, wavs: Tensor, lengths: Tensor) -> Tensor:
    """By transformers alone."""
    clips = [wav[:length].numpy() for wav, length in zip(wavs, lengths)]
    rate = extractor.sampling_rate
    return extractor(clips, sampling_rate=rate, return_tensors="pt")["input_features"]


def library(path: Path) -> Any:
    with quiet():
        return transformers.ClapModel.from_pretrained(path)


def own_embeds(path: Path) -> tuple[Tensor, Tensor]:
    """Of sounds and texts, by transformers alone."""
    with quiet():
        processor = transformers.ClapProcessor.from_pretrained(path)
    model, mels = library(path), features(processor.feature_extractor, *sounds())
    ids = processor.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        audio = model.get_audio_features(input_features=mels).pooler_output
        return audio, model.get_text_features(**ids).pooler_output


@pytest.mark.parametrize("padding", ["repeatpad", "repeat", "pad"])
def test_log_mels_are_those_of_the_feature_extractor(padding: str) -> None:
    extractor = clap_processor().feature_extractor
    extractor.padding = padding
    expected, mels = features(extractor, *sounds()), ClapMel(extractor)(*sounds())
    torch.testing.assert_close(mels.float(), expected[:, 0], rtol=0, atol=1e-4)


def test_log_mels_at_published_sizes_are_those_of_the_feature_extractor() -> None:
    extractor = transformers.ClapFeatureExtractor(truncation="rand_trunc")  # 10 s at 48 kHz
    wavs, lengths = (value[1:3] for value in sounds(48_000, 10))
    expected, mels = features(extractor, wavs, lengths), ClapMel(extractor)(wavs, lengths)
    assert mels.shape == (2, 1001, 64)
    torch.testing.assert_close(mels.float(), expected[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(ClapMel(extractor)(wavs[:, : lengths[0]], None)[0], mels[0])


def test_embeddings_are_those_of_transformers() -> None:
    audio, text = own_embeds(folder("ClapModel"))
    model = quintet.load(folder("ClapModel"))
    torch.testing.assert_close(model.embed_audio(*sounds()), audio)
    torch.testing.assert_close(model.embed_text(TEXTS), text)
    assert audio.std(0).max() > 1e-3  # they depend on the sound


def small(**changes: Any) -> Any:
    wanted = {"workers": 0, "trackers": (), "valid_limit": 4, "builtin_count": 8, "log_every": 1}
    wanted |= {"sample_rate": RATE, "seconds": 1.0, "min_seconds": 0.5, "device": "cpu"}
    wanted |= {"batch_size": 2, "steps": 1, "clap": str(folder("ClapModel"))}
    return replaced(clap_tiny(), wanted | changes)


def batch(task: ClapTask, rows: slice) -> Batch:
    wavs, lengths = (value[rows] for value in sounds())
    texts = TEXTS[rows]
    data = {"wavs": wavs, "lengths": lengths, "texts": texts, **task.tokenized(texts)}
    return Batch(data, list(range(len(texts))), torch.arange(len(texts)))


def test_the_loss_is_that_of_the_whole_batch() -> None:
    task = ClapTask(small(time_masks=0, freq_masks=0))
    halves = [batch(task, slice(0, 2)), batch(task, slice(2, 4))]
    outputs = [task.model(*task.inputs(half, augment=True)).pairs for half in halves]
    loss = global_loss("softmax", outputs, lambda value: value, 0).loss
    audio, text = own_embeds(folder("ClapModel"))
    logits = audio @ text.T * library(folder("ClapModel")).logit_scale_a.detach().exp()
    right = torch.arange(len(TEXTS))
    expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    torch.testing.assert_close(loss, expected)
    masked = ClapTask(small(time_masks=8))
    inputs = masked.inputs(halves[0], augment=True)
    assert not torch.allclose(masked.model(*inputs).audio, outputs[0].audio, atol=1e-4)


def test_recomputed_blocks_give_the_same_step(tmp_path: Path) -> None:
    weights = []
    for recomputes in (False, True):
        recipe = small(checkpoint_activations=recomputes)
        run = Run(ClapTask(recipe), recipe, World(recipe), RunFolder(tmp_path / str(recomputes)))
        take_step(run)
        run.close()
        weights.append(run.parts["mulan"].module.state_dict())
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


@pytest.mark.by_default("all", "projections")
@pytest.mark.parametrize("part", TOWERS)
def test_a_step_moves_exactly_what_is_trained(part: Any, tmp_path: Path) -> None:
    recipe = small(train=part, learning_rate=1e-3, warmup_steps=0)
    run = Run(ClapTask(recipe), recipe, World(recipe), RunFolder(tmp_path))
    take_step(run)
    run.close()
    old = library(folder("ClapModel")).state_dict()
    new: Any = run.parts["mulan"].module.network
    moved = {name for name, value in new.state_dict().items() if not value.equal(old[name])}
    trained = {n for n, _ in new.named_parameters() if n.partition(".")[0] in TOWERS[part]}
    norm = {n for n in trained if "batch_norm" in n}
    assert moved == trained - norm | {"logit_scale_a"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_on_a_gpu_are_equal_every_time(tmp_path: Path) -> None:
    weights = []
    for turn in "ab":
        recipe = small(device="cuda", batch_size=4, accumulate=2)
        run = Run(ClapTask(recipe), recipe, World(recipe), RunFolder(tmp_path / turn))
        take_step(run)
        take_step(run)
        run.close()
        weights.append(run.parts["mulan"].module.state_dict())
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


def test_an_export_without_training_is_the_original_to_the_byte(tmp_path: Path) -> None:
    original = tmp_path / "original"
    network("ClapModel").to(torch.bfloat16).save_pretrained(original)
    with quiet():
        clap_processor().save_pretrained(original)
    quintet.load(original).save_pretrained(tmp_path / "out")
    for file in original.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_run_is_exported_and_loaded_by_transformers(tmp_path: Path, cli: Any) -> None:
    import soundfile

    songs, run, out = tmp_path / "songs", tmp_path / "run", tmp_path / "out"
    songs.mkdir()
    for number in range(6):
        wav = np.random.default_rng(number).normal(scale=0.1, size=RATE)
        soundfile.write(songs / f"{number}.wav", wav, RATE)
        (songs / f"{number}.txt").write_text(TEXTS[number % 4], encoding="utf-8")
    original = tmp_path / "original"
    shutil.copytree(folder("ClapModel"), original)
    words = ("--sounds.sample-rate", RATE, "--sounds.seconds", 1, "--sounds.min-seconds", 1)
    words += (
        "--train",
        "audio",
        "--steps",
        2,
        "--batch-size",
        2,
        "--workers",
        0,
        "--device",
        "cpu",
    )
    begun = cli("train", "music/clap_tiny", songs, "--from", original, "--run", run, *words)
    assert begun.status == 0, begun
    shutil.rmtree(original)  # the run keeps its own copy
    assert cli("export", run, out).status == 0
    old, new = (library(path).state_dict() for path in (folder("ClapModel"), out))
    changed = {name.partition(".")[0] for name in old if not old[name].equal(new[name])}
    assert changed == {"audio_model", "audio_projection", "logit_scale_a"}
    audio, text = own_embeds(out)
    for path in (run, out):
        torch.testing.assert_close(quintet.load(path).embed_audio(*sounds()), audio)
    torch.testing.assert_close(AdoptedClap.from_pretrained(run).embed_text(TEXTS), text)
    found = cli("sample", run, songs, "--text", "drums", "--out", tmp_path / "found")
    assert found.status == 0, found
    (run / "frozen/clap/processor/tokenizer.json").write_text("{}", encoding="utf-8")
    assert "the files of the tokenizer have changed" in cli("resume", run, "--steps", 3).err


def test_captions_longer_than_the_tokenizer_takes_are_cut_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, texts = quintet.load(folder("ClapModel")), ["x" * 300, "y"]
    ids, mask = model.tokenize(texts)
    assert ids.shape == mask.shape == (2, 160)
    assert mask.sum(1).tolist() == [160, 3]
    sizes = model.text_sizes(texts)
    assert sizes.cut_line().startswith("1 of 2 captions have more than 160 tokens, the longest 30")
    model.get_text_latents(texts)
    assert "tokens; the model reads the first 160, as in training" in capsys.readouterr().err


def copied(path: Path, *without: str) -> Path:
    shutil.copytree(folder("ClapModel"), path)
    for name in without:
        (path / name).unlink()
    return path


def test_what_cannot_be_adopted_is_refused_with_a_sentence(tmp_path: Path, cli: Any) -> None:
    def answer(source: object) -> str:
        said = cli("train", "music/clap_tiny", "--from", source, "--run", tmp_path / "run")
        assert said.status == 2
        assert "Traceback" not in said.err
        return said.err

    assert "nowhere" in answer(tmp_path / "nowhere")
    pickled = copied(tmp_path / "pickled", "model.safetensors")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "a pickle can run code; where you trust it" in answer(pickled)
    assert "has no feature extractor" in answer(copied(tmp_path / "a", "processor_config.json"))
    assert "samples per second; set --sounds.sample-rate 8000" in answer(folder("ClapModel"))


def test_fused_models_and_other_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="AutoencoderTiny is not a joint embedding"):
        AdoptedClap.from_pretrained(folder("AutoencoderTiny"))
    path = copied(tmp_path / "fused")
    text = (path / "config.json").read_text().replace('fusion": false', 'fusion": true')
    (path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"fuses four crops of a long sound \(enable_fusion\)"):
        AdoptedClap.from_pretrained(path)
    with pytest.raises(RunError, match=r"takes 1 s at once; set --sounds\.seconds"):
        ClapTask(small(seconds=2.0))
