"""Which endpoint of REST a path leads to, who may pass, and the status of every error."""

from __future__ import annotations

import pytest

from tests.api.every_error import assert_has_every_error
from toutates.api.doors import Doors
from toutates.api.rest.answers import STATUSES, Answer, refusal
from toutates.api.rest.endpoints import find_route
from toutates.api.restrictions import REST_GROUPS, RestrictedProtocol
from toutates.system import errors


@pytest.mark.parametrize(
    ("path", "name", "named"),
    [
        ("/v2", "server_metadata", ()),
        ("/v2/", "server_metadata", ()),
        ("/v2/health/live", "live", ()),
        ("/v2/models/m", "model_metadata", ("m", "")),
        ("/v2/models/m/versions/3", "model_metadata", ("m", "3")),
        ("/v2/models/a%2Fb%20%C3%A9/versions/3/infer", "infer", ("a/b \u00e9", "3")),
        ("/v2/models/stats", "statistics", ("", "")),
        ("/v2/models/stats/infer", "infer", ("stats", "")),
        ("/v2/models/versions/versions/1/ready", "model_ready", ("versions", "1")),
        ("/v2/models/m/generate_stream", "generate_stream", ("m", "")),
        ("/v2/models/m/trace/setting", "trace", ("m", "")),
        ("/v2/trace/setting", "trace", ("", "")),
        ("/v2/repository/models/m/load", "load", ("m", "")),
        ("/v2/repository/index", "index", ()),
    ],
)
def test_a_path_leads_to_its_endpoint(path: str, name: str, named: tuple[str, ...]) -> None:
    route = find_route(path)
    assert route is not None
    assert route.endpoint.name == name
    assert (route.model, route.version)[: len(named)] == named
    assert route.repository == ""


def test_a_path_may_name_a_repository_and_a_region() -> None:
    route = find_route("/v2/repository/r/models/m/unload")
    assert route is not None
    assert (route.repository, route.model) == ("r", "m")
    route = find_route("/v2/systemsharedmemory/region/a%20b/status")
    assert route is not None
    assert route.region == "a b"


@pytest.mark.parametrize(
    "path",
    [
        "/v2//",
        "/v2/nothing",
        "/base_path/v2/health/live",
        "/v2/health/live/",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/\u0661",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/%ff/infer",
        "/v2/systemsharedmemory/region//register",
        "/v2/models/m/infer\n",
    ],
)
def test_a_path_that_is_not_in_the_table_leads_nowhere(path: str) -> None:
    assert find_route(path) is None


def test_every_endpoint_is_of_a_category_that_can_be_restricted() -> None:
    models = [f"/v2/models/m/{name}" for name in ("infer", "stats", "config")]
    others = [f"/v2/{name}" for name in ("logging", "trace/setting", "repository/index", "cudasharedmemory/status")]
    paths = ["/v2", "/v2/health/live", *models, *others]
    routes = [find_route(path) for path in paths]
    assert {route.endpoint.category for route in routes if route is not None} == set(REST_GROUPS)


def test_a_restriction_lets_those_pass_who_know_the_secret() -> None:
    secret = "s\u00e9"
    doors = Doors(
        {group: RestrictedProtocol((group,), "Admin-Key", value) for group, value in (("a", secret), ("b", "x"))}
    )
    doors.check_secret("a", {"admin-key": secret.encode().decode("latin-1")})
    doors.check_secret("b", {"admin-key": "x"})
    doors.check_secret("c", {})
    for fields in ({}, {"admin-key": "X"}, {"admin-key": "x, x"}):
        with pytest.raises(errors.Forbidden) as caught:
            doors.check_secret("b", fields)
        answer = refusal(caught.value)
        assert answer.status == 403
        assert answer.body == b'{"error":"This API is restricted, expecting header \'Admin-Key\'"}'


def test_every_error_of_a_request_has_a_status() -> None:
    assert_has_every_error(STATUSES)
    assert refusal(errors.UnknownModel("m")) == Answer(404, b"content-type: application/json\r\n", b'{"error":"m"}')
