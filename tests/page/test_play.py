"""The page to play with, in a browser: it shows what Python computes, and people can use it."""

from __future__ import annotations

import csv
import io
import random
import re
import warnings
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from softtopk import (
    ConvergenceWarning,
    Sinkhorn,
    eps_for,
    sharpness,
    soft_topk,
    sorted_soft_topk,
    topk_threshold,
)

PLAY = (Path(__file__).parents[2] / "docs" / "play" / "index.html").as_uri()
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "device_scale_factor": 2}


@pytest.fixture
def play(open_page):
    def opened(link="", **options):
        page = open_page(PLAY + link, **options)
        settle(page)
        return page

    return opened


def settle(page):
    """Wait until all of the page shows its state."""
    page.wait_for_function(
        "() => view && !scheduled && view.iterated"
        " && document.getElementById('code').textContent === toPython(state)"
    )


def table(page):
    """The numbers of the page with all digits, by column."""
    settle(page)
    page.locator("#table").evaluate("details => { details.open = true; }")
    page.locator("#copy-table").click()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("copied"))))
    return {
        name: torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)
        for name in rows[0]
    }


def run_code(page):
    """The names that the code on the page defines in Python."""
    settle(page)
    names = {}
    exec(page.locator("#code").text_content(), names)
    return names


def close(shown, computed):
    torch.testing.assert_close(shown, computed.detach(), rtol=1e-9, atol=1e-9)


def check_numbers(page):
    """What is on the page is what its code gives in Python."""
    shown, names = table(page), run_code(page)
    a, scores = names["A"], names["scores"]
    per_element = a.sum(-1) if a.ndim == 2 else a
    assert shown["score"].tolist() == scores.tolist()
    close(shown["A"], per_element)
    if scores.requires_grad:
        close(shown["gradient"], scores.grad)
    return shown, names


def number(page, name):
    """The first number of a line under "In numbers"."""
    text = page.locator(f"#{name}").text_content().replace("−", "-")
    return float(re.match(r"[-+.\de]+", text).group())


STATES = {
    "the start": "",
    "smallest": "#x=3,1,2,5,4,1.5&k=2&eps=0.7&largest=0&targets=3",
    "mask": "#x=3,1,2,5,4,1.5&k=2&eps=0.7&out=0,3&targets=2",
    "fewer than k take part": "#x=3,1,2,5&k=3&eps=0.7&out=0,3&targets=2",
    "all": "#x=3,1,2&k=3&eps=0.7&targets=2",
    "ties": "#x=1,1,1,0,0,2&k=2&eps=0.3&targets=0",
    "all alike": "#x=1,1,1,1&k=2&eps=0.3&targets=0",
    "cold": "#x=0.4,0.7,2.3,1.9,-0.2,1.4,0.1&k=2&eps=0.001&targets=5",
    "hot": "#x=0.4,0.7,2.3,1.9,-0.2,1.4,0.1&k=2&eps=300&targets=5",
    "far from zero": "#x=1000.4,1000.7,1002.3,1001.9&k=2&eps=0.5&targets=0,1",
    "large": "#x=1e6,-1e6,3e5,2e5,-4e5&k=2&eps=2e5&targets=2",
    "width": "#x=0.4,0.7,2.3,1.9,-0.2,1.4,0.1&k=2&width=3&targets=5",
    "width of the smallest": "#x=0.4,0.7,2.3,1.9,-0.2,1.4&k=2&width=4&largest=0&out=0&targets=5",
    "sorted": "#x=0.4,0.7,2.3,1.9,-0.2,1.4,0.1&k=3&eps=0.5&sorted=1&targets=5",
    "sorted smallest": "#x=0.4,0.7,2.3,1.9,-0.2,1.4&k=3&eps=0.5&sorted=1&largest=0&out=4&targets=5",
    "sorted by width": "#x=0.4,0.7,2.3,1.9,-0.2,1.4,0.1&k=3&width=3&sorted=1&targets=5",
    "in order": "#x=0.4,0.7,2.3,1.9,-0.2&k=2&eps=0.5&ordered=1&targets=0",
}


@pytest.mark.parametrize("link", STATES.values(), ids=STATES)
def test_the_numbers_are_those_of_python(play, link):
    page = play(link)
    check_numbers(page)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_the_solvers_agree_with_python_on_random_problems(play, is_sorted):
    draw = random.Random(0)
    problems = []
    for _ in range(60):
        n = draw.randint(2, 60)
        problem = {
            "scores": [
                draw.gauss(draw.choice([0, 100]), 10 ** draw.uniform(-2, 2)) for _ in range(n)
            ],
            "mask": [draw.random() < 0.85 for _ in range(n)],
            "k": draw.randint(1, min(n, 8)),
            "eps": 10 ** draw.uniform(-3, 3),
            "largest": draw.random() < 0.5,
            "sorted": is_sorted,
        }
        problem["mask"][0] = True
        problems.append(problem | {"targets": [0], "width": draw.randint(1, n)})
    found = play().evaluate(
        """(problems) => problems.map((problem) => {
            const { a, gradient } = softtopk.solve(problem, problem.targets);
            const iterated = softtopk.sinkhorn(problem);
            const eps = softtopk.epsFor(problem, problem.width);
            return [...[a, gradient, iterated].map((numbers) => Array.from(numbers)), eps];
        })""",
        problems,
    )
    for problem, results in zip(problems, found, strict=True):
        a, gradient, iterated, eps = (torch.tensor(each, dtype=torch.float64) for each in results)
        scores = torch.tensor(problem["scores"], dtype=torch.float64, requires_grad=True)
        mask, k = torch.tensor(problem["mask"]), problem["k"]
        options = {"largest": problem["largest"], "mask": mask}
        operator = sorted_soft_topk if is_sorted else soft_topk
        total = (lambda plan: plan.sum(-1)) if is_sorted else (lambda plan: plan)
        computed = total(operator(scores, k, eps=problem["eps"], **options))
        close(a, computed)
        computed[0].backward()
        close(gradient * problem["eps"], scores.grad * problem["eps"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            solver = Sinkhorn(200, tol=0.0)
            close(
                iterated, total(operator(scores, k, eps=problem["eps"], solver=solver, **options))
            )
        close(eps, eps_for(scores, k, width=problem["width"], sorted=is_sorted, **options))


@pytest.mark.parametrize("link", ["", STATES["smallest"], STATES["mask"], STATES["hot"]])
def test_the_lines_in_numbers(play, link):
    page = play(link)
    names = run_code(page)
    state = page.evaluate(
        "({ k: state.k, eps: state.eps, largest: state.largest, mask: state.mask })"
    )
    scores, k = names["scores"].detach(), state["k"]
    options = {"largest": state["largest"], "mask": torch.tensor(state["mask"])}
    soft = sharpness(scores, k, state["eps"], **options)
    assert number(page, "undecided") == soft.undecided.item()
    assert number(page, "misplaced") == pytest.approx(soft.misplaced.item(), rel=0.06, abs=1e-9)
    threshold = topk_threshold(scores, k, eps=state["eps"], **options).item()
    assert number(page, "threshold") == pytest.approx(threshold, rel=1e-3)
    hard = soft_topk(scores, k, eps=state["eps"], hard=True, **options)
    assert table(page)["hard"].tolist() == hard.tolist()


def test_the_thresholds_of_ranks_are_where_neighbours_share(play):
    page = play(STATES["sorted"])
    names = run_code(page)
    plan, scores = names["A"].detach(), names["scores"].detach()
    thresholds = torch.tensor(page.evaluate("view.result.thresholds"), dtype=torch.float64)
    tau = page.evaluate("state.eps") / 2
    rest = 1 - plan.sum(-1, keepdim=True)
    columns = torch.cat([plan, rest], -1).log()
    close((scores.unsqueeze(-1) - thresholds) / tau, columns[:, :-1] - columns[:, 1:])


def test_the_presets_tell_their_story(play):
    page = play()
    assert page.locator("[data-preset=right]").get_attribute("aria-pressed") == "true"
    page.locator("[data-preset=cold]").click()
    settle(page)
    assert number(page, "undecided") == 0
    assert number(page, "misplaced") < 0.01
    assert number(page, "steepest") < 0.01  # of A for a score of 1
    assert number(page, "paper") > 0.1
    assert "no gradient" in page.locator("#story").text_content()
    page.locator("[data-preset=right]").click()
    settle(page)
    assert 2 <= number(page, "undecided") <= 8
    assert number(page, "steepest") > 0.3
    page.locator("[data-preset=hot]").click()
    settle(page)
    assert number(page, "misplaced") > 2
    assert number(page, "steepest") < 0.1
    check_numbers(page)


def test_sliders_and_fields(play):
    page = play()
    page.locator("#k").fill("2")
    page.locator("#eps").fill("-0.5")
    names = check_numbers(page)[1]
    assert names["A"].sum().item() == pytest.approx(2)
    assert "eps=0.316" in page.locator("#code").text_content()
    page.locator("#width").fill("6")
    check_numbers(page)
    assert number(page, "undecided") == 6
    page.locator("#eps-number").fill("0.25")
    page.locator("#sorted").check()
    page.locator("input[name=largest][value='0']").check()
    code = page.locator("#code")
    check_numbers(page)
    assert "sorted_soft_topk(scores, 2, eps=0.25, largest=False)" in code.text_content()


@pytest.mark.parametrize("value", ["0", "-1", "", "1e12"])
def test_a_wrong_eps_is_marked_and_changes_nothing(play, value):
    page = play()
    before = table(page)["A"]
    page.locator("#eps-number").fill(value)
    assert page.locator("#eps-number").get_attribute("aria-invalid") == "true"
    assert table(page)["A"].tolist() == before.tolist()


def middle_of_bar(page, i):
    page.locator("#bars").scroll_into_view_if_needed()
    box = page.locator("#bars").bounding_box()
    n = page.evaluate("state.scores.length")
    return box["x"] + box["width"] * (i + 0.5) / n, box["y"] + box["height"] / 2


def test_a_bar_is_dragged(play):
    page = play()
    before = table(page)["score"]
    x, y = middle_of_bar(page, 3)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 40, steps=4)
    page.mouse.up()
    shown, _ = check_numbers(page)
    assert shown["score"][3] > before[3]
    assert (shown["score"] != before).sum() == 1
    assert page.evaluate("state.targets.size") == 1  # a drag is no click


def test_a_click_marks_a_bar_or_takes_it_out(play):
    page = play()
    page.mouse.click(*middle_of_bar(page, 0))
    settle(page)
    assert "A[[0, 9]].sum().backward()" in page.locator("#code").text_content()
    page.locator("input[name=click][value=mask]").check()
    page.mouse.click(*middle_of_bar(page, 4))
    shown, _ = check_numbers(page)
    assert shown["A"][4] == 0
    assert "mask[[4]] = False" in page.locator("#code").text_content()


def test_scores_are_pasted(play):
    page = play()
    page.locator("#scores").fill("[1.5, -2e-1;\n+3\t.25]")
    shown, _ = check_numbers(page)
    assert shown["score"].tolist() == [1.5, -0.2, 3, 0.25]
    page.locator("#scores").fill("1 2 three")
    assert "three" in page.locator("#error").text_content()
    assert table(page)["score"].tolist() == [1.5, -0.2, 3, 0.25]
    for wrong in ("", "7", "nan 1", "1e300 2", "<b>1</b> 2", "0 " * 6000):
        page.locator("#scores").fill(wrong)
        assert page.locator("#error").text_content() != "", wrong
    page.locator("#scores").fill("5 6")
    assert page.locator("#error").text_content() == ""
    check_numbers(page)


def test_a_link_carries_the_state(play):
    page = play(STATES["width of the smallest"])
    page.locator("#k").fill("3")
    settle(page)
    page.locator("#copy-link").click()
    copied = page.evaluate("copied")
    assert copied == page.url
    other = play(copied.removeprefix(PLAY))
    for column, values in table(page).items():
        assert values.tolist() == table(other)[column].tolist()
    assert other.locator("#code").text_content() == page.locator("#code").text_content()


@pytest.mark.parametrize("link", ["#x=1,2&k=9", "#x=1,two", "#x=1,2&eps=-1", "#x=1,2&width=no"])
def test_a_bad_link_says_so(play, link):
    page = play(link)
    assert "The link was not understood" in page.locator("#error").text_content()
    check_numbers(page)


def test_the_keyboard_is_enough(play):
    page = play()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    everything = "bars k k-number sorted eps eps-number width-number scores random ordered theme"
    assert set(everything.split()) <= reached
    page.locator("#bars").focus()
    before = table(page)["score"]
    page.locator("#bars").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "t"):
        page.keyboard.press(key)
    settle(page)
    said = page.locator("#bars").get_attribute("aria-valuetext")
    assert said.endswith("marked")
    page.keyboard.press("m")
    settle(page)
    assert "taken out" in page.locator("#bars").get_attribute("aria-valuetext")
    page.keyboard.press("m")
    shown, _ = check_numbers(page)
    assert shown["score"][2] > before[2]
    assert "A[[2, 9]]" in page.locator("#code").text_content()


def test_a_phone(play):
    page = play(**PHONE)
    for link in ("", STATES["sorted"]):
        page.goto(PLAY + link)
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(PLAY)
    settle(page)
    page.touchscreen.tap(*middle_of_bar(page, 0))
    settle(page)
    assert "A[[0, 9]]" in page.locator("#code").text_content()
    small = page.evaluate(
        "Array.from(document.querySelectorAll('button, input[type=number]'))"
        ".filter((each) => each.offsetParent && each.offsetHeight < 24).map((each) => each.id)"
    )
    assert small == []  # what a finger has to hit


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(play, scheme, size):
    page = play(color_scheme=scheme, **size)
    page.locator("#table").evaluate("details => { details.open = true; }")
    settle(page)
    violations = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [each for each in violations if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []


def test_dark_mode_follows_the_system_and_the_button(play):
    paper = "getComputedStyle(document.body).backgroundColor"
    page = play(color_scheme="dark")
    dark = page.evaluate(paper)
    assert dark != play(color_scheme="light").evaluate(paper)
    pixel = (
        "Array.from(document.getElementById('canvas').getContext('2d')"
        ".getImageData(200, 60, 1, 1).data)"
    )
    assert sum(page.evaluate(pixel)[:3]) < 300
    page.locator("#theme").click()
    settle(page)
    assert page.evaluate(paper) != dark
    assert sum(page.evaluate(pixel)[:3]) > 600


# Milliseconds. A frame of a screen lasts 16.7; with 2,000 scores one still sees it follow the hand.
@pytest.mark.parametrize(("n", "limit"), [(50, 16.7), (2000, 150)])
@pytest.mark.parametrize("by", ["eps", "width"])
def test_a_frame_is_drawn_in_time(play, n, limit, by):
    page = play()
    page.locator("#count").fill(str(n))
    page.locator("#random").click()
    settle(page)
    times = page.evaluate(
        """(by) => Array.from({ length: 31 }, (_, i) => {
            state.by = by;
            state.eps = 0.1 * 1.1 ** i;
            state.width = 2 + i;
            state.scores[0] += 0.001;
            const start = performance.now();
            show();
            return performance.now() - start;
        })""",
        by,
    )
    assert sorted(times)[15] < limit
    check_numbers(page)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("#x=1,2,3,4&k=2&eps=0.001", "raise"),
        ("#x=1,2,3,4,5,6,7,8,9&k=2&eps=1000", "lower"),
        ("#x=1,2,3&k=3&eps=1", "nothing to decide"),
        ("#x=1,2,3,4&k=2&eps=1", "get the gradient"),
    ],
)
def test_a_temperature_is_judged(play, link, said):
    assert said in play(link).locator("#story").text_content()
