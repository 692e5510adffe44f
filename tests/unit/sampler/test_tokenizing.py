"""Token ids of texts and conversations, by a tokenizer of the library with a template, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1.sampler_pb2 import TokenizeRequest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.common.errors import Busy, InvalidInput
from services.sampler.conversation import Conversation
from services.sampler.engine.tokenizer import ModelTokenizer
from services.sampler.tokenizing import LEAST_BYTES, MAX_PIECES, MAX_WAITING, Tokenizing
from tests.doubles.tokenizer import WordTokenizer
from tools.make_tiny_qwen3 import END, build_tokenizer

TEMPLATE = (
    "{% if tools %}tools:{% for tool in tools %}{{ tool.function.name }};{% endfor %}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{% if message.role in ['system', 'user', 'assistant'] %}[{{ message.role }}]{{ message.content }}"
    "{% if not (loop.last and continue_final_message) %}<|endoftext|>{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{{ mood or '' }}{% endif %}"
)


def model(directory: Path, template: str | None = TEMPLATE) -> Path:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def tokenizing(tmp_path: Path) -> Tokenizing:
    return Tokenizing(ModelTokenizer(model(tmp_path)), 2048)


def chat(*messages: tuple[str, str], **fields: object) -> TokenizeRequest:
    told = [{"role": role, "content": content} for role, content in messages]
    return TokenizeRequest(chat_json=json.dumps({"messages": told, **fields}))


async def text(tokenizing: Tokenizing, request: TokenizeRequest) -> str:
    tokens = np.frombuffer(await tokenizing.tokens(request), "<i4").tolist()
    return tokenizing._tokenizer.decode(tokens)


async def test_a_text_comes_back_from_its_ids(tokenizing: Tokenizing) -> None:
    assert await text(tokenizing, TokenizeRequest(text="the 世界 e\u0301👋🏽")) == "the 世界 e\u0301👋🏽"
    assert await tokenizing.tokens(TokenizeRequest(text="")) == b""


async def test_ids_are_those_of_the_models_own_tokenizer(tokenizing: Tokenizing, tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(tmp_path)
    tokens = np.frombuffer(await tokenizing.tokens(TokenizeRequest(text="the captain")), "<i4").tolist()
    assert tokens == own.encode("the captain")
    told = [{"role": "user", "content": "the captain"}]
    tokens = np.frombuffer(await tokenizing.tokens(chat(("user", "the captain"))), "<i4").tolist()
    assert tokens == own.apply_chat_template(told, add_generation_prompt=True, return_dict=False)
    assert tokens.count(0) == 1  # the template's end of a message is the special token


async def test_a_conversation_goes_through_the_models_template(tokenizing: Tokenizing) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    asked = chat(("system", "be brief"), ("user", "hi"), tools=tools, chat_template_kwargs={"mood": "glad"})
    assert await text(tokenizing, asked) == f"tools:look;[system]be brief{END}[user]hi{END}[assistant]glad"


async def test_a_final_message_is_continued_where_it_ends(tokenizing: Tokenizing) -> None:
    asked = chat(("user", "hi"), ("assistant", "I am"), continue_final_message=True)
    assert await text(tokenizing, asked) == f"[user]hi{END}[assistant]I am"


async def test_a_developer_is_a_system_where_the_template_knows_no_developer(
    tokenizing: Tokenizing, tmp_path: Path
) -> None:
    """This one would drop the message without a word."""
    assert await text(tokenizing, chat(("developer", "be brief"))) == f"[system]be brief{END}[assistant]"
    knows = ModelTokenizer(model(tmp_path / "other", "{% for m in messages %}{{ m.role }}{% endfor %}{# developer #}"))
    made = knows.render(Conversation([{"role": "developer", "content": "x"}]))
    assert knows.decode(made) == "developer"


async def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    tokenizing = Tokenizing(ModelTokenizer(model(tmp_path, None)), 2048)
    with pytest.raises(InvalidInput, match=r"no chat template: send a prompt to completions, or put a chat_template"):
        await tokenizing.tokens(chat(("user", "hi")))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (chat(("tool", "hi")), "messages: the model's chat template does not take them: no tools here"),
        (chat(("user", "hi"), chat_template_kwargs={"chat_template": "{{ 1 }}"}), "chat_template_kwargs.chat_template"),
        (chat(("user", "hi"), chat_template_kwargs={"tokenize": False}), "chat_template_kwargs.tokenize"),
        (chat(("dog", "hi")), r"messages\[0\]\.role"),
        (TokenizeRequest(), "neither text nor chat_json"),
        (TokenizeRequest(text="x" * (LEAST_BYTES + 1)), "text has 65537 bytes; this model's context of 2048 tokens"),
        (chat(("user", "👋" * LEAST_BYTES)), "chat_json has"),
    ],
)
async def test_what_cannot_be_tokenized_is_named(tokenizing: Tokenizing, request_: TokenizeRequest, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        await tokenizing.tokens(request_)


async def test_what_is_nested_too_deeply_for_a_template_is_the_callers_error(tmp_path: Path) -> None:
    walk = "{% macro walk(x) %}{% if x %}{{ walk(x[0]) }}{% endif %}{% endmacro %}{{ walk(deep) }}"
    deep = json.loads("[" * 900 + "]" * 900)
    tokenizing = Tokenizing(ModelTokenizer(model(tmp_path, walk)), 2048)
    with pytest.raises(InvalidInput, match="chat template does not take them"):
        await tokenizing.tokens(chat(("user", "hi"), chat_template_kwargs={"deep": deep}))


async def test_special_tokens_are_those_that_are_not_said(tokenizing: Tokenizing) -> None:
    assert tokenizing._tokenizer.special == {0, 1}


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
async def test_pieces_joined_are_the_bytes_of_the_text(tmp_path: Path, name: str) -> None:
    """A token of half a character has half its bytes; a special one its name; one there is not none."""
    tokenizer = build_tokenizer() if name == "byte level" else fallback_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tokenizing = Tokenizing(ModelTokenizer(tmp_path), 2048)
    said = "the captain 世界 naïve\n👋"
    tokens = await tokenizing.tokens(TokenizeRequest(text=said))
    pieces = await tokenizing.pieces(tokens)
    assert b"".join(pieces).decode().removeprefix(" ") == said
    assert len(pieces) == len(tokens) // 4 > len(said.split())
    assert any(b"\x80" <= piece < b"\xf8" and len(piece) == 1 for piece in pieces)
    assert await tokenizing.pieces(np.array([0, 10**6, -1], "<i4").tobytes()) == [END.encode(), b"", b""]


async def test_pieces_are_bounded(tokenizing: Tokenizing) -> None:
    for tokens in (b"abc", bytes(4 * (MAX_PIECES + 1))):
        with pytest.raises(InvalidInput, match=f"tokens has {len(tokens)} bytes"):
            await tokenizing.pieces(tokens)


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2: a space belongs to the token after it, unknown characters are bytes <0x..>."""
    pieces = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thecapin", "th", "the"]
    vocabulary = {piece: token for token, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("t", "h"), ("th", "e")]
    bpe = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END)


class SlowTokenizer(WordTokenizer):
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.threads: set[str] = set()
        self.busy = 0
        self.most_busy = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        self.threads.add(threading.current_thread().name)
        self.gate.wait(10)
        self.busy -= 1
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_the_event_loop_goes_on_and_texts_wait_in_a_line_that_ends() -> None:
    slow = SlowTokenizer()
    tokenizing = Tokenizing(slow, 2048)
    calls = [asyncio.create_task(tokenizing.tokens(TokenizeRequest(text="a"))) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match=f"has {MAX_WAITING} texts"):
        await tokenizing.tokens(TokenizeRequest(text="a"))
    slow.gate.set()
    assert set(await asyncio.gather(*calls)) == {np.array([97], "<i4").tobytes()}
    assert slow.most_busy == 1 and threading.current_thread().name not in slow.threads
    assert await tokenizing.tokens(TokenizeRequest(text="a"))
