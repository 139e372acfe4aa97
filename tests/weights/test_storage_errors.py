"""Errors of storage: which of them say that there is no key. The texts are obstore's."""

from __future__ import annotations

import pytest

from longboat.core.errors import TransferError
from longboat.weights.sources.storage_errors import RefusedError, translated

LOST = "Generic S3 error: Error performing GET {} in 1.2s, after 3 retries, max_retries: 3 - HTTP error: error sending"

STATUS = "Generic S3 error: Error performing {} {} in 2ms - Server returned non-2xx status code: {}: denied"


@pytest.mark.parametrize(
    "text",
    [
        LOST.format("http://127.0.0.1:9/bucket/m/tokenizer.json"),
        LOST.format("https://my-token-bucket.s3.amazonaws.com/m/credentials/a"),
        LOST.format("https://storage.tokens.example/m/model.safetensors"),
        "Generic LocalFileSystem error: Unable to open file /m/tokenizer.json: Permission denied",
        "Generic LocalFileSystem error: Unable to open file /m/token: Permission denied",
    ],
)
def test_a_name_with_token_in_it_is_no_missing_key(text: str) -> None:
    assert type(translated(Exception(text), "s3://bucket/m", "tokenizer.json")) is TransferError


@pytest.mark.parametrize(
    "text",
    [
        LOST.format("http://169.254.169.254/latest/api/token"),
        LOST.format("http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"),
        STATUS.format("PUT", "http://169.254.169.254/latest/api/token", "403 Forbidden"),
        STATUS.format("GET", "http://169.254.169.254/latest/meta-data/iam/security-credentials/", "404 Not Found"),
        "Generic S3 error: Failed to read token file '/nonexistent': No such file or directory (os error 2)",
        "Generic S3 error: the credential provider was not enabled",
    ],
)
def test_a_missing_key_is_refused_with_the_places_of_keys(text: str) -> None:
    error = translated(Exception(text), "s3://bucket/m", "config.json")
    assert isinstance(error, RefusedError)
    assert "AWS_ACCESS_KEY_ID" in error.hint


def test_the_cause_is_what_failed_and_not_the_request() -> None:
    text = LOST.format("http://127.0.0.1:9/m/config.json").replace("Generic S3", "Generic HTTP")
    assert "cannot be read: error sending" in str(translated(Exception(text), "http://127.0.0.1:9/m", "config.json"))
