"""The first scripts of the upstream packages' READMEs, at small sizes: unported, each ends with a
message that names the next change, until it runs. No change is needed that no message asks for."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from examples.made import put_media


class Change(NamedTuple):
    asked: str
    """What the message of the script as it is says."""
    edits: dict[str, str]
    """What its reader writes instead."""


class Snippet(NamedTuple):
    script: str
    changes: list[Change]


VIDEO = """
import torch
from quintet import VideoTokenizer, VideoTokenizerTrainer

tokenizer = VideoTokenizer(
    image_size = 16, init_dim = 8, max_dim = 16, codebook_size = 64,
    layers = ('residual', 'compress_space', ('consecutive_residual', 2), 'compress_time')
)
trainer = VideoTokenizerTrainer(
    tokenizer, dataset_folder = 'media', dataset_type = 'videos', num_frames = 5, batch_size = 2,
    grad_accum_every = 2, learning_rate = 2e-5, num_train_steps = 1, workers = 0,
    use_wandb_tracking = False
)
"""
SNIPPETS = {
    "meshgpt-pytorch": Snippet(
        """
import torch
from quintet import MeshAutoencoder, MeshTransformer

autoencoder = MeshAutoencoder(
    num_discrete_coors = 128, dim = 16, encoder_layers = 1, decoder_layers = 1
)
vertices = torch.randn((2, 12, 3))
faces = torch.randint(0, 12, (2, 6, 3))
loss = autoencoder(vertices = vertices, faces = faces)
loss.backward()

transformer = MeshTransformer(
    autoencoder, dim = 16, attn_depth = 1, fine_attn_depth = 1, max_seq_len = 36,
    condition_on_text = True, text_layers = 1
)
loss = transformer(vertices = vertices, faces = faces, texts = ['a high chair', 'a small teapot'])
loss.backward()

faces_coordinates, face_mask = transformer.generate(
    texts = ['a long table'], cond_scale = 8., remove_parallel_component = True
)
mesh_token_ids = autoencoder.tokenize(vertices = vertices, faces = faces)
""",
        [
            Change(
                "remove_parallel_component=True is not supported: guidance has no projection",
                {", remove_parallel_component = True": ""},
            ),
            Change(
                "generate returns a list of meshes, not coordinates and a mask: write meshes =",
                {"faces_coordinates, face_mask =": "meshes ="},
            ),
        ],
    ),
    "magvit2-pytorch": Snippet(VIDEO + "trainer.train()", []),
    "magvit2-pytorch, trained": Snippet(
        VIDEO
        + """
ema_tokenizer = trainer.ema_tokenizer
video = torch.randn(1, 3, 5, 16, 16)
codes = ema_tokenizer.tokenize(video)
decoded_video = ema_tokenizer.decode_from_code_indices(codes)
assert torch.allclose(decoded_video, ema_tokenizer(video, return_recon = True))
""",
        [
            Change("0..1", {"torch.randn": "torch.rand"}),
            Change(
                "return_recon=True is not supported: call reconstruct",
                {"ema_tokenizer(video, return_recon = True)": "ema_tokenizer.reconstruct(video)"},
            ),
        ],
    ),
    "magvit2-pytorch, tracked": Snippet(
        VIDEO
        + """
with trainer.trackers(project_name = 'magvit2', run_name = 'a'):
    codes = trainer.ema_tokenizer
""",
        [
            Change(
                "trainer.trackers is not available: give trackers=, project= and run_name=",
                {
                    "use_wandb_tracking = False": "project = 'magvit2', run_name = 'a'",
                    "with trainer.trackers(project_name = 'magvit2', run_name = 'a'):\n    ": "",
                },
            )
        ],
    ),
    "muse-maskgit-pytorch": Snippet(
        """
import torch
from quintet import VQGanVAE, VQGanVAETrainer

vae = VQGanVAE(dim = 8, codebook_size = 64)
trainer = VQGanVAETrainer(
    vae = vae, image_size = 16, folder = 'media', batch_size = 2, grad_accum_every = 2,
    num_train_steps = 1, workers = 0
).cuda()
trainer.train()
""",
        [Change("trainer.cuda is not available: device= selects the device", {".cuda()": ""})],
    ),
    "muse-maskgit-pytorch, generator": Snippet(
        """
import torch
from quintet import VQGanVAE, MaskGit, MaskGitTransformer

vae = VQGanVAE(dim = 8, codebook_size = 64)
vae.load('/path/to/vae.pt')
transformer = MaskGitTransformer(
    num_tokens = 64, seq_len = 4, dim = 16, depth = 1, dim_head = 16, heads = 1, ff_mult = 4,
    t5_name = 't5-small',
)
base_maskgit = MaskGit(
    vae = vae, transformer = transformer, image_size = 16, cond_drop_prob = 0.25,
    cond_image_size = 8,
)
texts = ['a child screaming', 'lizard running across the desert']
images = torch.randn(2, 3, 16, 16)
loss = base_maskgit(images, texts = texts)
loss.backward()
images = base_maskgit.generate(
    texts = ['a whale breaching from afar'], timesteps = 2, cond_scale = 3., cond_images = images
)
assert images.shape == (1, 3, 16, 16)
""",
        [
            Change(
                "no MaskGitTransformer: its settings are those of MaskGit",
                {
                    ", MaskGitTransformer": "",
                    "transformer = MaskGitTransformer(": "settings = dict(",
                    "transformer = transformer": "**settings",
                },
            ),
            Change(
                "load does not exist: call VQGanVAE.from_pretrained(folder)",
                {"vae.load('/path/to/vae.pt')\n": ""},  # it was built above
            ),
            Change("t5_name='t5-small' is not supported: ", {"    t5_name = 't5-small',\n": ""}),
            Change(
                "cond_drop_prob=0.25 is not supported: it is a setting of the trainer: text_drop",
                {", cond_drop_prob = 0.25": ""},
            ),
            Change("there is no super-resolution", {"    cond_image_size = 8,\n": ""}),
            Change("0..1", {"torch.randn": "torch.rand"}),
            Change("there is no super-resolution", {", cond_images = images": ""}),
        ],
    ),
    "musiclm-pytorch": Snippet(
        """
import torch
from quintet import MuLaN, AudioSpectrogramTransformer, TextTransformer

audio_transformer = AudioSpectrogramTransformer(
    dim = 16, depth = 1, heads = 1, dim_head = 16, spec_n_fft = 128, spec_win_length = 24,
    spec_aug_stretch_factor = 0.8
)
text_transformer = TextTransformer(dim = 16, depth = 1, heads = 1, dim_head = 16)
mulan = MuLaN(audio_transformer = audio_transformer, text_transformer = text_transformer)

wavs = torch.randn(2, 1024)
texts = torch.randint(0, 20000, (2, 256))
loss = mulan(wavs, texts)
loss.backward()
embeds = mulan.get_audio_latents(wavs)
embeds = mulan.get_text_latents(texts)
""",
        [
            Change(
                "no AudioSpectrogramTransformer: its settings are those of MuLaN: dim, layers",
                {
                    ", AudioSpectrogramTransformer": "",
                    "audio_transformer = AudioSpectrogramTransformer(": "audio = dict(",
                    "audio_transformer = audio_transformer": "**audio",
                },
            ),
            Change(
                "no TextTransformer: its settings are those of MuLaN: text_dim, text_layers, "
                "text_heads, text_head_dim",
                {
                    ", TextTransformer": "",
                    "text_transformer = TextTransformer(dim": "text = dict(text_dim",
                    "depth = 1, heads = 1, dim_head = 16)": (
                        "text_layers = 1, text_heads = 1, text_head_dim = 16)"
                    ),
                    "text_transformer = text_transformer": "**text",
                },
            ),
            Change("raise n_fft", {"spec_n_fft = 128": "spec_n_fft = 2048"}),
            Change(
                "vocab_size of your ids", {"MuLaN(**audio": "MuLaN(vocab_size = 20000, **audio"}
            ),
        ],
    ),
    "voicebox-pytorch": Snippet(
        """
import torch
from quintet import (
    VoiceBox, EncodecVoco, ConditionalFlowMatcherWrapper, HubertWithKmeans, TextToSemantic
)
wav2vec = HubertWithKmeans(checkpoint_path = 'hubert.pt', kmeans_path = 'kmeans.bin')
text_to_semantic = TextToSemantic(wav2vec = wav2vec, dim = 16)
model = VoiceBox(
    dim = 16, audio_enc_dec = EncodecVoco(), num_cond_tokens = 500, depth = 1, dim_head = 16,
    heads = 1
)
cfm_wrapper = ConditionalFlowMatcherWrapper(voicebox = model, text_to_semantic = text_to_semantic)
audio = torch.randn(2, 12000)
loss = cfm_wrapper(audio)
loss.backward()
cond = torch.randn(2, 12000)
sampled = cfm_wrapper.sample(cond = cond, texts = ['the rain in spain', 'she sells sea shells'])
assert len(sampled) == 2
""",
        [
            Change(
                "no EncodecVoco: drop audio_enc_dec",
                {" EncodecVoco,": "", "audio_enc_dec = EncodecVoco(), ": ""},
            ),
            Change(
                "no HubertWithKmeans: drop it: VoiceBox takes texts",
                {
                    ", HubertWithKmeans": "",
                    "wav2vec = HubertWithKmeans(checkpoint_path = 'hubert.pt', kmeans_path = "
                    "'kmeans.bin')\n": "",
                },
            ),
            Change(
                "no TextToSemantic: drop it: VoiceBox takes texts",
                {
                    ", TextToSemantic": "",
                    "text_to_semantic = TextToSemantic(wav2vec = wav2vec, dim = 16)\n": "",
                    ", text_to_semantic = text_to_semantic": "",
                },
            ),
            Change("texts as strings need none", {"num_cond_tokens = 500, ": ""}),
        ],
    ),
    "voicebox-pytorch, latents": Snippet(
        """
import torch
from quintet import VoiceBox, ConditionalFlowMatcherWrapper

model = VoiceBox(
    dim = 16, num_cond_tokens = 500, depth = 1, dim_head = 16, heads = 1, condition_on_text = False
)
cfm_wrapper = ConditionalFlowMatcherWrapper(voicebox = model)
x = torch.randn(2, 32, 16)
loss = cfm_wrapper(x)
loss.backward()
cond = torch.randn(2, 32, 16)
sampled = cfm_wrapper.sample(cond = cond)
assert sampled[0].shape == (32, 16)
""",
        [
            Change(
                "for latents build the model with features='latents' and n_mels=, their width",
                {"dim = 16, num": "dim = 16, features = 'latents', n_mels = 16, num"},
            )
        ],
    ),
}


def run(script: str) -> None:
    torch.manual_seed(0)
    exec(compile(script, "snippet", "exec"), {"__name__": "__main__"})


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_runs_after_the_changes_that_its_messages_ask_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, changes = SNIPPETS[name]
    put_media(tmp_path / "media")
    monkeypatch.chdir(tmp_path)
    for change in changes:
        with pytest.raises((TypeError, ValueError, AttributeError, ImportError)) as caught:
            run(script)
        assert change.asked in str(caught.value)
        for old, new in change.edits.items():
            assert old in script
            script = script.replace(old, new)
    run(script)
    trained = "trainer.train()" in script
    assert (tmp_path / "runs/run/metrics.jsonl").exists() == trained
