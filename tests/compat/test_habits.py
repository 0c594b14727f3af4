"""What users of the older packages write without looking it up: it works, or a sentence says what
to write instead."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
import small
from quintet.compat.names import INSTEAD
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError
from quintet.mesh.transformer.assemble import Mesh, Meshes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

TRAINERS: dict[str, Any] = {
    "VQGanVAETrainer": small.vae,
    "MaskGitTrainer": small.maskgit,
    "VideoTokenizerTrainer": small.tokenizer,
    "VideoMaskGitTrainer": small.video_maskgit,
    "MeshAutoencoderTrainer": small.autoencoder,
    "MeshTransformerTrainer": small.transformer,
    "MuLaNTrainer": small.mulan,
    "VoiceBoxTrainer": small.voicebox,
    "VocoderTrainer": small.vocoder,
}


# -- names ----------------------------------------------------------------------------------------

EXPORTED = [
    "MeshAutoencoder",
    "MeshTransformer",
    "MeshAutoencoderTrainer",
    "MeshTransformerTrainer",
    "DatasetFromTransforms",
    "cache_text_embeds_for_dataset",
    "cache_face_edges_for_dataset",
    "MagViT2",
    "VideoTokenizer",
    "VideoTokenizerTrainer",
    "VQGanVAE",
    "Transformer",
    "MaskGit",
    "Muse",
    "MaskGitTransformer",
    "TokenCritic",
    "VQGanVAETrainer",
    "MuLaN",
    "MuLaNEmbedQuantizer",
    "MusicLM",
    "AudioSpectrogramTransformer",
    "TextTransformer",
    "SigmoidContrastiveLearning",
    "SoftmaxContrastiveLearning",
    "MuLaNTrainer",
    "EncodecVoco",
    "VoiceBox",
    "DurationPredictor",
    "ConditionalFlowMatcherWrapper",
    "VoiceBoxTrainer",
    "TextToSemantic",
    "HubertWithKmeans",
]


@pytest.mark.parametrize("name", EXPORTED)
def test_a_name_of_an_older_package_imports_or_says_what_there_is(name: str) -> None:
    if name in quintet.__all__:
        assert callable(getattr(quintet, name))
        return
    with pytest.raises(ImportError, match=f"quintet has no {name}: .{{20}}"):
        exec(f"from quintet import {name}")


def test_no_name_is_both_there_and_answered() -> None:
    assert not INSTEAD.keys() & {*quintet.__all__}
    assert {*INSTEAD} <= {*EXPORTED}


def test_the_wrapper_of_a_voicebox_is_the_voicebox() -> None:
    voicebox = small.voicebox()
    with pytest.warns(FutureWarning, match="ConditionalFlowMatcherWrapper is not needed"):
        wrapper = quintet.ConditionalFlowMatcherWrapper(voicebox=voicebox, sigma=0.0)
    assert wrapper is voicebox
    for older, remedy in (
        ({"text_to_semantic": object()}, "learns the alignment"),
        ({"sigma": 0.1}, "straight"),
        ({"cond_drop_prob": 0.2}, "drop_text"),
        ({"wings": 2}, "known: voicebox"),
    ):
        with pytest.raises(TypeError, match=remedy):
            quintet.ConditionalFlowMatcherWrapper(voicebox, **older)


# -- trainers -------------------------------------------------------------------------------------

ATTRIBUTES = {
    "MeshAutoencoderTrainer": """use_wandb_tracking accelerator model ema_model optimizer dataloader
        should_validate val_every val_num_batches val_dataloader data_kwargs grad_accum_every
        num_train_steps step checkpoint_every checkpoint_folder ema_tokenizer log device is_main
        unwrapped_model is_local_main next_data_to_forward_kwargs save load""",
    "VideoTokenizerTrainer": """dataset valid_dataset valid_dataloader validate_every_step optimizer
        checkpoint_every_step discr_optimizer warmup discr_warmup scheduler discr_scheduler
        batch_size max_grad_norm apply_gradient_penalty_every has_multiscale_discrs
        discr_start_after_step multiscale_discr_optimizers checkpoints_folder results_folder
        train_step valid_step trackers""",
    "VQGanVAETrainer": """vae steps vae_parameters optim discr_optim discr_max_grad_norm ds valid_ds
        dl valid_dl use_ema ema_vae dl_iter valid_dl_iter save_model_every save_results_every
        apply_grad_penalty_every image_size cuda state_dict""",
    "MuLaNTrainer": "mulan ds_fields data_max_length lr is_distributed ds dl parameters",
    "VoiceBoxTrainer": "cfm_wrapper lr initial_lr num_warmup_steps log_every wd results_folder",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_an_older_trainer_is_there_or_answered(name: str) -> None:
    trainer = getattr(quintet, name)(TRAINERS[name](), steps=2)
    missing = [name for name in ATTRIBUTES[name].split() if not is_answered(trainer, name)]
    assert missing == []


def is_answered(trainer: Any, attribute: str) -> bool:
    try:
        getattr(trainer, attribute)
    except AttributeError as error:
        return f"trainer.{attribute} is not available: " in str(error)
    return True


def test_an_attribute_that_was_renamed_has_the_value_of_its_setting() -> None:
    keywords = {"lr": 3e-5, "grad_accum_every": 3, "image_size": 16, "save_model_every": 7}
    trainer = quintet.VQGanVAETrainer(small.vae(), steps=2, results_folder="there", **keywords)
    assert (trainer.lr, trainer.grad_accum_every, trainer.save_model_every) == (3e-5, 3, 7)
    assert trainer.image_size == (16, 16)
    assert str(trainer.checkpoint_folder) == "there"
    assert trainer.vae is small.vae()
    with pytest.raises(AttributeError, match="VQGanVAETrainer has no 'wings'"):
        _ = trainer.wings


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_names_what_is_no_model_and_no_data_set(name: str) -> None:
    build, model = getattr(quintet, name), TRAINERS[name]()
    kind = type(model).__name__
    for arguments, remedy in (
        (("photos",), rf"{name}\(model, data='photos'\), a {kind}"),
        ((type(model),), f"got the class {kind}; give an object of it"),
        ((torch.nn.Linear(1, 1),), f"got a Linear as its model; give a {kind}"),
        ((model, "photos"), "give data='photos'"),
        ((model, None, 100, 4, 1), "dataset by position, but got 5 values.* steps=…"),
    ):
        with pytest.raises((TypeError, RunError), match=remedy):
            build(*arguments)


def test_pictures_of_different_sizes_are_named(tmp_path: Path) -> None:
    vae = quintet.VQGanVAE(dim=8, patch_size=4, channel_multipliers=(1,), num_res_blocks=1)
    pictures = [torch.rand(3, 16, 16 + 4 * (n % 2)) for n in range(20)]
    trainer = quintet.VQGanVAETrainer(
        vae, pictures, size=16, steps=1, workers=0, batch_size=8, progress=False, run=tmp_path / "r"
    )
    with pytest.raises(RunError, match=r"different shapes .* crop, resize or pad"):
        trainer.train()


def test_a_video_trainer_has_the_size_of_its_model() -> None:
    layers: Any = {"init_dim": 8, "max_dim": 8, "patch_size": 4, "layers": ("residual",)}
    tokenizer = quintet.VideoTokenizer(image_size=48, **layers)
    assert quintet.VideoTokenizerTrainer(tokenizer, steps=2).recipe.videos.size == (48, 48)
    own = quintet.VideoTokenizerTrainer(tokenizer, steps=2, size=16, videos={"frames": 5})
    assert own.recipe.videos.size == (16, 16)
    for size in (50, "48"):
        with pytest.raises(ValueError, match="is not divisible by the downsampling factor 4"):
            quintet.VideoTokenizer(image_size=size, **layers)


def test_images_have_one_frame_whatever_num_frames_says() -> None:
    old: Any = {"dataset_type": "images", "num_frames": 17, "size": 16}
    with pytest.warns(FutureWarning, match="num_frames is not needed: dataset_type is 'images'"):
        trainer = quintet.VideoTokenizerTrainer(small.tokenizer(), steps=2, **old)
    assert trainer.recipe.videos.frames == 1


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("value", ["64", 64.0, (16, 8), None, True])
def test_a_width_that_is_no_whole_number_is_named(name: str, value: Any) -> None:
    field = "init_dim" if name == "VideoTokenizerTrainer" else "dim"
    with pytest.raises(ConfigError, match=f"{field} is .*; it must be int"):
        getattr(quintet, name.removesuffix("Trainer"))(**{field: value})


@pytest.mark.parametrize("name", TRAINERS)
def test_a_setting_by_position_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="got 512 by position; give its settings by keyword"):
        getattr(quintet, name.removesuffix("Trainer"))(512)


def test_a_number_stands_for_a_pair_and_for_a_list_of_one() -> None:
    assert quintet.MuLaN(patch_size=16, dim=16, layers=1, heads=1).config.patch_size == (16, 16)
    assert quintet.VQGanVAE(dim=8, num_res_blocks=1).config.num_res_blocks == (1,)


@pytest.mark.parametrize("name", ["vae", "tokenizer", "autoencoder", "voicebox", "mulan"])
def test_pickles_are_neither_written_nor_read_by_a_model(name: str) -> None:
    model = getattr(small, name)()
    with pytest.raises(TypeError, match="save does not exist: call save_pretrained"):
        model.save("model.pt")
    with pytest.raises(TypeError, match=r"load does not exist: call \w+.from_pretrained"):
        model.load("model.pt")


PIXELS, CLIP, WAVS = torch.rand(1, 3, 16, 16), torch.rand(1, 3, 5, 16, 16), torch.rand(2, 2000)
MESH = {"vertices": torch.rand(1, 4, 3), "faces": torch.tensor([[[0, 1, 2], [0, 3, 1]]])}
TOO_LARGE = torch.full((2, 9), 10**6)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: small.autoencoder()(**MESH, return_loss_breakdown=True), "by position"),
        (lambda: small.autoencoder()(**MESH, return_codes=True), "tokenize"),
        (lambda: small.transformer()(**MESH, text_embeds=WAVS), "give texts"),
        (lambda: small.transformer()(codes=TOO_LARGE.view(1, 3, 6)), "codes of this autoencoder"),
        (lambda: small.transformer().generate(wings=2), "known: batch_size, .*temperature, texts"),
        (lambda: small.vae()(PIXELS, return_recon_loss_only=True), "return_loss=True"),
        (lambda: small.tokenizer()(CLIP, return_recon=True), "reconstruct"),
        (lambda: small.tokenizer()(CLIP, cond=CLIP), "no condition"),
        (lambda: small.maskgit()(PIXELS, texts=["a"], text_embeds=WAVS), "text='frozen'"),
        (lambda: small.maskgit().loss(TOO_LARGE[:1, :1]), "ids of this model's tokenizer"),
        (lambda: small.maskgit().generate(wings=2), "known: .*count, .*steps, .*texts"),
        (lambda: small.mulan()(WAVS, TOO_LARGE), "outside 0 … 257; .* vocab_size"),
        (lambda: small.mulan()(WAVS, ["a", "b"], return_latents=True), "similarity"),
        (lambda: small.voicebox()(WAVS, texts=TOO_LARGE), "vocabulary="),
        (lambda: small.voicebox()(WAVS, phoneme_ids=TOO_LARGE), "text='given'"),
        (lambda: small.voicebox()(torch.rand(2, 9, 20)), "features='latents' and n_mels="),
        (lambda: small.voicebox().sample(texts=["a"], decode_to_codes=True), "sounds are returned"),
        (lambda: small.voicebox().sample(wings=2), "known: cond, cond_mask, .*vocoder"),
    ],
)
def test_an_argument_of_an_older_call_is_answered(call: Any, remedy: str) -> None:
    with pytest.raises((TypeError, ValueError), match=remedy):
        call()


def test_an_argument_of_an_older_call_that_changes_nothing_is_dropped() -> None:
    assert small.vae()(PIXELS, return_loss=True, add_gradient_penalty=True).ndim == 0
    assert small.autoencoder()(**MESH, return_loss_breakdown=False).ndim == 0
    assert small.transformer()(**MESH, text_embeds=None, cond_drop_prob=0.2).ndim == 0
    assert small.voicebox()(WAVS, mask=None).ndim == 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small.vae()(PIXELS, return_loss=True, add_gradient_penalty=True)
    assert [str(w.message).split(":")[0] for w in caught] == ["add_gradient_penalty is not needed"]


def test_a_masked_generator_is_called_with_pixels_or_ids_for_its_loss() -> None:
    model = small.maskgit()
    ids = model.tokenizer.tokenize(PIXELS)
    assert torch.equal(model.loss(PIXELS, ["a"]), model.loss(ids, ["a"]))
    loss = model(PIXELS, texts=["a"])
    assert loss.requires_grad
    assert loss.ndim == 0


def test_two_meshes_are_not_taken_for_coordinates_and_a_mask() -> None:
    mesh = Mesh(torch.rand(3, 3), torch.tensor([[0, 1, 2]]))
    for count in (1, 2, 3):
        with pytest.raises(TypeError, match="a list of meshes, not coordinates and a mask"):
            _coords, _mask = Meshes([mesh] * count)
    two = Meshes([mesh, mesh])
    assert [one.faces.shape for one in two] == [(1, 3)] * 2
    assert [*two] == list(two) == [two[0], two[1]]
    assert len([vertices for vertices, _faces in two]) == 2
    (alone,) = Meshes([mesh])
    assert alone is mesh
    assert isinstance(small.transformer().generate(batch_size=2, max_faces=1), Meshes)
