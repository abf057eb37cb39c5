"""Where the command begins, what options mean, and what happens to mistakes."""

from __future__ import annotations

import pytest

from lockfast.cli.main import main, split_command


@pytest.mark.parametrize(
    ("line", "own", "command"),
    [
        ("run x -- cmd -n", "run x", "cmd -n"),
        ("run x -n -- cmd", "run x -n", "cmd"),
        ("run -n x -- cmd", "run -n x", "cmd"),
        ("run x cmd -n --lease 5", "run x", "cmd -n --lease 5"),
        ("run x --lease 5 cmd", "run x --lease 5", "cmd"),
        ("run x --lease=5 cmd", "run x --lease=5", "cmd"),
        ("run x -w 5 cmd", "run x -w 5", "cmd"),
        ("run x -w5 cmd", "run x -w5", "cmd"),
        ("run x -qw 5 cmd", "run x -qw 5", "cmd"),
        ("run x -nE 5 cmd", "run x -nE 5", "cmd"),
        ("run x -E5 cmd", "run x -E5", "cmd"),
        ("run x git checkout -- file", "run x", "git checkout -- file"),
        ("run x -- -- cmd", "run x", "-- cmd"),
        ("run x -- - cmd", "run x", "- cmd"),
        ("run -v x", "run -v x", ""),
        ("run", "run", ""),
        ("run x --", "run x", ""),
    ],
)
def test_command_begins_after_two_dashes_or_at_the_second_word(line: str, own: str, command: str) -> None:
    assert split_command(line.split()) == (own.split(), command.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run", "required: NAME"),
        ("run x", "no command to run"),
        ("run x --", "no command to run"),
        ("run -- cmd", "required: NAME"),
        ("run x --lease 1w -- cmd", "not a duration: '1w'"),
        ("run x --lease 10ms -- cmd", "lease must be between"),
        ("run x --wait -5 -- cmd", "not a duration: '-5'"),
        ("run x -n -w 5 -- cmd", "not allowed with"),
        ("run x --on-lost panic -- cmd", "invalid choice: 'panic'"),
        ("run x -E 256 -- cmd", "from 0 to 255"),
        ("run x -E -1 -- cmd", "from 0 to 255"),
        ("run x --leas 5 -- cmd", "unrecognized arguments"),
        ("run a||b -- cmd", "not a name"),
        ("show", "required: NAME"),
        ("shw", "invalid choice: 'shw'"),
        ("ls --url nonsense", "URL"),
        ("server", "required: action"),
    ],
)
def test_mistake_is_told_with_a_hint_and_ends_with_64(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 64
    out, err = capsys.readouterr()
    assert out == ""
    told, hint = err.splitlines()
    assert told.startswith("lockfast: ")
    assert message in told
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host", "hint: mend --url: it takes redis://"),
        ("redis://a,b,c", "hint: mend --url: it takes redis://"),
        ("redis://a,redis://a,redis://b", "hint: mend --url"),
        ("redis://a,redis://b", "hint: mend --url"),
    ],
)
def test_forms_of_urls_are_named_only_where_that_helps(
    url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", "--url", url]) == 64
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith(words)
    assert ("takes" in hint) == ("takes" in words)


def test_hint_names_the_variable_where_the_url_is_from_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCKFAST_URL", "redis://a,redis://b")
    assert main(["ls"]) == 64
    assert capsys.readouterr().err.endswith("hint: mend LOCKFAST_URL\n")


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["ls", "-h"], ["break", "--help"], ["deadlocks", "--help"], []]
)
def test_help_goes_to_stdout(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    else:
        assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: lockfast")
    assert err == ""


def test_help_of_run_teaches_examples_exit_codes_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    for word in ("examples:", "exit codes:", "--skip-ok", "LOCKFAST_FENCE", "64", "69", "75", "76", "77", "126", "127"):
        assert word in text
    assert "cannot stop" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("lockfast 0.")


def test_empty_url_is_not_taken_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    """It is most likely a variable that was not set, and locking this host only would be a nasty surprise."""
    assert main(["ls", "--url", ""]) == 64
    assert "--url is empty" in capsys.readouterr().err


def test_unusable_home_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LOCKFAST_URL", raising=False)
    monkeypatch.setenv("LOCKFAST_HOME", "not/absolute")
    assert main(["ls"]) == 64
    told = capsys.readouterr().err
    assert "LOCKFAST_HOME" in told
    assert "Traceback" not in told
