"""A script of musiclm-pytorch, changed in its imports and as the migration page says."""

import torch
from torch.utils.data import Dataset

from quintet import MuLaN, MuLaNTrainer


class MockTextAudioDataset(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.randn(8000) / 4, "audio caption"


mulan = MuLaN(
    sample_rate=8000,
    dim=16,
    layers=1,
    heads=1,
    n_fft=256,
    text_dim=16,
    text_layers=1,
    text_heads=1,
    loss="decoupled",
)
trainer = MuLaNTrainer(
    mulan=mulan,
    dataset=MockTextAudioDataset(),
    batch_size=4,
    num_train_steps=2,
    data_max_length=6000,
    lr=3e-4,
    use_lion=True,
    valid_frac=0.2,
    save_model_every=1000,
    results_folder="./results",
    force_clear_prev_results=False,
)
trainer.train(log_fn=lambda logs: None)

embeds = trainer.get_audio_latents(torch.randn(2, 8000))
assert embeds.shape == (2, 128)
print("done")

# told: lr is now called learning_rate
# told: use_lion=True is now optimizer='lion'
# told: save_model_every is now called save_every
# told: force_clear_prev_results is not needed: Quintet deletes no folder; …
# told: log_fn is now an argument of the trainer, not of train
# told: num_train_steps is now called steps
# told: valid_frac is now called valid_fraction
# told: results_folder is now called run
