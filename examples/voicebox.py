"""Train speech from text on recordings of your own, and have it say something new.

python examples/voicebox.py --steps 300 --run runs/hums --out said.wav
python examples/voicebox.py --folder readings --longest 10 --say "good morning"
"""

import argparse
import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet import VoiceBox, VoiceBoxTrainer
from quintet.media.audio import write_wav
from quintet.speech.config import SpeechDataConfig
from quintet.speech.voicebox.config import SamplingConfig

RATE = 16_000
VOWELS = {"a": (700, 1200), "e": (400, 2100), "i": (300, 2300), "o": (450, 850), "u": (320, 750)}


class Hums(Dataset[tuple[Tensor, str]]):
    """Vowels on a hum, a fifth of a second each, and their letters."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        chance = torch.Generator().manual_seed(index)
        letters = [list(VOWELS)[i] for i in torch.randint(5, (4,), generator=chance).tolist()]
        time = torch.arange(RATE // 5) / RATE
        hum = 100 + 60 * torch.rand(1, generator=chance).item()
        return torch.cat([vowel(letter, hum, time) for letter in letters]), "".join(letters)


def vowel(letter: str, hum: float, time: Tensor) -> Tensor:
    harmonics = torch.arange(1, 40)[:, None] * hum
    near = [torch.exp(-(((harmonics - f) / 150) ** 2)) for f in VOWELS[letter]]
    sound = (sum(near) * torch.sin(2 * math.pi * harmonics * time)).sum(0)
    return 0.3 * sound / sound.abs().max() * torch.hann_window(len(time)).sqrt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="your own recordings and texts, instead of the hums")
    parser.add_argument("--longest", type=float, default=1.0, help="longest recording, in seconds")
    parser.add_argument("--run", default="runs/hums", help="where the run is kept")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--say", default="aiueo", help="what is spoken at the end")
    parser.add_argument("--out", default="said.wav", help="the file it is spoken into")
    args = parser.parse_args()

    voicebox = VoiceBox(
        sample_rate=RATE, n_mels=80, dim=128, depth=3, heads=2, text_dim=64, duration_dim=64
    )
    trainer = VoiceBoxTrainer(
        voicebox,
        None if args.folder else Hums(),
        data=args.folder,
        recordings=SpeechDataConfig(sample_rate=RATE, max_seconds=args.longest, buckets=1),
        sampling=SamplingConfig(steps=4, count=2),  # generated at evaluations
        steps=args.steps,
        batch_size=16,
        learning_rate=2e-3,
        warmup_steps=args.steps // 10,
        workers=0,
        run=args.run,
    )
    trainer.train(resume=True)

    (sound,) = trainer.generate(texts=args.say, steps=8)
    write_wav(args.out, sound.cpu().numpy(), RATE)
    print(f"{args.out} says {args.say!r} in {len(sound) / RATE:.2f} seconds")


if __name__ == "__main__":
    main()
