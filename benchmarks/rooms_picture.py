"""docs/images/rooms.png: outputs of every room, cut from the other pictures of the documentation.

python benchmarks/rooms_picture.py
"""

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont
from provenance import ROOT

IMAGES = ROOT / "docs/images"
WIDTH, GAP, TITLE, LINE = 840, 6, 24, 15
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Panel:
    """A part of a picture, with its caption."""

    file: str
    box: Box
    caption: str = ""


def squares(file: str, left: int, side: int, tops: dict[int, str]) -> list[Panel]:
    """One column of a contact sheet: the top of each picture, with its caption."""
    return [Panel(file, (left, top, left + side, top + side), text) for top, text in tops.items()]


def first_and_last(top: int, caption: str) -> list[Panel]:
    """A row of a sheet of clips."""
    first, last = ((left, top, left + 128, top + 128) for left in (4, 136))
    return [Panel("results-video-flow.png", first, caption), Panel("results-video-flow.png", last)]


ROWS: dict[str, list[Panel]] = {
    "images: text to image (image/flow)": squares(
        "results-image-flow.png",
        532,
        128,
        {
            25: "four white crosses on orange",
            192: "a purple square to the right of an orange cross on yellow",
            374: "four purple triangles on black",
            541: "a small yellow cross on the right on red",
            708: "two yellow rings on purple",
            875: "a large yellow star at the bottom on green",
        },
    ),
    "video: text to video, first and last frames of three clips (video/flow)": [
        *first_and_last(25, "a green ring moves quickly to the right on red"),
        *first_and_last(207, "a white triangle moves slowly to the right on yellow"),
        *first_and_last(389, "a blue circle moves slowly downwards on white"),
    ],
    "meshes: text to mesh (mesh/transformer)": squares(
        "meshes.png",
        264,
        256,
        {
            25: "a box",
            305: "a bench with six short thin legs",
            585: "a deep shelf with five boards",
            865: "a single bed with a headboard and six thin legs",
            1160: "a flat cone",
            1440: "a flat hexagonal prism",
        },
    ),
    "speech and music: text to speech (speech/voicebox_medium); search by text (music/mulan)": [
        Panel("results-speech-voicebox_medium.png", (0, 30, 362, 200), "a held-out recording"),
        Panel(
            "results-speech-voicebox_medium.png",
            (0, 638, 362, 772),
            "the same sentence, spoken from its text",
        ),
        Panel(
            "results-music-mulan.png",
            (0, 0, 512, 240),
            "similarity of held-out sounds and captions",
        ),
    ],
}


def wrapped(text: str, width: int, font: ImageFont.FreeTypeFont) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def row(title: str, panels: list[Panel]) -> Image.Image:
    """Panels of equal width under a title, each above its caption."""
    width = (WIDTH - GAP * (len(panels) + 1)) // len(panels)
    height = max(width * (p.box[3] - p.box[1]) // (p.box[2] - p.box[0]) for p in panels)
    font = ImageFont.load_default(11)
    captions = [wrapped(panel.caption, width, font) for panel in panels]
    strip = Image.new(
        "RGB", (WIDTH, TITLE + height + LINE * max(map(len, captions)) + GAP), (255, 255, 255)
    )
    draw = ImageDraw.Draw(strip)
    draw.text((GAP, 5), title, fill=(20, 20, 20), font=ImageFont.load_default(13))
    for number, (panel, lines) in enumerate(zip(panels, captions)):
        left = GAP + number * (width + GAP)
        with Image.open(IMAGES / panel.file) as source:
            picture = source.convert("RGB").crop(panel.box)
        strip.paste(picture.resize((width, height), Image.Resampling.LANCZOS), (left, TITLE))
        for at, line in enumerate(lines):
            top = TITLE + height + 2 + LINE * at
            draw.text((left, top), line, fill=(60, 60, 60), font=font)
    return strip


def main() -> None:
    rows = [row(title, panels) for title, panels in ROWS.items()]
    sheet = Image.new("RGB", (WIDTH, sum(strip.height for strip in rows)), (255, 255, 255))
    top = 0
    for strip in rows:
        sheet.paste(strip, (0, top))
        top += strip.height
    sheet.quantize(256).save(IMAGES / "rooms.png", optimize=True)


if __name__ == "__main__":
    main()
