"""How a command ends when it does not simply finish: one line on stderr, and the exit code that says whose fault it is.

0 done; 1 a cell or check failed, or the machine did; 2 bad input; 130 interrupted; 141 the reader of the output left.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from specgauge.exits import BAD_INPUT, DEBUG_VARIABLE, FAILED, INTERRUPTED, READER_LEFT, debug_by_environment

PROGRAM = "specgauge"
DEBUG_OPTION = "--debug"

_BAD_INPUT_ERRNOS = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.EROFS, errno.EINVAL),
)


class Interrupted(Exception):  # noqa: N818 (no error: the user asked for it)
    """The user pressed Ctrl-C; the message says what is kept."""


class ReaderLeft(Exception):  # noqa: N818 (no error: the reader has what it wanted)
    """Whatever read the output has closed it."""


# typer brings its own copy of click or uses the installed one, by release: take the class it really raises
_CLICK_ERROR: type[BaseException] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def debug_wanted(arguments: list[str]) -> tuple[bool, list[str]]:
    """Whether tracebacks are wanted, by option or environment, and the arguments without the option.

    The option may stand anywhere before ``--``, so that it can be added at the end of a line that failed.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != DEBUG_OPTION] + arguments[end:]
    return debug_by_environment() or len(kept) < len(arguments), kept


@contextmanager
def debug_for_workers(debug: bool) -> Iterator[None]:
    """Let the processes that a command starts know whether tracebacks are wanted: 1 or 0 in their environment."""
    before = os.environ.get(DEBUG_VARIABLE)
    os.environ[DEBUG_VARIABLE] = "1" if debug else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DEBUG_VARIABLE]
        else:
            os.environ[DEBUG_VARIABLE] = before


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Take the signal by which schedulers end a job for a Ctrl-C, so that it says as well what is kept."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def tell(error: BaseException, *, debug: bool) -> int:
    """Tell ``error`` in one line on stderr, after its traceback where ``debug``; returns the exit code."""
    if isinstance(error, (ReaderLeft, BrokenPipeError)):
        return READER_LEFT
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    code, message = _code_and_message(error)
    print(f"{PROGRAM}: {_one_line(message)}", file=sys.stderr)
    return code


def _code_and_message(error: BaseException) -> tuple[int, str]:
    match error:
        case Interrupted():
            return INTERRUPTED, str(error)
        case KeyboardInterrupt() | typer.Abort():
            return INTERRUPTED, "interrupted"
        case _ if isinstance(error, _CLICK_ERROR):
            return BAD_INPUT, _usage_message(error)
        case ValueError():
            return BAD_INPUT, str(error)
        case OSError():
            return (BAD_INPUT if error.errno in _BAD_INPUT_ERRNOS else FAILED), _os_message(error)
        case MemoryError():
            return FAILED, "out of memory"
        case ModuleNotFoundError() if error.name and not error.name.startswith(PROGRAM):
            return FAILED, f"needs the package {error.name!r}, which is not installed; pip install {error.name}"
        case _:
            about = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return FAILED, f"a bug in specgauge, {about} (run again with {DEBUG_OPTION} to see where)"


def _usage_message(error: BaseException) -> str:
    message = str(getattr(error, "format_message", error.__str__)()).strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}{'' if message.endswith('?') else ';'} see {context.command_path} --help"


def _os_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    places = [str(place) for place in (error.filename, error.filename2) if place is not None]
    return ": ".join([*places, error.strerror])


def _one_line(message: str) -> str:
    """The message without line breaks, and with what a terminal would obey made visible."""
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
