"""Names that the older packages export: what there is instead, or a stand-in."""

from typing import Any

from quintet.compat.calls import FLOW_WRAPPER
from quintet.compat.keywords import notice
from quintet.compat.models import arguments

_MULAN = "its settings are those of MuLaN: "
_TEXT = "drop it: VoiceBox takes texts and learns their alignment and durations itself"
_GENERATOR = "its settings are those of MaskGit: dim, layers, heads, and text= for the captions"
_CRITIC = "drop it: MaskGit chooses ids by confidence, or with generate(order='halton')"
_LOSS = "give MuLaN(loss='sigmoid'), 'softmax' or 'decoupled'"
_NO_SOUND = "generation of music is not offered"

INSTEAD = {
    # meshgpt-pytorch
    "DatasetFromTransforms": "give data=, a folder, to the trainer; meshes are augmented there",
    "cache_text_embeds_for_dataset": "drop it: embeddings of text='frozen' are cached",
    "cache_face_edges_for_dataset": "drop it: adjacency is computed by the data loader",
    # magvit2-pytorch and muse-maskgit-pytorch
    "MagViT2": "VideoTokenizer is the tokenizer and VideoMaskGit the generator",
    "Transformer": "its settings are those of the model: MaskGit(dim=…), VoiceBox(dim=…)",
    "MaskGitTransformer": _GENERATOR,
    "TokenCritic": _CRITIC,
    "Muse": "call base.generate(texts) of a MaskGit; there is no super-resolution",
    # musiclm-pytorch
    "AudioSpectrogramTransformer": f"{_MULAN}dim, layers, heads, head_dim, n_fft, hop_length",
    "TextTransformer": f"{_MULAN}text_dim, text_layers, text_heads, text_head_dim, vocab_size",
    "MuLaNEmbedQuantizer": "MuLaN has quantiser_depth=, quantiser_bits= and quantize_latents()",
    "SigmoidContrastiveLearning": _LOSS,
    "SoftmaxContrastiveLearning": _LOSS,
    "MusicLM": _NO_SOUND,
    # voicebox-pytorch
    "EncodecVoco": "drop audio_enc_dec: VoiceBox takes sounds; for latents give features='latents'",
    "DurationPredictor": _TEXT,
    "TextToSemantic": _TEXT,
    "HubertWithKmeans": _TEXT,
}


def missing(name: str) -> ImportError:
    """The error of `from quintet import NAME`. An AttributeError would lose its message there."""
    return ImportError(f"quintet has no {name}: {INSTEAD[name]}", name=name)


def ConditionalFlowMatcherWrapper(voicebox: Any, **older: Any) -> Any:
    """The VoiceBox itself, which is the flow: it is called, trained and sampled from."""
    notice("ConditionalFlowMatcherWrapper is not needed: VoiceBox is trained and sampled from")
    arguments(FLOW_WRAPPER, older, set(), None, ConditionalFlowMatcherWrapper)
    return voicebox
