"""How well texts answer a query, by their words: Okapi BM25 (Robertson and Zaragoza, 2009), offline and exact.

A text scores, for each word of the query, `idf * f * (k + 1) / (f + k * (1 - b + b * length / mean length))`, where `f`
is how often it has the word, and `idf = ln(1 + (n - m + 0.5) / (m + 0.5))` with the word in `m` of all `n` texts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

SATURATION, LENGTH = 1.2, 0.75
"""k and b as Robertson and Zaragoza recommend."""
_WORD = re.compile(r"[a-z0-9_]+")


def words_in(text: str) -> list[str]:
    """The words of a text, in lower case, numbers with a point in two."""
    return _WORD.findall(text.lower())


def scores(query: str, texts: Sequence[str]) -> list[float]:
    """A score for each text, at least 0, in their order."""
    counts = [Counter(words_in(text)) for text in texts]
    lengths = [sum(each.values()) for each in counts]
    mean = sum(lengths) / len(texts) if texts else 0.0
    found = [0.0] * len(texts)
    for word in sorted(set(words_in(query))):
        having = sum(word in each for each in counts)
        idf = math.log(1.0 + (len(texts) - having + 0.5) / (having + 0.5))
        for place, each in enumerate(counts):
            if often := each[word]:
                norm = 1.0 - LENGTH + LENGTH * lengths[place] / mean
                found[place] += idf * often * (SATURATION + 1.0) / (often + SATURATION * norm)
    return found
