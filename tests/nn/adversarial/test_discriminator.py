import torch

from quintet.nn.adversarial.discriminator import PatchDiscriminator


def test_one_logit_for_each_patch_of_any_size() -> None:
    discriminator = PatchDiscriminator(dim=16, layers=3)
    assert discriminator(torch.rand(2, 3, 64, 32)).shape == (2, 1, 8, 4)


def test_real_and_fake_in_one_call_equal_two_calls() -> None:
    discriminator = PatchDiscriminator(dim=16, layers=2).double()
    real, fake = torch.rand(2, 2, 3, 32, 32, dtype=torch.float64)
    together = discriminator(torch.cat((real, fake)))
    assert torch.allclose(
        together, torch.cat((discriminator(real), discriminator(fake))), atol=1e-12
    )


def test_it_has_no_statistics_of_batches() -> None:
    assert not list(PatchDiscriminator(dim=16).buffers())
