"""What the site needs beside its pages: the reference, the notebooks, and formulas without scripts."""

import html
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = DOCS.parent / "notebooks"
sys.path.insert(0, str(DOCS))

import reference  # noqa: E402


def on_config(config):
    """Every notebook and every page of the reference is in the navigation."""
    written = reference.pages()
    config.extra["reference"], config.extra["entries"] = written, reference.addresses()
    notebooks = [f"notebooks/{path.name}" for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    config.nav = [*config.nav, {"Notebooks": notebooks}, {"Reference": list(written)}]
    return config


@event_priority(100)  # before the plugin that knows what a notebook is
def on_files(files, config):
    """Adds what is not a file below docs_dir."""
    for name, text in config.extra["reference"].items():
        files.append(File.generated(config, name, content=text))
    picture = (DOCS.parent / ".github" / "toss.png").read_bytes()
    files.append(File.generated(config, "assets/toss.png", content=picture))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        files.append(File(name, str(DOCS.parent), config.site_dir, use_directory_urls=False))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to files of the repository lead to where they are in the site."""
    return markdown.replace("](../../notebooks/", "](notebooks/").replace(
        "](../../.github/toss.png", "](assets/toss.png"
    )


def linked(content: str, entries: dict[str, str], here: str) -> str:
    """Public names in code spans lead to their entries; not in headings, code blocks or links."""
    up = "../" * here.count("/")
    parts = re.split(r"(<(pre|a|h[1-6]|style)\b.*?</\2>)", content, flags=re.DOTALL)

    def link(match):
        address = entries.get(match[1])
        return f'<a href="{up}{address}">{match[0]}</a>' if address else match[0]

    # A split by two groups: text, what is kept as it is, its tag, text, ...
    for i in range(0, len(parts), 3):
        parts[i] = re.sub(r"<code>([A-Za-z_.]\w*(?:\.\w+)*)(?:\([^<]*\))?</code>", link, parts[i])
    return "".join(part for i, part in enumerate(parts) if i % 3 != 2)


def mathml(latex: str, display: str) -> str:
    """A formula as MathML, which browsers show without a script."""
    latex = html.unescape(latex).replace("{aligned}", "{align*}")
    return convert(re.sub(r"\\mathrm\{(\w)\}", r"\\text{\1}", latex), display=display)


def notebook(content: str) -> tuple[str, str]:
    """A notebook without what it would load from elsewhere, its formulas as MathML; and its styles, apart."""

    def script(match):
        return "" if "://" in match[0] or "mathjax" in match[0].lower() else match[0]

    styles = "".join(re.findall(r"<style\b[^>]*>(.*?)</style>", content, flags=re.DOTALL))
    content = re.sub(r"<style\b.*?</style>", "", content, flags=re.DOTALL)
    content = re.sub(r"<script\b.*?</script>", script, content, flags=re.DOTALL)
    kept = r"(<(?:pre|code|script)\b.*?</(?:pre|code|script)>)"
    parts = re.split(kept, content, flags=re.DOTALL)
    for i in range(0, len(parts), 2):
        for pattern, display in ((r"\$\$(.+?)\$\$", "block"), (r"\$([^$<>]+?)\$", "inline")):

            def formula(match, display=display):
                return mathml(match[1], display)

            parts[i] = re.sub(pattern, formula, parts[i], flags=re.DOTALL)
    return "".join(parts), styles


def on_page_content(content, page, config, files):
    """Names become links, and formulas MathML."""
    here = page.file.src_uri
    if not here.startswith("reference/"):
        content = linked(content, config.extra["entries"], here)
    if here.endswith(".ipynb"):
        content, config.extra["notebook_style"] = notebook(content)
        return f'<link rel="stylesheet" href="../assets/notebook.css">{content}'
    for left, right, display in ((r"\[", r"\]", "block"), (r"\(", r"\)", "inline")):
        found = rf'<(div|span) class="arithmatex">{re.escape(left)}(.*?){re.escape(right)}</\1>'

        def formula(match, display=display):
            return mathml(match[2], display)

        content = re.sub(found, formula, content, flags=re.DOTALL)
    return content


def on_post_build(config):
    """The styles of notebooks are the same in all of them, and long: one file holds them."""
    styles = Path(config.site_dir) / "assets" / "notebook.css"
    styles.write_text(config.extra["notebook_style"], encoding="utf-8")
