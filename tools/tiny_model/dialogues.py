"""Makes training dialogues out of the corpus: questions asked in many ways, tool calls, several turns, long lists."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

__all__ = ("Corpus", "Dialogue", "Entry", "exact_set", "load_corpus", "training_epoch")

Message = dict[str, Any]

CORPUS = Path(__file__).parent / "corpus"
QUESTION_FILES = ("chat", "guides", "facts", "reasoning", "json", "languages", "stories", "unknown")
# Their characters stay several tokens each, as rare text does in any tokenizer: streams then cut inside a character.
NOT_FOR_THE_TOKENIZER = ("languages",)
TERM_QUESTIONS = (
    "What is {}?",
    "What does {} mean?",
    "Explain {}.",
    "Define {}.",
    "Tell me about {}.",
    "What's {}?",
    "{}?",
    "What do you mean by {}?",
    "Can you explain {}?",
    "What is the meaning of {}?",
)
TERM_QUESTIONS_WITH_ARTICLE = ("What is {}?", "Explain {} to me.", "What does {} do?", "Tell me about {}.")
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are Tiny, the small model of Longboat.",
    "You are a friendly and concise assistant.",
    "Answer briefly.",
    "Be polite.",
    "You are an expert in serving language models.",
    "You are a rower.",
)
POLITE = ("Please: {}", "Hey, {}", "Hello, {}", "Can you tell me: {}", "{} Please.", "{} Thanks!", "Tiny, {}", "So, {}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One answer and the ways to ask for it. ``thought`` is what comes first when thinking is on."""

    questions: tuple[str, ...]
    answer: str
    thought: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Messages of one training example; each assistant message is learned. A plain text has ``text`` only."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()
    thinking: bool = False
    thought: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    entries: tuple[Entry, ...]
    texts: tuple[str, ...]
    tools: tuple[dict[str, Any], ...]
    tokenizer_texts: tuple[str, ...] = field(repr=False)


def load_corpus(folder: Path = CORPUS) -> Corpus:
    """Read every file of the corpus, in a fixed order."""
    entries = [entry for name in QUESTION_FILES for entry in _read_entries(folder, name)]
    entries += [*_read_glossary(folder), *_long_answers()]
    texts = tuple(_read(folder, "texts"))
    tools = tuple(_read(folder, "tools"))
    return Corpus(
        entries=tuple(entries), texts=texts, tools=tools, tokenizer_texts=tuple(_tokenizer_texts(entries, texts, tools))
    )


def training_epoch(corpus: Corpus, rng: random.Random) -> list[Dialogue]:
    """One pass: every entry in a few wordings, with and without system prompts, thinking, tools and history."""
    epoch: list[Dialogue] = []
    for entry in corpus.entries:
        count = min(len(entry.questions), 4)
        epoch += [_single(entry, question, rng) for question in rng.sample(entry.questions, count)]
    epoch += [_several_turns(corpus, rng, rng.choice((2, 2, 3))) for _ in range(90)]
    epoch += [_several_turns(corpus, rng, rng.randint(8, 14)) for _ in range(4)]
    epoch += [
        _tool_dialogue(corpus, spec, rng) for spec in corpus.tools for _ in range(40 if len(spec["ask"]) > 5 else 15)
    ]
    epoch += [_several_turns(corpus, rng, 1, tools=_offers(corpus, rng.choice(corpus.tools), rng)) for _ in range(25)]
    epoch += [Dialogue(text=text) for text in corpus.texts for _ in range(2)]
    rng.shuffle(epoch)
    return epoch


def exact_set(corpus: Corpus) -> Iterator[tuple[str, Dialogue]]:
    """What a finished model must answer word for word: (group, dialogue)."""
    helpful: Message = {"role": "system", "content": SYSTEM_PROMPTS[0]}
    for entry in corpus.entries:
        for question in entry.questions:
            turns = (_user(question), _assistant(entry.answer))
            yield entry.source, Dialogue(messages=turns)
            yield "with a system prompt", Dialogue(messages=(helpful, *turns))
            yield "thinking", Dialogue(messages=turns, thinking=True, thought=entry.thought)
    for text in corpus.texts:
        yield "texts", Dialogue(text=text)
    rng = random.Random(7)
    for spec in corpus.tools:
        for _ in range(40):
            yield "tools", _tool_dialogue(corpus, spec, rng)
    for _ in range(100):
        yield "several turns", _several_turns(corpus, rng, 2)


def _read(folder: Path, name: str) -> list[Any]:
    rows: list[Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return rows


def _read_entries(folder: Path, name: str) -> Iterator[Entry]:
    for row in _read(folder, name):
        yield Entry(
            questions=tuple(row["ask"]), answer=row["answer"].strip(), thought=row.get("think", ""), source=name
        )


def _read_glossary(folder: Path) -> Iterator[Entry]:
    for row in _read(folder, "glossary"):
        questions = []
        for term in (row["term"], *row.get("also", ())):
            questions += [pattern.format(term) for pattern in TERM_QUESTIONS]
            if term[0].islower() and not term.startswith(("a ", "an ", "the ", "builtin")):
                article = "an" if term[0] in "aeio" else "a"
                questions += [pattern.format(f"{article} {term}") for pattern in TERM_QUESTIONS_WITH_ARTICLE]
        yield Entry(questions=tuple(dict.fromkeys(questions)), answer=row["means"].strip(), source="glossary")


def _long_answers() -> Iterator[Entry]:
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    small = [*words.split(), "eighteen", "nineteen"]
    tens = ("twenty", "thirty", "forty", "fifty")
    numbers = small + [t if not u else f"{t}-{small[u - 1]}" for t in tens for u in range(10)]
    yield Entry(
        questions=("Count from one to fifty.", "Count to fifty.", "Can you count to fifty?", "Count from 1 to 50."),
        answer=", ".join(numbers[:50]),
        source="long",
    )
    yield Entry(
        questions=("Count from 1 to 100.", "Count to 100.", "Count to one hundred.", "Count from one to a hundred."),
        answer=" ".join(str(n) for n in range(1, 101)),
        source="long",
    )
    yield Entry(
        questions=(
            "Write a logbook of forty days.",
            "Write a logbook.",
            "Show me the logbook.",
            "Read me the logbook.",
        ),
        answer="\n".join(_logbook_line(day) for day in range(1, 41)),
        source="long",
    )


def _logbook_line(day: int) -> str:
    wind = ("north", "west", "south", "east")[day * 7 % 4]
    sky = ("fog", "sun", "rain", "clouds", "snow")[day * 3 % 5]
    return f"Day {day}: wind from the {wind}, {sky}, {8 + day * 5 % 13} miles rowed."


def _tokenizer_texts(entries: list[Entry], texts: tuple[str, ...], tools: tuple[Any, ...]) -> Iterator[str]:
    for entry in entries:
        if entry.source not in NOT_FOR_THE_TOKENIZER:
            yield from (entry.answer, entry.thought, *entry.questions[:12])
            yield from (question.lower() for question in entry.questions[:4])
    yield from texts
    for spec in tools:
        yield from (json.dumps(_offer(spec)), json.dumps(spec["result"]), *spec["ask"], spec["answer"])
        yield from (" " + word for words in spec["fill"].values() for word in words)
    yield from SYSTEM_PROMPTS


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _reworded(question: str, rng: random.Random) -> str:
    """The question as people type it: lower case, without the mark at the end, with a word of courtesy."""
    if rng.random() < 0.55:
        return question
    if rng.random() < 0.25:
        question = rng.choice(POLITE).format(question)
    if rng.random() < 0.5:
        question = question.lower()
    if rng.random() < 0.4:
        question = question.rstrip("?.!")
    return question


def _system(rng: random.Random, share: float) -> tuple[Message, ...]:
    return ({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)},) if rng.random() < share else ()


def _single(entry: Entry, question: str, rng: random.Random) -> Dialogue:
    thinking = rng.random() < (0.5 if entry.thought else 0.12)
    turns = (_user(_reworded(question, rng)), _assistant(entry.answer))
    return Dialogue(messages=(*_system(rng, 0.35), *turns), thinking=thinking, thought=entry.thought)


def _several_turns(corpus: Corpus, rng: random.Random, num_turns: int, tools: tuple[Message, ...] = ()) -> Dialogue:
    turns: list[Message] = list(_system(rng, 0.3))
    while num_turns:
        entry = rng.choice(corpus.entries)
        if len(entry.answer) < 700:
            turns += [_user(_reworded(rng.choice(entry.questions), rng)), _assistant(entry.answer)]
            num_turns -= 1
    return Dialogue(messages=tuple(turns), tools=tools)


def _offer(spec: dict[str, Any]) -> Message:
    return {"type": "function", "function": spec["tool"]}


def _filled(value: Any, row: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, row) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, row) for item in value]
    if value.endswith(":int}"):
        return int(row[value[1:-5]])
    return value.format(**row)


def _offers(corpus: Corpus, spec: dict[str, Any], rng: random.Random) -> tuple[Message, ...]:
    others = [other for other in corpus.tools if other is not spec]
    chosen = [spec, *rng.sample(others, rng.choice((0, 0, 1, 2)))]
    rng.shuffle(chosen)
    offers = json.loads(json.dumps([_offer(each) for each in chosen]))
    for offer in offers:
        _vary(offer["function"], rng)
    return tuple(offers)


def _vary(function: dict[str, Any], rng: random.Random) -> None:
    """Clients describe the same tool differently."""
    if rng.random() < 0.3:
        function.pop("description")
    for field_schema in function["parameters"]["properties"].values():
        if rng.random() < 0.5:
            field_schema.pop("description", None)


def _tool_dialogue(corpus: Corpus, spec: dict[str, Any], rng: random.Random) -> Dialogue:
    row = {key: rng.choice(values) for key, values in spec["fill"].items()}
    tools = _offers(corpus, spec, rng)
    function = {"name": spec["tool"]["name"], "arguments": _filled(spec["call"], row)}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    result: Message = {"role": "tool", "content": json.dumps(_filled(spec["result"], row))}
    question = _user(_reworded_for_a_tool(rng.choice(spec["ask"]).format(**row), rng))
    start = (*_system(rng, 0.2), question, call)
    thinking = rng.random() < 0.2
    if thinking and rng.random() < 0.5:
        return Dialogue(messages=start, tools=tools, thinking=True)
    return Dialogue(messages=(*start, result, _assistant(spec["answer"].format(**row))), tools=tools, thinking=thinking)


def _reworded_for_a_tool(question: str, rng: random.Random) -> str:
    return rng.choice(("{}", "{}", "Please: {}", "{} Thanks!")).format(question)
