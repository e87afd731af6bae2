"""The chart renders what Kubernetes takes and the server understands, and refuses values that contradict each other."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, Final

import pytest

from tests.deploy.rendering import CHART, NAMESPACE, RELEASE, Refused, container, of_kind, render
from tests.deploy.support import DEPLOY, Expression, read_yaml, spec_of
from tests.optional import skip_without
from toutates.command.main import parse_options

skip_without("kubernetes_validate")

VALUES: Final = read_yaml(CHART / "values.yaml")
NAME: Final = f"{RELEASE}-toutates"
DISK: Final[dict[str, Any]] = {"models": {"persistentVolumeClaim": "digits"}}
S3: Final[dict[str, Any]] = {"models": {"repository": "s3://models/digits"}}
KEDA: Final[dict[str, Any]] = {
    "autoscaling": {"kind": "keda", "prometheus": {"serverAddress": "http://prometheus:9090"}}
}
HPA: Final[dict[str, Any]] = {"autoscaling": {"kind": "hpa"}}
EVERYTHING: Final[dict[str, Any]] = {
    **S3,
    "s3": {"endpoint": "https://minio:9000", "region": "eu-central-1", "credentialsSecret": "s3"},
    "tls": {"secret": "tls", "requireClientCertificate": True},
    "access": {"secret": "access"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "enabled": True,
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}],
        "metrics": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    },
    "podDisruptionBudget": {"minAvailable": "50%", "maxUnavailable": None},
    "podAnnotations": {"note": "x"},
    "podLabels": {"team": "vision"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
    "volumes": [{"name": "more", "emptyDir": {}}],
    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
    "server": {"env": [{"name": "A", "value": "b"}], "extraArgs": ["--max-inflight-requests=1000"], "workers": 2},
}
CASES: Final = {
    "disk": DISK,
    "s3": S3,
    "hub": {"models": {"repository": "hf://org/model"}},
    "registry": {"models": {"repository": "oci://ghcr.io/org/model:v1"}},
    "hpa": {**DISK, **HPA},
    "keda": {**DISK, **KEDA},
    "everything": {**EVERYTHING, **KEDA},
    "little": {**DISK, "service": {"headless": False}, "podDisruptionBudget": {"enabled": False}},
}
#: Objects of others' definitions, for which there is no schema here.
FOREIGN: Final = {"PodMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1"}


@pytest.mark.parametrize("version", ["1.27", "1.37"])
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_what_is_rendered(case: str, version: str) -> None:
    import kubernetes_validate

    objects = render(CASES[case])
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    for item in objects:
        assert item["metadata"]["name"].startswith(NAME)
        if item["kind"] in FOREIGN:
            assert item["apiVersion"] == FOREIGN[item["kind"]]
        else:
            kubernetes_validate.validate(item, version, strict=True)


def test_the_server_understands_its_arguments() -> None:
    for case in CASES.values():
        options = parse_options(container(render(case))["args"])
        ports = {port["name"]: port["containerPort"] for port in container(render(case))["ports"]}
        assert options.http_addr is not None
        assert options.metrics_addr is not None
        assert ports == {
            "grpc": options.grpc_addr.port,
            "http": options.http_addr.port,
            "metrics": options.metrics_addr.port,
        }
    with_all = parse_options(container(render(CASES["everything"]))["args"])
    assert with_all.max_inflight_requests == 1000
    assert with_all.limits.max_age_s == VALUES["server"]["connectionAge"] > 0  # else new replicas get no load


def test_the_periods_of_an_end_add_up() -> None:
    objects = render({**DISK, "shutdown": {"preStopSeconds": 7, "delaySeconds": 11, "graceSeconds": 60}})
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert container(objects)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    options = parse_options(container(objects)["args"])
    assert (options.shutdown_delay_s, options.shutdown_grace_s) == (11, 60)
    assert pod["terminationGracePeriodSeconds"] == 7 + 11 + 60 + 5


def test_a_server_without_tls_is_probed_over_grpc_and_one_with_it_by_its_metrics_port() -> None:
    assert container(render(DISK))["readinessProbe"]["grpc"] == {"port": 8001}
    with_tls = container(render(EVERYTHING))["readinessProbe"]
    assert with_tls["httpGet"] == {"path": "/health/ready", "port": "metrics"}
    assert container(render(DISK))["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_services_and_budgets_select_the_pods() -> None:
    objects = render({**EVERYTHING, **HPA})
    pods = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [item["spec"]["selector"] for item in objects if item["kind"] == "Service"]
    selectors += [of_kind(objects, kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodMonitor")]
    selectors.append(of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    selectors.append(of_kind(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    assert len(selectors) == 6
    for selector in selectors:
        assert selector.items() <= pods.items()
        assert selector["app.kubernetes.io/instance"] == RELEASE
    target = of_kind(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    assert "replicas" not in of_kind(objects, "Deployment")["spec"]  # the autoscaler's, and not set back by an upgrade


def test_autoscalers_ask_for_metrics_that_the_server_has() -> None:
    [trigger, _] = of_kind(render({**DISK, **KEDA}), "ScaledObject")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert f'namespace="{NAMESPACE}",pod=~"{NAME}-.*"' in query
    [rule] = read_yaml(DEPLOY / "prometheus" / "adapter.yml")["rules"]
    for text in (query, rule["metricsQuery"].replace("<<.LabelMatchers>>", "").replace("<<.GroupBy>>", "pod")):
        names = Expression("here", text).metrics()
        assert len(names) == 2
        assert all(spec_of(name) for name in names), names
    [pods, _] = of_kind(render({**DISK, **HPA}), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert pods["pods"]["metric"]["name"] == rule["name"]["as"]


def test_prometheus_knows_the_server_by_the_job_of_the_alert_rules() -> None:
    objects = render(EVERYTHING)
    label = of_kind(objects, "PodMonitor")["spec"]["jobLabel"]
    labels = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    [job] = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert labels[label] == job["job_name"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "There are no models: give models.persistentVolumeClaim"),
        ({"models": {"repository": "models"}}, 'models.repository is "models": give an absolute path'),
        ({"models": {**S3["models"], "persistentVolumeClaim": "x"}}, "models.persistentVolumeClaim would not be read"),
        ({**DISK, "s3": {"region": "eu"}}, 's3 is set, but models.repository is "/models"'),
        (
            {"models": {**DISK["models"], "load": ["a"]}},
            "models.load is for models.controlMode explicit, which is none",
        ),
        ({**DISK, "tls": {"requireClientCertificate": True}}, "tls.requireClientCertificate needs tls.secret"),
        ({**DISK, "autoscaling": {"kind": "hpa", "minReplicas": 9, "maxReplicas": 3}}, "minReplicas is 9, above"),
        ({**DISK, "autoscaling": {"kind": "hpa", "minReplicas": 0}}, "minReplicas of 0 is possible with"),
        ({**DISK, "autoscaling": {"kind": "keda"}}, "needs autoscaling.prometheus.serverAddress"),
        ({**DISK, **HPA, "resources": {"requests": {"cpu": None}}}, "against resources.requests.cpu, which is not set"),
        ({**DISK, "podDisruptionBudget": {"maxUnavailable": None}}, "needs minAvailable or maxUnavailable"),
        ({**DISK, "podDisruptionBudget": {"minAvailable": 1}}, "set one of them to null"),
        (
            {**DISK, "podDisruptionBudget": {"minAvailable": 2, "maxUnavailable": None}},
            "minAvailable is 2 of 2 replicas: no node could ever be drained",
        ),
        (
            {**DISK, "shutdown": {"terminationGracePeriodSeconds": 30}},
            "terminationGracePeriodSeconds is 30: preStopSeconds, delaySeconds, graceSeconds and 5 to spare need 46",
        ),
        ({**DISK, "replica": 3}, "replica"),
        ({**DISK, "autoscaling": {"kind": "vpa"}}, "autoscaling"),
        ({**DISK, "replicas": -1}, "replicas"),
        ({**DISK, "image": {"digest": "latest"}}, "digest"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_a_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values)
    assert message in str(refused.value)


def leaves(values: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    found = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found += leaves(value, *path, key)
        else:
            found.append((*path, key))
    return found


def another(value: object) -> object:
    """A value of the same type that is not the default."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str() | None:
            return "other"
        case list():
            return ["other"]
        case _:
            return {"other": "other"}


#: What has no effect alone, or wants a value of a certain form.
SPECIAL: Final[dict[str, tuple[dict[str, Any], object]]] = {
    "image.digest": (DISK, "sha256:" + 64 * "0"),
    "image.pullPolicy": (DISK, "Always"),
    "models.repository": (DISK, "/other"),
    "models.controlMode": (DISK, "poll"),
    "models.pollSeconds": ({"models": {**DISK["models"], "controlMode": "poll"}}, 3),
    "models.load": ({"models": {**DISK["models"], "controlMode": "explicit"}}, ["a"]),
    "models.cacheSize": (S3, "1Gi"),
    "s3.endpoint": (S3, "https://other"),
    "s3.region": (S3, "other"),
    "s3.credentialsSecret": (S3, "other"),
    "tls.requireClientCertificate": ({**DISK, "tls": {"secret": "tls"}}, True),
    "shutdown.terminationGracePeriodSeconds": (DISK, 100),
    "service.type": (DISK, "LoadBalancer"),
    "autoscaling.kind": (DISK, "hpa"),
    "autoscaling.minReplicas": ({**DISK, **HPA}, 3),
    "autoscaling.maxReplicas": ({**DISK, **HPA}, 3),
    "autoscaling.queueMicroseconds": ({**DISK, **HPA}, 3),
    "autoscaling.cpuPercent": ({**DISK, **HPA}, 3),
    "autoscaling.scaleDownSeconds": ({**DISK, **HPA}, 3),
    "autoscaling.prometheus.serverAddress": ({**DISK, **KEDA}, "http://other"),
    "podDisruptionBudget.minAvailable": (
        {**DISK, "podDisruptionBudget": {"minAvailable": "50%", "maxUnavailable": None}},
        1,
    ),
    "podMonitor.interval": ({**DISK, "podMonitor": {"enabled": True}}, "1m"),
    "podMonitor.labels": ({**DISK, "podMonitor": {"enabled": True}}, {"a": "b"}),
    "networkPolicy.clients": ({**DISK, "networkPolicy": {"enabled": True}}, [{"podSelector": {}}]),
    "networkPolicy.metrics": ({**DISK, "networkPolicy": {"enabled": True}}, [{"podSelector": {}}]),
    "server.env": (DISK, [{"name": "A", "value": "b"}]),
}


@pytest.mark.parametrize("path", leaves(VALUES), ids=".".join)
def test_every_value_has_an_effect(path: tuple[str, ...]) -> None:
    *parents, last = path
    default: Any = VALUES
    for key in path:
        default = default[key]
    base, value = SPECIAL.get(".".join(path), (DISK, another(default)))
    changed = deepcopy(base)
    inside = changed
    for key in parents:
        inside = inside.setdefault(key, {})
    inside[last] = value
    assert render(changed) != render(base)


def test_the_schema_has_each_value_and_no_other() -> None:
    def check(schema: dict[str, Any], values: dict[str, Any], where: str) -> None:
        assert schema["additionalProperties"] is False, where
        assert schema["properties"].keys() - {"global"} == values.keys(), where
        for key, value in values.items():
            if "properties" in schema["properties"][key]:
                check(schema["properties"][key], value, f"{where}.{key}")

    check(json.loads((CHART / "values.schema.json").read_text()), VALUES, "values")
