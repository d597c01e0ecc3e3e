"""Questions to a cheap model first and to an expert where that fails, within a budget, on the record.

Each call is an event that holds its reply, so that a run can be replayed from its events without a network, and one
that was killed pays for nothing twice. The replies of the record are judged and counted like others: what was spent
before the end is spent.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

from asap_ray.agents.chat import Answer, Question
from asap_ray.agents.conversation import Conversation
from asap_ray.agents.judging import Judged, judged
from asap_ray.agents.spending import Budget, Limits
from asap_ray.agents.wire import CALL, FINAL, NEXT, SILENT, Recorded, Reply, Request, Verdict, Wire, fields_of
from asap_ray.search.protocol import Told

MOST_SILENCES = 2
"""Questions in a row that get no reply at all, after which none is asked any more."""


@dataclass(kw_only=True)
class Cascade:
    """An `Asker` over one endpoint; `wire` None is none, and then only what is on the record is answered.

    Threads may ask; they take turns.
    """

    limits: Limits
    wire: Wire | None
    recorded: Recorded = field(default_factory=dict)
    off: str = ""
    budget: Budget = field(init=False)
    _talks: dict[str, Conversation] = field(default_factory=dict)
    _sent: Counter[str] = field(default_factory=Counter)
    _given: set[tuple[str, str]] = field(default_factory=set)
    _told: deque[Told] = field(default_factory=deque)
    _silences: int = 0
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.budget = Budget(limits=self.limits)

    def ask(self, question: Question) -> Answer:
        """The first answer that is accepted, of the cheap model or the expert, or why there is none."""
        with self._turn:
            if self.off:
                return Answer(value=None, reason=self.off)
            before, model, found = self.budget.calls, "", Judged(verdict=Verdict.SPENT)
            for model in self._models(question):
                found = self.talk(model).ask(question)
                if found.verdict not in NEXT:
                    break
            good = found.verdict is Verdict.GOOD
            reason = "" if good else f"{found.verdict}: {found.reason}"
            self._tell(
                "llm_answer",
                role=question.role,
                prompt=question.prompt,
                model=model,
                calls=self.budget.calls - before,
                verdict=str(found.verdict),
                reason=found.reason,
            )
            self._note(found)
            return Answer(value=found.value if good else None, model=model, reason=reason)

    def drain(self) -> list[Told]:
        """Events since this was last asked: `llm_call`, `llm_answer`, and `llm_off` where no more is asked."""
        return [self._told.popleft() for _ in range(len(self._told))]

    @property
    def spent(self) -> dict[str, Any]:
        """Calls, tokens and dollars of the run; dollars are None where a model has no price."""
        return {"calls": self.budget.calls, "tokens": self.budget.tokens, "usd": self.budget.usd}

    def call(self, request: Request, question: Question, turn: str) -> Judged:
        """Pay for a request, send it or find it on the record, judge the reply, and tell of it."""
        if why := self.budget.over(request):
            return Judged(verdict=Verdict.SPENT, reason=why)
        hash_ = request.hash
        self._sent[hash_] += 1
        reply = self._reply(request, hash_)
        charge = self.budget.settle(request, reply)
        found = self._new(judged(reply, request, question), question)
        self._tell(
            CALL,
            hash=hash_,
            nth=self._sent[hash_],
            role=question.role,
            prompt=question.prompt,
            turn=turn,
            model=request.model,
            form=request.form.answer,
            tools=[each.name for each in request.tools],
            verdict=str(found.verdict),
            reason=found.reason,
            charged=charge.tokens,
            usd=charge.usd,
            **fields_of(reply),
        )
        return found

    def _models(self, question: Question) -> list[str]:
        cheap, expert = self.limits.model, self.limits.expert
        models = (expert, cheap) if question.expert else (cheap, expert)
        return list(dict.fromkeys(each for each in models if each is not None))

    def talk(self, model: str) -> Conversation:
        """The conversations with one model, and what is known of it."""
        if model not in self._talks:
            self._talks[model] = Conversation(model=model, desk=self, most_tokens=self.limits.answer_tokens)
        return self._talks[model]

    def _reply(self, request: Request, hash_: str) -> Reply:
        found = self.recorded.get((hash_, self._sent[hash_]))
        if found is not None:
            return found
        if self.wire is None:
            return Reply(trouble=Verdict.NOT_RECORDED, error="the events hold no such call")
        return self.wire(request)

    def _new(self, found: Judged, question: Question) -> Judged:
        """The judgement, once it is known whether the role has given that answer before."""
        if found.verdict is not Verdict.GOOD:
            return found
        given = question.role, hashlib.sha256(found.value.model_dump_json().encode()).hexdigest()
        if given in self._given and not question.may_repeat:
            return replace(found, verdict=Verdict.REPEAT, reason="the role has given this very answer before")
        self._given.add(given)
        return found

    def _note(self, found: Judged) -> None:
        """Ask no more where that cannot help: at once without a key or a quota, after a while where nobody answers."""
        self._silences = self._silences + 1 if found.verdict in SILENT else 0
        if found.verdict in FINAL or self._silences >= MOST_SILENCES:
            self.off = f"no more is asked of the model: {found.verdict}: {found.reason}"
            self._tell("llm_off", verdict=str(found.verdict), reason=found.reason)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._told.append(Told(kind=kind, fields=fields))
