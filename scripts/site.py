"""A hook of MkDocs: pages beside `docs/` belong to the site, and links between them and those of `docs/` hold there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

#: Pages of the project's folder that are part of the site.
BESIDE = ("RUNBOOK.md", "CHANGELOG.md")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are not in `docs/`."""
    home = Path(config.config_file_path).parent
    for name in BESIDE:
        files.append(File.generated(config, name, content=(home / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """On the site, the pages of `docs/` and those beside it are in one folder."""
    if page.file.src_uri in BESIDE:
        return markdown.replace("](docs/", "](")
    for name in BESIDE:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    return markdown
