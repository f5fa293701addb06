"""The code blocks of the pages. Those in a language of RUN are run by the tests, those of NOT_RUN are not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from pg_pipeline_tests.helpers import PROJECT

DOCS = PROJECT / "docs"
PAGES = sorted([PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *DOCS.glob("*.md")])
RUN = ("python", "sql", "sh")
NOT_RUN = ("console", "text", "dockerfile", "yaml", "{toctree}")


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    code: str

    @property
    def is_dagsters(self) -> bool:
        """Run by pg_pipeline_tests/e2e/test_demo.py, against what the demo made."""
        return self.language == "sh" and all(line.startswith("dagster ") for line in self.code.splitlines())


def blocks_of(text: str, name: str) -> Iterator[Block]:
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            language, *_ = [*token.info.split(), ""]
            yield Block(f"{name}:{(token.map or [0])[0] + 1}", language, token.content)


def blocks(*languages: str, pages: list[Path] = PAGES) -> list[Block]:
    found = [block for page in pages for block in blocks_of(page.read_text(), str(page.relative_to(PROJECT)))]
    return [block for block in found if not languages or block.language in languages]
