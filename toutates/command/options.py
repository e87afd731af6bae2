"""Makes the server's ``Options`` of settings, and checks settings that depend on each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from toutates.api.rest.handler import RestSettings
from toutates.api.restrictions import FLAG, HTTP_FLAG, RestrictedProtocol, parse_restrictions
from toutates.api.text.handler import TextSettings
from toutates.api.text.proxy import read_proxy_settings
from toutates.command.flags import FLAGS, LIMIT, LIMITS
from toutates.command.settings import Settings
from toutates.command.tls_options import plain_ways, tls_files
from toutates.h2grpc import Limits
from toutates.infer.tracing.configuration import read_trace_options
from toutates.repositories.specification import Specification, read_specifications
from toutates.server.options import Options, TorchServeOptions
from toutates.system.errors import ConfigurationError

__all__ = ["make_options", "repositories"]


def make_options(settings: Settings) -> Options:
    """Make the options.

    Raises:
        ConfigurationError: settings do not go together.
    """
    known = {field.name for field in fields(Options)}
    taken = {flag.option or name.replace("-", "_"): settings[name] for name, flag in FLAGS.items() if name != "limit"}
    values: dict[str, Any] = {option: value for option, value in taken.items() if value is not None and option in known}
    try:
        return Options(
            **values
            | {
                "model_repositories": repositories(settings, settings["model-repository"]),
                "load_models": _models_to_load(settings),
                "grpc_compression": settings["grpc-compression"].replace("none", ""),
                "grpc_forwarded": _pattern(settings, "grpc-header-forward-pattern"),
                "metrics_addr": settings["metrics-addr"],
                "http_addr": settings["http-addr"],
                "rest": RestSettings(
                    settings["http-max-input-size"],
                    parse_restrictions(settings["http-restricted-api"], HTTP_FLAG),
                    _pattern(settings, "http-header-forward-pattern"),
                    settings["cors-origin"] or (),
                    settings["http-half-close"],
                ),
                "max_concurrent_connections": settings[LIMIT + "connections"],
                "max_buffered_bytes": settings[LIMIT + "server_buffer"],
                "limits": _limits(settings),
                "restricted_protocols": parse_restrictions(settings["grpc-restricted-protocol"]),
                "tls": tls_files(settings),
                "torchserve": _torchserve(settings),
                "text": TextSettings(read_proxy_settings(os.environ)),
                "tracing": read_trace_options(
                    os.environ,
                    endpoint=settings["trace-endpoint"],
                    levels=settings["trace-level"],
                    rate=settings["trace-rate"],
                    count=settings["trace-count"],
                ),
                "warnings": (*settings.warnings, *_open_ways(settings), *plain_ways(settings, tls_files(settings))),
            }
        )
    except ConfigurationError as error:
        raise settings.located(error) from None


def repositories(settings: Settings, places: tuple[str, ...], flag: str = "") -> tuple[Specification, ...]:
    """The repositories to serve.

    Args:
        settings: which have those of S3.
        places: directories and locations on S3.
        flag: what the command line calls ``places``, for errors; "" for --model-repository.

    Raises:
        ConfigurationError: there is none, or one cannot be used.
    """
    return read_specifications(
        places,
        endpoint=settings["s3-endpoint"],
        bucket=settings["s3-bucket"],
        prefix=settings["s3-prefix"],
        region=settings["s3-region"],
        **({"flag": flag} if flag else {}),
    )


def _limits(settings: Settings) -> Limits:
    """The limits of a connection; limits of the whole server are fields of ``Options``."""
    by_field = {
        limit.option: LIMIT + name for name, limit in LIMITS.items() if name not in ("connections", "server_buffer")
    }
    try:
        return Limits(**{field: settings[name] for field, name in by_field.items()})
    except ValueError as error:
        # "max_frame_size is 1, must lie in ..."
        field, _, problem = str(error).partition(" ")
        raise settings.refused(by_field[field], problem) from None


def _models_to_load(settings: Settings) -> tuple[str, ...] | None:
    """Names of the models to load at the start; None for all."""
    listed: tuple[str, ...] | None = settings["load-models"]
    named: tuple[str, ...] = settings["load-model"]
    mode = settings["model-control-mode"]
    if settings["model-memory"] is not None and mode != "on-demand":
        raise ConfigurationError(
            "is of use only with --model-control-mode on-demand",
            key="--model-memory",
            value=settings["model-memory"],
            remedy="add that flag, or leave this one out",
        )
    if mode not in ("explicit", "on-demand"):
        if named:
            raise ConfigurationError(
                "is of use only with --model-control-mode explicit or on-demand",
                key="--load-model",
                value=named[0],
                remedy="add that flag, or name the models by --load-models",
            )
        return listed
    if "" in named:
        raise ConfigurationError("is empty", key="--load-model", remedy="name a model, or write '*' for all")
    if "*" in named:
        if set(named) != {"*"} or listed is not None:
            raise ConfigurationError(
                "'*' means all models, so no other may be named",
                key="--load-model",
                remedy="leave out '*', or the others",
            )
        return None
    return tuple(dict.fromkeys((*(listed or ()), *named)))


def _pattern(settings: Settings, flag: str) -> re.Pattern[str] | None:
    """The names of header fields that are forwarded."""
    text: str | None = settings[flag]
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise ConfigurationError(
            f"is no regular expression: {error}",
            key=f"--{flag}",
            value=str(text),
            remedy="write one such as ^x-",
        ) from None


def _torchserve(settings: Settings) -> TorchServeOptions | None:
    """TorchServe's APIs; None where they are not wanted."""
    store: Path | None = settings["torchserve-model-store"]
    if store is not None and not store.is_dir():
        raise ConfigurationError(
            "is no directory", key="--torchserve-model-store", value=str(store), remedy="name that of the archives"
        )
    if not settings["torchserve-api"]:
        for flag in ("torchserve-model-store", "torchserve-allowed-urls"):
            if settings[flag] is not None:
                raise ConfigurationError(
                    "is of use only with --torchserve-api",
                    key=f"--{flag}",
                    value=str(settings[flag]),
                    remedy="add that flag, or leave this one out",
                )
        return None
    return TorchServeOptions(
        settings["torchserve-management-addr"],
        store,
        settings["torchserve-allowed-urls"] or (),
    )


def _open_ways(settings: Settings) -> list[str]:
    """What an operator of API keys may not expect: that the v2 protocol asks for none."""
    grpc = parse_restrictions(settings["grpc-restricted-protocol"])
    rest = parse_restrictions(settings["http-restricted-api"], HTTP_FLAG)
    restricted = [name for name, groups in ((FLAG, (grpc,)), (HTTP_FLAG, (grpc, rest))) if _inference_in(groups)]
    if settings["metrics-tls"] and settings["tls-cert"] is None:
        raise ConfigurationError(
            "needs a certificate", key="--metrics-tls", value="true", remedy="add --tls-cert FILE and --tls-key FILE"
        )
    if settings["access-file"] is not None and settings["api-key-file"] is not None:
        raise ConfigurationError(
            "does not go with --access-file, which says who may use the APIs for text too",
            key="--api-key-file",
            value=str(settings["api-key-file"]),
            remedy="write its keys into that file, and leave this flag out",
        )
    if settings["api-key-file"] is None or len(restricted) == 2:
        return []
    return [
        "--api-key-file is for the APIs for text: the v2 protocol runs the same models without a key; "
        f"{FLAG} inference:KEY=VALUE restricts it, over HTTP too"
    ]


def _inference_in(groups: Iterable[tuple[RestrictedProtocol, ...]]) -> bool:
    return any("inference" in one.protocols for group in groups for one in group)
