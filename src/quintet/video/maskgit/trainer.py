"""VideoMaskGitTrainer: training of a generator of clips from Python."""

from quintet.video import recipes
from quintet.video.continuing import ClipTrainer
from quintet.video.maskgit.model import VideoMaskGit
from quintet.video.maskgit.task import VideoMaskGitTask


class VideoMaskGitTrainer(ClipTrainer[VideoMaskGit]):
    """Train a VideoMaskGit around its trained tokenizer, on a folder of captioned videos (`data`),
    on a data set, or on the built-in figures; ids are computed once and cached.

        model = VideoMaskGit(tokenizer, image_size=128, frames=17, dim=768)
        trainer = VideoMaskGitTrainer(model, data="videos", steps=20_000)
        trainer.train()
        clips = trainer.generate(["a red star moves quickly upwards on white"], frames=65)

    Its defaults are those of the recipe `video/maskgit`, and every setting is a keyword: `videos`,
    `variants` (fixed augmentations of each clip), `text_drop`, `prefix_share` and the rest.
    """

    name = "video/maskgit"
    default_recipe = staticmethod(recipes.maskgit)
    Task = VideoMaskGitTask
