"""Files: atomic writes, JSON that is checked as it is read, hashes and locks.

What is written here is there completely or not at all, whenever the machine stops.
"""

import dataclasses
import errno
import hashlib
import json
import os
import platform
import re
import reprlib
import shutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes from training in one folder.
    fcntl = None  # type: ignore[assignment]

# Folders may be shared between machines; only this machine's processes can be asked for.
HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node())
# Errors of file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)

FULL = (errno.ENOSPC, errno.EDQUOT)

# What people call the types of JSON.
NOUNS = {
    int: "a whole number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
    Sequence: "a list",
}

Record = TypeVar("Record")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary name, sync, rename, sync the folder.

    Args:
        write: makes the file at the path it is given.
    """
    temporary = temporary_of(path)
    # What a killed process left, or a link that would lead the write elsewhere.
    temporary.unlink(missing_ok=True)
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode
    try:
        write(temporary)
        # As the umask has it: some writers make files that only their owner may read.
        temporary.chmod(mode)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if is_disk_full(error):
            raise OSError(f"The disk is full: {path} was not written.") from error
        raise
    _sync(path.parent)


def temporary_of(path: Path) -> Path:
    """The name under which a file is written before it takes its place."""
    return path.with_name(f".{path.name}.new")


def read_json(path: Path) -> Any:
    """What a JSON file holds; every error is a ValueError that names the file."""
    check_plain(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise ValueError(f"{path} could not be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} must be JSON, got too deep a nest") from None
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {error}") from None


def check_plain(path: Path) -> None:
    """Raise for a pipe or a device: one could read from it for ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path} must be a plain file, got a pipe or a device")


def _no_number(text: str) -> None:
    raise ValueError(f"{text} instead of a number")


def without_format(content: Any, name: str, version: int) -> dict[str, Any]:
    """The other fields of what `json.loads` gave, if it is of this format and version."""
    if not isinstance(content, Mapping):
        raise ValueError(f"it must be an object, got {reprlib.repr(content)}")
    values = dict(content)
    found = (values.pop("format", None), values.pop("version", None))
    if found != (name, version):
        raise ValueError(
            f"it must have format {name!r} and version {version}, got "
            f"{reprlib.repr(found[0])} and {reprlib.repr(found[1])}"
        )
    return values


def from_json(kind: type[Record], values: Any, name: str = "") -> Record:
    """A dataclass from what `json.loads` gave: each field has the type that it is declared with.

    Args:
        name: of the field that holds it, for errors.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name or 'the content'} must be an object, got {reprlib.repr(values)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    prefix = f"{name}." if name else ""
    if unknown := sorted(set(values) - set(fields)):
        raise ValueError(f"{prefix or 'it '}must have known fields only, got {unknown[0]!r:.80}")
    hints = get_type_hints(kind)
    for field in fields.values():
        is_needed = field.default is field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in values:
            raise ValueError(f"{prefix}{field.name} is missing")
    found = {key: checked(hints[key], value, prefix + key) for key, value in values.items()}
    return kind(**found)


def checked(hint: Any, value: Any, name: str) -> Any:
    """The value if it has the declared type; a list as a tuple, an object as a dataclass.

    Text becomes the member of an enum.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_json(hint, value, name)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(checked(Literal[*map(str, hint)], value, name))
    if origin in (Union, types.UnionType):
        return _checked_union(arguments, value, name)
    if hint is Any and isinstance(value, list):
        return tuple(checked(Any, item, name) for item in value)
    if origin in (tuple, Sequence) and isinstance(value, list | tuple):
        return tuple(checked(arguments[0], item, name) for item in value)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: checked(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is Literal:
        # True equals 1 in Python.
        is_right = any(value == one and type(value) is type(one) for one in arguments)
        wanted = f"one of {', '.join(map(str, arguments))}"
    elif hint is float:
        # A whole number is a fine float; one that is too large for a float is not.
        is_right = type(value) in (int, float) and abs(value) <= sys.float_info.max
        wanted = "a number"
    else:
        is_right = hint is Any or type(value) is hint
        wanted = NOUNS.get(origin or hint, "an object")
    if not is_right:
        raise ValueError(f"{name} must be {wanted}, got {reprlib.repr(value)}")
    return value


def _checked_union(hints: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    *others, last = (hint for hint in hints if hint is not types.NoneType)
    for hint in others:
        try:
            return checked(hint, value, name)
        except ValueError:
            pass
    return checked(last, value, name)


@contextmanager
def new_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that takes its place at the end.

    Its files are synced first. On any error, Ctrl-C included, it is removed and `target` stays as
    it was. What a killed process left behind is cleared by the next call.

    Args:
        replace: whether `target` may exist; it is removed once the new folder is in its place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(target)
    folder = target.with_name(f".{target.name}-{HOST}-{os.getpid()}-{uuid4().hex[:8]}")
    folder.mkdir()
    try:
        with explained_full_disk(target):
            yield folder
            for path in (*folder.iterdir(), folder):
                _sync(path)
            _move(folder, target, replace)
            _sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers(target: Path) -> None:
    """Remove temporary folders of dead processes; restore a target that one had moved away."""
    if not target.parent.is_dir():
        return
    pattern = re.compile(re.escape(f".{target.name}-{HOST}-") + r"(\d+)-[0-9a-f]{8}(-old)?")
    for folder in sorted(target.parent.iterdir()):
        match = pattern.fullmatch(folder.name)
        if match is None or _is_alive(int(match[1])):
            continue
        if match[2] and not target.exists():
            os.rename(folder, target)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    """Whether there is such a process; True where that cannot be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _move(folder: Path, target: Path, replace: bool) -> None:
    if not (replace and target.exists()):
        os.rename(folder, target)
        return
    old = folder.with_name(folder.name + "-old")
    os.rename(target, old)
    try:
        os.rename(folder, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    # Windows cannot open folders, and writes their entries at once.
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether that is the reason, also behind an error of torch's or safetensors'."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        # safetensors has errors of its own, with the system's number in the message.
        if any(str(error).endswith(f"(os error {number})") for number in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def explained_full_disk(target: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that names `target` and a way out."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise OSError(
            f"The disk is full: {target} was not written. Free some space, "
            "or choose another place with --cache DIR"
        ) from error


def check_writable(path: Path) -> None:
    """Raise unless a file can be written at this path; nothing is left there."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"the output must be a file, got the folder {path}")
    if os.path.lexists(path) and not (path.is_file() and os.access(path, os.W_OK)):
        raise ValueError(f"the output must be a file that can be written, got {path}")
    if not folder.is_dir():
        raise ValueError(f"the output's folder must exist, got {path}: run mkdir -p {folder}")
    try:
        # Permissions are not enough: /proc and full disks have them. The file has no name.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"the output's folder must be writable, got {folder} ({error.strerror})"
        ) from None


def path_text(path: str) -> str:
    """A name of a file as text, whatever the locale; bytes that are no UTF-8 stay as they are.

    Under LC_ALL=C Python has each byte beyond ASCII as a surrogate.
    """
    try:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return path


def clear_temporaries(paths: Iterable[Path]) -> None:
    """Remove what a process left that was killed while it wrote one of these files."""
    for path in paths:
        temporary_of(path).unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock_file(handle: int, is_shared: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process has it locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def final_name(folder: Path) -> str:
    """The name of a folder, or that which a temporary one of `new_folder` is going to have."""
    name = folder.resolve().name
    found = re.fullmatch(rf"\.(.+)-{re.escape(HOST)}-\d+-[0-9a-f]{{8}}", name)
    return name if found is None else found[1]
