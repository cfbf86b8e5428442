"""Suggest: the known word that is nearest to a mistyped one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# The least similarity (difflib's ratio) of two words for a suggestion; difflib's own default.
ALIKE: Final = 0.6


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """ "did you mean 'kind'? ", or an empty text where no known word is similar."""
    meant = nearest(word, known)
    return f"did you mean {meant!r}? " if meant else ""


def nearest(word: object, known: Iterable[str], alike: float = ALIKE) -> str:
    """The most similar known word; empty where none is similar enough."""
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=alike)), "")
