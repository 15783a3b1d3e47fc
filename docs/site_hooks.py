"""What the site needs beside its pages: reference, notebooks, gallery, and formulas without scripts."""

import base64
import html
import json
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = DOCS.parent / "notebooks"
GALLERY = DOCS.parent / "build" / "gallery"
"""Where `diffnsd gallery --out build/gallery` writes; simulating all ready models takes minutes."""
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
        if (picture := first_picture(path)) is not None:
            name = f"gallery/notebook_{path.stem}.png"
            files.append(File.generated(config, name, content=picture))
    for path in sorted(GALLERY.glob("*")):
        files.append(File.generated(config, f"gallery/{path.name}", content=path.read_bytes()))
    return files


def first_picture(path: Path) -> bytes | None:
    """The first picture among the outputs of a notebook."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                return base64.b64decode("".join(output["data"]["image/png"]))
    return None


def pictures(markdown: str, files) -> str:
    """The page of the gallery with its pictures: of ready models, where they were built, and of notebooks."""
    shown = {"models": "", "notebooks": ""}
    for path in sorted(Path(file.src_uri) for file in files):
        if path.parent.name != "gallery" or path.suffix != ".png":
            continue
        name = path.stem.removeprefix("notebook_")
        of_notebook = name != path.stem
        page = f"notebooks/{name}.html" if of_notebook else f"gallery/{name}.html"
        words = html.escape(name.replace("_", " "))
        picture = f'<img src="{path}" alt="Picture of {words}" loading="lazy">'
        kind = "notebooks" if of_notebook else "models"
        shown[kind] += f'<a href="{page}">{picture}<span>{words}</span></a>'
    grids = {kind: f'\n<div class="gallery">{links}</div>\n' for kind, links in shown.items()}
    before, after = markdown.split("\n## Notebooks\n")
    return f"{before}\n{grids['models']}\n## Notebooks\n{after}\n{grids['notebooks']}"


def on_page_markdown(markdown, page, config, files):
    """Links to files of the repository lead to where they are in the site; the gallery gets its pictures."""
    if page.file.src_uri == "gallery.md":
        markdown = pictures(markdown, files)
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
