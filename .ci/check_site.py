"""Looks at a built site: nothing is loaded from elsewhere, no link is broken, every public name is found.

Usage: python .ci/check_site.py FOLDER
"""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import reference  # noqa: E402


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser loads to show it."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        text = path.read_text(encoding="utf-8")
        self.feed(text)
        for script in re.findall(r"<script\b[^>]*>(.*?)</script>", text, flags=re.DOTALL):
            self.loaded |= set(re.findall(r"(?:import|from)[\s(]*[\"'](https?:[^\"']+)", script))

    def handle_starttag(self, tag, attrs):
        """Sorts the addresses of a tag into links and what is loaded."""
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        elif found.get("src"):
            self.loaded.add(found["src"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.add(found["href"])


def is_elsewhere(address: str) -> bool:
    """Whether an address leads out of the site."""
    return bool(urlsplit(address).netloc) or address.startswith("mailto:")


def problems(site: Path) -> list[str]:
    """What is wrong with a site, a sentence each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # for servers; its addresses begin at their root
            continue
        found += [f"{name} loads {x}" for x in page.loaded if is_elsewhere(x)]
        for address in page.links | page.loaded:
            if is_elsewhere(address) or address.startswith("data:"):
                continue
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name} leads to {address}, which does not exist")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].anchors:
                    found.append(f"{name} leads to {address}, which has no such place")
    for path in site.rglob("*.css"):
        for address in re.findall(
            r"(?:url\(|@import)\s*['\"]?(https?:[^'\")\s]+)", path.read_text()
        ):
            found.append(f"{path.relative_to(site)} loads {address}")
    anchors = set().union(*(page.anchors for page in pages.values()))
    found += [f"{home} has no entry" for home in reference.homes().values() if home not in anchors]
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    told = {e["location"] for e in entries if "restitution" in (e["title"] + e["text"]).lower()}
    law = "reference/laws.html#diffnsd.laws.NewtonImpact"
    if law not in told:
        found.append(f"the search for restitution does not find {law}")
    if not (site / "search" / "search_index.js").exists():
        found.append("the search index cannot be read without a server")
    return found


def main() -> int:
    """Prints what is wrong; returns 1 if anything is."""
    site = Path(sys.argv[1])
    found = problems(site)
    print("\n".join(found) or f"{site}: {len(list(site.rglob('*.html')))} pages, nothing is wrong")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
