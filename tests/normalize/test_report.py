"""The two report headers: the client's paths, collapsed, sorted, bounded, and safe in a header."""

from __future__ import annotations

from urllib.parse import unquote

from deck.normalize.report import Report


def header(report: Report, word: str = "Ignored") -> str | None:
    return dict(report.headers()).get(f"X-Athena-Compatibility-{word}")


def test_nothing_to_say_is_no_header() -> None:
    assert Report().headers() == []


def test_indices_collapse_and_names_are_sorted() -> None:
    report = Report()
    report.ignored("messages[3].name", "x")
    report.ignored("metadata", "x")
    report.ignored("messages[0].name", "x")
    assert header(report) == "messages[].name, metadata"
    assert [note.path for note in report.notes] == ["messages[3].name", "metadata", "messages[0].name"]


def test_changes_have_a_header_of_their_own() -> None:
    report = Report()
    report.changed("max_completion_tokens", "x", shown="max_completion_tokens>max_tokens")
    assert header(report) is None
    assert header(report, "Changed") == "max_completion_tokens>max_tokens"


def test_hostile_names_cannot_break_the_header() -> None:
    report = Report()
    report.ignored("a\r\nset-cookie: x=1, ü", "x")
    shown = header(report)
    assert shown is not None
    assert shown.isascii()
    assert "\r" not in shown
    assert "," not in shown


def test_names_of_any_letters_can_be_read_back() -> None:
    names = ["é", "a\r\nb,c", "schema.$ref", "?seed", "a%b"]
    report = Report()
    for name in names:
        report.ignored(name, "x")
    shown = header(report)
    assert shown == "%C3%A9, ?seed, a%0D%0Ab%2Cc, a%25b, schema.$ref"
    assert sorted(unquote(item) for item in shown.split(", ")) == sorted(names)


def test_it_is_bounded() -> None:
    report = Report()
    for number in range(1000):
        report.ignored(f"field_{number:04}", "x")
    shown = header(report)
    assert shown is not None
    assert len(shown) <= 2048
    assert shown.endswith(" more")
    kept = shown.count(", ")
    assert shown.endswith(f"+{1000 - kept} more")
