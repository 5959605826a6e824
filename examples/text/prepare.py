"""Write paragraphs of the Python documentation as JSON lines: ``prepare.py`` makes ``data/paragraphs.jsonl``.

The text ships with Python, in ``pydoc_data.topics``: what ``help("for")`` shows.
"""

import json
from pathlib import Path
from pydoc_data.topics import topics

MIN_CHARACTERS = 80


def main() -> None:
    """Write one paragraph per line, each text once."""
    paragraphs = (" ".join(part.split()) for text in topics.values() for part in text.split("\n\n"))
    chosen = dict.fromkeys(text for text in paragraphs if len(text) >= MIN_CHARACTERS)
    path = Path(__file__).parent / "data" / "paragraphs.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in chosen))


if __name__ == "__main__":
    main()
