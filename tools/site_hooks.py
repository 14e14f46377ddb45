"""Build the documentation site (mkdocs.yml) from the Markdown that GitHub shows, without a second copy of any page.

Five things differ between the two. The site cannot link to files outside of `docs/`, so each linked one becomes a page
under `repository/`. Python-Markdown needs blank lines and deeper indents where GitHub does not. The parameter tables
(tools/parameters.py) get an element that the style sheet knows. The navigation through
the operators is made from the tables of docs/operators.md. The search finds an entry of docs/troubleshooting.md by the
words of its messages, which count almost like those of a heading.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
"""The folder of the site with the pages of files outside of `docs/`."""
ALONE = ("index.md", "tutorial.md", "troubleshooting.md")
"""Pages that are the only one of their tab: a list of pages beside them would name only them."""
FENCE = re.compile(r"^( *)(```+).*?^\1\2[ ]*$\n?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)((?:#[^)\s]*)?)\)")
PARAMETERS = re.compile(r"^<!-- parameters: \w+ -->\n(.*?)^<!-- end of parameters -->$", re.DOTALL | re.MULTILINE)
MESSAGES = re.compile(r"<pre><code>(.*?)\n?</code></pre>", re.DOTALL)
MERMAID = ROOT / ".venv" / "site" / "mermaid.min.js"


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with every part that is not a fenced code block changed."""
    changed, start = [], 0
    for fence in FENCE.finditer(text):
        changed += [change(text[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*changed, change(text[start:])])


def for_python_markdown(text: str) -> str:
    """Return the Markdown with blank lines before lists and tables, and with nested lists four spaces deep.

    A pipe in the code of a table's cell loses its backslash, which Python-Markdown would show.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        is_item, is_row = bool(re.match(r"([-*]|\d+\.) ", line)), line.startswith("|")
        after_item = re.match(r" *([-*]|\d+\.) |  ", before)
        if before.strip() and ((is_item and not after_item) or (is_row and not before.startswith("|"))):
            lines.append("")
        if is_row:
            line = re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line)
        nested = re.match(r" {1,3}(([-*]|\d+\.) .*)", line)
        lines.append(f"    {nested[1]}" if nested else line)
    return "\n".join(lines)


def original_of(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    if not page.startswith(OUTSIDE):
        return f"docs/{page}"
    path = page.removeprefix(OUTSIDE)
    if (ROOT / path).exists():
        return path
    return path.removesuffix("/index.md").removesuffix(".md")


def page_of(path: str) -> str:
    """Return the page of the site that shows a path of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{OUTSIDE}{path}/index.md"
    return f"{OUTSIDE}{path}" if path.endswith(".md") else f"{OUTSIDE}{path}.md"


def targets_of(path: str, text: str) -> Iterator[str]:
    """Yield the paths in the repository to which the links of a file lead."""
    for target, _ in LINK.findall(FENCE.sub("", text)):
        if target and "://" not in target and not target.startswith("mailto:"):
            yield os.path.normpath(os.path.join(os.path.dirname(path), target))


def with_site_links(page: str, text: str) -> str:
    """Return the text of a page with the links that work on the site."""
    path = original_of(page)
    here = os.path.dirname(path)

    def renew(link: re.Match[str]) -> str:
        target, anchor = link.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        to = page_of(os.path.normpath(os.path.join(here, target)))
        return f"]({os.path.relpath(to, os.path.dirname(page))}{anchor})"

    return outside_of_code(text, lambda part: LINK.sub(renew, part))


def text_of(path: str) -> str:
    """Return the Markdown that shows a file or a folder of the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(
            each.name for each in file.iterdir() if each.suffix in (".py", ".json") or each.name == "README.md"
        )
        return f"# {path}\n\n" + "".join(f"- [{name}]({os.path.basename(path)}/{name})\n" for name in names)
    if file.suffix == ".md":
        return file.read_text()
    language = "python" if file.suffix == ".py" else "text"
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{file.read_text()}````\n"


def outside_pages() -> dict[str, str]:
    """Return the Markdown of each page outside of `docs/` that a page links to, by its path in the repository."""
    found: dict[str, str] = {}
    waiting = [(str(page.relative_to(ROOT)), page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))]
    while waiting:
        for target in targets_of(*waiting.pop()):
            if not target.startswith("docs/") and target not in found:
                found[target] = text_of(target)
                waiting.append((target, found[target]))
    return found


def operator_nav() -> list[Any]:
    """Return the pages below "Operators", grouped and ordered as the tables of docs/operators.md."""
    groups = re.split(r"^## (.*)\n", (ROOT / "docs" / "operators.md").read_text(), flags=re.MULTILINE)
    nav: list[Any] = ["operators.md", "operators/shared.md"]
    for name, text in zip(groups[1::2], groups[2::2], strict=True):
        nav.append({name: re.findall(r"^\|.*\]\((operators/[\w-]+\.md)\) \|$", text, re.MULTILINE)})
    return nav


def with_operators(nav: list[Any]) -> list[Any]:
    """Return the nav of mkdocs.yml with the pages of the operators."""
    return [{"Operators": operator_nav()} if each == {"Operators": "operators.md"} else each for each in nav]


# --- MkDocs calls these -----------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    urls: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    config.nav = with_operators(config.nav or [])
    config.repo_url = config.repo_url or urls.get("Repository") or urls.get("Source")
    if MERMAID.exists():
        config.extra_javascript.append("assets/mermaid.min.js")


def on_files(files: Files, config: MkDocsConfig) -> None:
    from mkdocs.structure.files import File, InclusionLevel

    for path, text in outside_pages().items():
        page = page_of(path)
        level = InclusionLevel.UNDEFINED if path.endswith(".md") else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=text, inclusion=level))
    if MERMAID.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri.startswith((OUTSIDE, "decisions/", "reference/")):
        # Guides come first among the results of a search.
        page.meta.setdefault("search", {}).setdefault("boost", 0.2)
    if page.file.src_uri == "operators/shared.md":
        # What holds for every operator comes before the guides to one task.
        page.meta.setdefault("search", {}).setdefault("boost", 1.5)
    if page.file.src_uri in ALONE:
        page.meta.setdefault("hide", []).append("navigation")
    if page.file.src_uri.startswith(("operators/", "troubleshooting")):
        markdown = re.sub(r"^```text$", "``` { .text .wrap }", markdown, flags=re.MULTILINE)
    linked = with_site_links(page.file.src_uri, markdown)
    framed = PARAMETERS.sub(r'<div class="parameters" markdown>\n\n\1\n</div>', linked)
    return outside_of_code(framed, for_python_markdown)


def on_post_build(config: MkDocsConfig) -> None:
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text())
    for entry in index["docs"]:
        if entry["location"].startswith("troubleshooting/#") and (messages := MESSAGES.search(entry["text"])):
            entry["tags"] = messages[1].replace("…", "").split("\n")
    path.write_text(json.dumps(index, ensure_ascii=False))
