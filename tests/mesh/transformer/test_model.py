from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.mesh.transformer.assemble import assemble
from quintet.mesh.transformer.config import MeshTransformerConfig
from quintet.mesh.transformer.generator import Sampling, filter_logits, sample_tokens
from quintet.mesh.transformer.heads import CodeEmbedding, DigitHead
from quintet.mesh.transformer.model import MeshTransformer
from quintet.nn.attention import Context
from quintet.nn.packing import Packing
from quintet.nn.rope import rope_1d
from quintet.nn.text import ByteTokenizer

SMALL: dict[str, Any] = {
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "head_dim": 16,
    "fine_layers": 2,
    "fine_heads": 2,
    "fine_head_dim": 8,
    "codebook_size": 27,
    "levels": (3, 3, 3),
    "max_faces": 7,
    "text_length": 12,
    "text_layers": 1,
}


@pytest.fixture(autouse=True)
def _single() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def small(**changes: Any) -> MeshTransformer:
    """A model whose branches are awake: at the start they end in zeros."""
    torch.manual_seed(0)
    model = MeshTransformer(**(SMALL | changes))
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return model


def random_codes(*lengths: int, faces: int = 7, codes: int = 27) -> Tensor:
    rows = torch.randint(codes, (len(lengths), faces, 6))
    for row, length in zip(rows, lengths):
        row[length:] = -1
    return rows


def hidden_states(
    model: MeshTransformer, codes: Tensor, context: Context | None
) -> tuple[Tensor, Tensor]:
    """Hidden state (b, f, t, d) that predicts each code, and the end-of-mesh logits (b, f)."""
    count, faces = codes.shape[:2]
    embeddings = model.embed(codes.flatten(0, 1), model.code_embed())
    packing = Packing.of(torch.full((count,), faces), count * faces, faces)
    coarse = model.coarse_hidden(embeddings, packing, context)
    hidden = model.fine_hidden(coarse, embeddings)
    return hidden.unflatten(0, (count, faces)), model.end_logits(coarse).view(count, faces)


def text_ids(*texts: str) -> Tensor:
    return ByteTokenizer(12).encode(texts)


class Toy(nn.Module):
    """Places a corner by its first code; stands for the autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def decode_codes(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        return codes[..., ::2, None].expand(*codes.shape[:2], 3, 3) / 27.0, codes[..., 0] >= 0


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("face", [0, 3, 6])
def test_a_face_depends_only_on_those_before_it(face: int) -> None:
    model, codes = small().double(), random_codes(7, 7)
    context = model.encode_text(2, text_ids("box", "cone"))
    changed = codes.clone()
    changed[:, face] = (changed[:, face] + 1) % 27
    (before, end), (after, end_after) = (hidden_states(model, c, context) for c in (codes, changed))
    assert torch.equal(before[:, :face], after[:, :face])
    assert torch.equal(end[:, : face + 1], end_after[:, : face + 1])
    assert torch.equal(before[:, face, 0], after[:, face, 0])
    assert not torch.allclose(before[:, face:], after[:, face:])


def test_a_code_depends_only_on_those_before_it_in_its_face() -> None:
    model, codes = small().double(), random_codes(7)
    for slot in range(6):
        changed = codes.clone()
        changed[:, 4, slot] = (changed[:, 4, slot] + 1) % 27
        before, after = (hidden_states(model, c, model.encode_text(1))[0] for c in (codes, changed))
        assert torch.equal(before[:, 4, : slot + 1], after[:, 4, : slot + 1])
        if slot < 5:
            assert not torch.allclose(before[:, 4, slot + 1], after[:, 4, slot + 1])
        assert not torch.allclose(before[:, 5], after[:, 5])


def test_padding_never_leaks() -> None:
    model, codes, text = small().double(), random_codes(4, 7, 2), text_ids("a", "bb", "ccc")
    whole = model(codes, text)
    for row, length in enumerate((4, 7, 2)):
        alone = model(codes[row : row + 1, : length + 1], text[row : row + 1])
        for name in ("loss_sum", "tokens", "end_loss", "decisions", "correct", "end_correct"):
            a, b = getattr(whole, name)[row].double(), getattr(alone, name)[0].double()
            assert torch.allclose(a, b, atol=1e-9), name
    assert whole.tokens.tolist() == [24, 42, 12]
    assert whole.decisions.tolist() == [5, 7, 3]


def plain_losses(model: MeshTransformer, codes: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Code and end-of-mesh losses (b,) with padded batches and blocks, without any packing."""
    batch, width = codes.shape[:2]
    table = model.code_embed()
    embeddings = model.embed(codes, table)
    faces = model.face_proj(embeddings[:, :-1].flatten(2))
    x = torch.cat((model.start.expand(batch, 1, -1), faces), dim=1)
    rope = rope_1d(torch.arange(width), model.config.head_dim)
    for block in model.coarse:
        x = block(x, rope, causal=True, context=model.encode_text(batch, text))
    coarse = model.coarse_norm(x)
    hidden = model.fine_hidden(coarse.flatten(0, 1), embeddings.flatten(0, 1))
    losses, _ = model.code_losses(hidden, table, codes.flatten(0, 1))
    logits = model.end_logits(coarse)
    count = (codes[..., 0] >= 0).sum(1, keepdim=True)
    position = torch.arange(width)
    targets = (position == count).to(logits.dtype)
    ends = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return losses.view(batch, width).sum(1), (ends * (position <= count)).sum(1)


def packed(codes: Tensor, behind: int) -> tuple[Tensor, Tensor]:
    """Rows of each mesh with its end, and more rows that belong to none."""
    lengths = ((codes[..., 0] >= 0).sum(1) + 1).clamp_max(codes.shape[1])
    rows = [row[:length] for row, length in zip(codes, lengths)]
    return torch.cat([*rows, torch.full((behind, codes.shape[2]), -1)]), lengths


@pytest.mark.by_default("0-False", "9-True")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("behind", [0, 9])
def test_packed_losses_and_gradients_are_those_of_padded_batches(
    fixed: bool, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to compute: on faces alone, and with the fixed shapes of a GPU."""
    monkeypatch.setattr("quintet.mesh.transformer.model.has_fixed_shapes", lambda codes: fixed)
    model, codes = small().double(), random_codes(4, 7, 2)
    text = text_ids("a", "bb", "ccc")
    of_codes, of_ends = plain_losses(model, codes, text)
    (of_codes + of_ends).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}  # type: ignore[union-attr]
    model.zero_grad()
    rows, lengths = packed(codes, behind)
    actual = model(rows, text, None, None, lengths)
    actual.loss_sum.sum().backward()
    assert torch.allclose(actual.loss_sum, of_codes + of_ends, atol=1e-9)
    assert torch.allclose(actual.end_loss, of_ends, atol=1e-9)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-9), name  # type: ignore[arg-type]
    for one, other in zip(actual, model(codes, text)):
        assert torch.allclose(one.double(), other.double(), atol=1e-9)


HEADS = pytest.mark.parametrize("head", ["digits", "codes"])
ONE_HEAD = pytest.mark.parametrize(
    "head", ["codes", pytest.param("digits", marks=pytest.mark.slow)]
)
"""For tests of ten seconds."""


def chances(model: MeshTransformer, states: Tensor, slot: int) -> Tensor:
    """Log-probabilities (n, codes) of every code, by asking for each one's loss."""
    every = [
        model.head.losses(slot % 2, states, torch.full((len(states),), code), model.code_embed())
        for code in range(model.config.codebook_size)
    ]
    return -torch.stack([actual.loss for actual in every], -1)


@pytest.mark.by_default("digits")
@HEADS
def test_the_loss_is_the_sum_of_codes_and_decisions(head: str) -> None:
    model, codes = small(head=head).double(), random_codes(3, 7)
    actual = model(codes)
    states, end = hidden_states(model, codes, model.encode_text(2))
    for row, length in enumerate((3, 7)):
        going_on = nn.functional.logsigmoid(-end[row, :length]).sum()
        ending = nn.functional.logsigmoid(end[row, length]) if length < 7 else 0.0
        assert torch.allclose(actual.end_loss[row], -going_on - ending, atol=1e-9)
        total = actual.end_loss[row].clone()
        for slot in range(6):
            table = chances(model, states[row, :length, slot], slot)
            assert torch.allclose(table.exp().sum(-1), torch.ones(()).double(), atol=1e-9)
            total -= table.gather(-1, codes[row, :length, slot, None]).sum()
        assert torch.allclose(actual.loss_sum[row], total, atol=1e-9)


def test_digits_split_and_join() -> None:
    head = DigitHead(4, (2, 3, 5), 2)
    codes = torch.arange(30)
    assert torch.equal(head.join(head.split(codes)), codes)
    assert [digit.max().item() for digit in head.split(codes)] == [4, 2, 1]
    assert torch.equal(head.split(codes)[0], codes // 6)


def test_codes_that_share_digits_share_vectors() -> None:
    table = CodeEmbedding(4, 24, 2, (2, 3, 4))
    nn.init.zeros_(table.code)
    for term in table.digits:
        nn.init.zeros_(term)
    nn.init.ones_(table.digits[0])
    with torch.no_grad():
        table.digits[0][:, 1] = 5.0  # the last digit is the slowest
    assert table()[0, :, 0].tolist() == [1.0] * 6 + [5.0] * 6 + [1.0] * 12


def test_a_dropped_caption_is_as_good_as_none() -> None:
    model, codes = small().double(), random_codes(7, 5)
    without = model(codes).loss_sum
    both = model(codes, text_ids("box", "cone"), drop=torch.tensor([True, False])).loss_sum
    assert torch.allclose(both[0], without[0], atol=1e-10)
    assert not torch.allclose(both[1], without[1])


@HEADS
@pytest.mark.parametrize("text", ["bytes", "frozen", "none"])
def test_every_parameter_receives_a_gradient(text: str, head: str) -> None:
    model = small(text=text, text_dim=10, head=head)
    inputs: dict[str, tuple[Any, ...]] = {
        "bytes": (text_ids("box", "a cone"),),
        "frozen": (torch.randn(2, 4, 10), torch.tensor([[True] * 4, [True, True, False, False]])),
        "none": (),
    }
    model(random_codes(7, 4), *inputs[text]).loss_sum.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize(
    ("head", "backend"),
    [
        ("codes", "eager"),  # one graph; those of its gradients take three times as long
        *(pytest.param(h, "aot_eager", marks=pytest.mark.slow) for h in ("codes", "digits")),
    ],
)
def test_it_compiles_whole_and_answers_alike(head: str, backend: str) -> None:
    model = small(head=head, layers=1, fine_layers=1)  # more are only more of the same graph
    codes, text = random_codes(7, 4), text_ids("box", "cone")
    drop = torch.tensor([False, True])
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    actual = compiled(codes, text, drop=drop)
    actual.loss_sum.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected = model(codes, text, drop=drop)
    expected.loss_sum.sum().backward()
    assert torch.allclose(actual.loss_sum, expected.loss_sum, rtol=1e-5)
    for a, b in zip(gradients, [p.grad for p in model.parameters()]):
        assert b is not None
        assert torch.allclose(a, b, atol=1e-4)


def test_it_trains_under_bf16_autocast_and_answers_in_fp32() -> None:
    model, codes = small(dropout=0.1), random_codes(7, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model(codes, text_ids("box", "cone"))
    actual.loss_sum.sum().backward()
    assert actual.loss_sum.dtype == torch.float32
    assert actual.loss_sum.isfinite().all()


def test_wrong_shapes_are_refused() -> None:
    model = small()
    with pytest.raises(ValueError, match=r"expected codes \(b, faces, 6\)"):
        model(torch.zeros(1, 42, dtype=torch.int64))
    with pytest.raises(ValueError, match="exceeds max_faces 7"):
        model(random_codes(8, faces=8))
    with pytest.raises(ValueError, match="has no text encoder"):
        small(text="none")(random_codes(7), text_ids("box"))


# -- generation ----------------------------------------------------------------------------------


@torch.no_grad()
def by_recomputation(
    model: MeshTransformer, context: Context | None, count: int, scale: float
) -> Tensor:
    """Greedy generation that recomputes the full forward pass for every code."""
    codes = torch.full((count, 7, 6), -1)
    ended = torch.zeros(count, dtype=torch.bool)
    nothing = model.encode_text(count)

    def guided(a: Tensor, b: Tensor) -> Tensor:
        return b + scale * (a - b)

    def likeliest(face: int, slot: int) -> Tensor:
        (with_text, _), (without, _) = (
            hidden_states(model, codes, context),
            hidden_states(model, codes, nothing),
        )
        a, b = with_text[:, face, slot], without[:, face, slot]
        parts: list[Tensor] = []
        for part in range(model.head.parts):
            x, y = (model.head.logits(slot % 2, part, state, table) for state in (a, b))
            parts.append(guided(x, y).argmax(-1))
            a, b = (model.head.condition(slot % 2, part, state, parts[-1]) for state in (a, b))
        return model.head.join(parts)

    table = model.code_embed()
    for face in range(7):
        end = guided(
            hidden_states(model, codes, context)[1], hidden_states(model, codes, nothing)[1]
        )
        ended |= (end[:, face] > 0) & (face > 0)
        for slot in range(6):
            codes[:, face, slot] = likeliest(face, slot)
        codes[ended, face] = -1
    return codes


@pytest.mark.by_default("1.0-digits", "2.5-codes")
@HEADS
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_cached_generation_equals_recomputation_code_for_code(scale: float, head: str) -> None:
    model = small(head=head)
    nn.init.constant_(model.end_head.bias, -0.3)
    context = model.encode_text(4, text_ids("box", "a cone", "ball", "lamp"))
    actual = model.generate_codes(context, 4, temperature=0.0, cond_scale=scale, distinct=False)
    expected = by_recomputation(model, context, 4, scale)
    assert torch.equal(actual, expected)
    assert len(actual.unique()) > 5


def test_a_long_mesh_is_the_same_whatever_the_cache_it_is_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small(max_faces=40, text="none").double()
    nn.init.constant_(model.end_head.bias, -50.0)
    one_length = model.generate_codes(None, 2, seed=3)
    monkeypatch.setattr("quintet.mesh.transformer.generator.MIN_CACHE", 4)
    assert torch.equal(model.generate_codes(None, 2, seed=3), one_length)
    assert (one_length >= 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_captured_step_generates_the_same(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp64, which the kernels do not compute."""
    model = small(max_faces=150).double().cuda()
    nn.init.constant_(model.end_head.bias, -8.0)
    context = model.encode_text(3, text_ids("box", "a cone", "ball").cuda())
    settings: dict[str, Any] = {"seed": 2, "cond_scale": scale}
    captured = model.generate_codes(context, 3, **settings)
    monkeypatch.setattr("quintet.mesh.transformer.generator.CapturedStep", lambda step: step)
    assert torch.equal(captured, model.generate_codes(context, 3, **settings))


def test_guidance_moves_away_from_the_pass_without_text() -> None:
    model = small().double()
    context = model.encode_text(2, text_ids("box", "a cone"))
    plain = model.generate_codes(context, 2, seed=1)
    assert torch.equal(model.generate_codes(context, 2, seed=1, cond_scale=1.0 + 1e-12), plain)
    assert not torch.equal(model.generate_codes(context, 2, seed=1, cond_scale=8.0), plain)
    unguided = model.generate_codes(model.encode_text(2), 2, seed=1)
    assert torch.equal(model.generate_codes(context, 2, seed=1, cond_scale=0.0), unguided)


def test_what_is_drawn_does_not_depend_on_the_batch() -> None:
    model = small().double()
    texts = ["box", "a cone", "ball"]
    many = model.generate(texts, seed=4, return_codes=True)
    first = model.generate(texts[:1], seed=4, return_codes=True)
    assert torch.equal(many[:1], first)
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(model.generate(texts[:1], seed=5, return_codes=True), first)


def test_many_meshes_are_generated_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = small().double(), ["box", "a cone", "ball", "lamp", "rod"]
    prompt = random_codes(2, 1, 3, 1, 2, faces=3)
    whole = model.generate(texts, seed=4, prompt=prompt, cond_scale=2.0, return_codes=True)
    monkeypatch.setattr("quintet.mesh.transformer.generator.MAX_ROWS", 2)
    chunks = model.generate(texts, seed=4, prompt=prompt, cond_scale=2.0, return_codes=True)
    assert torch.equal(chunks, whole)
    with pytest.raises(ValueError, match=r"expected a prompt \(5, faces, 6\)"):
        model.generate_codes(None, 5, prompt=prompt[:4])


@pytest.mark.parametrize("block", [None, 3])
def test_a_mesh_is_the_same_bit_for_bit_in_any_batch(
    block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quintet.mesh.transformer import generator
    from quintet.mesh.transformer.sample import together

    if block is not None:
        monkeypatch.setattr(generator, "BLOCK", block)
    rows: list[int] = []
    states: dict[int, Tensor] = {}
    run = generator.FaceGenerator.run

    def watched(self: Any) -> Tensor:
        codes = run(self)
        rows.append(len(codes))
        for key, state in zip(self.keys.tolist(), self.kv_caches[-1].keys.chunk(2)[0]):
            states.setdefault(key, state)  # padding comes last
        return codes

    monkeypatch.setattr(generator.FaceGenerator, "run", watched)
    settings = {"cond_scale": 2.0, "exact": True, "return_codes": True}
    calls: list[dict[str, Any]] = [
        {"texts": ["box"], "batch_size": 3, "seed": 1, **settings},
        {"texts": ["a cone"], "batch_size": 1, "seed": 2, **settings},
        {"texts": ["a cone"], "batch_size": 2, "seed": 1, **settings, "cond_scale": 1.5},
        {"texts": ["lamp"], "batch_size": 5, "seed": 3, **settings},
    ]
    model = small()
    joint = together(model, calls)
    at_once = dict(states)
    for call, codes in zip([calls[3], calls[1]], [joint[3], joint[1]]):
        states.clear()
        assert torch.equal(codes, model.generate(**call))
        assert all(torch.equal(at_once[key], state) for key, state in states.items())
    assert {*rows} == {block or generator.BLOCK}


@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_the_end_stops_a_mesh_after_whole_faces(bias: float) -> None:
    model = small()
    nn.init.constant_(model.end_head.bias, bias)
    codes = model.generate(batch_size=3, return_codes=True)
    assert isinstance(codes, Tensor)
    lengths = (codes >= 0).all(-1).sum(-1)
    assert lengths.tolist() == ([7] * 3 if bias < 0 else [1] * 3)
    assert ((codes >= 0).any(-1) == (codes >= 0).all(-1)).all()


def test_a_prompt_is_kept_and_continued() -> None:
    model = small()
    nn.init.constant_(model.end_head.bias, 50.0)
    prompt = random_codes(3, 1, faces=4)
    codes = model.generate(batch_size=2, prompt=prompt, return_codes=True)
    assert isinstance(codes, Tensor)
    assert torch.equal(codes[0, :3], prompt[0, :3])
    assert torch.equal(codes[1, :1], prompt[1, :1])
    assert (codes[0, 3:] == -1).all()
    nn.init.constant_(model.end_head.bias, -50.0)
    whole = model.generate(batch_size=2, seed=1, return_codes=True)
    assert isinstance(whole, Tensor)
    again = model.generate(batch_size=2, seed=1, prompt=whole[:, :4], return_codes=True)
    assert torch.equal(again, whole)


@pytest.mark.by_default("9-levels1")
@pytest.mark.parametrize(("codes", "levels"), [(3, ()), (9, (3, 3))])
def test_corners_of_a_generated_face_are_distinct(codes: int, levels: tuple[int, ...]) -> None:
    model = small(codebook_size=codes, levels=levels, max_faces=12)
    nn.init.constant_(model.end_head.bias, -50.0)

    def repeats(distinct: bool) -> bool:
        corners = model.generate_codes(model.encode_text(20), 20, distinct=distinct).view(-1, 3, 2)
        pairs = [(corners[:, a] == corners[:, b]).all(-1) for a, b in ((0, 1), (0, 2), (1, 2))]
        return bool(torch.stack(pairs).any())

    assert repeats(distinct=False)
    assert not repeats(distinct=True)


def test_drawing_follows_the_softmax_and_its_limits() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(20_000, 4)
    keys = torch.arange(20_000)
    actual = (
        torch.bincount(sample_tokens(logits, Sampling(temperature=2.0), keys), minlength=4) / 20_000
    )
    assert torch.allclose(actual, (logits[0] / 2).softmax(-1), atol=0.015)
    assert set(sample_tokens(logits, Sampling(top_k=2), keys).tolist()) == {0, 1}
    assert set(sample_tokens(logits, Sampling(temperature=0.0), keys).tolist()) == {0}
    assert filter_logits(logits[:1], None, 0.7).isfinite().tolist() == [[True, True, False, False]]
    assert filter_logits(logits[:1], None, 0.6).isfinite().tolist() == [[True] + [False] * 3]


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}])
def test_impossible_sampling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_generation_leaves_the_model_unchanged() -> None:
    model = small(dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = model.generate(["box"], return_codes=True)
    assert torch.equal(first, model.generate(["box"], return_codes=True))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
@ONE_HEAD
def test_it_learns_captions_and_generates_the_mesh_of_each(head: str) -> None:
    texts = ["a box", "a low box", "two legs", "a stool"]
    codes = random_codes(3, 7, 5, 6)
    model = small(dim=64, layers=2, head=head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        actual = model(codes, text_ids(*texts), drop=torch.rand(4) < 0.1)
        optimizer.zero_grad()
        (actual.loss_sum.sum() / actual.tokens.sum()).backward()
        optimizer.step()
    for scale in (1.0, 2.0):
        generated = model.generate(texts, temperature=0.0, cond_scale=scale, return_codes=True)
        assert torch.equal(generated, codes)


# -- meshes -----------------------------------------------------------------------------------


def test_assembling_merges_corners_and_drops_what_is_no_face() -> None:
    corner = {name: [ord(name) - 97, 5] for name in "abcde"}
    faces = ["bac", "acd", "aab", "cba", "dca", "bce"]
    codes = torch.tensor([[corner[c] for c in face] for face in faces]).flatten(1)
    codes = torch.cat((codes, torch.full((1, 6), -1)))
    positions = codes.view(-1, 3, 2)[..., :1].expand(-1, 3, 3).double()
    positions[0, 1] += 0.6  # of the six corners that are "a"
    mesh = assemble(codes, positions)
    assert mesh.faces.tolist() == [[0, 1, 2], [1, 2, 3], [0, 2, 4]]
    assert mesh.vertices[:, 0].tolist() == pytest.approx([1.0, 0.1, 2.0, 3.0, 4.0])
    assert mesh.vertices.dtype == torch.float32


def test_assembling_keeps_the_winding_of_quads() -> None:
    codes = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 2], [3, 2, 4, 5]])
    positions = torch.rand(4, 4, 3)
    assert assemble(codes, positions, corners=4).faces.tolist() == [[0, 1, 2, 3], [3, 2, 4, 5]]


def test_no_faces_assemble_to_an_empty_mesh() -> None:
    mesh = assemble(torch.full((3, 6), -1), torch.zeros(3, 3, 3))
    assert mesh.vertices.shape == (0, 3)
    assert mesh.faces.shape == (0, 3)


def test_generating_yields_meshes_through_the_autoencoder() -> None:
    model = small()
    model.set_autoencoder(Toy())
    for vertices, faces in model.generate(["box", "cone"]):
        assert len(faces) >= 1
        assert faces.unique().tolist() == list(range(len(vertices)))
        assert vertices.isfinite().all()
    assert len(model.generate("box", batch_size=3)) == 3
    with pytest.raises(ValueError, match="2 texts do not match batch_size 3"):
        model.generate(["box", "cone"], batch_size=3)


def test_without_an_autoencoder_only_codes_can_be_generated() -> None:
    with pytest.raises(ValueError, match="return_codes"):
        small().generate()


def test_the_autoencoder_is_attached_but_not_a_submodule() -> None:
    model, toy = small(), Toy()
    names = set(model.state_dict())
    model.set_autoencoder(toy)
    assert model.autoencoder is toy
    assert set(model.state_dict()) == names
    assert not any(parameter is toy.weight for parameter in model.parameters())
    model.train()
    assert not toy.training
    assert not toy.weight.requires_grad


# -- building and saving ----------------------------------------------------------------------


def test_keywords_and_older_names_build_the_same_configuration() -> None:
    assert MeshTransformer(**SMALL).config == MeshTransformerConfig(**SMALL)
    older = {"attn_depth": 2, "attn_heads": 2, "attn_dim_head": 16, "fine_attn_depth": 2}
    same = {n: v for n, v in SMALL.items() if n not in ("layers", "heads", "head_dim", "max_faces")}
    del same["fine_layers"]
    with pytest.warns(FutureWarning) as caught:
        built = MeshTransformer(**same, **older, max_seq_len=47, condition_on_text=False)
    assert len(caught) == 6
    assert built.config == MeshTransformerConfig(**(SMALL | {"text": "none"}))
    with pytest.raises(TypeError, match="unknown argument 'wings'; known: codebook_size"):
        MeshTransformer(wings=1)


@pytest.mark.parametrize(
    "wrong", [{"levels": (3, 4)}, {"dim": 7}, {"layers": 0}, {"dropout": 1.0}, {"max_faces": 0}]
)
def test_contradictions_are_refused_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MeshTransformerConfig(**(SMALL | wrong))


def test_a_saved_model_generates_the_same(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path)
    again = MeshTransformer.from_pretrained(tmp_path)
    assert again.config == model.config
    assert again.autoencoder is None
    expected = model.generate(["box"], seed=2, return_codes=True)
    assert torch.equal(again.generate(["box"], seed=2, return_codes=True), expected)


def test_the_autoencoder_is_saved_beside_it(tmp_path: Path) -> None:
    from quintet.mesh.autoencoder.model import MeshAutoencoder

    tokenizer = MeshAutoencoder(dim=16, message_dim=8, levels=(3, 3, 3))
    model = MeshTransformer(tokenizer, **{k: v for k, v in SMALL.items() if k != "codebook_size"})
    assert (model.config.codebook_size, model.config.levels) == (27, (3, 3, 3))
    model.save_pretrained(tmp_path)
    again = MeshTransformer.from_pretrained(tmp_path)
    assert again.autoencoder.config == tokenizer.config
    for a, b in zip(model.generate(["box"]), again.generate(["box"])):
        assert torch.equal(a.vertices, b.vertices)
        assert torch.equal(a.faces, b.faces)
    taken = MeshTransformer(MeshTransformerConfig(dim=16, layers=1), autoencoder=tokenizer)
    assert (taken.config.codebook_size, taken.config.levels, taken.config.dim) == (
        27,
        (3, 3, 3),
        16,
    )
