"""Makes settings of the server out of flags of ``tritonserver`` (``triton_flags``).

Most flags become one setting, a warning or an error, as their row of the table says. The others are read together:
host, port and switch of an address, the switches of the log, the files of TLS, and values that are settings themselves.
What such flags leave open has Triton's default.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toutates.command.flags import FLAGS
from toutates.command.triton_flags import TRITON_FLAGS, TritonFlag, Verdict, effect
from toutates.system.address import INFERENCE_PORTS, Address
from toutates.system.errors import ConfigurationError

__all__ = ["GRPC_CERT", "PROGRAM", "Translation", "defaults_of"]

#: Triton's command; started as this, the server has metrics where Triton has them.
PROGRAM: Final = "tritonserver"

#: The flag whose certificate is for gRPC alone.
GRPC_CERT: Final = "--grpc-server-cert"

_ANY_HOST: Final = "0.0.0.0"
#: Addresses: what their flags are about, the setting, and Triton's port.
_ADDRESSES: Final = (("grpc", "grpc-addr", 8_001), ("http", "http-addr", 8_000), ("metrics", "metrics-addr", 8_002))
_THREADS: Final = {
    "onnxruntime,intra_op_thread_count": "ort-intra-threads",
    "onnxruntime,inter_op_thread_count": "ort-inter-threads",
}
_TRACE_SETTINGS: Final = {"level": "trace-level", "rate": "trace-rate", "count": "trace-count"}
#: Links of the docs, of which a warning shows the text alone.
_LINK: Final = re.compile(r"\[([^][]*+)\]\([^()]*+\)")


class Translation:
    """What flags of tritonserver come to.

    Args:
        given: the texts of their values, by name; of flags that the server has not under the same name.

    Attributes:
        settings: by name of a setting, the texts of its values and the flags that they come from.
        warnings: a sentence for each flag that has no effect here.
        problems: flags that are refused, and values that cannot be read.
    """

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self.settings: dict[str, tuple[tuple[str, ...], str]] = {}
        self.warnings: list[str] = []
        self.problems: list[ConfigurationError] = []
        #: Of flags that are read together with others, the values.
        self._values: dict[str, list[Any]] = {}
        off = _of_ports_that_are_off(given)
        for name, texts in given.items():
            if name not in off:
                self._take(TRITON_FLAGS[name], texts)
        self._read_addresses(_metrics_host(given))
        self._read_sharing()
        self._read_log_level()
        self._read_tls()
        self._read_traces()
        self._read_backends()
        self._read_cache()

    def _take(self, flag: TritonFlag, texts: Sequence[str]) -> None:
        values = []
        for text in texts:
            try:
                values.append(flag.read(text))
            except argparse.ArgumentTypeError as error:
                remedy = "see docs/migrating-from-triton.md"
                self.problems.append(ConfigurationError(f"argument --{flag.name}: {error}", remedy=remedy))
                return
        verdict, note = effect(flag, FLAGS)
        if verdict is Verdict.WORKS and flag.setting:
            self._put(flag.setting, values, flag.name)
        elif verdict is Verdict.WORKS:
            self._values[flag.name] = values
        elif flag.harmless is not None and all(value == flag.harmless for value in values):
            return
        elif verdict is Verdict.REFUSED:
            # Without the value, which may hold a secret.
            self.problems.append(ConfigurationError(_plain(note), key=f"--{flag.name}", remedy=flag.remedy))
        else:
            self._warn(f"--{flag.name} has no effect: {note}")

    def _put(self, setting: str, texts: Sequence[str], *flags: str) -> None:
        self.settings[setting] = (tuple(texts), " ".join(f"--{name}" for name in flags))

    def _warn(self, text: str) -> None:
        self.warnings.append(_plain(text))

    def _last(self, name: str, otherwise: Any) -> Any:
        return self._values[name][-1] if name in self._values else otherwise

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if name in self._values]

    def _read_addresses(self, metrics_host: str) -> None:
        for about, setting, port in _ADDRESSES:
            allow, parts = f"allow-{about}", (f"{about}-address", f"{about}-port")
            if not self._last(allow, True):
                self._put(setting, ["off"], allow)
            elif given := self._given(*parts):
                host = metrics_host if about == "metrics" else self._last(parts[0], _ANY_HOST)
                address = Address(host.strip("[]"), self._last(parts[1], port))
                self._put(setting, [str(address)], *given)

    def _read_sharing(self) -> None:
        given = self._given("reuse-grpc-port", "reuse-http-port")
        if given:
            chosen = [about for about in INFERENCE_PORTS if self._last(f"reuse-{about}-port", False)]
            text = chosen[0] if len(chosen) == 1 else str(bool(chosen)).lower()
            self._put("reuse-port", [text], *given)

    def _read_log_level(self) -> None:
        given = self._given("log-verbose", "log-info", "log-warning")
        if not given:
            return
        levels = {
            "debug": self._last("log-verbose", 0) > 0,
            "info": self._last("log-info", True),
            "warning": self._last("log-warning", True),
            "error": True,
        }
        self._put("log-level", [next(level for level, is_on in levels.items() if is_on)], *given)

    def _read_tls(self) -> None:
        mutual = self._last("grpc-use-ssl-mutual", False)
        # The second flag turns TLS on whatever its value is, as with Triton.
        asked_by = "grpc-use-ssl" if self._last("grpc-use-ssl", False) else ""
        asked_by = "grpc-use-ssl-mutual" if "grpc-use-ssl-mutual" in self._values else asked_by
        files = {"grpc-server-cert": "tls-cert", "grpc-server-key": "tls-key"}
        files |= {"grpc-root-cert": "tls-client-ca"} if mutual else {}
        missing = [f"--{name}" for name in files if name not in self._values]
        if asked_by and missing:
            needed = " and ".join(missing)
            self.problems.append(ConfigurationError(f"needs {needed} too", key=f"--{asked_by}", remedy=f"add {needed}"))
        for name in self._given("grpc-server-cert", "grpc-server-key", "grpc-root-cert"):
            if asked_by and name in files:
                self._put(files[name], [self._last(name, "")], name)
            elif asked_by:
                self._warn(f"--{name} has no effect without --grpc-use-ssl-mutual=true: clients need no certificate")
            else:
                self._warn(f"--{name} has no effect without --grpc-use-ssl=true: connections are not encrypted")

    def _read_traces(self) -> None:
        if "trace-config" not in self._values:
            return
        found: dict[str, list[str]] = {}
        for text in self._values["trace-config"]:
            key, equals, value = text.partition("=")
            if key and equals:
                found.setdefault(key, []).append(value)
            else:
                remedy = "write --trace-config=rate=100 or --trace-config=opentelemetry,url=URL"
                self.problems.append(
                    ConfigurationError("is not [MODE,]SETTING=VALUE", key="--trace-config", remedy=remedy)
                )
        levels = found.get("level", ["OFF"])
        if found.pop("mode", ["triton"])[-1] != "opentelemetry":
            if set(levels) == {"OFF"}:
                self._put("trace-level", levels, "trace-config")
            else:
                self._warn(
                    "--trace-config has no effect: no trace file is written; to send traces to a collector, add "
                    "--trace-config=mode=opentelemetry and --trace-config=opentelemetry,url=URL"
                )
            return
        self._put("trace-level", levels, "trace-config")
        for key in ("rate", "count"):
            if key in found:
                self._put(_TRACE_SETTINGS[key], found[key], "trace-config")
        if "opentelemetry,url" in found:
            self._put("trace-endpoint", found["opentelemetry,url"][-1:], "trace-config")
        others = sorted(set(found) - {*_TRACE_SETTINGS, "opentelemetry,url"})
        if others:
            self._warn(f"--trace-config has no effect for {', '.join(others)}: see tracing.md for what there is")

    def _read_backends(self) -> None:
        others: list[str] = []
        for text in self._values.get("backend-config", ()):
            key, _, value = text.partition("=")
            if key in _THREADS and value != "0":  # which means all CPUs
                self._put(_THREADS[key], [value], "backend-config")
            else:
                others.append(key)
        if others:
            settings = ", ".join(dict.fromkeys(others))
            self._warn(f"--backend-config has no effect for {settings}: write it in the models' configurations")

    def _read_cache(self) -> None:
        """One cache, ``local``, with its size; the errors are Triton's."""
        found: dict[str, dict[str, str]] = {}
        for text in self._values.get("cache-config", ()):
            name, comma, setting = text.partition(",")
            key, equals, value = setting.partition("=")
            if not (name and comma and key and equals):
                problem = "No cache specified. " if comma and not name else ""
                problem += f"--cache-config option format is <cache name>,<setting>=<value>. Got {_name_of(text)}"
                self._refuse_cache(problem)
                return
            found.setdefault(name, {})[key] = value
        if len(found) > 1:
            self._refuse_cache("found multiple cache configurations, but only a single cache is currently supported")
            return
        for name, settings in found.items():
            if name != "local":
                self._refuse_cache(f"unable to find 'libtritoncache_{name}.so' for cache. There is only 'local'")
            elif "size" not in settings:
                self._refuse_cache("Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
            else:
                self._put("response-cache-byte-size", [settings["size"]], "cache-config")

    def _refuse_cache(self, problem: str) -> None:
        self.problems.append(ConfigurationError(problem, key="--cache-config", remedy="write local,size=BYTES"))


def _name_of(text: str) -> str:
    """A setting of a cache without its value, which may hold a secret."""
    return text.partition("=")[0]


def _plain(note: str) -> str:
    """A note of the table without its Markdown."""
    return _LINK.sub(r"\1", note).replace("`", "")


def _of_ports_that_are_off(given: Mapping[str, Sequence[str]]) -> set[str]:
    """Flags that say where to listen, and are not looked at: scripts switch a port off and leave them as they are."""
    found = set()
    for about in ("http", "metrics"):  # gRPC is always on
        try:
            is_on = TRITON_FLAGS[f"allow-{about}"].read(given.get(f"allow-{about}", ["true"])[-1])
        except argparse.ArgumentTypeError:
            is_on = True
        if not is_on:
            found |= {f"{about}-address", f"{about}-port"}
    return found


def _metrics_host(given: Mapping[str, Sequence[str]]) -> str:
    return (given.get("metrics-address") or given.get("http-address") or [_ANY_HOST])[-1]


def defaults_of(program: str, given: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Defaults of a command that differ from the server's own, by setting.

    Args:
        program: the command, such as "tritonserver".
        given: as for ``Translation``.
    """
    return {"metrics-addr": str(Address(_metrics_host(given), 8_002))} if program == PROGRAM else {}
