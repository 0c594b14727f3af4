"""VideoFlowTrainer and VideoFlowFewTrainer: training of flow generators of clips from Python."""

from quintet.shared.flow.trainer import FewStepsTrainer
from quintet.video import recipes
from quintet.video.continuing import ClipTrainer
from quintet.video.flow.model import VideoFlow
from quintet.video.flow.task import VideoFlowFewTask, VideoFlowTask


class VideoFlowTrainer(ClipTrainer[VideoFlow]):
    """Train a VideoFlow around its trained tokenizer, on a folder of captioned videos (`data`),
    on a data set, or on the built-in figures; latents are computed once and cached.

        model = VideoFlow(tokenizer, image_size=128, frames=17, dim=512)
        trainer = VideoFlowTrainer(model, data="videos", steps=20_000)
        trainer.train()
        clips = trainer.generate(["a red star moves quickly upwards on white"], frames=65)

    Its defaults are those of the recipe `video/flow`, and every setting is a keyword: `videos`,
    `variants` (fixed augmentations of each clip), `text_drop`, `known_share` and the rest.
    """

    name = "video/flow"
    default_recipe = staticmethod(recipes.flow)
    Task = VideoFlowTask


class VideoFlowFewTrainer(FewStepsTrainer[VideoFlow], ClipTrainer[VideoFlow]):
    """Distil a trained VideoFlow, the teacher, to 1 to 8 steps; the data as in VideoFlowTrainer.

        trainer = VideoFlowFewTrainer(teacher, data="videos", steps=400)
        trainer.train()
        clips = trainer.generate(["a red boat"], steps=2)

    Its defaults are those of the recipe `video/flow_few`, and every setting is a keyword:
    `guidance` (of the teacher, part of the weights of the student), `jump_every` and the rest.
    """

    name = "video/flow_few"
    default_recipe = staticmethod(recipes.flow_few)
    Task = VideoFlowFewTask
