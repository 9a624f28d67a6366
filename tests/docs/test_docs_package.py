"""README on a package page: every link leads somewhere, with a repository and without one."""

import re
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
TEXT = "![A *page*](docs/img/a.png) and [b](docs/b.md#c), [d](https://e.org), [here](#here)"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(ROOT)
    import hatch_build

    return hatch_build.on_a_package_page


def test_links_lead_to_the_repository_at_the_tag_or_become_texts(page: object) -> None:
    assert callable(page)
    assert page(TEXT, "https://example.org/x/", "1.2.3") == (
        "![A *page*](https://example.org/x/raw/v1.2.3/docs/img/a.png) and "
        "[b](https://example.org/x/blob/v1.2.3/docs/b.md#c), [d](https://e.org), [here](#here)"
    )
    assert page(TEXT, "", "1.2.3") == "A *page* and b, [d](https://e.org), [here](#here)"


def test_no_link_of_readme_is_left_that_leads_beside_it(page: object) -> None:
    assert callable(page)
    text = page((ROOT / "README.md").read_text(encoding="utf-8"), "", "1.2.3")
    assert not re.findall(r"\]\((?!https:|#)", text)
