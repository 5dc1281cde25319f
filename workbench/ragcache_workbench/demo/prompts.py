"""The prompt of both applications: what never changes first, the question last."""

from __future__ import annotations

__all__ = ["SYSTEM", "question_part", "user_text"]

SYSTEM = (
    "You answer questions from the passages that you are given. "
    "Keep to what they say, in a few words; say so if they do not tell."
)


def user_text(context: str, question: str) -> str:
    """The user's turn; the arguments are the names of a template's variables, in braces."""
    return f"{context}\n\n{question_part(question)}"


def question_part(question: str) -> str:
    """The part of the prompt after the documents."""
    return f"Question: {question}\nAnswer:"
