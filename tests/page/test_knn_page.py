"""The page of the soft neighbours, in a browser: it shows what Python computes, and people can use
it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from browser import PHONE, serious_violations, touch
from softtopk import eps_for

KNN = (Path(__file__).parents[2] / "docs" / "play" / "knn.html").as_uri()


@pytest.fixture
def knn(open_page):
    def opened(**options):
        page = open_page(KNN, **options)
        settle(page)
        return page

    return opened


def settle(page):
    page.wait_for_function("() => view && !scheduled")


def check_numbers(page):
    """What is on the page is what its code gives in Python; returns the names that it defines."""
    settle(page)
    page.locator("#copy-code").click()
    names = {}
    exec(page.evaluate("copied"), names)
    shown = page.evaluate("({ a: Array.from(view.a), hard: Array.from(view.hard), ...view })")
    for name, computed in (("a", names["A"]), ("shares", names["shares"])):
        numbers = torch.tensor([list(shown[name])], dtype=torch.float64)
        torch.testing.assert_close(numbers, computed, rtol=1e-9, atol=1e-9)
    read = [float(text.split()[0]) for text in page.locator("#shares dd + dd").all_text_contents()]
    assert read == pytest.approx(names["shares"][0].tolist(), abs=5.1e-4)
    return names


def query(page):
    settle(page)
    return page.evaluate("state.query")


def test_the_numbers_are_those_of_python(knn):
    page = knn()
    names = check_numbers(page)
    eps = eps_for(-names["distances"], 5, width=10)
    assert names["eps"] == pytest.approx(eps.item(), rel=1e-9)
    assert page.locator("#plane circle").count() == 5
    for k, eps in ((1, "0.001"), (9, "0.3"), (36, "2"), (3, "1000")):
        page.locator("#k-number").fill(str(k))
        page.locator("#eps-number").fill(eps)
        names = check_numbers(page)
        assert names["eps"] == float(eps)
        assert names["A"].sum().item() == pytest.approx(k)


def test_the_query_is_dragged(knn):
    page = knn()
    box = page.locator("#query").bounding_box()
    page.mouse.move(box["x"] + 22, box["y"] + 22)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] - 60, steps=3)
    page.mouse.up()
    x, y = query(page)
    assert x > 1
    assert y > 0.6
    assert check_numbers(page)["shares"].argmax() == 1
    page.locator("#plane").click(position={"x": 5, "y": 5})
    x, y = query(page)
    assert x < -3.8
    assert y > 2.6
    assert check_numbers(page)["shares"].argmax() == 0


def test_the_keyboard_moves_the_query(knn):
    page = knn()
    page.locator("#query").focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowUp", "Shift+ArrowDown"):
        page.keyboard.press(key)
    assert query(page) == [0.4, 0]
    said = page.locator("#query").get_attribute("aria-valuetext")
    assert said.startswith("x 0.4, y 0: circles 0.")
    for _ in range(20):
        page.keyboard.press("Shift+ArrowLeft")
    assert query(page) == [-4, 0]  # the edge
    check_numbers(page)


def test_a_phone(knn):
    page = knn(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#plane").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.25)
    assert query(page) == pytest.approx([2, 1.4], abs=0.03)
    check_numbers(page)
    page.evaluate("scrollTo(0, 0)")
    box = page.locator("#query").bounding_box()
    x, y = box["x"] + 22, box["y"] + 22
    touch(page, [(x, y)], [(x - 20, y + 20)], [(x - 60, y + 60)])
    assert query(page) == pytest.approx([2 - 8 * 60 / 358, 1.4 - 8 * 60 / 358], abs=0.05)
    assert page.evaluate("scrollY") == 0  # the finger drags the query, not the page
    check_numbers(page)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_everything_has_its_place(knn, width):
    page = knn(viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    title, theme = (page.locator(name).bounding_box() for name in ("h1", "#theme"))
    assert theme["y"] < title["y"] + title["height"]  # in one line
    assert theme["x"] > title["x"] + title["width"]
    assert (
        page.evaluate(
            """Array.from(document.querySelectorAll("main *"))
            .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
            .map((each) => each.outerHTML)"""
        )
        == []
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("k", "0", "k has to be a whole number from 1 to 36."),
        ("k", "2.5", "k has to be a whole number from 1 to 36."),
        ("eps", "-1", "eps has to be a number from 1e-6 to 1e6."),
        ("width", "", "width has to be a whole number from 1 to 36."),
    ],
)
def test_a_wrong_number_is_told_and_changes_nothing(knn, field, value, said):
    page = knn()
    before = check_numbers(page)["A"]
    page.locator(f"#{field}-number").fill(value)
    assert said in page.locator(".error").all_text_contents()
    assert check_numbers(page)["A"].tolist() == before.tolist()


@pytest.mark.parametrize(("scheme", "size"), [("light", {}), ("dark", PHONE)])
def test_axe_finds_nothing_serious(knn, scheme, size):
    page = knn(color_scheme=scheme, **size)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert serious_violations(page) == []
