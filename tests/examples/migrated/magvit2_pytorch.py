"""A script of magvit2-pytorch, changed in its imports and as the migration page says."""

import torch

from quintet import VideoTokenizer, VideoTokenizerTrainer

tokenizer = VideoTokenizer(
    image_size=32,
    init_dim=8,
    max_dim=16,
    codebook_size=1024,
    use_fsq=False,
    layers=(
        "residual",
        "compress_space",
        ("consecutive_residual", 2),
        "compress_space",
        "linear_attend_space",
        "attend_space",
        "compress_time",
        "attend_time",
    ),
)
trainer = VideoTokenizerTrainer(
    tokenizer,
    dataset_folder="media",
    dataset_type="videos",
    image_size=32,
    num_frames=5,
    batch_size=2,
    grad_accum_every=2,
    learning_rate=3e-4,
    num_train_steps=2,
    discr_start_after_step=1,
    apply_gradient_penalty_every=4,
    validate_every_step=2,
    checkpoint_every_step=2,
    checkpoints_folder="./checkpoints",
    results_folder="./results",
    random_split_seed=42,
)
trainer.train()

ema_tokenizer = trainer.ema_tokenizer
video = torch.rand(1, 3, 17, 32, 32)
codes = ema_tokenizer.tokenize(video)
decoded = ema_tokenizer.decode_from_code_indices(codes)
assert codes.shape == (1, 9, 8, 8)
assert torch.equal(decoded, ema_tokenizer.decode_from_code_indices(codes.flatten(1)))
assert torch.equal(decoded, ema_tokenizer.reconstruct(video))
print("done")

# told: use_fsq=False is now quantiser='lfq'
# told: dataset_folder is now called data
# told: dataset_type='videos' is the default and not needed
# told: discr_start_after_step=1 is now adversarial_from=0.5
# told: apply_gradient_penalty_every is now called penalty_every
# told: validate_every_step is now called evaluate_every
# told: checkpoint_every_step is now called save_every
# told: checkpoints_folder is not needed: checkpoints are inside the run folder
# told: random_split_seed is now called seed
# told: image_size is now called size
# told: num_frames is now called frames
# told: grad_accum_every is now called accumulate
# told: num_train_steps is now called steps
# told: results_folder is now called run
