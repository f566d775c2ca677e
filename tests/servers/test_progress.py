"""What a load is doing, in llama-server's words."""

from __future__ import annotations

import pytest

from deck.servers.progress import doing

_LOADING = "0.00.004.081 I srv    load_model: loading model '/m/x.gguf'"
_WARMING = "0.00.088.261 I cmn  common_init_: warming up the model with an empty run - please wait ..."


@pytest.mark.parametrize(
    ("lines", "begun", "expected"),
    [
        ([], "", ("", None)),
        (["hello"], "", ("hello", None)),
        ([_LOADING], "", ("srv    load_model: loading model '/m/x.gguf'", None)),
        ([_LOADING, "0.00.01 I detail"], "", ("srv    load_model: loading model '/m/x.gguf'", None)),
        (
            [_LOADING, _WARMING],
            "",
            ("cmn  common_init_: warming up the model with an empty run - please wait ...", None),
        ),
        ([_LOADING], "." * 42, ("srv    load_model: loading model '/m/x.gguf'", 0.42)),
        ([_LOADING], "." * 100, ("srv    load_model: loading model '/m/x.gguf'", 1.0)),
        ([_LOADING], "not dots", ("srv    load_model: loading model '/m/x.gguf'", None)),
        (
            ["srv main: downloading"],
            "\rDownloading x.gguf ──    3%\x1b[K\rDownloading x.gguf ────   47%\x1b[K\r",
            ("Downloading x.gguf ────   47%", 0.47),
        ),
        (["Downloading x.gguf:  12.5% of 4 GB"], "", ("Downloading x.gguf:  12.5% of 4 GB", 0.12)),
        (["loading model at 100 %s of nothing"], "", ("loading model at 100 %s of nothing", None)),
    ],
)
def test_the_last_telling_line_and_the_share(lines: list[str], begun: str, expected: tuple[str, float | None]) -> None:
    assert doing(lines, begun) == expected


def test_what_is_shown_is_short() -> None:
    line, _ = doing(["loading model " + "x" * 5000])
    assert len(line) == 160
