"""The chart of ``deploy/helm``, rendered by Helm: by its command where there is one, else by its library for Python."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any, Final

import yaml

from tests.deploy.support import DEPLOY
from tests.optional import skip_without

__all__ = ["CHART", "NAMESPACE", "RELEASE", "Refused", "container", "of_kind", "render"]

CHART: Final = DEPLOY / "helm" / "toutates"
RELEASE: Final = "digits"
NAMESPACE: Final = "models"
_HELM: Final = shutil.which("helm")

if _HELM is None:
    skip_without("helm_python", "is not installed, nor is helm: tests/peers.sh")


class Refused(Exception):
    """Helm does not render the chart with these values. The message is what Helm says."""


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of Kubernetes that the chart makes of ``values``.

    Raises:
        Refused: the values do not fit the chart.
    """
    texts = _by_command(values) if _HELM is not None else _by_library(values)
    return [item for text in texts for item in yaml.safe_load_all(text) if item is not None]


def _by_command(values: dict[str, Any]) -> list[str]:
    assert _HELM is not None
    command = [_HELM, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-"]
    text = yaml.safe_dump(values)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return [done.stdout]


def _by_library(values: dict[str, Any]) -> list[str]:
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        try:
            files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise Refused(str(error)) from None
    return [text for name, text in files.items() if name.endswith(".yaml")]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    [found] = [item for item in objects if item["kind"] == kind]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the server."""
    [found] = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)
