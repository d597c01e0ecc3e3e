"""What of the user's own a command needs elsewhere: its words with their files beside it, and asap_ray as a wheel.

The wheel is shipped, not the working tree: nothing goes along that git ignores, nothing that lies about, and conf/ and
knowledge/ are in it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution, version
from pathlib import Path, PurePosixPath

from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.redaction import hidden
from asap_ray.settings import data_dir, own_files

PACKAGE = "asap-ray"
INPUTS = "inputs"
FILES = ("model.hf_config", "baseline", "command.script", "agents.policy")
"""Keys whose values may be the path of a file of the user's."""
LISTS = ("validate.tables", "calibrate.tables", "compare.tables")
"""Keys that name several."""
OURS = ("task", "run_dir", "ray.address", "output")
"""Keys that the launched command has values of its own for."""
BUILD_S = 600
MOST_BYTES = 256 * 2**20
"""Of all files of a wheel; ours have some MB."""
PINNED = ("ray", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt", "flax", "optax", "optuna", "numpy")


def shipped_words(config: Config) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """The words of the command to launch, and the user's files that they name, by their paths in `inputs/`.

    Raises:
        ConfigError: a file cannot be read, or a word holds a secret.
    """
    files: dict[str, bytes] = {}
    found = [f"task={config.launch.task}"] if config.launch.task != "tune" else []
    for word in config.words:
        key, _, value = word.lstrip("+").partition("=")
        if key in OURS or key.startswith("launch."):
            continue
        if hidden(word, os.environ) != word:
            allowed = "no secret, which would stand in the files that are written: give it by name, command.env=[NAME]"
            raise ConfigError(key, "(hidden)", allowed)
        found.append(_shipped(config, key, value, word, files))
    return tuple(found), files


def _shipped(config: Config, key: str, value: str, word: str, files: dict[str, bytes]) -> str:
    if key == "config_dir" and config.config_dir is not None:
        for path in own_files(config.config_dir):
            files[f"conf/{path.relative_to(config.config_dir)}"] = _read(key, path)
        return f"config_dir={INPUTS}/conf"
    path = Path(os.path.expanduser(value.strip("'\"")))
    if key in FILES and path.is_file():
        return f"{key}={_add(files, key, path)}"
    if key in LISTS and value != "null":
        tables = getattr(config, key.partition(".")[0]).tables or []
        return f"{key}=[{','.join(_add(files, key, Path(os.path.expanduser(table))) for table in tables)}]"
    return f"+{word}" if key == "model" and not word.startswith("+") else word


def _add(files: dict[str, bytes], key: str, path: Path) -> str:
    """Take a file along; returns its path there, which no shell and no grammar has to quote. Its folder's name stays,
    since a model is called after it, and two files of one name stay apart."""
    folder, name = (re.sub(r"[^\w.+-]", "_", text) for text in (path.absolute().parent.name, path.name))
    data, count = _read(key, path), 1
    place = f"{key}/{folder}/{name}"
    while files.get(place, data) != data:
        count += 1
        place = f"{key}/{folder}-{count}/{name}"
    files[place] = data
    return f"{INPUTS}/{place}"


def _read(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(key, path, f"a file that can be read ({error.strerror or error})") from error


def wheel_of(config: Config, folder: Path) -> Path:
    """The wheel of asap_ray in a folder: the one that was given, or one made of what runs now, checkout or installed.

    Raises:
        ConfigError: the file that was given is none.
        AsapError: the wheel cannot be built.
    """
    given = config.launch.wheel
    if given is not None:
        path = Path(os.path.expanduser(given))
        if path.suffix != ".whl" or not _is_wheel(path):
            raise ConfigError("launch.wheel", given, "the path of a wheel, asap_ray-….whl")
        (folder / path.name).write_bytes(path.read_bytes())
        return folder / path.name
    root = data_dir("conf").parent
    return _built(root, folder) if (root / "pyproject.toml").is_file() else packed_again(distribution(PACKAGE), folder)


def _is_wheel(path: Path) -> bool:
    """Whether a file is an archive of files that lie where they are unpacked, all whole and of a size to be shipped."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [PurePosixPath(each.filename) for each in archive.filelist]
            inside = not any(name.is_absolute() or ".." in name.parts for name in names)
            small = sum(each.file_size for each in archive.filelist) <= MOST_BYTES
            return inside and small and archive.testzip() is None
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False


def _built(root: Path, folder: Path) -> Path:
    """With the backend that is installed here where there is one, so that no network is needed."""
    isolated = [] if _installed("hatchling") is None else ["--no-build-isolation"]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *isolated, "-w", place, str(root)]
        try:
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AsapError(f"no wheel can be built: {error}; launch.wheel=PATH takes one") from error
        built = next(Path(place).glob("*.whl"), None)
        if built is None:
            last = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
            raise AsapError(f"no wheel can be built: {' '.join(last)}; launch.wheel=PATH takes one")
        return built.rename(folder / built.name)


def packed_again(installed: Distribution, folder: Path) -> Path:
    """A wheel of an installed package of pure Python, of the files that its record names.

    Raises:
        AsapError: the record is missing, or a file that it names.
    """
    path = folder / f"{installed.name.replace('-', '_')}-{installed.version}-py3-none-any.whl"
    files = [each for each in installed.files or () if _is_carried(each)]
    try:
        contents = {each.as_posix(): each.read_binary() for each in files}
    except OSError as error:
        raise AsapError(f"the installed package is not whole: {error}; launch.wheel=PATH takes a wheel") from error
    record = next((name for name in contents if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        raise AsapError("the installed package has no record of its files; launch.wheel=PATH takes a wheel")
    del contents[record]
    lines = [f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in contents.items()]
    contents[record] = "".join((*lines, f"{record},,\n")).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


def _is_carried(path: PackagePath) -> bool:
    """Whether a file came from a wheel: not a script of this environment, compiled code, or an installer's note."""
    noted = path.parent.suffix == ".dist-info" and path.name in ("INSTALLER", "REQUESTED", "direct_url.json")
    return ".." not in path.parts and not path.is_absolute() and path.suffix != ".pyc" and not noted


def _record_hash(data: bytes) -> str:
    """As a wheel's record has it (PEP 376): URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def constraints() -> str:
    """The versions of this machine that figures depend on, for pip on the cluster."""
    return "".join(f"{name}=={found}\n" for name in PINNED if (found := _installed(name)) is not None)


def unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel (`wheel_of`) by their paths: of pure Python, they are an installed package as they lie."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, archive.read(name)
