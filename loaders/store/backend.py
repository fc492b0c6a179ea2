"""Any store that fsspec has a file system for, by its `cat_file(path, start, end)`."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from loaders.store.address import masked, scheme_of, scrubbed, secrets_of, user_of
from loaders.store.errors import StoreError, TransientError

_PACKAGES: Final[Mapping[str, str]] = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "hdfs": "pyarrow",
}
_NO_USERS: Final = {"s3", "s3a", "gs", "gcs", "oss", "hf"}
"""Stores that take no user and password in an address: theirs would become the bucket's name, which
goes over the network and stands in every message."""

_FINAL_ERRNO: Final = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EREMCHG,
}
_CREDENTIALS: Final = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
# Roots of the libraries' own network errors that are no OSError.
_NETWORK: Final = {"ClientError", "BotoCoreError", "HTTPClientError", "TransportError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a folder. `size` in bytes, 0 for a folder."""

    name: str
    kind: Literal["file", "folder"]
    size: int


class BackendStore:
    """Reads ranges through fsspec, from any number of threads, nothing read ahead and nothing
    cached. The library's own retries are switched off where it can be told so (s3), so that those
    counted here are all. Every method raises StoreError and TransientError."""

    def __init__(
        self,
        address: str,
        *,
        concurrency: int,
        timeout: float,
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_request = on_request
        self.address = address
        scheme = scheme_of(address)
        if scheme in _NO_USERS and ":" in (user_of(address) or ""):
            text = "an address of this kind holds no user and password"
            raise StoreError("refused", f"{masked(address)}: {text}; {_advice(address)}")
        fsspec = imported(scheme)
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if scheme in ("s3", "s3a"):
            options["config_kwargs"] = {
                "max_pool_connections": max(concurrency, 10),
                "connect_timeout": timeout,
                "read_timeout": timeout,
                "retries": {"max_attempts": 0},
            }
        try:
            self.fs, self._root = fsspec.core.url_to_fs(address, **options)
        except Exception as error:
            raise fault(error, address) from _shown(error, address)
        if scheme in ("s3", "s3a"):
            self.fs.retries = 1
        own = type(self.fs).cat_file is not fsspec.spec.AbstractFileSystem.cat_file
        plain = not own and not self.fs.async_impl
        # The plain cat_file opens a buffered file, which reads 5 MiB ahead unless told not to.
        self._no_cache = {"cache_type": "none"} if plain else {}

    def read_into(self, address: str, offset: int, into: memoryview) -> tuple[int, float | None]:
        """Fills `into` from `offset` on. Returns (bytes, None): nobody says when it began."""
        raw = self._cat(address, offset, offset + len(into))
        if len(raw) > len(into):
            raise StoreError(
                "no-ranges",
                f"{masked(address)}: asked for {len(into):,} bytes from {offset:,}, got "
                f"{len(raw):,}: the store ignores ranges",
            )
        if not raw:
            raise StoreError(
                "short",
                f"{masked(address)}: nothing at byte {offset:,}; the file was cut off or replaced "
                "since it was examined: `coldload check` it",
                found=self.size(address),
            )
        into[: len(raw)] = raw
        return len(raw), None

    def size(self, address: str) -> int:
        return self.entry(address).size

    def whole(self, address: str, most: int) -> bytes:
        """A small file; StoreError if it is larger than `most` bytes."""
        size = self.size(address)
        if size > most:
            raise StoreError("failed", f"{masked(address)}: {size:,} bytes, more than {most:,}")
        return self._cat(address, 0, size) if size else b""

    def entry(self, address: str) -> Entry:
        """What stands at the address."""
        self._on_request()
        try:
            found = self.fs.info(self._path(address))
        except Exception as error:
            raise fault(error, address) from _shown(error, address)
        return _entry(found, address)

    def entries(self, address: str) -> list[Entry]:
        """What the folder holds, in no particular order."""
        self._on_request()
        path = self._path(address)
        try:
            found = self.fs.ls(path, detail=True)
        except Exception as error:
            raise fault(error, address) from _shown(error, address)
        own = str(path).strip("/")
        # Object stores keep a marker of the folder's own name in it.
        return [_entry(one, address) for one in found if str(one["name"]).strip("/") != own]

    def url(self, address: str) -> str:
        """The http address of a file, where the store has such (Hugging Face)."""
        self._on_request()
        try:
            return str(self.fs.url(self._path(address)))
        except Exception as error:
            raise fault(error, address) from _shown(error, address)

    def abort(self) -> None:
        """Requests under way end by themselves: fsspec has no way to end them."""

    def close(self) -> None:
        """Nothing is kept open between calls but connections, which end with the file system."""
        del self.fs

    def _cat(self, address: str, start: int, end: int) -> bytes:
        self._on_request()
        try:
            raw = self.fs.cat_file(self._path(address), start=start, end=end, **self._no_cache)
        except Exception as error:
            raise fault(error, address) from _shown(error, address)
        return bytes(raw) if not isinstance(raw, bytes) else raw

    def _path(self, address: str) -> str:
        return str(self.fs._strip_protocol(address))


def imported(scheme: str) -> Any:
    """fsspec with the file system for a scheme imported; StoreError if there is none, or if the
    package that it needs is not installed. To be called before the clock runs: s3fs takes a
    second."""
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        text = f"{scheme}://: needs the package fsspec: pip install fsspec"
        raise StoreError("backend", text) from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        advice = f"pip install {package}" if package else str(error)
        needs = f"needs the package {package}, which is not installed" if package else "needs more"
        raise StoreError("backend", f"{scheme}://: {needs}: {advice}") from error
    except ValueError as error:
        text = f"{scheme}://: fsspec knows no such store ({error})"
        raise StoreError("backend", text) from error
    return fsspec


def fault(error: Exception, address: str) -> StoreError | TransientError:
    """What a library raised, as one of ours. Errors of the network and of the server are for now;
    those of the request, the programmer and the permission for good."""
    where = masked(address)
    said = " ".join(scrubbed(str(error).replace(address, where)).split())[:300]
    if any(secret in str(error).replace(address, "") for secret in secrets_of(address)):
        said = "what it says holds a part of the password, and isn't shown"
    text = f"{type(error).__name__}: {said}".removesuffix(": ")
    if isinstance(error, FileNotFoundError):
        return StoreError("absent", f"{where}: no such file or folder")
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, PermissionError) or names & _CREDENTIALS:
        return StoreError("refused", f"{where}: no permission ({text}); {_advice(address)}")
    if isinstance(error, OSError) and error.errno in _FINAL_ERRNO:
        return StoreError("failed", f"{where}: {text}")
    if isinstance(error, (OSError, TimeoutError, EOFError)) or names & _NETWORK:
        return TransientError(text)
    if isinstance(error, ImportError):
        return StoreError("backend", f"{where}: {text}; install what it names")
    return StoreError("failed", f"{where}: {text}")


def _shown(error: Exception, address: str) -> Exception | None:
    """The error where it may stand in a traceback: not if its own words may hold what is secret."""
    return None if secrets_of(address) else error


def _advice(address: str) -> str:
    scheme = scheme_of(address)
    if scheme in ("s3", "s3a"):
        return (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, AWS_ENDPOINT_URL for "
            "a store of another maker, FSSPEC_S3_ANON=true for a public bucket"
        )
    if scheme == "hf":
        return "set HF_TOKEN, and accept the model's terms on its page"
    return f"credentials come from the environment, as fsspec's {scheme} takes them"


def _entry(found: Mapping[str, Any], address: str) -> Entry:
    name = str(found["name"]).rstrip("/").rpartition("/")[2]
    if found.get("type") == "directory":
        return Entry(name=name, kind="folder", size=0)
    size = found.get("size")
    if size is None:
        raise StoreError("failed", f"{masked(address)}: the store tells no size of {name!r}")
    return Entry(name=name, kind="file", size=int(size))
