# SPDX-License-Identifier: MIT
"""What can go wrong. "Denied" is a decision and never one of these.

    AllowdError
    |-- AgentError            the agent answered an error: ``code`` and ``text``
    |   `-- AgentUnavailable    ... with a code that is not the caller's mistake
    `-- Unavailable           no answer could be had
        |-- AgentUnavailable
        |-- TimedOut            within the deadline
        `-- ProtocolError       that is a reply of allowd

Decision methods (``allow``, ``peek``, ``refund``, ``allow_batch``, ``allow_many``) raise only an
``AgentError`` that is the caller's mistake; every ``Unavailable`` becomes a decision of the fail
policy there. ``ping``, ``info`` and ``stats`` raise all of them.
"""

from __future__ import annotations

from typing import List, Optional, Union

from .decision import Decision

CALLER_MISTAKES = frozenset(["bad_request", "unknown_method", "unknown_limit", "too_large", "forbidden"])
"""Codes that a retry or another agent would answer with again."""


class AllowdError(Exception):
    """Base of all errors of this package."""


class AgentError(AllowdError):
    """The agent answered ``"code: text"``.

    ``code`` is one word to act upon, ``text`` is for people. A code that this version does not
    know is kept as it came. Raised by ``allow_batch``, ``index`` is the place of the item that
    failed and ``decisions`` holds what the other items got (None where an item failed): those
    that were allowed have been charged.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.index: Optional[int] = None
        self.decisions: List[Optional[Decision]] = []

    def __reduce__(self) -> Union[str, tuple]:  # type: ignore[type-arg]
        # Exception would pickle the one joined message, which __init__ does not take.
        return type(self), (self.code, self.text), self.__dict__


class Unavailable(AllowdError):
    """The agent could not be asked, or gave no usable answer."""


class AgentUnavailable(AgentError, Unavailable):
    """The agent answered, but cannot decide: ``overloaded``, ``shutting_down``, ``internal`` or
    a code that this version does not know."""


class TimedOut(Unavailable):
    """The deadline passed, or the agent's backlog was full. The request may have been charged."""


class ProtocolError(Unavailable):
    """The peer sent something that is no reply of allowd. The connection has been closed."""


def agent_error(code: str, text: str) -> AgentError:
    """The exception for an error reply: AgentError if the caller made a mistake, else AgentUnavailable."""
    return (AgentError if code in CALLER_MISTAKES else AgentUnavailable)(code, text)
