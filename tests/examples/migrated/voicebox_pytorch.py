"""A script of voicebox-pytorch, changed in its imports and as the migration page says."""

import torch
from torch.utils.data import Dataset

from quintet import VoiceBox, VoiceBoxTrainer


class AudioDataset(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.randn(12_000 + 100 * index).clamp(-4, 4) / 8


model = VoiceBox(dim=16, depth=1, dim_head=16, heads=1, condition_on_text=False)
trainer = VoiceBoxTrainer(
    cfm_wrapper=model,
    dataset=AudioDataset(),
    batch_size=1,
    num_train_steps=2,
    num_warmup_steps=1,
    lr=3e-4,
    initial_lr=1e-5,
    wd=0.01,
    valid_frac=0.1,
    save_results_every=2,
    save_model_every=2,
    drop_last=True,
    results_folder="./results",
)
trainer.train()

audio = AudioDataset()[0][None]
mask = torch.zeros(1, 1 + audio.shape[1] // 256, dtype=torch.bool)
mask[:, 10:20] = True
(sampled,) = model.sample(cond=audio, cond_mask=mask, steps=2)
assert sampled.ndim == 1
print("done")

# told: dim_head is now called head_dim
# told: condition_on_text=False is now text='none'
# told: cfm_wrapper is now called voicebox
# told: num_warmup_steps is now called warmup_steps
# told: lr is now called learning_rate
# told: initial_lr is not needed: the warm-up begins at learning_rate / warmup_steps
# told: wd is now called weight_decay
# told: save_results_every is now called evaluate_every
# told: save_model_every is now called save_every
# told: drop_last is not needed: batches run across epochs, so none is short
# told: num_train_steps is now called steps
# told: valid_frac is now called valid_fraction
# told: results_folder is now called run
