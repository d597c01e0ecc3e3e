"""The pages in a real browser: nothing is complained of, every picture is drawn, and they serve a keyboard, a phone and
a printer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import Page, browser, installed
from tests.report.pages import MARKS, PAGES

DESK, PHONE, PAPER = 1280, 360, 718
"""Widths in CSS pixels; the last is A4 less margins of 10 mm."""
LEAST_PX = 12
TAB, ENTER, SPACE, DOWN = ("Tab", 9), ("Enter", 13, "\r"), (" ", 32, " "), ("ArrowDown", 40)
CONTROLS = "[...document.querySelectorAll('a[href], button, input, select, summary')].filter(e => e.checkVisibility())"

if installed() is None:
    # Past pytest, which says nothing of what is skipped; a warning is an error here.
    print("no Chromium here: the pages of reports are NOT tested in a browser", file=sys.__stderr__)
    pytestmark = pytest.mark.skip(reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as started:
        yield Page(started)


@pytest.fixture(scope="module")
def drawn(factory: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, draw in PAGES.items():
        (folder / f"{name}.html").write_text(draw(factory))
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_serves_screens_keyboards_phones_and_printers(name: str, tab: Page, drawn: dict[str, Path]) -> None:
    # One test for all, since a browser takes as long to draw a page as to look at it.
    tab.open(drawn[name], DESK)
    pictures_are_drawn(tab, name)
    can_be_used_by_keyboard(tab)
    can_be_read_on_a_phone(tab)
    can_be_printed(tab)
    assert tab.complaints() == []


def pictures_are_drawn(tab: Page, name: str) -> None:
    if MARKS[name]:
        tab.run("Promise.all(drawn).then(() => 0)")
    found = tab.run("""[...document.querySelectorAll(".chart")].map((each) => {
        const svg = each.querySelector("svg"), box = svg.getBoundingClientRect();
        const broken = [...svg.querySelectorAll("[d], [transform]")].some((e) =>
            /NaN|undefined/.test(e.getAttribute("d") + e.getAttribute("transform")));
        const fits = !broken && box.width > 200 && box.width <= each.getBoundingClientRect().width + 1;
        const others = "[aria-roledescription=axis], [aria-roledescription=legend], [aria-roledescription$=container]";
        const all = [...svg.querySelectorAll(`[aria-roledescription]:not(${others})`)], marks = all.length;
        const boxes = all.map((e) => e.getBoundingClientRect());
        const ends = boxes.filter((e) => e.right >= box.left && e.left <= box.right);
        const wide = Math.max(...ends.map((e) => e.right)) - Math.min(...ends.map((e) => e.left));
        const told = each.parentElement.querySelector("[aria-roledescription=visualization]");
        return [each.id, marks, fits && wide > box.width / 2, told?.getAttribute("aria-label")];
    })""")
    assert {each[0] for each in found} == MARKS[name].keys()
    for id_, marks, fits, label in found:
        assert marks >= MARKS[name][id_], (id_, marks)
        assert fits, id_
        assert label or id_.startswith("curves-"), f"{id_} has nothing to say to who cannot see it"


def can_be_used_by_keyboard(tab: Page) -> None:
    tab.run("document.activeElement.blur(), scrollTo(0, 0)")
    expected = tab.run(f"{CONTROLS}.map(e => e.outerHTML.slice(0, 80))")
    assert 'class="skip"' in expected[0]
    reached = []
    for _ in range(3 * len(expected)):
        tab.press(*TAB)
        told = tab.run(f"""(() => {{
            const e = document.activeElement, style = getComputedStyle(e);
            const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
            return [e.tagName, {CONTROLS}.includes(e) && e.outerHTML.slice(0, 80), seen];
        }})()""")
        if told[0] == "BODY":
            break
        assert told[2], f"nobody sees that {told} has the focus"
        reached += [told[1]] if told[1] else []  # boxes that scroll take the focus too
    assert reached == expected
    tab.run("document.querySelector('.skip').focus()")
    tab.press(*ENTER)
    assert tab.run("document.activeElement.tagName") == "MAIN"
    if tab.run("!!document.querySelector('details.panel')"):
        for key in (SPACE, ENTER):
            closed = "document.querySelector('details.panel:not([open]) > summary')"
            was = tab.run(f"(e => (e.focus(), e.parentElement.open))({closed})")
            tab.press(*key)
            assert (was, tab.run("document.activeElement.parentElement.open")) == (False, True)
            tab.press(*key)
    if tab.run("!!document.querySelector('select')"):
        shown = "document.querySelector('.chart:has(select) svg').innerHTML"
        before = tab.run(shown)
        tab.run("document.querySelector('select').focus()")
        tab.press(*DOWN)
        tab.run("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame)).then(() => 0)")
        assert tab.run(shown) != before, "what is chosen changes nothing"


def can_be_read_on_a_phone(tab: Page) -> None:
    tab.resize(PHONE, 800)
    tab.run("document.querySelectorAll('details.panel').forEach((e) => { e.open = true; })")
    tab.run("new Promise((done) => setTimeout(done, 100)).then(() => 0)")  # pictures follow the width
    assert tab.run("document.documentElement.scrollWidth") <= PHONE
    small = tab.run(f"""(() => {{
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
        while (walker.nextNode()) {{
            const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
            if (text && e.checkVisibility() && parseFloat(getComputedStyle(e).fontSize) < {LEAST_PX}) found.push(text);
        }}
        return found;
    }})()""")
    assert small == []
    wide = tab.run(f"""[...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, svg, .skip")
        && e.checkVisibility() && e.getBoundingClientRect().right > {PHONE} + 1).map((e) => e.outerHTML)""")
    assert wide == []
    clipped = tab.run("""[...document.querySelectorAll(".chart svg text")].filter((e) => {
        const box = e.getBoundingClientRect(), all = e.closest("svg").getBoundingClientRect();
        return box.width && (box.right > all.right + 2 || box.left < all.left - 2);
    }).map((e) => e.textContent)""")
    assert clipped == []
    tab.run("document.querySelectorAll('details.panel').forEach((e) => { e.open = false; })")


def can_be_printed(tab: Page) -> None:
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.resize(PAPER)
    tab.run("new Promise((done) => setTimeout(done, 100)).then(() => 0)")
    cut = tab.run("""[...document.querySelectorAll("main *")].filter((e) => {
        const box = e.getBoundingClientRect();
        return e.checkVisibility() && (box.right > innerWidth + 1 || box.left < -1);
    }).map((e) => e.outerHTML.slice(0, 80))""")
    hidden = tab.run("""[...document.querySelectorAll("details :is(table, p, svg)")].filter((e) =>
        !e.closest(".vega-embed details") && !e.checkVisibility()).map((e) => e.outerHTML.slice(0, 80))""")
    fixed = tab.run("""[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()
        && ["fixed", "sticky"].includes(getComputedStyle(e).position)).map((e) => e.outerHTML.slice(0, 80))""")
    assert (cut, hidden, fixed) == ([], [], [])
    broken = tab.run("""[...document.querySelectorAll("td:not(.plan)")].filter((e) => {
        const words = document.createRange(), text = e.firstChild;
        if (!/^[^\\s-]+$/.test(text?.data?.trim() ?? "")) return false;
        words.selectNodeContents(text);
        return new Set([...words.getClientRects()].map((box) => Math.round(box.top))).size > 1;
    }).map((e) => e.textContent)""")
    assert broken == [], "figures are broken in two"
    assert tab.printed().startswith(b"%PDF")
