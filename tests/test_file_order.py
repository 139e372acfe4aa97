"""Tests of the order of test files, and of what one process takes."""

from __future__ import annotations

from pathlib import Path

from file_order import LONGEST, SHARING, files_marked, place_of, scope_of

HERE = Path(__file__).parent


def test_every_name_of_the_order_is_there() -> None:
    assert [name for name in (*LONGEST, *SHARING) if not (HERE / name).exists()] == []


def test_long_files_come_first_and_tests_of_clusters_before_others() -> None:
    files = {"routing/test_x.py": False, "netlab/test_lab.py": True, SHARING[-1] + "test_x.py": False, LONGEST[1]: True}
    files[LONGEST[0]] = True
    ordered = sorted(files, key=lambda file: place_of(file, is_of_cluster=files[file]))
    assert ordered == [LONGEST[0], LONGEST[1], "netlab/test_lab.py", SHARING[-1] + "test_x.py", "routing/test_x.py"]


def test_folder_that_shares_is_one_scope_and_other_files_are_their_own() -> None:
    assert {scope_of(f"{SHARING[0]}test_{name}.py") for name in "ab"} == {SHARING[0]}
    assert scope_of("fleet/test_counts.py") == "fleet/test_counts.py"
    inner, outer = "fleet/shared/vllm/", "fleet/shared/"
    assert [scope_of(f"{folder}test_a.py") for folder in (inner, outer)] == [inner, outer]


def test_files_of_a_mark_have_it_or_stand_under_a_conftest_that_has(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "pytestmark = [pytest.mark.ray, pytest.mark.net]",
        "test_b.py": "pytestmark = pytest.mark.raylet",
        "sub/conftest.py": "marks = pytest.mark.ray",
        "sub/test_c.py": "",
        "sub/deep/test_d.py": "",
        "sub/lab.py": "",
        "other/test_e.py": "@pytest.mark.slow",
    }
    for file, text in texts.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert files_marked(("ray",), tmp_path) == ["sub/deep/test_d.py", "sub/test_c.py", "test_a.py"]
    assert files_marked(("ray", "slow"), tmp_path)[0] == "other/test_e.py"
