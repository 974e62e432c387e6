"""Tunes summaries on evidence: candidates are chosen on one half of the cases, and tested once on the other.

A summary is good if the section is found when a case needs it, among the first few and before its neighbours. A model
is shown the summaries inside a closed section once it has opened that, so the way to a section is found step by step.
With the prompt's ranker this is measured for every question in milliseconds; with an adapter, by running the cases.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from statistics import fmean, median
from typing import Any, Literal, Protocol

from weakincentives.evals.cases import Case, CaseError
from weakincentives.evals.intervals import sign_test
from weakincentives.evals.scorers import needed_sections
from weakincentives.prompt import (
    Prompt,
    PromptError,
    PromptOverride,
    PromptTemplate,
    SectionPath,
    default_tokenizer,
)
from weakincentives.prompt.disclosure.ranking import LexicalRanker, SectionText, section_text, sentences, terms

FOUND_WITHIN = 5
MIN_CASES = 30
LIKELY = 0.10
"""The chance, one-sided, up to which an improvement on the held half counts."""
MIN_GAIN = 0.02
"""The least improvement of recall on the held half that is worth a change of summaries."""
MORE = 1.2
FREE_TOKENS = 40
"""A new summary may have as many tokens as this, or a fifth more than the old one."""
MAX_REFINED = 40
NGRAM = 5
_ORDERS = re.compile(
    r"\b(you (must|should|have to)|always|never|ignore|disregard|open this|read this|call this)\b", re.I
)
_WORD = re.compile(r"[^\W_]+")
Half = Literal["chosen on", "held"]


@dataclass(frozen=True, slots=True)
class Question:
    """A case as tuning sees it: its words, the sections that it needs (each with its alternatives), and its half."""

    id: str
    text: str
    needed: tuple[frozenset[str], ...]
    group: str
    half: Half


@dataclass(frozen=True, slots=True)
class Candidate:
    """A summary that was tried for a section, and what became of it; `score` is that of all sections with it."""

    section: str
    by: str
    text: str
    score: float | None
    kept: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts on a section for a proposer: its texts, its neighbours', and questions of the first half alone."""

    section: SectionText
    outline: Mapping[str, str]
    missed: tuple[str, ...]
    asked: tuple[str, ...]
    others: tuple[str, ...]
    vain: int
    limit: int


class Proposer(Protocol):
    """Proposes summaries for a section, each with a name of how it was made."""

    def __call__(self, evidence: Evidence) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome of tuning: what was changed, what it is worth on cases that were not looked at, and what lost.

    `summaries` are the changed ones by section key, adopted or only proposed. `before` and `after` are the recall on
    the `held` cases, `chosen_before` and `chosen_after` on the `chosen_on` others; `tokens` is by how much all
    summaries grow. `unknown` are sections that cases need and that have no summary.
    """

    adopted: bool  #: True if the changes are an improvement
    reason: str  #: why they were adopted or not
    summaries: Mapping[str, str]
    before: float
    after: float
    chosen_before: float
    chosen_after: float
    wins: int  #: held cases that improved
    losses: int  #: held cases that got worse
    p: float  #: the chance of such a result without an improvement
    held: int  #: the number of held cases
    tokens: int
    log: tuple[Candidate, ...] = ()  #: every candidate, with its result
    override: PromptOverride | None = None  #: the changes, ready to be stored
    unknown: tuple[str, ...] = ()
    chosen_on: int = 0

    @property
    def text(self) -> str:
        """The outcome in words."""
        unknown = f"\nthe cases name sections that have no summary: {', '.join(self.unknown)}" if self.unknown else ""
        if not self.summaries:
            cases, found = self.held + self.chosen_on, self.before * self.held + self.chosen_before * self.chosen_on
            now = f"{_share(found / max(cases, 1), cases)} cases find the sections that they need"
            return f"nothing to adopt: {self.reason}\n{now}{unknown}"
        verdict = "adopted" if self.adopted else "not adopted"
        noun = "summary" if len(self.summaries) == 1 else "summaries"
        changed = f"{len(self.summaries)} {noun} changed, {self.tokens:+,} tokens in every request"
        tested = (
            f"in the half kept for the test, {_share(self.before, self.held)} cases find the sections that they need, "
            f"and {_share(self.after, self.held)} with the change ({self.wins} better, {self.losses} worse, "
            f"p = {self.p:.3f})"
        )
        chosen = (
            f"in the half it was chosen on, {_share(self.chosen_before, self.chosen_on)}, "
            f"and {_share(self.chosen_after, self.chosen_on)} with the change"
        )
        return f"{verdict}: {self.reason}\n{changed}\n{tested}\n{chosen}{unknown}"


def tune(
    prompt: Prompt[Any] | PromptTemplate[Any],
    cases: Iterable[Case],
    *,
    tag: str = "tuned",
    by: Literal["ranking", "summaries"] | None = None,
    within: int = FOUND_WITHIN,
    propose: Proposer | None = None,
    score: Score | None = None,
) -> Tuning:
    """Find better summaries for the sections that the cases miss.

    The sections that a case needs are `metadata["sections"]`, or those that its recorded run opened. `by="ranking"`
    ranks as the prompt's `SearchSections` does, by all of a section's text; `by="summaries"`, the default of other
    prompts, by titles and summaries alone, which is what a model sees: first those of the first request, then those
    inside each section that was found. `propose` adds candidates to the built-in ones,
    and `score` replaces the ranking. If an override applies to the prompt, its summaries are where tuning starts, and
    the new override has all of it.
    """
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    tuner = _Tuner(bound, tuple(cases), tag, by, within, propose, score)
    return tuner.run()


class Score(Protocol):
    """The share of its sections that each question finds, given the summaries that differ from the prompt's."""

    def __call__(self, summaries: Mapping[str, str], questions: Sequence[Question]) -> list[float]: ...


def half_of(group: str) -> Half:
    """The half that the cases of a group belong to, by a stable hash."""
    return "held" if hashlib.sha256(group.encode()).digest()[0] & 1 else "chosen on"


class _Tuner:
    def __init__(
        self,
        prompt: Prompt[Any],
        cases: Sequence[Case],
        tag: str,
        by: str | None,
        within: int,
        propose: Proposer | None,
        score: Score | None,
    ) -> None:
        self.prompt, self.tag, self.within = prompt, tag, within
        finder = prompt.template.disclosure.finder
        ranker = LexicalRanker() if finder is None else finder.ranker
        whole = (by or ("summaries" if finder is None else "ranking")) == "ranking"
        outline = prompt.bound().outline
        nodes = [node for node in outline.nodes if node.summary is not None]
        self.summarized = {node.key for node in nodes}
        self.above: dict[str, tuple[str, ...]] = {}
        if not whole:
            # What is open from the start needs no summary, and is found with the closed section around it.
            nodes = list(filter(outline.may_be_closed, nodes))
            self.above = closed_above(outline, {node.key for node in nodes})
        self.paths: dict[str, SectionPath] = {}
        self.sections: dict[str, SectionText] = {}
        for node in nodes:
            self.paths[node.key] = node.path
            self.sections[node.key] = section_text(node)
        self.given = self.sections
        count = default_tokenizer().count
        # A fifth more than the prompt's own summary, so that tuning again what was tuned leaves no more room.
        self.limits = {
            node.key: max(int(count(section_text(node).summary) * MORE), FREE_TOKENS)
            for node in prompt.template.outline.nodes
            if node.key in self.sections
        }
        self.ranking = Ranking(self.sections, ranker, within, whole=whole, above=self.above)
        self.scored, self.propose = score, propose
        self.proposed: dict[str, Mapping[str, str]] = {}
        self.first_of: dict[str, str] = {}
        self.questions = [question for case in cases if (question := self._question(case)) is not None]
        needed = {key for case in cases for group in needed_sections(case) for key in group}
        self.unknown = tuple(sorted(needed - self.summarized))
        if not self.questions:
            named = f" (they name {', '.join(self.unknown[:5])})" if self.unknown else ""
            raise CaseError(
                f"none of {len(cases)} cases needs a section that has a summary{named}; give them "
                "metadata={'sections': [...]}, or make cases of recorded runs"
            )
        self.texts = [question.text for question in self.questions]
        self.log: list[Candidate] = []

    def run(self) -> Tuning:
        chosen = [question for question in self.questions if question.half == "chosen on"]
        held = [question for question in self.questions if question.half == "held"]
        before, old = self._mean({}, chosen), self._score({}, held)
        summaries = self._best(chosen)
        kept = set(summaries.items())
        self.log = [replace(each, kept=(each.section, each.text) in kept) for each in self.log]
        if not summaries:
            reason = "no other summary finds more"
            return self._outcome(False, reason, {}, held, old, old, before, before)
        after, new = self._mean(summaries, chosen), self._score(summaries, held)
        accepted, reason = self._tested(held, old, new)
        if len(self.questions) < MIN_CASES:
            accepted = False
            reason = (
                f"{len(self.questions)} cases are too few to test on; {MIN_CASES} are the least, 60 or more are better"
            )
        return self._outcome(accepted, reason, summaries, held, old, new, before, after)

    def _best(self, questions: Sequence[Question]) -> dict[str, str]:
        """The summaries that differ from the given ones when no candidate finds more; one round if a score is given."""
        found: dict[str, str] = {}
        while better := self._chosen(questions):
            found |= better
            if self.scored is not None:
                break
            self._use({**self.sections, **{key: replace(self.sections[key], summary=better[key]) for key in better}})
        self._use(self.given)
        return {key: text for key, text in found.items() if text != self.given[key].summary}

    def _use(self, sections: dict[str, SectionText]) -> None:
        self.sections = sections
        whole, ranker = self.ranking.whole, self.ranking.ranker
        self.ranking = Ranking(sections, ranker, self.within, whole=whole, above=self.above)

    def _question(self, case: Case) -> Question | None:
        needed = tuple(filter(None, map(self._closed, needed_sections(case))))
        if not needed or not case.question.strip():
            return None
        # Equal questions are one source, and never in both halves.
        group = case.group or self.first_of.setdefault(case.question, case.id)
        return Question(case.id, case.question, needed, group, half_of(group))

    def _closed(self, group: Iterable[str]) -> frozenset[str]:
        """The sections to open for one that a case needs; empty if one of the alternatives is open from the start."""
        keys = set[str]()
        for key in group:
            if key in self.sections:
                keys.add(key)
            elif key in self.summarized and self.above.get(key):
                keys.add(self.above[key][-1])
            elif key in self.summarized:
                return frozenset()
        return frozenset(keys)

    def _score(self, summaries: Mapping[str, str], questions: Sequence[Question]) -> list[float]:
        return (self.scored or self.ranking)(summaries, questions)

    def _mean(self, summaries: Mapping[str, str], questions: Sequence[Question]) -> float:
        return fmean(self._score(summaries, questions)) if questions else 0.0

    def _chosen(self, questions: Sequence[Question]) -> dict[str, str]:
        """The summaries that do better on these questions: one way of writing for all, then section by section."""
        if not questions:
            return {}
        proposals = self._proposals(questions)
        best: dict[str, str] = {}
        reached = self._mean({}, questions)
        ways = dict.fromkeys(way for texts in proposals.values() for way in texts)
        for way in ways:
            tried = {key: texts[way] for key, texts in proposals.items() if way in texts}
            found = self._mean(tried, questions)
            self.log.extend(Candidate(key, way, text, found, False) for key, text in tried.items())
            if found > reached:
                best, reached = tried, found
        return best if self.scored is not None else self._refined(best, reached, proposals, questions)

    def _refined(
        self,
        best: dict[str, str],
        reached: float,
        proposals: Mapping[str, Mapping[str, str]],
        questions: Sequence[Question],
    ) -> dict[str, str]:
        """Try the other candidates for the sections that are missed most, one at a time, all sections counted."""
        missed = self.ranking.missed(best, questions)
        for key, _ in missed.most_common(MAX_REFINED):
            for way, text in proposals.get(key, {}).items():
                if best.get(key) == text:
                    continue
                found = self._mean({**best, key: text}, questions)
                self.log.append(Candidate(key, way, text, found, False, "for this section alone"))
                if found > reached:
                    best, reached = {**best, key: text}, found
        return best

    def _proposals(self, questions: Sequence[Question]) -> dict[str, dict[str, str]]:
        """Candidates by section and way of writing, for sections that are missed, found in vain, or say very little."""
        missed, vain = self.ranking.missed({}, questions), self.ranking.vain(questions)
        count = default_tokenizer().count
        sizes = {key: count(section.summary) for key, section in self.sections.items()}
        usual = median(sizes.values()) if sizes else 0
        outline = {key: section.headline for key, section in self.sections.items()}
        built_in = WordProposer(self.sections)
        found: dict[str, dict[str, str]] = {}
        for key, section in self.sections.items():
            thin = sizes[key] < usual / 2
            if not (missed[key] or thin or vain[key] > len(questions) / 4):
                continue
            asked = tuple(q.text for q in questions if key in self.ranking.way(q))
            others = tuple(q.text for q in questions if q.text not in asked)
            limit = self.limits[key]
            section = self.ranking.with_contents(section)
            evidence = Evidence(section, outline, self.ranking.missing(key, questions), asked, others, vain[key], limit)
            if self.propose is not None and key not in self.proposed:
                self.proposed[key] = self.propose(evidence)
            texts = {**built_in(evidence), **self.proposed.get(key, {})}
            found[key] = dict(self._allowed(key, texts, limit))
        return found

    def _allowed(self, key: str, texts: Mapping[str, str], limit: int) -> Iterator[tuple[str, str]]:
        section = self.sections[key]
        for way, given in texts.items():
            text = " ".join(given.split())
            problem = self._problem(key, section, text, limit)
            if problem:
                self.log.append(Candidate(key, way, text, None, False, problem))
            else:
                yield way, text

    def _problem(self, key: str, section: SectionText, text: str, limit: int) -> str:
        """Why a summary may not be used; empty if it may."""
        if not text or text == section.summary:
            return "it is empty" if not text else "it is the summary that the section has"
        size = default_tokenizer().count(text)
        if size > limit:
            return f"it has {size} tokens; {limit} are the most"
        if copied := copied_words(text, self.texts, section.text):
            return f"it copies words of a case: {copied!r}"
        if _ORDERS.search(text) and not _ORDERS.search(section.text):
            return "it gives orders to the model; a summary says what is in the section"
        if text.startswith("#") or "${" in text:
            return "headings and placeholders are not part of a summary"
        try:
            self.prompt.template.descriptor.override_summary(self.paths[key], text)
        except PromptError as error:
            return str(error)
        return ""

    def _tested(self, held: Sequence[Question], old: Sequence[float], new: Sequence[float]) -> tuple[bool, str]:
        """The one look at the held half."""
        wins, losses = votes(held, old, new)
        p, gain = sign_test(wins, losses), fmean(new) - fmean(old) if held else 0.0
        if p >= LIKELY:
            return False, f"on the held half it may be chance (p = {p:.2f}; below {LIKELY} counts)"
        if gain < MIN_GAIN:
            return False, f"on the held half it gains {100 * gain:.1f} points, less than {100 * MIN_GAIN:.0f}"
        keys = sorted({key for question in held for group in question.needed for key in group})
        for key in keys:
            mine = [place for place, question in enumerate(held) if any(key in group for group in question.needed)]
            lost, won = (
                sum(new[place] < old[place] for place in mine),
                sum(new[place] > old[place] for place in mine),
            )
            if sign_test(lost, won) < 0.05 / len(keys):
                return False, f"questions about section '{key}' find less than before ({lost} worse, {won} better)"
        return True, f"the gain holds on cases that were not looked at (p = {p:.3f})"

    def _outcome(
        self,
        adopted: bool,
        reason: str,
        summaries: Mapping[str, str],
        held: Sequence[Question],
        old: Sequence[float],
        new: Sequence[float],
        before: float,
        after: float,
    ) -> Tuning:
        count = default_tokenizer().count
        wins, losses = votes(held, old, new)
        override = None
        if summaries:
            descriptor = self.prompt.template.descriptor
            override = self._applied() or descriptor.new_override(self.tag)
            for key, text in summaries.items():
                path = self.paths[key]
                override = override.with_summary(path, descriptor.override_summary(path, text))
        return Tuning(
            adopted,
            reason,
            dict(summaries),
            fmean(old) if old else 0.0,
            fmean(new) if new else 0.0,
            before,
            after,
            wins,
            losses,
            sign_test(wins, losses),
            len(held),
            sum(count(text) - count(self.given[key].summary) for key, text in summaries.items()),
            tuple(self.log),
            override,
            self.unknown,
            len(self.questions) - len(held),
        )

    def _applied(self) -> PromptOverride | None:
        """The override that the prompt has, under the tag of this one."""
        store, tag = self.prompt.overrides_store, self.prompt.overrides_tag
        found = store.resolve(self.prompt.template.descriptor, tag) if store is not None and tag else None
        return None if found is None else found.tagged(self.tag)


def closed_above(outline: Any, closed: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each section, those of the closed ones that it is inside of, the outermost first."""
    above: dict[str, tuple[str, ...]] = {}
    for node in outline.nodes:
        around = [ancestor.key for ancestor in outline.ancestors(node) if ancestor.key in closed]
        above[node.key] = tuple(reversed(around))
    return above


@dataclass(slots=True)
class Ranking:
    """Scores questions by the rank of the sections that they need.

    `above` has the closed sections around each section. Those that have the same ones around them are shown together,
    in the first request or when the last of these is opened, and ranked among each other. Without `above`, all are.
    """

    sections: Mapping[str, SectionText]
    ranker: Any
    within: int
    whole: bool = False
    above: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _orders: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, summaries: Mapping[str, str], questions: Sequence[Question]) -> list[float]:
        rank = self._ranks(summaries)
        return [_found(question, rank(question.text)) for question in questions]

    def way(self, question: Question) -> set[str]:
        """The sections that a question needs, with the closed ones around them."""
        keys = {key for group in question.needed for key in group}
        return keys.union(*(self.above.get(key, ()) for key in keys))

    def with_contents(self, section: SectionText) -> SectionText:
        """A section with the summaries of what is inside it as part of its text, from which it can be summarized."""
        inside = [text.headline for key, text in self.sections.items() if section.key in self.above.get(key, ())]
        return replace(section, body="\n".join([section.body, *inside]))

    def missed(self, summaries: Mapping[str, str], questions: Sequence[Question]) -> Counter[str]:
        """How often each section was needed and not found; what is inside a section that was not found cannot be."""
        rank, missed = self._ranks(summaries), Counter[str]()
        for question in questions:
            first = set(rank(question.text))
            for group in question.needed:
                if not group & first:
                    missed.update({self._first_missed(key, first) for key in group})
        return missed

    def missing(self, key: str, questions: Sequence[Question]) -> tuple[str, ...]:
        """The questions that need a section, or one inside it, and do not find it."""
        rank = self._ranks({})
        return tuple(
            question.text for question in questions if key in self.way(question) and key not in rank(question.text)
        )

    def vain(self, questions: Sequence[Question]) -> Counter[str]:
        """How often each section was found and not needed."""
        rank, found = self._ranks({}), Counter[str]()
        for question in questions:
            needed = self.way(question)
            found.update(key for key in rank(question.text) if key not in needed)
        return found

    def _first_missed(self, key: str, found: Collection[str]) -> str:
        for around in self.above.get(key, ()):
            if around not in found:
                return around
        return key

    def _ranks(self, summaries: Mapping[str, str]) -> Callable[[str], list[str]]:
        known = self._orders if not summaries else {}
        together: dict[str, list[str]] = {}
        for key in self.sections:
            around = self.above.get(key, ())
            together.setdefault(around[-1] if around else "", []).append(key)

        @cache
        def index(around: str) -> Any:
            texts = [self._text(self.sections[key], summaries.get(key)) for key in together[around]]
            by_field = getattr(self.ranker, "index_sections", None)
            return by_field(texts) if by_field else self.ranker.index([text.text for text in texts])

        def rank(text: str) -> list[str]:
            if text not in known:
                found: list[str] = []
                opened = [""]
                for around in opened:
                    if around in together:
                        first = [together[around][place] for place, _ in index(around).rank(text, self.within)]
                        found += first
                        opened += first
                known[text] = found
            return known[text]

        return rank

    def _text(self, section: SectionText, summary: str | None) -> SectionText:
        summary = section.summary if summary is None else summary
        if self.whole:
            return SectionText(section.key, section.title, summary, section.body, section.tools)
        return SectionText(section.key, section.title, summary)


class WordProposer:
    """Writes summaries without a model, from the section's own words and those of the questions that need it."""

    def __init__(self, sections: Mapping[str, SectionText]) -> None:
        self._rarity = _rarity([section.text for section in sections.values()])

    def __call__(self, evidence: Evidence) -> dict[str, str]:
        section = evidence.section
        own = self._weighted([section.body, *section.tools], self._rarity)
        questions = _rarity([*evidence.asked, *evidence.others])
        asked = self._weighted(evidence.asked, questions)
        shared = [word for word in asked if word in set(own)]
        told = sentences(section.body) or [tool.partition(":")[2].strip() or tool for tool in section.tools]
        start = section.summary.rstrip(" .")
        found = {
            "words": _filled(start, own, evidence.limit),
            "asked words": _filled(start, [*shared, *asked, *own], evidence.limit),
            "sentences": _joined(start, told, evidence.limit),
            "tools": _filled(start, [tool.partition(":")[0] for tool in section.tools], evidence.limit),
        }
        if evidence.vain and len(sentences(section.summary)) > 1:
            found["narrow"] = sentences(section.summary)[0]
        return found

    def _weighted(self, texts: Sequence[str], rarity: Mapping[str, float]) -> list[str]:
        """The words of texts, the most telling first, as they are written."""
        written: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for text in texts:
            for word in _WORD.findall(text):
                for term in terms(word):
                    written.setdefault(term, word.lower())
                    counts[term] += 1
        weights = {term: (1 + math.log(count)) * rarity.get(term, 0.0) for term, count in counts.items()}
        useful = [term for term in weights if len(term) > 2 and not term.isdigit()]
        return [written[term] for term in sorted(useful, key=lambda term: (-weights[term], term))]


def copied_words(text: str, cases: Iterable[str], own: str = "") -> str:
    """Five words in a row that a summary shares with a case, and not with the section's own text; else empty."""
    mine = _ngrams(text) - _ngrams(own)
    for case in cases if mine else ():
        if both := mine & _ngrams(case):
            return " ".join(min(both))
    return ""


def votes(questions: Sequence[Question], old: Sequence[float], new: Sequence[float]) -> tuple[int, int]:
    """How many groups of questions find more than before, and how many less."""
    groups: dict[str, float] = {}
    for question, before, after in zip(questions, old, new, strict=True):
        groups[question.group] = groups.get(question.group, 0.0) + after - before
    changes = [change for change in groups.values() if abs(change) > 1e-9]
    return sum(change > 0 for change in changes), sum(change < 0 for change in changes)


def _share(recall: float, cases: int) -> str:
    """How many cases: their number if there are few, else the percentage; one that finds half is half a case."""
    return f"{round(recall * cases, 1):g} of {cases}" if cases < MIN_CASES else f"{100 * recall:.1f}% of {cases}"


def _found(question: Question, first: Sequence[str]) -> float:
    return fmean(bool(group.intersection(first)) for group in question.needed)


def _rarity(texts: Sequence[str]) -> dict[str, float]:
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(_distinct(text))
    return {term: math.log(1 + len(texts) / count) for term, count in seen.items()}


@lru_cache(maxsize=10_000)
def _distinct(text: str) -> frozenset[str]:
    return frozenset(terms(text))


def _filled(start: str, words: Sequence[str], limit: int) -> str:
    """The beginning and as many of the words as fit; none that it has already."""
    count, had, kept = default_tokenizer().count, set(terms(start)), list[str]()
    lead = f"{start}. " if start else ""
    for word in words:
        if set(terms(word)) <= had:
            continue
        if count(f"{lead}Covers {', '.join([*kept, word])}.") > limit:
            break
        kept.append(word)
        had.update(terms(word))
    return f"{lead}Covers {', '.join(kept)}." if kept else start


def _joined(start: str, told: Sequence[str], limit: int) -> str:
    """The beginning and as much of the sentences as fits."""
    count = default_tokenizer().count
    text = f"{start}." if start else ""
    for word in " ".join(told).split():
        if count(f"{text} {word}") > limit:
            break
        text = f"{text} {word}".strip()
    return text


@lru_cache(maxsize=10_000)
def _ngrams(text: str) -> frozenset[tuple[str, ...]]:
    words = [word.lower() for word in _WORD.findall(text)]
    return frozenset(tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1))
