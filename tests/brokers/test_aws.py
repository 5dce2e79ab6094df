"""The client of AWS: configuration, calls, and errors without credentials."""

import sys
from collections.abc import AsyncIterator

import pytest

from oncehook.brokers.aws import AwsClient, mapped_errors
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from tests.support.aws import Moto, environment
from tests.support.servers import free_port


@pytest.fixture
async def sqs(aws: Moto) -> AsyncIterator[AwsClient]:
    client = AwsClient("sqs", needed_by="queue", attempts=1)
    await client.open()
    yield client
    await client.close()


@pytest.mark.anyio
async def test_a_client_calls_the_service_at_the_address_of_the_environment(aws: Moto, sqs: AwsClient) -> None:
    address = aws.queue()
    await sqs.call("send_message", QueueUrl=address, MessageBody="hello")
    assert aws.call("sqs", "ReceiveMessage", QueueUrl=address)["Messages"][0]["Body"] == "hello"


@pytest.mark.anyio
async def test_s3_stores_and_returns_bytes(aws: Moto) -> None:
    client = AwsClient("s3", needed_by="payloads")
    await client.open()
    bucket = aws.bucket()
    await client.call("put_object", Bucket=bucket, Key="a", Body=b"\x00\xff")
    response = await client.call("get_object", Bucket=bucket, Key="a")
    with mapped_errors("s3", "get_object"):
        assert await response["Body"].read() == b"\x00\xff"
    with pytest.raises(
        BrokerUnavailable, match="get_object of AWS s3 failed with NoSuchKey: the object does not exist"
    ):
        await client.call("get_object", Bucket=bucket, Key="b")
    await client.close()


@pytest.mark.anyio
async def test_an_error_has_the_code_and_a_hint(aws: Moto, sqs: AwsClient) -> None:
    with pytest.raises(BrokerUnavailable, match="the queue does not exist") as caught:
        await sqs.call("send_message", QueueUrl=f"{aws.url}/123456789012/missing", MessageBody="x")
    assert caught.value.code in ("NonExistentQueue", "QueueDoesNotExist")


@pytest.mark.anyio
async def test_a_refused_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    client = AwsClient("sqs", needed_by="queue", attempts=1)
    await client.open()
    with pytest.raises(BrokerUnavailable, match="EndpointConnectionError: the connection was refused"):
        await client.call("list_queues")
    await client.close()


@pytest.mark.anyio
async def test_missing_credentials_are_named(aws: Moto, sqs: AwsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    client = AwsClient("sqs", needed_by="queue", attempts=1)
    await client.open()
    with pytest.raises(BrokerUnavailable, match="no AWS credentials were found"):
        await client.call("list_queues")
    await client.close()


@pytest.mark.anyio
async def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.config", None)
    with pytest.raises(ConfigurationError, match=r"queue needs its client: pip install 'oncehook\[aws\]'"):
        await AwsClient("sqs", needed_by="queue").open()


@pytest.mark.anyio
async def test_a_region_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigurationError, match="set AWS_REGION"):
        await AwsClient("sqs", needed_by="queue").open()
    client = AwsClient("sqs", needed_by="queue", region="eu-west-1")
    await client.open()
    await client.close()


@pytest.mark.anyio
async def test_a_profile_that_does_not_exist_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "does-not-exist")
    with pytest.raises(ConfigurationError, match="check AWS_PROFILE"):
        await AwsClient("sqs", needed_by="queue", region="eu-west-1").open()


@pytest.mark.anyio
async def test_a_client_that_was_not_opened_can_be_closed() -> None:
    await AwsClient("sqs", needed_by="queue").close()


def test_the_text_of_aws_is_not_shown() -> None:
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": "IncompleteSignature", "Message": "Authorization=Credential=AKIASECRET"}}
    with pytest.raises(BrokerUnavailable) as caught, mapped_errors("sqs", "send_message"):
        raise ClientError(answer, "SendMessage")
    assert str(caught.value) == "send_message of AWS sqs failed with IncompleteSignature"
