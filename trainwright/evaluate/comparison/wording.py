"""What a comparison says in words: the same sentences on the terminal, as JSON and on the page."""

from collections.abc import Iterator, Sequence

from trainwright.evaluate.comparison.comparing import Comparison, Contrast
from trainwright.evaluate.comparison.sides import Side

NOTHING = "not defined"


def sentence(comparison: Comparison) -> str:
    """Say in one sentence what the runs show."""
    if not comparison.contrasts:
        return "All runs have the same settings: their spread is what the seed alone does."
    found = [contrast for contrast in comparison.contrasts if comparison.shown(contrast)]
    if found:
        return "; ".join(_found(contrast) for contrast in found)
    return f"No difference is shown: {closest(comparison)}"


def _found(contrast: Contrast) -> str:
    verb = "different from" if not contrast.better else "worse than" if contrast.worse else "better than"
    return (
        f"{contrast.second.letter} is {verb} {contrast.first.letter} in {contrast.metric} by "
        f"{size(abs(contrast.difference.value))} (p {p_value(contrast.adjusted_p)})"
    )


def closest(comparison: Comparison) -> str:
    """Name the contrast that is least likely to be chance."""
    best = min(comparison.contrasts, key=lambda contrast: contrast.adjusted_p)
    return (
        f"the clearest is {best.metric} of {best.second.letter} against {best.first.letter}, "
        f"{signed(best.difference.value)} with p {p_value(best.adjusted_p)}"
    )


def remarks(comparison: Comparison) -> Iterator[str]:
    """Say what the numbers rest on and what they cannot tell."""
    yield from _power(comparison)
    for contrast in _by_side(comparison.contrasts):
        yield from _pairing(contrast)
    for side in comparison.sides:
        if side.left_out:
            names = ", ".join(run.name for run in side.left_out)
            yield f"{side.letter}: {names} left out, because a later run has the same settings and seed."
    builds = {run.library for _, run in comparison.runs if run.library}
    if len(builds) > 1:
        yield (
            f"These runs were trained by {len(builds)} versions of the library's source; a difference may be "
            "the code's."
        )


def _power(comparison: Comparison) -> Iterator[str]:
    tests, level = len(comparison.contrasts), comparison.level
    for contrast in _by_side(comparison.contrasts):
        if not comparison.powerless(contrast):
            continue
        least = contrast.difference.least_p
        many = "" if tests == 1 else f", {p_value(min(1, least * tests))} among {tests} comparisons"
        yield (
            f"{_sizes(contrast)} cannot show a difference at {100 * level:g} %: the smallest possible p is "
            f"{p_value(least)}{many}; {comparison.pairs_needed} pairs could."
        )


def _sizes(contrast: Contrast) -> str:
    sides = f"{contrast.second.letter} against {contrast.first.letter}"
    if contrast.paired:
        return f"{sides}: {len(contrast.seeds)} {_plural('pair', contrast.seeds)}"
    return f"{sides}: {len(contrast.second.runs)} against {len(contrast.first.runs)} runs"


def _plural(word: str, entries: Sequence[object]) -> str:
    return word if len(entries) == 1 else f"{word}s"


def _pairing(contrast: Contrast) -> Iterator[str]:
    first, second = contrast.first, contrast.second
    if not contrast.paired:
        yield (
            f"{second.letter} and {first.letter} share too few seeds to be paired, so they are compared "
            "unpaired, which takes more runs to show the same difference: train both with the same seeds."
        )
        return
    alone = sorted((first.runs.keys() | second.runs.keys()) - set(contrast.seeds))
    if alone:
        seeds = ", ".join(map(str, alone))
        yield f"Seeds of one side only take no part in {second.letter} against {first.letter}: {seeds}."


def _by_side(contrasts: Sequence[Contrast]) -> Iterator[Contrast]:
    """Return one contrast a side: pairs and power are the same for all its figures."""
    seen: set[str] = set()
    for contrast in contrasts:
        if contrast.second.letter not in seen:
            seen.add(contrast.second.letter)
            yield contrast


def heading(side: Side) -> str:
    """Name a side with its runs: ``A  learning_rate 0.001  (6 runs, seeds 0 to 5)``."""
    count = len(side.runs)
    return (
        f"{side.letter}  {side.title}  ({count} {'run' if count == 1 else 'runs'}, {seeds(list(side.runs))})"
    )


def seeds(found: Sequence[int]) -> str:
    """Write seeds briefly: ``seed 3``, ``seeds 0 to 5``, ``seeds 0, 2, 7``."""
    if len(found) == 1:
        return f"seed {found[0]}"
    even = list(found) == list(range(found[0], found[0] + len(found)))
    if even and len(found) > 2:  # noqa: PLR2004
        return f"seeds {found[0]} to {found[-1]}"
    return f"seeds {', '.join(map(str, found))}"


def interval(contrast: Contrast) -> str:
    """Write the interval of a difference, with its confidence where it is not 95 %."""
    found = contrast.difference
    if not found.confidence:
        return "none of one pair" if contrast.paired else "none"
    usual = 0.95 <= found.confidence < 0.955  # noqa: PLR2004
    level = "" if usual else f" at {_confidence(found.confidence)}"
    return f"[{signed(found.low)}, {signed(found.high)}]{level}"


def _confidence(confidence: float) -> str:
    return f"{100 * confidence:.3g} %"


def wins(contrast: Contrast) -> str:
    """Say in how many pairs the second side was better."""
    if not contrast.better:
        return "-"
    of = len(contrast.seeds) or len(contrast.first.runs) * len(contrast.second.runs)
    return f"{contrast.improved} of {of}"


def signed(value: float) -> str:
    """Write a difference with its sign and four digits that count."""
    return f"{'+' if value >= 0 else '-'}{size(abs(value))}"


def size(value: float) -> str:
    """Write a figure with four digits that count, or four decimals where it is below 1."""
    return f"{value:.4f}" if 1e-4 <= value < 1 or not value else f"{value:.4g}"  # noqa: PLR2004


def p_value(p: float) -> str:
    """Write a probability with three digits that count."""
    return "< 0.0001" if p < 1e-4 else f"{p:.3g}"  # noqa: PLR2004
