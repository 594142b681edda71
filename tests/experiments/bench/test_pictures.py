"""The pictures, from times that are made up."""

from __future__ import annotations

from pathlib import Path

from softtopk.experiments.bench import PEERS, PRESETS, Case, CaseResult, Result, Timing
from softtopk.experiments.bench._pictures import STYLES, draw_pictures


def made_up(case: Case) -> CaseResult:
    results = []
    for number, peer in enumerate(p for p in PEERS if p.operator == case.operator):
        if peer.growth == 2 and case.n > 100:
            results.append(Result(peer.key, peer.label, "too slow", "ages"))
            continue
        timing = Timing((1e-8 * case.rows * case.n * (number + 1),) * 3)
        error = 0.0 if peer.key == "softtopk" else 1e-3 / case.eps
        results.append(
            Result(
                peer.key,
                peer.label,
                forward=timing,
                backward=timing,
                both=timing,
                error=error if peer.same_problem else None,
            )
        )
    return CaseResult(case, tuple(results))


def test_all_pictures_of_the_full_run(tmp_path: Path) -> None:
    written = draw_pictures(
        [made_up(case) for case in PRESETS["full"].cases], tmp_path / "new", "A card"
    )
    assert {path.name for path in written} == {
        "time_against_n.png",
        "time_against_n_sorted.png",
        "error_against_time.png",
        "error_against_time_sorted.png",
    }
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_device(tmp_path: Path) -> None:
    written = draw_pictures([made_up(c) for c in PRESETS["gpu"].cases], tmp_path, "A card")
    assert [path.name for path in written] == ["time_on_device.png"]
    assert written[0].read_bytes().startswith(b"\x89PNG")


def test_no_picture_without_its_data(tmp_path: Path) -> None:
    alone = Case("unsorted", 4, 100, 10, series="time against n")
    assert draw_pictures([made_up(alone)], tmp_path, "") == []
    assert draw_pictures([CaseResult(alone, ())] * 2, tmp_path, "") == []
    assert list(tmp_path.iterdir()) == []


def test_every_peer_looks_different() -> None:
    assert {peer.key for peer in PEERS} == set(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)
