"""The fence kv-claims: claims to judge, true or false, each with its proof.

The fence holds questions in the form of `mini_kv/course/lessons/predictions.toml`. A question's id is the anchor of a
section of the errata. That section's code runs again for this page, and is shown with its output. Without scripts, the
reader sees all claims, each with a fold that has the answer and the proof.
"""

from html import escape
from typing import Any

from mini_kv.course.lessons.predict import Question
from mini_kv_book.errata import Section, questions, section_of
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.fences import run_and_show
from mini_kv_book.lab import inert
from mini_kv_book.links import link_to


@as_fence
def fence(body: str, md: Any) -> str:
    """Show the claims, one after the other."""
    address = link_to(md, "book/docs/reference/errata.md")
    claims = [(claim, section_of(claim.id)) for claim in questions(body)]
    proofs = ["".join(run_and_show(code, md) for code in section.proofs) for _, section in claims]
    return element(claims, proofs, address)


def element(claims: list[tuple[Question, Section]], proofs: list[str], address: str) -> str:
    """Return `<kv-claims>`: the answers as data, and per claim a heading and a fold. `address`: the errata's link."""
    about = [{"answer": claim.answer, "reasons": claim.choices} for claim, _ in claims]
    pairs = [
        f"<h2>{number}. {escape(claim.ask)}</h2>"
        f"<details><summary>Answer and proof</summary>"
        f"<p><strong>{claim.answer}.</strong> {escape(claim.choices[claim.answer])}</p>{proof}"
        f'<p>In the errata: <a href="{escape(address)}#{claim.id}">{escape(section.title)}</a></p></details>'
        for number, ((claim, section), proof) in enumerate(zip(claims, proofs, strict=True), start=1)
    ]
    data = f'<script type="application/json">{inert(about)}</script>'
    return f"<div><kv-claims>{data}{''.join(pairs)}</kv-claims></div>"
