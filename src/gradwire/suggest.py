"""Suggest: the word that a mistyped one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# How alike two words are (difflib's ratio) when one is taken for the other; difflib's own default.
ALIKE: Final = 0.6


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """ "did you mean 'kind'? ", or nothing where no known word is near."""
    meant = nearest(word, known)
    return f"did you mean {meant!r}? " if meant else ""


def nearest(word: object, known: Iterable[str], alike: float = ALIKE) -> str:
    """The known word that is most like this one, empty where none is alike enough."""
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=alike)), "")
