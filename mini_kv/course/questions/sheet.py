"""A sheet for an oral exam: five questions on the first page, the answers with the calls that prove them on the second.

It is made for paper: A4, black on white, without scripts and external files.
"""

import html
from collections.abc import Sequence

from mini_kv.course.questions.question import Question
from mini_kv.story.text import LEGEND

MARKS = f"{LEGEND}  abcd=four tokens  1:abcd=block 1 is cached with these tokens  -:abcd=no block is"
"""The meaning of the marks in the drawings."""


def sheet(questions: Sequence[Question], source: str) -> str:
    """Return the page. `source` is a line about the code and the number that it was made from."""
    asked = "".join(_row(number, each, each.state, each.ask, "") for number, each in enumerate(questions, start=1))
    told = "".join(_row(number, each, each.proof, "", each.answer) for number, each in enumerate(questions, start=1))
    filled = {"SOURCE": html.escape(source), "MARKS": html.escape(MARKS), "ASKED": asked, "TOLD": told}
    page = PAGE
    for word, text in filled.items():
        page = page.replace(word, text)
    return page


def _row(number: int, question: Question, lines: Sequence[str], ask: str, answer: str) -> str:
    """Return a question or its answer: words on the left, a drawing on the right."""
    words = f"<p>{html.escape(ask)}</p><p class='line'>Answer:</p>" if ask else f"<p><b>{html.escape(answer)}</b></p>"
    drawing = html.escape("\n".join(lines))
    head = f"<h2>{number}. {question.lab_id}: {html.escape(question.kind)}</h2>"
    return f"<section><div>{head}{words}</div><pre>{drawing}</pre></section>\n"


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>mini_kv: five questions about your engine</title>
<style>
@page{size:A4;margin:14mm}
:root{color-scheme:light}
body{font:10pt/1.3 system-ui,sans-serif;color:#000;background:#fff;max-width:182mm;margin:1rem auto;padding:0 .5rem}
h1{font-size:14pt;margin:0}h2{font-size:10pt;margin:0}p{margin:1mm 0}
header{display:flex;justify-content:space-between;gap:4mm;flex-wrap:wrap;border-bottom:1pt solid #000}
.name{flex:1;max-width:80mm;border-bottom:.5pt solid #000;margin-bottom:2mm}
.line{margin-top:3mm;border-bottom:.5pt solid #000}
section{display:grid;grid-template-columns:62mm minmax(0,1fr);gap:5mm;padding:2.5mm 0;border-bottom:.5pt solid #999;
break-inside:avoid}
pre{font:8pt/1.2 ui-monospace,monospace;margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
footer{font-size:8pt;margin-top:2mm}
.answers{break-before:page;margin-top:2rem}
@media print{body{margin:0;padding:0}.answers{margin-top:0}}
@media(max-width:40rem){section{grid-template-columns:minmax(0,1fr)}}
</style>
<main><div><header><h1>Five questions about your engine</h1><span class="name">Name:</span></header>
ASKED<footer>MARKS<br>SOURCE</footer></div>
<div class="answers"><header><h1>Answers, for the examiner</h1></header>
TOLD<footer>The answers are results of this code.<br>SOURCE</footer></div></main>
</html>
"""
