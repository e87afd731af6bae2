"""Settings written to a config.yaml are read as the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.configuration import load
from toutates.models.config.settings import CONFIG_NAME, ModelSettings, ProfilingSettings, RateLimit, ResourceNeed
from toutates.models.config.yaml_writer import write_yaml

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
SHAPES = st.dictionaries(NAMES, st.lists(st.just(-1) | st.integers(1, 2**31 - 1), max_size=32).map(tuple), max_size=5)
SETTINGS = st.builds(
    ModelSettings,
    batch_size=st.integers(1, 2**20),
    capacity=st.integers(1, 2**16),
    capacity_bytes=st.none() | st.integers(1, 2**50),
    max_queue_size=st.integers(0, 2**32 - 1),
    num_executors=st.integers(1, 2**10),
    rate_limits=st.lists(
        st.builds(
            RateLimit,
            resources=st.lists(
                st.builds(
                    ResourceNeed, name=NAMES.filter(bool), count=st.integers(1, 2**32 - 1), is_global=st.booleans()
                ),
                unique_by=lambda need: need.name,
                max_size=2,
            ).map(tuple),
            priority=st.integers(1, 2**32 - 1),
        ),
        max_size=2,
    ).map(tuple),
    latency_target_ms=st.just(0.0) | st.floats(0.01, 3_600_000.0),
    allocator=st.sampled_from(("cpu", "cuda_pinned")),
    input_shapes=SHAPES,
    output_shapes=SHAPES,
    profiling=st.none()
    | st.builds(
        ProfilingSettings,
        file_prefix=NAMES.filter(bool),
        stop_after_batches=st.none() | st.integers(1, 2**31 - 1),
    ),
)


@given(SETTINGS)
def test_settings_survive_being_written_and_read(settings: ModelSettings) -> None:
    with TemporaryDirectory() as folder:
        assert load(Path(folder) / CONFIG_NAME, write_yaml(settings).encode()) == settings
