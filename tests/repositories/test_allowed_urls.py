"""Paths that some server would take for a way up."""

from __future__ import annotations

import pytest

from toutates.repositories.web.allowed import AllowedUrls


@pytest.mark.parametrize("step", ["..%20", "..%09", "..%20;x", "%2e.%2520", "%c0%ae%c0%ae", "..%0a"])
def test_a_step_that_may_lead_up_is_refused(step: str) -> None:
    allowed = AllowedUrls(["http://models.example/good/"])
    assert allowed.plain("http://models.example/good/a%20b/%C3%A9.mar").path == "/good/a%20b/%C3%A9.mar"
    with pytest.raises(ValueError, match="its path"):
        allowed.plain(f"http://models.example/good/{step}/x.mar")
