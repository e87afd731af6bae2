"""Runs a server in Trio, with the errors that end it in the form of the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from toutates.server.options import EXIT_FAILURE
from toutates.system.errors import ConfigurationError

__all__ = ["run_logged"]

logger = logging.getLogger(__name__)


def run_logged(make: Callable[[], Callable[[], Awaitable[int]]]) -> int:
    """Make a server and run it; returns the process's exit code.

    Args:
        make: makes it; returns what runs it, and returns the exit code.

    Raises:
        ConfigurationError: the server cannot be made, or has raised it.
    """
    try:
        return trio.run(make())
    except BaseExceptionGroup as group:
        configuration, rest = group.split(ConfigurationError)
        if rest is None and configuration is not None:
            raise _first(configuration) from None
        _log_failure(group)
    except ConfigurationError:
        raise
    except Exception as error:
        _log_failure(error)
    return EXIT_FAILURE


def _log_failure(error: BaseException) -> None:
    """Log an unexpected error with its traceback, in the form of the log and not of Python."""
    if not isinstance(error, Exception):  # such as a group with a KeyboardInterrupt
        raise error
    logger.critical("the server failed, and ends", exc_info=error)


def _first(group: BaseExceptionGroup[ConfigurationError]) -> ConfigurationError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigurationError)
    return error
