"""Files and folders that an option names for what a command finds; only ``--overwrite`` lets one be replaced."""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from plesio.core.errors import ConfigError
from plesio.core.files import make_writable, write_whole


def check_output_file(option: str, path: Path | None, *, overwrite: bool) -> None:
    """Say what is wrong with a file's name before anything is measured; None is no file.

    Raises:
        ConfigError: It is in no folder, or is one; or it is there, and is not to be overwritten.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; write a file's name")
    if path.exists() and not overwrite:
        raise ConfigError(f"{option} {path} is there already: add --overwrite to replace it, or write another name")


def check_output_files(files: Mapping[str, Path | None], *, overwrite: bool) -> None:
    """Check the files of a command that writes no others, by the options that name them; None is no file.

    Raises:
        ConfigError: One of them cannot be written (`check_output_file`), or there is none to overwrite.
    """
    for option, path in files.items():
        check_output_file(option, path, overwrite=overwrite)
    if overwrite and not any(files.values()):
        raise ConfigError(f"--overwrite replaces what {' or '.join(files)} names: write that too, or leave it out")


def prepare_pages(out: Path | None, *names: str, json_file: Path | None, overwrite: bool) -> None:
    """Make sure that files with these names can be written to ``--out``, and ``--json``; None is nowhere.

    Raises:
        ConfigError: They cannot; or one is there, and is not to be overwritten; or there is none to overwrite.
    """
    check_output_file("--json", json_file, overwrite=overwrite)
    make_writable(out, "results")
    for name in names:
        path = None if out is None else out / name
        check_output_files({"--out": path, "--json": json_file}, overwrite=overwrite)


@contextmanager
def prepared_folder(
    out: Path, *, resume: bool | None = None, overwrite: bool, names: Sequence[str] = ()
) -> Iterator[None]:
    """Have a folder to write to in this context; one in which no run has begun when an error ends it is removed again.

    ``overwrite`` removes what has ``names``, the command's output; ``resume`` is None where a command cannot go on.

    Raises:
        ConfigError: It holds something and the user did not say what to do with it, or it cannot be written to.
    """
    if resume and overwrite:
        raise ConfigError("--resume keeps what is in the folder and --overwrite removes it: write one of them")
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    make_writable(out, "results")
    try:
        if not (resume or overwrite or _holds_nothing(out)):
            ways = (
                "--overwrite to start anew"
                if resume is None
                else "--resume to go on there, or --overwrite to start anew"
            )
            raise ConfigError(f"{out} is not empty: add {ways}")
        for name in names if overwrite else ():
            _remove(out / name)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {out}: {error.strerror}") from None
    try:
        yield
    except Exception:
        from plesio.bench.setting import OUTPUT_NAME, SETTING_NAME

        if not resume and next(out.rglob("results.json"), None) is None:
            own = (path for name in names for path in (out / name).rglob("*") if path.name != OUTPUT_NAME)
            for path in (*own, *out.glob(SETTING_NAME), *out.glob(f"*/{SETTING_NAME}")):
                if not path.is_dir():
                    path.unlink()
            inner = sorted((path for path in out.rglob("*") if path.is_dir()), reverse=True)
            for folder in (*inner, *missing):
                with suppress(OSError):  # it holds something
                    folder.rmdir()
        raise


def _holds_nothing(folder: Path) -> bool:
    """Return whether nothing is there but what runs have printed that never began."""
    from plesio.bench.setting import OUTPUT_NAME

    return all(path.name == OUTPUT_NAME for path in folder.rglob("*") if not path.is_dir())


def unused_folder(base: Path) -> Path:
    """Return ``base``, or if it holds something the first of ``base-2``, ``base-3`` and so on that does not."""
    names = itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
    return next(path for path in names if not path.exists() or (path.is_dir() and _holds_nothing(path)))


def folder_of(out: Path | None, file: Path, *, anew: bool) -> Path:
    """Return ``--out``, or without it a folder called as the file: ``anew``, one that holds nothing yet."""
    if out is not None:
        return out
    base = Path("runs", file.stem)
    return unused_folder(base) if anew else base


def write_json(path: Path | None, values: object) -> None:
    """Write the numbers that ``--json`` asks for, and print the file's name; None is no file."""
    if path is not None:
        from plesio.core.records import to_json

        write_whole(path, json.dumps(to_json(values), indent=1, allow_nan=False) + "\n")
        typer.echo(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
