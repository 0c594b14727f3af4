"""The official client of OpenAI understands the server."""

import base64
import io
import time
from typing import Any

import numpy as np
import pytest
from serving import Client


@pytest.fixture(scope="module")
def openai() -> Any:
    """Imported here: it takes a second, which every worker would spend on its collection."""
    import openai

    return openai


@pytest.fixture(scope="module")
def client(openai: Any, served: Client) -> Any:
    url = f"http://127.0.0.1:{served.access.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def decoded(images: Any) -> list[bytes]:
    return [base64.b64decode(image.b64_json) for image in images.data]


def png(alpha: bool = False) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 4), np.uint8)
    pixels[..., 3] = 255
    pixels[:, :8, 3] = 0 if alpha else 255
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def test_models(client: Any, served: Client) -> None:
    assert {model.id for model in client.models.list()} == set(served.server.models)
    assert client.models.retrieve("mulan").owned_by == "quintet"


def test_images(client: Any, served: Client) -> None:
    more = {"seed": 8, "steps": 2}
    images = client.images.generate(model="maskgit", prompt="a star", n=2, extra_body=more)
    flags = {"text": ["a star"], "count": 2, **more}
    files = served.files("/v1/models/maskgit/sample", flags)
    assert decoded(images) == [c for name, c in files.items() if name != "sheet.png"]
    sized = client.images.generate(
        model="image_flow", prompt="a star", size="8x16", extra_body={"steps": 1}
    )
    from PIL import Image

    assert Image.open(io.BytesIO(decoded(sized)[0])).size == (8, 16)
    assert isinstance(sized.seed, int)


def test_edits_paint_where_a_mask_is_transparent(client: Any) -> None:
    from PIL import Image

    more = {"seed": 8, "steps": 2}
    edited = client.images.edit(
        model="maskgit",
        image=("i.png", png()),
        mask=("m.png", png(alpha=True)),
        prompt="a star",
        extra_body=more,
    )
    before = np.asarray(Image.open(io.BytesIO(png())).convert("RGB"))
    after = np.asarray(Image.open(io.BytesIO(decoded(edited)[0])))
    assert np.array_equal(before[:, 8:], after[:, 8:])
    assert not np.array_equal(before[:, :8], after[:, :8])
    changed = client.images.edit(
        model="image_flow", image=("i.png", png()), prompt="a star", extra_body=more
    )
    assert len(decoded(changed)) == 1


def test_speech_is_streamed_as_it_is_made(client: Any, served: Client) -> None:
    text = "Ba do ki. " * 30  # several parts
    more = {"seed": 2, "steps": 1, "seconds": 2.0}
    said = {"model": "voicebox", "input": text, "voice": "anna", "extra_body": more}
    whole = client.audio.speech.create(response_format="wav", **said).content
    with client.audio.speech.with_streaming_response.create(
        response_format="pcm", **said
    ) as answer:
        begun = time.monotonic()
        parts = []
        for part in answer.iter_bytes():
            parts.append((time.monotonic() - begun, part))
    assert b"".join(part for _, part in parts) == whole[44:]
    assert len(parts) > 1
    files = served.files("/v1/models/voicebox/sample", {"text": [text], "voice": "anna", **more})
    assert whole == next(content for name, content in files.items() if name.endswith(".wav"))


def test_speed_is_the_rate_of_speech(client: Any, served: Client) -> None:
    text, more = "ba <break 200ms> do ki", {"seed": 2, "steps": 1}
    said = {"model": "voicebox", "input": text, "voice": "anna", "extra_body": more}
    slow = client.audio.speech.create(response_format="wav", speed=0.5, **said).content
    flags = {"text": [text], "voice": "anna", "rate": 0.5, **more}
    files = served.files("/v1/models/voicebox/sample", flags)
    assert slow == next(content for name, content in files.items() if name.endswith(".wav"))
    assert len(slow) > len(client.audio.speech.create(response_format="wav", **said).content)


def test_embeddings(client: Any, served: Client) -> None:
    texts = ["a slow melody", "drums"]
    both = client.embeddings.create(model="mulan", input=texts)  # as base64
    (one,) = client.embeddings.create(model="mulan", input=texts[1]).data
    assert both.data[1].embedding == one.embedding
    plain = client.embeddings.create(model="mulan", input=texts[1], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(one.embedding)
    assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-3)


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_videos(client: Any, served: Client, openai: Any) -> None:
    more = {"seed": 4, "steps": 2}
    begun = client.videos.create(model="video_maskgit", prompt="a star", extra_body=more)
    while (video := client.videos.retrieve(begun.id)).status == "in_progress":
        time.sleep(0.02)
    assert video.status == "completed"
    content = client.videos.download_content(video.id).read()
    flags = {"text": ["a star"], "count": 1, **more}
    assert content == served.files("/v1/models/video_maskgit/sample", flags)["00-a-star-000.mp4"]
    client.videos.delete(video.id)
    with pytest.raises(openai.NotFoundError, match="no such clip"):
        client.videos.retrieve(video.id)


def test_refusals_are_errors_of_the_client(client: Any, openai: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="there are image_flow, maskgit"):
        client.images.generate(model="dall-e-3", prompt="a star")
    with pytest.raises(openai.BadRequestError, match="32 at most"):
        client.images.generate(model="maskgit", prompt="a star", n=99)
    with pytest.raises(openai.BadRequestError, match="makes wav and pcm"):
        client.audio.speech.create(model="voicebox", input="a", voice="anna", response_format="mp3")
    for form in ("wav", "pcm"):
        with pytest.raises(openai.BadRequestError, match="no voice 'alloy'; there are default"):
            client.audio.speech.create(
                model="voicebox", input="a", voice="alloy", response_format=form
            )
    for more, sentence in (
        ({"input": "a <brake 1s>"}, "unknown"),
        ({"input": "a", "speed": 9}, "0.25"),
    ):
        with pytest.raises(openai.BadRequestError, match=sentence):
            client.audio.speech.create(model="voicebox", voice="anna", **more)
    with pytest.raises(openai.BadRequestError, match="leave response_format"):
        client.images.generate(model="maskgit", prompt="a star", response_format="url")
    with pytest.raises(openai.BadRequestError, match="one size only"):
        client.images.generate(model="maskgit", prompt="a star", size="512x512")


@pytest.mark.parametrize("size", ["²x²", "9" * 5000 + "x1", "x", "16", "-8x8", "8x8x8"])
def test_wrong_sizes_are_refused(size: str, served: Client) -> None:
    body = {"model": "image_flow", "prompt": "a", "size": size}
    assert "WIDTHxHEIGHT" in served.refusal(400, "/v1/images/generations", body)


def test_tokens_and_meshes(served: Client) -> None:
    found = served.json("/v1/tokens", files=[("file", "a.png", png())])
    assert found["model"] == "vae"
    assert np.array(found["ids"]).shape == (1, 4, 4)
    meshes = served.json("/v1/meshes", {"n": 1, "seed": 1, "max_faces": 4, "format": "obj"})
    assert all(file["name"].endswith(".obj") for file in meshes["files"])
