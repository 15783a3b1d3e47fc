"""HTML template of reports and galleries: its style, and the placeholders TITLE and BODY."""

import html

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>TITLE</title>
<style>
:root {
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5c6675; --line: #dfe3e9;
  --measured: #e08a1e; --simulated: #2f66d8; --good: #1d7f4e; --poor: #b3541e; --held: #6b7583;
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161d; --card: #1a2029; --ink: #e6eaf1; --soft: #9aa5b4; --line: #323b48;
    --measured: #f0a440; --simulated: #6c9bff; --good: #4cc38a; --poor: #f0905a; --held: #96a1b0;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 var(--font); }
main { max-width: 78rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1.2rem; letter-spacing: -.01em; }
h2 { font-size: 1.1rem; margin: 0 0 .8rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  padding: 1.1rem 1.25rem; margin: 0 0 1.1rem; overflow-x: auto; }
section p { color: var(--soft); margin: .6rem 0 0; }
.warnings { border-left: .3rem solid var(--measured); }
.warnings ul { margin: 0; padding-left: 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .7rem;
  margin: 0 0 1.1rem; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .85rem; line-height: 1.3; display: block; }
.scroll { overflow-x: auto; }
.wide { width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .45rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-size: .85rem; font-weight: 500; }
tbody th, .text { text-align: left; }
tbody th { font-weight: 600; }
.note { color: var(--soft); font-size: .85rem; font-weight: 400; white-space: normal;
  min-width: 12rem; }
.pill { display: inline-block; padding: 0 .6em; border-radius: 1em; font-size: .85rem;
  color: var(--card); background: var(--held); }
.pill.good { background: var(--good); }
.pill.poor { background: var(--poor); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr));
  gap: .8rem; }
figure { margin: 0; }
figure svg { width: 100%; max-width: 34rem; height: auto; display: block; }
figure.corner svg { max-width: 46rem; }
@media (max-width: 40rem) {
  main { padding: 1.2rem .7rem 2rem; }
  section { padding: .9rem .8rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  /* One block per row, each value beside its name: seven columns do not fit. */
  .wide, .wide tbody, .wide tr { display: block; }
  .wide thead { display: none; }
  .wide tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .wide tr:last-child { border-bottom: 0; }
  .wide th, .wide td { display: flex; justify-content: space-between; gap: 1rem; border: 0;
    padding: .12rem 0; text-align: right; }
  .wide tbody th { display: block; text-align: left; }
  .wide td::before { content: attr(data-name); color: var(--soft); }
}
@media print {
  /* Paper is white and narrow; nothing scrolls on it. */
  :root { --ground: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb;
    --measured: #b4660a; --simulated: #1f4fb4; --good: #1d7f4e; --poor: #b3541e; --held: #6b7583; }
  main { max-width: none; padding: 0; }
  section, .tiles div { border-radius: 0; break-inside: avoid; }
  section, .scroll { overflow: visible; }
  .pill { color: var(--ink); background: none !important; padding: 0; }
  th, td { padding: .25rem .4rem; white-space: normal; }
}
</style>
</head>
<body>
<main>
<h1>TITLE</h1>
BODY
</main>
</body>
</html>
"""


def filled_page(title: str, body: str) -> str:
    """The page with a title, which is escaped, and a body, which is not."""
    # Split and join instead of replacing: user text may contain the placeholders.
    name = html.escape(title)
    start, middle, rest = PAGE.split("TITLE")
    before, after = rest.split("BODY")
    return "".join([start, name, middle, name, before, body, after])
