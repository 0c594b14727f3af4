"""A user's own data set of images."""

from quintet.shared.tokenizer.trainer import OwnPixels


class OwnImages(OwnPixels):
    fields = {"image": "image", "images": "image", "text": "text"}
    shapes = {3: "an image (c, h, w)"}
