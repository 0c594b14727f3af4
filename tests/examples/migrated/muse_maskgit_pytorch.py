"""A script of muse-maskgit-pytorch, changed in its imports and as the migration page says."""

import torch

from quintet import VQGanVAE, VQGanVAETrainer

vae = VQGanVAE(dim=8, layers=4, codebook_size=1024)
trainer = VQGanVAETrainer(
    vae=vae,
    image_size=32,
    folder="media",
    batch_size=2,
    grad_accum_every=2,
    num_train_steps=2,
    lr=3e-4,
    save_results_every=2,
    save_model_every=2,
    use_ema=True,
    ema_beta=0.995,
    apply_grad_penalty_every=4,
    results_folder="./results",
)
trainer.train()

images = torch.rand(2, 3, 32, 32)
ids = trainer.tokenize(images)
assert vae.decode_from_ids(ids).shape == images.shape
print("done")

# told: lr is now called learning_rate
# told: save_results_every is now called evaluate_every
# told: save_model_every is now called save_every
# told: use_ema=True is now ema_decay=0.995
# told: ema_beta is now called ema_decay
# told: apply_grad_penalty_every is now called penalty_every
# told: image_size is now called size
# told: folder is now called data
# told: grad_accum_every is now called accumulate
# told: num_train_steps is now called steps
# told: results_folder is now called run
