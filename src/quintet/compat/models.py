"""Arguments of the older packages' models: the fields that replace each, or what to do instead.

One table per model. An entry is a new name, a function from the old value to fields, or `Removed`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any, get_args, get_origin

from quintet.compat.keywords import Removed, anything, nothing, notice, twice

ToFields = Callable[[Any, Mapping[str, Any], Any], dict[str, Any]]
"""Fields from the old value, all arguments of the call, and the configuration to change."""
Table = Mapping[str, str | ToFields | Removed]


def only(*harmless: Any) -> Callable[[Any], bool]:
    """A test for values that mean the same here or have no effect."""
    return lambda value: value in harmless


def unset(*defaults: Any) -> Callable[[Any], bool]:
    """A test for empty values and upstream's defaults, which mean the same as leaving them out."""
    return lambda value: not value or value in defaults


def choice(name: str, yes: Any, no: Any) -> ToFields:
    """A boolean that is now one of two values of a field, unless the call sets that field too."""

    def to_fields(value: Any, keywords: Mapping[str, Any], _: Any) -> dict[str, Any]:
        return {} if name in keywords else {name: yes if value else no}

    return to_fields


def when_set(name: str) -> ToFields:
    """A renamed argument; None is dropped."""
    return lambda value, *_: {} if value is None else {name: value}


_TRAINER = "it is a setting of the trainer: "
_KERNEL = Removed("attention uses the fastest available kernel", anything)
_NO_DROPOUT = Removed("there is no such dropout", nothing)
_WIDTHS = "set dim, message_dim, encoder_layers, decoder_layers and window"
_FEED_FORWARD = Removed("feed-forward layers are sized for a width of 4 dim", only(4))
_CONTINUOUS = Removed("angles, areas and normals are continuous features")
_NO_GATES = Removed("there are no gate loops: set layers and fine_layers", unset(2))
_PADDING = Removed("padding is -1", only(-1))


# -- meshgpt-pytorch ------------------------------------------------------------------------------


def mesh_codebook(size: int, keywords: Mapping[str, Any], config: Any) -> dict[str, Any]:
    by_flag = "lfq" if keywords.get("use_residual_lfq") else "vq"
    default = by_flag if "use_residual_lfq" in keywords else config.quantiser
    if keywords.get("quantiser", default) == "fsq":
        raise TypeError(
            f"codebook_size={size} is not supported: the codebook of fsq is the product of levels, "
            "one number for each axis; or give quantiser='lfq' and codebook_bits"
        )
    bits = size.bit_length() - 1
    if size != 2**bits:
        raise TypeError(f"codebook_size={size} is not supported: it must be a power of two")
    return {"codebook_bits": bits}


def faces_of_codes(length: int | None, keywords: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """`max_seq_len` counted codes; a face has corners x depth of them."""
    if length is None:
        return {}
    corners, depth = (keywords.get(name, getattr(config, name)) for name in ("corners", "depth"))
    return {"max_faces": length // (corners * depth)}


_KWARGS = unset(
    {"quantize_dropout": True, "quantize_dropout_cutoff_index": 1}
    | {"quantize_dropout_multiple_of": 1},
    {"kmeans_init": True, "threshold_ema_dead_code": 2},
    {"frac_per_sample_entropy": 1.0, "soft_clamp_input_value": 10.0}
    | {"experimental_softplus_entropy_loss": True},
)

MESH_AUTOENCODER: Table = {
    "num_discrete_coors": "bins",
    "num_quantizers": "depth",
    "dim_codebook": "latent_dim",
    "commit_loss_weight": "commitment_weight",
    "quads": choice("corners", 4, 3),
    "use_residual_lfq": choice("quantiser", "lfq", "vq"),
    "codebook_size": mesh_codebook,
    "coor_continuous_range": Removed(
        "vertices are between -1 and 1: scale your meshes",
        lambda value: tuple(value) == (-1.0, 1.0),
    ),
    "encoder_dims_through_depth": Removed(_WIDTHS, unset((64, 128, 256, 256, 576))),
    "decoder_dims_through_depth": Removed(
        _WIDTHS, unset((*[128] * 4, *[192] * 4, *[256] * 6, *[384] * 3))
    ),
    **dict.fromkeys(("attn_encoder_depth", "attn_decoder_depth"), Removed(_WIDTHS, nothing)),
    "init_decoder_conv_kernel": Removed(_WIDTHS, unset(7)),
    "sageconv_kwargs": Removed(_WIDTHS, unset({"normalize": True, "project": True})),
    **dict.fromkeys(("num_discrete_area", "num_discrete_normals"), _CONTINUOUS),
    **dict.fromkeys(("num_discrete_angle", "dim_coor_embed", "dim_area_embed"), _CONTINUOUS),
    **dict.fromkeys(("dim_normal_embed", "dim_angle_embed"), _CONTINUOUS),
    **dict.fromkeys(
        ("rq_kwargs", "rvq_kwargs", "rlfq_kwargs"),
        Removed("set quantiser, codebook_bits, entropy_weight and commitment_weight", _KWARGS),
    ),
    "rvq_stochastic_sample_codes": Removed("codes are not sampled"),
    "bin_smooth_blur_sigma": Removed("a coordinate is a discretised logistic"),
    **dict.fromkeys(
        ("local_attn_kwargs", "local_attn_window_size", "linear_attn_kwargs", "use_linear_attn"),
        Removed("the decoder has no attention: set decoder_layers and window"),
    ),
    **dict.fromkeys(("attn_dropout", "ff_dropout", "resnet_dropout"), _NO_DROPOUT),
    "checkpoint_quantizer": Removed(f"{_TRAINER}checkpoint_activations", nothing),
    "flash_attn": _KERNEL,
    "pad_id": _PADDING,
}
MESH_TRANSFORMER: Table = {
    "attn_depth": "layers",
    "attn_heads": "heads",
    "attn_dim_head": "head_dim",
    "fine_attn_depth": "fine_layers",
    "fine_attn_heads": "fine_heads",
    "fine_attn_dim_head": "fine_head_dim",
    "max_seq_len": faces_of_codes,
    "condition_on_text": choice("text", "bytes", "none"),
    "quads": choice("corners", 4, 3),
    "text_condition_model_types": Removed(
        "give text='frozen' and text_path=, the folder of the encoder", nothing, "condition_on_text"
    ),
    "text_condition_model_kwargs": Removed(
        "give text='frozen' and text_path=, the folder of the encoder", lambda v: not any(v)
    ),
    "text_condition_cond_drop_prob": Removed(f"{_TRAINER}text_drop", only(0.25)),
    **dict.fromkeys(("coarse_pre_gateloop_depth", "coarse_post_gateloop_depth"), _NO_GATES),
    "fine_pre_gateloop_depth": _NO_GATES,
    "gateloop_use_heinsen": _NO_GATES,
    "attn_kwargs": Removed(
        "set layers, heads, head_dim and dropout",
        unset(
            {"ff_glu": True, "attn_num_mem_kv": 4, "add_value_residual": True}
            | {"learned_value_residual_mix": True, "num_residual_streams": 4}
        ),
    ),
    "cross_attn_num_mem_kv": Removed("a learned embedding stands for an empty caption"),
    "num_sos_tokens": Removed("a mesh starts with one learned embedding"),
    "coarse_adaptive_rmsnorm": Removed("captions are read by cross-attention", nothing),
    "text_cond_with_film": Removed("captions are read by cross-attention", nothing),
    "fine_cross_attend_text": Removed("captions are read by the coarse decoder", nothing),
    "flash_attn": _KERNEL,
    "pad_id": _PADDING,
}

# -- magvit2-pytorch and muse-maskgit-pytorch -----------------------------------------------------

_LFQ = "set entropy_weight and commitment_weight"
_HEADS = Removed("the number of heads follows from the width", anything)
_ADVERSARIAL = Removed(f"{_TRAINER}adversarial_share and adversarial_cap", only(1.0))
_VGG = Removed(f"{_TRAINER}vgg, a local file of weights", only(None))

VIDEO_TOKENIZER: Table = {
    "use_fsq": choice("quantiser", "fsq", "lfq"),
    "fsq_levels": when_set("levels"),
    "lfq_entropy_loss_weight": "entropy_weight",
    "lfq_commitment_loss_weight": "commitment_weight",
    "lfq_spherical": Removed("the spherical quantiser is quantiser='bsq'", only(False)),
    "lfq_diversity_gamma": Removed(_LFQ, only(2.5)),
    "lfq_soft_clamp_input_value": Removed(_LFQ, unset(10.0)),
    "lfq_activation": Removed(_LFQ, lambda value: type(value).__name__ == "Identity"),
    "quantizer_aux_loss_weight": Removed(_LFQ, only(1.0)),
    **dict.fromkeys(("attn_dim_head", "attn_heads", "linear_attn_dim_head"), _HEADS),
    "linear_attn_heads": _HEADS,
    "attn_dropout": _NO_DROPOUT,
    "residual_conv_kernel_size": Removed("kernels have a size of 3", only(3)),
    **dict.fromkeys(
        ("input_conv_kernel_size", "output_conv_kernel_size", "pad_mode"),
        Removed("the first and last convolutions have kernels of 3 and zero padding"),
    ),
    "num_codebooks": Removed("there is one codebook: raise codebook_size", only(1)),
    "dim_cond": Removed("layers take no condition", only(None)),
    "dim_cond_expansion_factor": Removed("layers take no condition"),
    "vgg": _VGG,
    "vgg_weights": Removed(
        _VGG.instead,
        lambda value: getattr(value, "name", value) in (None, "DEFAULT", "IMAGENET1K_V1"),
    ),
    "perceptual_loss_weight": Removed(f"{_TRAINER}perceptual", only(0.1)),
    "discr_kwargs": Removed(f"{_TRAINER}frame_discriminator, motion_discriminator", nothing),
    "multiscale_discrs": Removed(f"{_TRAINER}motion_discriminator", nothing),
    "use_gan": Removed(f"{_TRAINER}adversarial='none'", only(True)),
    "adversarial_loss_weight": _ADVERSARIAL,
    "multiscale_adversarial_loss_weight": _ADVERSARIAL,
    "grad_penalty_loss_weight": Removed(f"{_TRAINER}penalty_weight", only(10.0)),
    "separate_first_frame_encoding": Removed("the first frame is always encoded as if alone"),
    "flash_attn": _KERNEL,
}
VQGAN_VAE: Table = {
    "lookup_free_quantization": choice("quantiser", "lfq", "vq"),
    "num_resnet_blocks": "num_res_blocks",
    "vq_kwargs": Removed(
        "set codebook_bits and commitment_weight",
        unset(
            {"codebook_dim": 256, "decay": 0.8, "commitment_weight": 1.0}
            | {"kmeans_init": True, "use_cosine_sim": True}
        ),
    ),
    "lfq_kwargs": Removed(
        "set codebook_bits, entropy_weight and commitment_weight", unset({"diversity_gamma": 4.0})
    ),
    "l2_recon_loss": Removed(f"{_TRAINER}l1 and l2", only(False)),
    "use_hinge_loss": Removed(f"{_TRAINER}adversarial='relativistic'", only(True)),
    "use_vgg_and_gan": Removed(f"{_TRAINER}adversarial='none', perceptual=0", only(True)),
    "discr_layers": Removed(f"{_TRAINER}discriminator={{'layers': …}}", only(4)),
    "layer_mults": Removed("set channel_multipliers", only(None)),
    "vgg": _VGG,
}

_FOLLOWS = Removed("the tokenizer and the size of the pictures determine it", anything)
_NO_ENLARGING = Removed("there is no super-resolution", only(None))
_FROZEN_TEXT = Removed("give text='frozen' and text_path=, the folder of the encoder", nothing)

MASKGIT: Table = {
    "depth": "layers",
    "dim_head": "head_dim",
    **dict.fromkeys(("num_tokens", "seq_len", "dim_out"), _FOLLOWS),
    "ff_mult": _FEED_FORWARD,
    "t5_name": _FROZEN_TEXT,
    "transformer": Removed("give its settings to MaskGit itself: dim, layers, heads", only(None)),
    "self_cond": Removed("predictions are not conditioned on earlier ones", nothing),
    "self_cond_prob": Removed("predictions are not conditioned on earlier ones", anything),
    "add_mask_id": Removed("masked ids have an embedding of their own", anything),
    "cond_drop_prob": Removed(f"{_TRAINER}text_drop", only(0.5)),
    "noise_schedule": Removed(
        "the schedule is the cosine",
        lambda value: getattr(value, "__name__", "") == "cosine_schedule",
    ),
    "no_mask_token_prob": Removed("masked ids are always replaced", only(0.0, 0)),
    "token_critic": Removed("ids are chosen by confidence, or with order='halton'", nothing),
    "self_token_critic": Removed("ids are chosen by confidence, or with order='halton'", nothing),
    "critic_loss_weight": Removed("there is no critic", anything),
    **dict.fromkeys(("cond_vae", "cond_image_size"), _NO_ENLARGING),
    "flash": _KERNEL,
}

# -- musiclm-pytorch ------------------------------------------------------------------------------

_TOWERS = Removed(
    "give their settings to MuLaN itself: dim, layers, heads, text_dim, text_layers, text_heads",
    only(),
)
_SPECTROGRAM = "set n_fft, hop_length and n_mels"
_MASKS = Removed(f"{_TRAINER}losses, as shares of the spectrogram", only(80))

MULAN: Table = {
    "depth": "layers",
    "dim_head": "head_dim",
    "patch_dropout_prob": "patch_dropout",
    "spec_n_fft": "n_fft",
    "spec_hop_length": when_set("hop_length"),
    "max_seq_len": "text_length",
    "num_tokens": "vocab_size",
    "sigmoid_contrastive_loss": lambda on, *_: {"loss": "sigmoid"} if on else {},
    "decoupled_contrastive_learning": lambda on, keywords, _: (
        {}
        if keywords.get("sigmoid_contrastive_loss")
        else {"loss": "decoupled" if on else "softmax"}
    ),
    "audio_transformer": _TOWERS,
    "text_transformer": _TOWERS,
    "hierarchical_contrastive_loss": Removed("the loss uses the last layer", nothing),
    "hierarchical_contrastive_loss_layers": Removed("the loss uses the last layer", nothing),
    "accept_spec": Removed("the model takes waveforms", nothing),
    "accept_spec_time_first": Removed("the model takes waveforms"),
    "spec_power": Removed(_SPECTROGRAM, only(2)),
    "spec_win_length": Removed(_SPECTROGRAM, only(24, None)),
    "spec_pad": Removed(_SPECTROGRAM, only(0)),
    "spec_center": Removed(_SPECTROGRAM, only(True)),
    "spec_pad_mode": Removed(_SPECTROGRAM, only("reflect")),
    **dict.fromkeys(("spec_aug_freq_mask", "spec_aug_time_mask"), _MASKS),
    "spec_aug_stretch_factor": Removed("sounds are not stretched in time"),
    "attn_dropout": _NO_DROPOUT,
    "ff_dropout": _NO_DROPOUT,
    "ff_mult": _FEED_FORWARD,
    "pad_id": Removed("padding is 0", only(0)),
}

# -- voicebox-pytorch -----------------------------------------------------------------------------

VOICEBOX: Table = {
    "dim_head": "head_dim",
    "num_register_tokens": "registers",
    "conv_pos_embed_kernel_size": "kernel",
    "dim_cond_emb": "text_dim",
    "ff_dropout": "dropout",
    "attn_dropout": "dropout",
    "condition_on_text": choice("text", "learned", "none"),
    "num_cond_tokens": Removed(
        "give text='given' and vocabulary=, counting 2 more: 0 is padding and 1 unknown; texts as"
        " strings need none",
        only(None),
        "condition_on_text",
    ),
    "audio_enc_dec": Removed(
        "sounds become log-mels; for latents of a codec give features='latents' and n_mels=",
        only(None),
    ),
    "dim_in": Removed("give n_mels=, and features='latents' for latents", only(None)),
    "p_drop_prob": Removed(f"{_TRAINER}drop_context", only(0.3)),
    "frac_lengths_mask": Removed(
        f"{_TRAINER}mask_fraction", lambda value: tuple(value) == (0.7, 1.0)
    ),
    "ff_mult": _FEED_FORWARD,
    "time_hidden_dim": Removed("set dim", only(None)),
    "conv_pos_embed_groups": Removed("set kernel", only(None)),
    "use_gateloop_layers": Removed("there are no gate loops: set depth", nothing),
    "attn_qk_norm": Removed("queries and keys are normalised", only(True)),
    "attn_flash": _KERNEL,
}


def model_keywords(
    table: Table, keywords: Mapping[str, Any], config: Any, extra: Iterable[str] = ()
) -> dict[str, Any]:
    """Replace older names, with a notice each; refuse unknown names, with a list.

    `extra` are arguments of the constructor that are no fields of the configuration.
    """
    if not is_dataclass(config):
        raise TypeError(
            f"the model got {config!r} by position; give its settings by keyword, such as dim=64"
        )
    kinds = {field.name: field.type for field in fields(config)}
    translated = arguments(table, keywords, {*kinds, *extra}, config)
    return {name: _repeated(kinds.get(name), value) for name, value in translated.items()}


def _repeated(kind: Any, value: Any) -> Any:
    """A number for a setting that is a pair, or a list, of numbers."""
    if get_origin(kind) is not tuple or type(value) is not int:
        return value
    return (value,) if get_args(kind)[-1] is Ellipsis else (value,) * len(get_args(kind))


def arguments(
    table: Table,
    keywords: Mapping[str, Any],
    known: set[str],
    config: Any,
    function: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """`function` takes further arguments, which the message about unknown ones lists."""
    translated: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, value in keywords.items():
        entry = None if name in known else table.get(name)
        for new, now in fields_of(name, value, entry, keywords, config).items():
            if new not in known:
                others = signature(function).parameters.values() if function else ()
                names = known | {p.name for p in others if p.kind is not p.VAR_KEYWORD}
                raise TypeError(f"unknown argument {new!r}; known: {', '.join(sorted(names))}")
            if new in translated and translated[new] != now:
                raise TypeError(twice(new, name, origins[new]))
            translated[new], origins[new] = now, name
    return translated


def fields_of(
    name: str,
    value: Any,
    entry: str | ToFields | Removed | None,
    keywords: Mapping[str, Any],
    config: Any,
) -> dict[str, Any]:
    """What an argument becomes, with a notice if it is an older one."""
    if entry is None:
        return {name: value}
    if isinstance(entry, Removed):
        if not entry.harmless(value) and keywords.get(entry.part_of) is not False:
            raise TypeError(f"{name}={value!r} is not supported: {entry.instead}")
        notice(f"{name} is not needed: {entry.instead}")
        return {}
    if isinstance(entry, str):
        notice(f"{name} is now called {entry}")
        return {entry: value}
    changes = entry(value, keywords, config)
    new = ", ".join(f"{field}={now!r}" for field, now in changes.items())
    notice(f"{name}={value!r} is now {new}" if new else f"{name}={value!r} is not needed")
    return changes
