"""What is secret in an address is never shown: by us, a library, a usage error, a traceback."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_remote import no_proxies  # noqa: F401 - a fixture

from bench.cli import main
from loaders.store.address import masked, scrubbed, secrets_of
from loaders.store.backend import fault
from loaders.store.errors import StoreError
from loaders.store.ranges import Ranges

pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:pw@host/m", "https://***@host/m"),
        ("https://token@host/m", "https://***@host/m"),
        ("https://me:p@w@host/m", "https://***@host/m"),
        ("s3://me:p/w@bucket/m", "s3://***@bucket/m"),
        ("s3://me:p/w@x/y@bucket/m", "s3://***@bucket/m"),
        ("https://me:1/w@host/m", "https://***@host/m"),
        ("https://me:p#w@host/m", "https://***"),
        ("https://me:p?w@host/m", "https://***"),
        ("https://me:pw@host/m?sig=a@b", "https://***"),
        ("https://me:pw@host/m?sig=a", "https://***@host/m?***"),
        ("https://host/m?X-Amz-Signature=1&b=2", "https://host/m?***"),
        ("https://host/m?sig=a@b", "https://host/m?***"),
        ("https://host/m#access_token=1", "https://host/m"),
        ("ftp://me:pw@host:21/m", "ftp://***@host:21/m"),
        ("https://host:80/m", "https://host:80/m"),
        ("https://[::1]:80/m", "https://[::1]:80/m"),
        ("https://[::1]/m@2", "https://[::1]/m@2"),
        ("s3://bucket/m@2", "s3://bucket/m@2"),
        ("hf://org/name@main/x", "hf://org/name@main/x"),
        ("file:///a:b/c@d", "file:///a:b/c@d"),
        ("--model=s3://me:pw@bucket/m", "--model=s3://***@bucket/m"),
        ("simplecache::s3://me:pw@bucket", "simplecache::s3://***@bucket"),
        ("/a/folder@x?y", "/a/folder@x?y"),
    ],
)
def test_secrets_are_masked(address: str, shown: str) -> None:
    assert masked(address) == shown
    assert masked(shown) == shown


word = st.text("abcdefXYZ0123456789:@%+-_./#?&= ~!$;,()[]", min_size=0, max_size=20)


@given(word, word, st.sampled_from(["https", "http", "ftp", "s3", "webdav"]))
def test_no_password_is_ever_shown_whatever_letters_it_has(a: str, b: str, scheme: str) -> None:
    text = masked(f"{scheme}://me:{a}SECRET{b}@host/folder")
    assert "SECRET" not in text
    assert masked(text) == text
    assert text == f"{scheme}://***" or text == f"{scheme}://***@host/folder"


@given(word, st.sampled_from(["https", "http", "s3"]))
def test_no_signature_is_ever_shown(a: str, scheme: str) -> None:
    for host in ("host", "host:80", "me:pw@host"):
        assert "SECRET" not in masked(f"{scheme}://{host}/folder?sig={a}SECRET{a}")


@given(st.text("abXY09:@%+-_./#?&=", max_size=20), st.sampled_from(["https", "s3"]))
def test_no_secret_in_anothers_text(a: str, scheme: str) -> None:
    address = f"{scheme}://me:SECRET{a}@host/folder"
    assert "SECRET" not in scrubbed(f"Cannot connect to {address}: refused, url='{address}'")


@pytest.mark.parametrize(
    "said",
    [
        'Invalid bucket name "me:se"',
        "key cret/x@y is absent",
        "user me, password se/cret/x@y",
        "ftp://me:se/cret/x@y@host failed",
    ],
)
def test_a_librarys_words_about_a_password_are_not_shown(said: str) -> None:
    address = "ftp://me:sesame/cret/x@y@host/m"
    said = said.replace('"me:se"', '"me:sesame"').replace("se/cret", "sesame/cret")
    error = fault(ValueError(said), address)
    assert isinstance(error, StoreError)
    assert "sesame" not in str(error)
    assert "cret" not in str(error)
    assert str(error).startswith("ftp://***@host/m: ValueError")


def test_what_is_secret_in_an_address() -> None:
    assert secrets_of("https://host/m") == ()
    assert secrets_of("https://me:p%2Fw@host/m") == ("p%2Fw", "p/w")
    assert secrets_of("https://token@host/m") == ("token",)
    assert secrets_of("https://host/m?sig=abc&x=1") == ("abc",)
    assert set(secrets_of("s3://me:one/two@b")) == {"one/two", "one", "two"}


ADDRESSES = [
    "s3://me:{}@bucket",
    "s3://me:x/{}@bucket/m",
    "gs://me:{}@bucket",
    "hf://me:{}@org/name",
    "http://me:x/{}@127.0.0.1:1/m",
    "http://me:x?{}@127.0.0.1:1/m",
    "http://me:{}#x@127.0.0.1:1/m",
    "http://[me:{}@127.0.0.1:1/m",
    "http://me:{}@127.0.0.1:port/m",
    "http://me:{}@[::1:1/m",
    "http://me:\u2100{}@127.0.0.1:1/m",
    "ftp://me:{}@127.0.0.1:1/m",
    "webhdfs://me:{}@127.0.0.1:1/m",
    "memory://me:{}@x",
    "file://me:{}@x",
    "nope://me:{}@x",
    "reference://me:{}@x",
    "simplecache::s3://me:{}@bucket",
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranges.__init__, "__kwdefaults__", {
        **(Ranges.__init__.__kwdefaults__ or {}), "retries": 0, "timeout": 2.0,
    })  # fmt: skip


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("command", [["check"], ["check", "--json"]], ids=" ".join)
def test_check_shows_no_secret(
    address: str, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in the text, nor in what was raised on the way to it."""
    with pytest.raises(SystemExit) as ended:
        main([*command, address.format("s3cr3t")])
    out, err = capfd.readouterr()
    assert ended.value.code in (2, 3)
    assert "s3cr3t" not in out + err
    assert "Traceback" not in out + err
    assert "s3cr3t" not in _chained(ended.value)


def _chained(error: BaseException) -> str:
    """The words of all errors that a traceback would show; its lines of source hold no values."""
    found: list[str] = []
    step: BaseException | None = error
    while step is not None:
        found += traceback.format_exception_only(step)
        hidden = step.__cause__ is None and step.__suppress_context__
        step = None if hidden else step.__cause__ or step.__context__
    return "".join(found)


@pytest.mark.parametrize(
    "command",
    ["host", "host --json", "runs", "runs --json", "make llama-3.1-8b", "make --json llama-3.1-8b",
     "loaders", "check x", "make x y", "report", "report --json", "report --json . -o",
     "report . --pictures", "advise", "advise --json", "w8a8",
     "w8a8 --json", "explain", "explain --json",
     "quantize --format ascend --json x", "snapshot x", "snapshot --json x"],
)  # fmt: skip
def test_no_command_takes_an_address_for_a_folder_nor_shows_it(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "s3://me:s3cr3t@bucket/m"])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert "s3://***@bucket/m" in out + err
    assert "s3cr3t" not in out + err
