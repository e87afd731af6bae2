"""Flags become repositories, and combinations of them that mean nothing are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.command.main import parse_options
from toutates.repositories.specification import ArtifactSpecification, BucketSpecification
from toutates.system.errors import ConfigurationError

ENDPOINT = "http://minio:9000"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--model-repository a --model-repository b", (Path("a"), Path("b"))),
        ("--model-repository s3://bucket", (BucketSpecification("s3", "bucket"),)),
        ("--model-repository s3://bucket/", (BucketSpecification("s3", "bucket"),)),
        ("--model-repository S3://bucket//a/b/", (BucketSpecification("s3", "bucket", "a/b/"),)),
        ("--model-repository s3://minio:9000/bucket/a", (BucketSpecification("s3", "bucket", "a/", ENDPOINT),)),
        ("--model-repository s3://http://minio:9000/bucket", (BucketSpecification("s3", "bucket", "", ENDPOINT),)),
        (
            "--model-repository s3://https://minio/bucket//a",
            (BucketSpecification("s3", "bucket", "a/", "https://minio"),),
        ),
        (
            f"--model-repository s3://https://other/bucket --model-repository s3://bucket --s3-endpoint {ENDPOINT}",
            (
                BucketSpecification("s3", "bucket", "", "https://other"),
                BucketSpecification("s3", "bucket", "", ENDPOINT),
            ),
        ),
        (
            "--model-repository s3://one:1/bucket --model-repository s3://two:2/bucket",
            (
                BucketSpecification("s3", "bucket", "", "http://one:1"),
                BucketSpecification("s3", "bucket", "", "http://two:2"),
            ),
        ),
        ("--model-repository gs://bucket/a/b/", (BucketSpecification("gs", "bucket", "a/b/"),)),
        ("--model-repository as://account/container", (BucketSpecification("as", "account/container"),)),
        (
            "--model-repository AS://account.blob.core.windows.net/container/a",
            (BucketSpecification("as", "account.blob.core.windows.net/container", "a/"),),
        ),
        ("--model-repository https://host:8443/a/b", (BucketSpecification("https", "host:8443", "a/b/"),)),
        (
            "--model-repository https://host/a%20b/net.onnx",
            (BucketSpecification("https", "host", "a b/", file="net.onnx", model_name="net"),),
        ),
        (
            "--model-repository https://host/a/nets.TAR.gz",
            (ArtifactSpecification("https://host/a/nets.TAR.gz", "https://host/a/nets.TAR.gz", model_name="nets"),),
        ),
        (
            "--model-repository oci://ghcr.io/org/net:v1",
            (ArtifactSpecification("oci://ghcr.io/org/net:v1", "https://ghcr.io/org/net", "ghcr.io", "v1", "net"),),
        ),
        (
            "--model-repository oci://docker.io/net",
            (
                ArtifactSpecification(
                    "oci://docker.io/net", "https://registry-1.docker.io/library/net", "docker.io", "latest", "net"
                ),
            ),
        ),
        ("--s3-bucket bucket --s3-prefix /a/b", (BucketSpecification("s3", "bucket", "a/b/"),)),
        ("--model-repository a --model-repository b --model-repository a", (Path("a"), Path("b"))),
        ("--model-repository a --model-repository ./a/ --model-repository b/../a", (Path("a"),)),
        (
            "--model-repository s3://bucket/a --s3-bucket bucket --s3-prefix a/",
            (BucketSpecification("s3", "bucket", "a/"),),
        ),
        (
            f"--model-repository s3://one/x --model-repository a --s3-bucket two --s3-endpoint {ENDPOINT} "
            "--s3-region eu-west-1",
            (
                BucketSpecification("s3", "one", "x/", ENDPOINT, "eu-west-1"),
                Path("a"),
                BucketSpecification("s3", "two", "", ENDPOINT, "eu-west-1"),
            ),
        ),
    ],
)
def test_flags_name_repositories(flags: str, expected: tuple[object, ...]) -> None:
    assert parse_options(flags.split()).model_repositories == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", r"a model repository is required; give --model-repository or --s3-bucket"),
        ("--model-repository=", r"--model-repository: is empty; name a directory"),
        ("--s3-prefix a --model-repository a", r"--s3-prefix: .*--s3-bucket"),
        (f"--s3-endpoint {ENDPOINT} --model-repository a", r"--s3-endpoint: .*only with a repository on S3"),
        ("--s3-region eu --model-repository a", r"--s3-region: .*only with a repository on S3"),
        ("--s3-region a/b --s3-bucket bucket", r"--s3-region: is not a region \(got 'a/b'\)"),
        ("--s3-endpoint minio:9000 --s3-bucket bucket", r"--s3-endpoint: is not an endpoint"),
        ("--s3-endpoint http:// --s3-bucket bucket", r"--s3-endpoint: is not an endpoint"),
        ("--s3-endpoint http://a:b --s3-bucket bucket", r"--s3-endpoint: is not an endpoint"),
        ("--s3-bucket s3://bucket", r"--s3-bucket: .*name the bucket alone"),
        ("--model-repository s3://", r"--model-repository: .*write s3://BUCKET/PREFIX"),
        ("--model-repository s3://host:9000", r"--model-repository: .*the bucket has no name"),
        ("--model-repository s3://https:///bucket", r"--model-repository: is not an endpoint"),
        ("--model-repository s3://http://host:99999/bucket", r"--model-repository: is not an endpoint"),
        ("--model-repository ftp://bucket", r"--model-repository: .*\(got 'ftp://'\).*s3://BUCKET/PREFIX"),
        ("--model-repository oci://org/net:v1", r"--model-repository: is no artifact.*the registry's host in full"),
        ("--model-repository https://host/a?b", r"--model-repository: is no URL of a file or folder"),
        ("--model-repository http://host/a", r"--model-repository: .*have them served by https"),
        ("--model-repository gs://", r"--model-repository: .*\(got 'gs://'\).*write gs://BUCKET/PREFIX"),
        (
            "--model-repository as://account",
            r"--model-repository: .*\(got 'as://'\).*write as://ACCOUNT/CONTAINER/PREFIX",
        ),
        ("--model-repository as://account/UPPER", r"--model-repository: names no bucket of its kind"),
        ("--model-cache-size 0 --s3-bucket bucket", r"--model-cache-size"),
    ],
)
def test_flags_that_mean_nothing_are_refused(flags: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_options(flags.split())


@pytest.mark.parametrize(
    "flags",
    [
        "--s3-endpoint http://key:hunter2@minio --s3-bucket bucket",
        "--model-repository s3://key:hunter2@minio/bucket",
        "--model-repository s3://http://key:hunter2@minio:9000/bucket",
        "--model-repository s3://key:hunter2@minio:9000/bucket",
        "--model-repository https://key:hunter2@minio/bucket",
        "--model-repository gs://key:hunter2@bucket/a",
        "--model-repository https://host/a.onnx?sig=hunter2",
        "--model-repository oci://key:hunter2@ghcr.io/org/model",
        "--model-repository as://key:hunter2@account/container",
        "--model-repository as://account/container/a?sv=1&sig=hunter2",
    ],
)
def test_secrets_on_the_command_line_are_not_repeated(flags: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_options(flags.split())
    assert "hunter2" not in str(raised.value)
