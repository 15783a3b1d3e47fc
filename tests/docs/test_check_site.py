"""What `.ci/check_site.py` finds wrong with a site of two pages."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("check_site", ROOT / ".ci" / "check_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_wrong_is_said(check, tmp_path, monkeypatch):
    homes = {1: "diffnsd.laws.NewtonImpact", 2: "diffnsd.simulate"}
    monkeypatch.setattr(check.reference, "homes", lambda: homes)
    (tmp_path / "index.html").write_text(
        '<script src="https://example.org/a.js"></script><a href="b.html#here">b</a>'
        '<a href="b.html#there">b</a><a href="c.html">c</a><a href="https://example.org">d</a>'
        '<script type="module">import a from "https://example.org/b.mjs"</script>'
    )
    (tmp_path / "b.html").write_text('<p id="here"><h2 id="diffnsd.laws.NewtonImpact"></h2></p>')
    (tmp_path / "search").mkdir()
    index = {"docs": [{"location": "b.html", "title": "Restitution", "text": ""}]}
    (tmp_path / "search" / "search_index.json").write_text(json.dumps(index))
    found = check.problems(tmp_path)
    assert sorted(found) == [
        "diffnsd.simulate has no entry",
        "index.html leads to b.html#there, which has no such place",
        "index.html leads to c.html, which does not exist",
        "index.html loads https://example.org/a.js",
        "index.html loads https://example.org/b.mjs",
        "the search for restitution does not find reference/laws.html#diffnsd.laws.NewtonImpact",
        "the search index cannot be read without a server",
    ]
