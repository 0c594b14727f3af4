"""Arguments of the older packages' models: each is taken, mapped with a notice, or answered."""

import math
import warnings
from typing import Any

import pytest
from torch import nn

import quintet

# Every argument of the constructors, with the value that it had by default.
UPSTREAM: dict[str, dict[str, Any]] = {
    "MeshAutoencoder": {
        "num_discrete_coors": 128,
        "coor_continuous_range": (-1.0, 1.0),
        "dim_coor_embed": 64,
        "num_discrete_area": 128,
        "dim_area_embed": 16,
        "num_discrete_normals": 128,
        "dim_normal_embed": 64,
        "num_discrete_angle": 128,
        "dim_angle_embed": 16,
        "encoder_dims_through_depth": (64, 128, 256, 256, 576),
        "init_decoder_conv_kernel": 7,
        "decoder_dims_through_depth": (*[128] * 4, *[192] * 4, *[256] * 6, *[384] * 3),
        "dim_codebook": 192,
        "num_quantizers": 2,
        "codebook_size": 16384,
        "use_residual_lfq": True,
        "rq_kwargs": {
            "quantize_dropout": True,
            "quantize_dropout_cutoff_index": 1,
            "quantize_dropout_multiple_of": 1,
        },
        "rvq_kwargs": {"kmeans_init": True, "threshold_ema_dead_code": 2},
        "rlfq_kwargs": {
            "frac_per_sample_entropy": 1.0,
            "soft_clamp_input_value": 10.0,
            "experimental_softplus_entropy_loss": True,
        },
        "rvq_stochastic_sample_codes": True,
        "sageconv_kwargs": {"normalize": True, "project": True},
        "commit_loss_weight": 0.1,
        "bin_smooth_blur_sigma": 0.4,
        "attn_encoder_depth": 0,
        "attn_decoder_depth": 0,
        "local_attn_kwargs": {"heads": 8},
        "local_attn_window_size": 64,
        "linear_attn_kwargs": {"heads": 16},
        "use_linear_attn": True,
        "pad_id": -1,
        "flash_attn": True,
        "attn_dropout": 0.0,
        "ff_dropout": 0.0,
        "resnet_dropout": 0,
        "checkpoint_quantizer": False,
        "quads": False,
    },
    "MeshTransformer": {
        "dim": 16,
        "max_seq_len": 768,
        "flash_attn": True,
        "attn_depth": 1,
        "attn_dim_head": 16,
        "attn_heads": 1,
        "attn_kwargs": {
            "ff_glu": True,
            "attn_num_mem_kv": 4,
            "add_value_residual": True,
            "learned_value_residual_mix": True,
            "num_residual_streams": 4,
        },
        "cross_attn_num_mem_kv": 4,
        "dropout": 0.0,
        "coarse_pre_gateloop_depth": 2,
        "coarse_post_gateloop_depth": 0,
        "coarse_adaptive_rmsnorm": False,
        "fine_pre_gateloop_depth": 2,
        "gateloop_use_heinsen": False,
        "fine_attn_depth": 1,
        "fine_attn_dim_head": 16,
        "fine_attn_heads": 1,
        "fine_cross_attend_text": False,
        "pad_id": -1,
        "num_sos_tokens": None,
        "condition_on_text": False,
        "text_cond_with_film": False,
        "text_condition_model_types": ("t5",),
        "text_condition_model_kwargs": ({},),
        "text_condition_cond_drop_prob": 0.25,
        "quads": False,
    },
    "VideoTokenizer": {
        "image_size": 128,
        "layers": ("residual", "residual"),
        "residual_conv_kernel_size": 3,
        "num_codebooks": 1,
        "codebook_size": 1024,
        "channels": 3,
        "init_dim": 8,
        "max_dim": math.inf,
        "dim_cond": None,
        "dim_cond_expansion_factor": 4.0,
        "input_conv_kernel_size": (7, 7, 7),
        "output_conv_kernel_size": (3, 3, 3),
        "pad_mode": "constant",
        "lfq_entropy_loss_weight": 0.1,
        "lfq_commitment_loss_weight": 1.0,
        "lfq_diversity_gamma": 2.5,
        "lfq_spherical": False,
        "quantizer_aux_loss_weight": 1.0,
        "lfq_soft_clamp_input_value": 10.0,
        "lfq_activation": nn.Identity(),
        "use_fsq": False,
        "fsq_levels": None,
        "attn_dim_head": 32,
        "attn_heads": 8,
        "attn_dropout": 0.0,
        "linear_attn_dim_head": 8,
        "linear_attn_heads": 16,
        "vgg": None,
        "vgg_weights": "DEFAULT",
        "perceptual_loss_weight": 0.1,
        "discr_kwargs": None,
        "multiscale_discrs": (),
        "use_gan": True,
        "adversarial_loss_weight": 1.0,
        "grad_penalty_loss_weight": 10.0,
        "multiscale_adversarial_loss_weight": 1.0,
        "flash_attn": True,
        "separate_first_frame_encoding": False,
    },
    "VQGanVAE": {
        "dim": 8,
        "channels": 3,
        "layers": 2,
        "l2_recon_loss": False,
        "use_hinge_loss": True,
        "vgg": None,
        "lookup_free_quantization": True,
        "codebook_size": 1024,
        "vq_kwargs": {
            "codebook_dim": 256,
            "decay": 0.8,
            "commitment_weight": 1.0,
            "kmeans_init": True,
            "use_cosine_sim": True,
        },
        "lfq_kwargs": {"diversity_gamma": 4.0},
        "use_vgg_and_gan": True,
        "discr_layers": 4,
        "layer_mults": None,
        "num_resnet_blocks": 1,
    },
    "MuLaN": {
        "dim_latent": 128,
        "decoupled_contrastive_learning": True,
        "hierarchical_contrastive_loss": False,
        "hierarchical_contrastive_loss_layers": None,
        "sigmoid_contrastive_loss": False,
        "dim": 16,
        "depth": 1,
        "dim_head": 16,
        "heads": 1,
        "patch_size": 16,
        "patch_dropout_prob": 0.25,
        "accept_spec": False,
        "accept_spec_time_first": True,
        "spec_n_fft": 1024,
        "spec_power": 2,
        "spec_win_length": 24,
        "spec_hop_length": None,
        "spec_pad": 0,
        "spec_center": True,
        "spec_pad_mode": "reflect",
        "spec_aug_stretch_factor": 0.8,
        "spec_aug_freq_mask": 80,
        "spec_aug_time_mask": 80,
        "attn_dropout": 0.0,
        "ff_dropout": 0.0,
        "ff_mult": 4,
        "num_tokens": 300,
        "max_seq_len": 256,
        "pad_id": 0,
    },
    "VoiceBox": {
        "num_cond_tokens": None,
        "audio_enc_dec": None,
        "dim_in": None,
        "dim_cond_emb": 16,
        "dim": 16,
        "depth": 1,
        "dim_head": 16,
        "heads": 1,
        "ff_mult": 4,
        "ff_dropout": 0.0,
        "time_hidden_dim": None,
        "conv_pos_embed_kernel_size": 31,
        "conv_pos_embed_groups": None,
        "attn_dropout": 0,
        "attn_flash": False,
        "attn_qk_norm": True,
        "use_gateloop_layers": False,
        "num_register_tokens": 16,
        "p_drop_prob": 0.3,
        "frac_lengths_mask": (0.7, 1.0),
        "condition_on_text": True,
    },
}


def cosine_schedule(t: Any) -> Any:
    """As muse-maskgit-pytorch calls its own."""


UPSTREAM["MaskGit"] = {
    "num_tokens": 64,
    "dim": 16,
    "seq_len": 16,
    "dim_out": None,
    "self_cond": False,
    "add_mask_id": False,
    "depth": 1,
    "dim_head": 16,
    "ff_mult": 4,
    "noise_schedule": cosine_schedule,
    "token_critic": None,
    "self_token_critic": False,
    "cond_vae": None,
    "cond_image_size": None,
    "cond_drop_prob": 0.5,
    "self_cond_prob": 0.9,
    "no_mask_token_prob": 0.0,
    "critic_loss_weight": 1.0,
}
REFUSED = {
    ("MeshAutoencoder", "codebook_size"): "fsq has another size of codebook",
    ("MeshTransformer", "text_condition_model_types"): "captions are on, and read as bytes",
}
"""Defaults that ask for something else than the default here."""
SMALL: dict[str, dict[str, Any]] = {
    "MeshAutoencoder": {"dim": 16, "message_dim": 8, "encoder_layers": 1, "decoder_layers": 1},
    "MeshTransformer": {"dim": 16, "layers": 1, "heads": 1, "fine_heads": 1, "codebook_size": 8},
    "VideoTokenizer": {"init_dim": 8, "max_dim": 8, "layers": ("residual",)},
    "VQGanVAE": {"dim": 8, "num_res_blocks": 1, "channel_multipliers": (1,)},
    "MuLaN": {"dim": 16, "layers": 1, "heads": 1, "text_dim": 16, "text_layers": 1},
    "VoiceBox": {"dim": 16, "depth": 1, "heads": 1},
    "MaskGit": {"dim": 16, "layers": 1, "heads": 1},
}
SAME_FIELD = {"attn_depth": "layers", "attn_heads": "heads", "fine_attn_heads": "fine_heads"}
SAME_FIELD |= {"depth": "layers", "num_resnet_blocks": "num_res_blocks"}


def build(model: str, **given: Any) -> tuple[Any, list[str]]:
    """The model and the notices; small, except in what is given."""
    hidden = {*given, *(SAME_FIELD.get(name, name) for name in given)}
    small = {name: value for name, value in SMALL[model].items() if name not in hidden}
    if model == "MeshTransformer":
        small |= {"levels": ()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = getattr(quintet, model)(**small | given)
    assert {warning.category for warning in caught} <= {FutureWarning}
    return built, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, names in UPSTREAM.items() for name in names]
)
def test_an_argument_is_taken_mapped_or_answered(model: str, name: str) -> None:
    """The default of upstream, spelled out, is taken: one notice at most."""
    fields = getattr(quintet, model).Config.__dataclass_fields__
    if (model, name) in REFUSED:
        with pytest.raises(TypeError, match=f"{name}=.* is not supported: "):
            build(model, **{name: UPSTREAM[model][name]})
        return
    _, told = build(model, **{name: UPSTREAM[model][name]})
    same = name in fields or name in ("layers", "codebook_size", "image_size")
    assert [text.startswith(name) for text in told] == ([] if same else [True])


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        ("MeshAutoencoder", {"quads": True}, {"corners": 4}),
        ("MeshAutoencoder", {"use_residual_lfq": False}, {"quantiser": "vq"}),
        (
            "MeshAutoencoder",
            {"use_residual_lfq": True, "codebook_size": 64},
            {"quantiser": "lfq", "codebook_bits": 6},
        ),
        ("MeshTransformer", {"condition_on_text": True}, {"text": "bytes"}),
        ("MeshTransformer", {"max_seq_len": 768}, {"max_faces": 128}),
        ("VideoTokenizer", {"use_fsq": True, "fsq_levels": (4, 4)}, {"levels": (4, 4)}),
        ("VideoTokenizer", {"use_fsq": False}, {"quantiser": "lfq"}),
        ("VQGanVAE", {"lookup_free_quantization": False}, {"quantiser": "vq"}),
        ("MuLaN", {"sigmoid_contrastive_loss": True}, {"loss": "sigmoid"}),
        ("MuLaN", {"decoupled_contrastive_learning": True}, {"loss": "decoupled"}),
        ("VoiceBox", {"condition_on_text": False, "dim_head": 16}, {"text": "none"}),
        ("VoiceBox", {"condition_on_text": False, "num_cond_tokens": 500}, {"text": "none"}),
        ("VoiceBox", {"ff_dropout": 0.1, "attn_dropout": 0.1}, {"dropout": 0.1}),
    ],
)
def test_an_old_argument_becomes_its_field(
    model: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    built, told = build(model, **old)
    assert {name: getattr(built.config, name) for name in new} == new
    assert len(told) == len(old)


@pytest.mark.parametrize(
    ("model", "old", "remedy"),
    [
        ("MeshAutoencoder", {"codebook_size": 16384}, "levels"),
        ("MeshAutoencoder", {"coor_continuous_range": (0, 1)}, "scale your meshes"),
        ("MeshTransformer", {"text_condition_model_types": ("t5",)}, "text_path"),
        ("VideoTokenizer", {"use_gan": False}, "adversarial='none'"),
        ("VideoTokenizer", {"grad_penalty_loss_weight": 5.0}, "penalty_weight"),
        ("VideoTokenizer", {"perceptual_loss_weight": 0}, "perceptual"),
        ("MeshTransformer", {"coarse_pre_gateloop_depth": 3}, "no gate loops"),
        ("MaskGit", {"noise_schedule": print}, "the cosine"),
        ("MuLaN", {"spec_win_length": 400}, "n_fft"),
        ("VoiceBox", {"num_cond_tokens": 500}, "text='given'"),
        ("VQGanVAE", {"l2_recon_loss": True}, "l1 and l2"),
        ("MuLaN", {"audio_transformer": object()}, "text_layers"),
        ("VoiceBox", {"audio_enc_dec": object()}, "latents"),
        ("VoiceBox", {"dropout": 0.1, "ff_dropout": 0.2}, "given twice"),
        ("VoiceBox", {"wings": 2}, "unknown argument 'wings'; known: "),
    ],
)
def test_what_cannot_be_kept_is_answered_with_a_remedy(
    model: str, old: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(TypeError, match=remedy):
        build(model, **old)
