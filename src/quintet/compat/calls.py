"""Arguments of the older packages' calls of a model: what replaces each, or what to do instead."""

from collections.abc import Mapping
from typing import Any

from quintet.compat.keywords import Removed, anything, nothing
from quintet.compat.models import Table, faces_of_codes, fields_of, only, when_set

_NO_ENLARGING = Removed("there is no super-resolution", only(None))
_NO_CRITIC = Removed("there is no critic", anything)
_NO_GRADIENT_PENALTY = Removed("the trainer penalises the discriminators, every penalty_every")
_TEXT_EMBEDS = Removed("give texts, and text='frozen' with text_path= to the model", only(None))
_IDS = Removed(
    "give texts=, strings, or ids from 2 on to a model with text='given' (one for each frame)",
    only(None),
)
_OUTPUT = Removed("call reconstruct, or take output of what the model returns", nothing)
_ADVERSARIAL = Removed("the trainer computes the adversarial loss", only(None))
_SIMILARITY = Removed("call similarity(wavs, raw_texts), or get_audio_latents", nothing)

MESH_AUTOENCODER_CALL: Table = {
    "return_codes": Removed(
        "call tokenize, or take codes of what a call by position returns", nothing
    ),
    "return_loss_breakdown": Removed(
        "autoencoder(vertices, faces), by position, returns loss, coordinate_loss and"
        " quantiser_loss by name",
        nothing,
    ),
    **dict.fromkeys(
        ("return_recon_faces", "only_return_recon_faces"), Removed("call reconstruct", nothing)
    ),
    "rvq_sample_codebook_temp": Removed("codes are not sampled", anything),
}
MESH_TRANSFORMER_CALL: Table = {
    "text_embeds": _TEXT_EMBEDS,
    "cond_drop_prob": when_set("text_drop"),
    "return_loss": Removed("call with codes by position for the losses of each mesh", only(True)),
    "return_cache": Removed("generate uses a cache automatically", nothing),
    "cache": Removed("generate uses a cache automatically", only(None)),
    "append_eos": Removed("the end of a mesh is always learned", only(True)),
}
MESH_GENERATE: Table = {
    "max_seq_len": faces_of_codes,
    "cache_kv": Removed("keys and values are always cached"),
    "filter_logits_fn": Removed(
        "give top_k or top_p", lambda value: getattr(value, "__name__", "") == "top_k"
    ),
    "filter_kwargs": Removed("give top_k or top_p", nothing),
    "text_embeds": _TEXT_EMBEDS,
    "face_coords_to_file": Removed("write the vertices and faces that are returned", only(None)),
    "remove_parallel_component": Removed("guidance has no projection; lower cond_scale", nothing),
    "keep_parallel_frac": Removed("guidance has no projection; lower cond_scale", anything),
}
TOKENIZER_CALL: Table = {
    **dict.fromkeys(("return_recon", "return_recons"), _OUTPUT),
    "return_codes": Removed("call tokenize, or take ids of what the model returns", nothing),
    "return_discr_loss": Removed(
        "the discriminators belong to the trainer; build your own from quintet.nn.adversarial",
        nothing,
    ),
    "return_recon_loss_only": Removed("return_loss=True has no adversarial part", nothing),
    **dict.fromkeys(("add_gradient_penalty", "apply_gradient_penalty"), _NO_GRADIENT_PENALTY),
    **dict.fromkeys(
        ("adversarial_loss_weight", "multiscale_adversarial_loss_weight"), _ADVERSARIAL
    ),
    "cond": Removed("layers take no condition", only(None)),
    "video_contains_first_frame": Removed("the first frame is always encoded", only(True)),
}
MASKGIT_CALL: Table = {
    "text_embeds": _TEXT_EMBEDS,
    **dict.fromkeys(("cond_images", "cond_token_ids"), _NO_ENLARGING),
    "cond_drop_prob": Removed("it is a setting of the trainer: text_drop", only(None)),
    "ignore_index": Removed("ids that are not masked have no loss", only(-1)),
    **dict.fromkeys(("train_only_generator", "sample_temperature"), _NO_CRITIC),
}
MASKGIT_GENERATE: Table = {
    "timesteps": "steps",
    "topk_filter_thres": Removed("set temperature", only(0.9)),
    "can_remask_prev_masked": Removed("fixed ids are not masked again", nothing),
    "force_not_use_token_critic": _NO_CRITIC,
    "critic_noise_scale": Removed("set choice_temperature", only(1)),
    "fmap_size": Removed("the size is that of training", only(None)),
    "negative_texts": Removed("guidance uses no caption as the negative", only(None)),
    "cond_images": _NO_ENLARGING,
}
MULAN_CALL: Table = dict.fromkeys(
    ("return_latents", "return_similarities", "return_pairwise_similarities"), _SIMILARITY
)
VOICEBOX_CALL: Table = {
    **dict.fromkeys(("semantic_token_ids", "phoneme_ids"), _IDS),
    "mask": Removed("give lengths=, the number of samples of each sound", only(None)),
    "cond": Removed("the context is the sound outside a random mask", only(None)),
    "cond_mask": Removed("it is random: losses=VoiceBoxLossConfig(mask_fraction=…)", only(None)),
    "input_sampling_rate": Removed("resample to the sample_rate of the model", only(None)),
}
VOICEBOX_SAMPLE: Table = {
    **dict.fromkeys(("text_token_ids", "semantic_token_ids", "phoneme_ids"), _IDS),
    "decode_to_audio": Removed("frames are always decoded", only(True)),
    "decode_to_codes": Removed("sounds are returned", nothing),
    **dict.fromkeys(
        ("max_semantic_token_ids", "spec_decode", "spec_decode_gamma"),
        Removed("there are no semantic tokens", anything),
    ),
}
FLOW_WRAPPER: Table = {
    **dict.fromkeys(
        ("text_to_semantic", "duration_predictor"),
        Removed("VoiceBox learns the alignment and durations of texts itself", only(None)),
    ),
    "sigma": Removed("paths are straight", only(0.0)),
    "cond_drop_prob": Removed("it is a setting of the trainer: drop_text", only(0.0)),
    **dict.fromkeys(
        ("ode_atol", "ode_rtol", "use_torchode", "torchdiffeq_ode_method", "torchode_method_klass"),
        Removed("sample takes steps= and method="),
    ),
}


def call_keywords(table: Table, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Replace what older packages' calls say, with a notice each; other keywords pass."""
    translated: dict[str, Any] = {}
    for name, value in keywords.items():
        translated |= fields_of(name, value, table.get(name), keywords, None)
    return translated
