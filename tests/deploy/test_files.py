"""The compose file, the Dockerfile and what they mount fit together, and fit the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
import yaml

from tests.deploy.support import DASHBOARDS, DEPLOY, ROOT, read_yaml
from toutates.command.main import parse_options
from toutates.server.options import Options

COMPOSE: Final = DEPLOY / "compose.yaml"
SERVICES: Final[dict[str, Any]] = read_yaml(COMPOSE)["services"]
#: A value that is given to something with such a name. The name of one of Kubernetes' secrets is none.
SECRET: Final = re.compile(r"(?i)(?:password|secret|token|api_key)\w*[\"']?\s*[:=]\s*(?!\[\]|[{\s]|\"\"|true|false)\S")
#: Instructions of the Dockerfile with their arguments, those of a stage under its name.
Stage = list[tuple[str, str]]


def stages() -> dict[str, Stage]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    found: dict[str, Stage] = {"": []}
    name = ""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, arguments = line.split(maxsplit=1)
            if instruction == "FROM":
                name = arguments.split(" AS ")[1]
                found[name] = []
            found[name].append((instruction, arguments))
    return found


VARIANTS: Final = [name for name in stages() if name.startswith("python-")]


def of_stage(instruction: str, name: str = "server") -> list[str]:
    return [arguments for one, arguments in stages()[name] if one == instruction]


def served() -> Options:
    """What the server in the compose file is told."""
    return parse_options(SERVICES["toutates"]["command"])


def mounts(service: str) -> dict[PurePosixPath, Path]:
    """By directory of the container, directory of the checkout."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        if volume.startswith("."):
            source, target, mode = volume.split(":")
            assert mode == "ro", volume
            found[PurePosixPath(target)] = (DEPLOY / source).resolve()
    return found


def mounted(service: str, path: str) -> Path:
    """The file of the checkout that a service finds there."""
    for target, source in mounts(service).items():
        if PurePosixPath(path).is_relative_to(target):
            return source / PurePosixPath(path).relative_to(target)
    raise AssertionError(f"{service} has nothing at {path}")


def ports(service: str) -> set[int]:
    """Ports of the container that are published; on this machine only, each on another port of it."""
    found = [port.split(":") for port in SERVICES[service]["ports"]]
    assert {host for host, _, _ in found} == {"127.0.0.1"}
    return {int(inner) for _, _, inner in found}


#: But for the templates of the chart, which are YAML when Helm has rendered them.
YAML_FILES: Final = sorted(path for path in DEPLOY.rglob("*.y*ml") if path.parent.name != "templates")


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_files_can_be_read(path: Path) -> None:
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(path.read_text()))


def test_docker_compose_takes_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker compose here")
    command = [docker, "compose", "-f", str(COMPOSE), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_no_two_services_publish_the_same_port() -> None:
    published = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(set(published)) == len(published) == 5


def test_the_server_has_the_flags_and_ports_that_it_is_given() -> None:
    options = served()
    assert options.metrics_addr is not None
    assert options.http_addr is not None
    assert ports("toutates") == {options.grpc_addr.port, options.http_addr.port, options.metrics_addr.port}
    assert options.grpc_addr.host == options.http_addr.host == options.metrics_addr.host == "0.0.0.0"
    [exposed] = of_stage("EXPOSE")
    assert {int(port) for port in exposed.split()} == ports("toutates")


def test_the_server_may_read_its_models_and_write_nothing() -> None:
    service = SERVICES["toutates"]
    [volume] = service["volumes"]
    assert volume == "${TOUTATES_MODELS:-models}:/models:ro"
    assert service["read_only"]
    assert "models" in read_yaml(COMPOSE)["volumes"]
    assert SERVICES["examples"]["volumes"] == ["models:/models"]
    assert service["depends_on"] == {"examples": {"condition": "service_completed_successfully"}}


def test_the_server_gets_the_time_to_stop_that_it_may_take() -> None:
    grace = SERVICES["toutates"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > served().shutdown_grace_s


def test_prometheus_scrapes_the_server() -> None:
    [flag] = [flag for flag in SERVICES["prometheus"]["command"] if flag.startswith("--config.file=")]
    path = mounted("prometheus", flag.removeprefix("--config.file="))
    config = read_yaml(path)
    assert [(path.parent / name).is_file() for name in config["rule_files"]] == [True]
    [job] = config["scrape_configs"]
    options = served()
    assert options.metrics_addr is not None
    assert job["static_configs"] == [{"targets": [f"toutates:{options.metrics_addr.port}"]}]


def test_the_alert_rules_know_the_job_by_its_name() -> None:
    [job] = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    jobs = set(re.findall(r'job="(.*?)"', (DEPLOY / "prometheus" / "alerts.yml").read_text()))
    for name in DASHBOARDS:
        jobs.update(re.findall(r'job=\\"(.*?)\\"', (DEPLOY / "grafana" / "dashboards" / name).read_text()))
    assert jobs == {job["job_name"]}


def test_grafana_finds_prometheus_and_its_dashboards() -> None:
    [source] = read_yaml(mounted("grafana", "/etc/grafana/provisioning/datasources/prometheus.yml"))["datasources"]
    [port] = ports("prometheus")
    assert source["url"] == f"http://prometheus:{port}"
    interval = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    [provider] = read_yaml(mounted("grafana", "/etc/grafana/provisioning/dashboards/toutates.yml"))["providers"]
    folder = mounted("grafana", provider["options"]["path"])
    assert sorted(path.name for path in folder.glob("*.json")) == list(DASHBOARDS)


def test_grafana_opens_with_the_dashboard_for_anybody_who_may_only_look() -> None:
    environment = SERVICES["grafana"]["environment"]
    home = mounted("grafana", environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert json.loads(home.read_text())["uid"] == "toutates"
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_no_file_holds_a_secret() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert not SECRET.search(path.read_text()), path


def test_images_have_a_version() -> None:
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


def test_the_dockerfile_has_the_stages_that_are_built_and_ends_with_the_server() -> None:
    assert list(stages())[-1] == "server"
    for name in ("examples", "toutates"):
        build = SERVICES[name]["build"]
        build = {**build.pop("<<", {}), **build}
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]) == DEPLOY / "Dockerfile"
        assert build["target"] in stages()


def test_each_variant_has_a_python_of_its_own_and_cpu_is_built_where_none_is_named() -> None:
    assert [of_stage("FROM", name) for name in ("build", "server")] == [
        ["python-${VARIANT} AS build"],
        ["python-${VARIANT} AS server"],
    ]
    assert VARIANTS == ["python-cpu", "python-gpu", "python-free-threaded"]
    assert of_stage("ARG", "")[0] == "VARIANT=cpu"


def test_the_image_copies_what_there_is_and_what_is_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for name in stages():
        for arguments in of_stage("COPY", name):
            if not arguments.startswith("--from"):
                copied.update(arguments.split()[:-1])
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    argument, version = of_stage("ARG", "build")
    assert version == "VERSION=", "which git does not tell there"
    assert set(argument.removeprefix("EXTRAS=").split(",")) <= set(extras)
    for variant in VARIANTS:
        [flavour] = [
            value.removeprefix("FLAVOUR=") for value in of_stage("ENV", variant) if value.startswith("FLAVOUR=")
        ]
        assert set(flavour.split(",")) <= set(extras)
    assert of_stage("RUN", "build")[-1].endswith('install ".[${FLAVOUR},${EXTRAS}]"')
    assert "examples" in extras


def test_the_image_runs_without_root_and_says_by_itself_whether_it_is_well() -> None:
    for name in ("server", "examples"):
        [user] = of_stage("USER", name)
        assert int(user) > 0
    [health] = of_stage("HEALTHCHECK")
    assert json.loads(health.split("CMD ")[1]) == ["toutates", "probe", f"127.0.0.1:{served().grpc_addr.port}"]
    [entry], [arguments] = of_stage("ENTRYPOINT"), of_stage("CMD")
    assert json.loads(entry) == ["toutates"]
    assert parse_options(json.loads(arguments)).model_repositories == served().model_repositories
