"""A script of meshgpt-pytorch, changed in its imports and as the migration page says."""

import torch
from torch.utils.data import Dataset

from quintet import MeshAutoencoder, MeshAutoencoderTrainer, MeshTransformer, MeshTransformerTrainer


class MeshDataset(Dataset):
    def __init__(self):
        self.data_kwargs = ["vertices", "faces", "texts"]

    def __len__(self):
        return 16

    def __getitem__(self, index):
        vertices = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]) * (index + 1) / 16
        return vertices, torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]), "a corner"


dataset = MeshDataset()
autoencoder = MeshAutoencoder(
    num_discrete_coors=128, dim=16, message_dim=8, encoder_layers=1, decoder_layers=1
)
trainer = MeshAutoencoderTrainer(
    model=autoencoder,
    dataset=dataset,
    val_dataset=dataset,
    val_every=2,
    val_num_batches=1,
    num_train_steps=2,
    batch_size=4,
    grad_accum_every=2,
    learning_rate=1e-3,
    warmup_steps=1,
    ema_kwargs=dict(use_foreach=True),  # noqa: C408
    checkpoint_every=2,
    checkpoint_folder="./codes",
)
trainer()

transformer = MeshTransformer(
    autoencoder, dim=16, attn_depth=1, attn_heads=1, max_seq_len=96, condition_on_text=True
)
trainer = MeshTransformerTrainer(
    model=transformer,
    dataset=dataset,
    num_train_steps=2,
    batch_size=4,
    grad_accum_every=2,
    learning_rate=1e-3,
    scheduler=None,
    checkpoint_folder="./writer",
    use_wandb_tracking=False,
)
trainer()
meshes = transformer.generate(texts=["a corner"], cond_scale=3.0)
print(len(meshes), "mesh, done")

# told: num_discrete_coors is now called bins
# told: attn_depth is now called layers
# told: attn_heads is now called heads
# told: max_seq_len=96 is now max_faces=16
# told: condition_on_text=True is now text='bytes'
# told: val_num_batches is not needed: all validation samples are used
# told: ema_kwargs is not needed: give its beta as ema_decay; the EMA is updated every step
# told: checkpoint_folder is now called run
# told: scheduler=None is now scheduler='constant'
# told: checkpoint_folder is now called run
# told: use_wandb_tracking=False is the default and not needed
# told: val_every is now called evaluate_every
# told: num_train_steps is now called steps
# told: grad_accum_every is now called accumulate
# told: checkpoint_every is now called save_every
# told: num_train_steps is now called steps
# told: grad_accum_every is now called accumulate
