"""A client of one AWS service, such as SQS or S3.

Credentials, the region and `AWS_ENDPOINT_URL` come from AWS's own chain: the environment, the shared files in `~/.aws`,
and the role of the container or the machine. This module reads only `AWS_REGION` itself: AWS sets it in containers and
functions, and its client for Python knows only `AWS_DEFAULT_REGION`.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from oncehook.model.errors import BrokerUnavailable, ConfigurationError

CONNECT_TIMEOUT = 3.0
"""Seconds for a connection to AWS."""

READ_TIMEOUT = 10.0
"""Seconds for a response. A long poll needs more than the time that it waits."""

ATTEMPTS = 3
"""How often AWS's client sends one request, with its own backoff between."""

HINTS = {
    "AccessDenied": "the credentials do not allow it: check the IAM policy",
    "AccessDeniedException": "the credentials do not allow it: check the IAM policy",
    "ExpiredToken": "the credentials have expired",
    "InvalidClientTokenId": "the credentials are not valid",
    "InvalidAccessKeyId": "the credentials are not valid",
    "SignatureDoesNotMatch": "the credentials are not valid",
    "UnrecognizedClientException": "the credentials are not valid",
    "NoCredentialsError": "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
    "PartialCredentialsError": "the AWS credentials are incomplete",
    "EndpointConnectionError": "the connection was refused",
    "ConnectTimeoutError": "there was no connection in time",
    "ReadTimeoutError": "there was no response in time",
    "NonExistentQueue": "the queue does not exist",
    "QueueDoesNotExist": "the queue does not exist",
    "NoSuchBucket": "the bucket does not exist",
    "NoSuchKey": "the object does not exist",
}


class AwsClient:
    """Calls one AWS service. Not usable before `open`, and usable only in the event loop in which it was opened."""

    def __init__(
        self,
        service: str,
        *,
        needed_by: str,
        region: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        attempts: int = ATTEMPTS,
        connections: int = 10,
        **options: Any,
    ) -> None:
        """`needed_by` names the setting that needs the client, for messages. `region` overrides that of the chain.

        `options` are further ones of AWS's client.
        """
        self.service = service
        self.needed_by = needed_by
        self._options: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": read_timeout,
            "retries": {"total_max_attempts": attempts, "mode": "standard"},
            "max_pool_connections": connections,
            **options,
        }
        self._region = region
        self._stack = AsyncExitStack()
        self._client: Any = None

    async def open(self) -> None:
        """Open the client. Sends nothing. Raises ConfigurationError without the extra `aws`, or without a region."""
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
        except ModuleNotFoundError:
            raise ConfigurationError(f"{self.needed_by} needs its client: pip install 'oncehook[aws]'") from None
        from botocore.exceptions import BotoCoreError, NoRegionError

        try:
            config = AioConfig(**self._options)
            region = self._region or os.environ.get("AWS_REGION")
            context = get_session().create_client(self.service, region_name=region, config=config)
            self._client = await self._stack.enter_async_context(context)
        except NoRegionError:
            raise ConfigurationError(f"{self.needed_by} needs an AWS region: set AWS_REGION") from None
        except (BotoCoreError, ValueError) as error:  # an unknown profile, or an address that is none
            raise ConfigurationError(
                f"{self.needed_by}: AWS's client cannot be configured ({type(error).__name__}): "
                f"check AWS_PROFILE, AWS_REGION and AWS_ENDPOINT_URL"
            ) from None

    async def close(self) -> None:
        """Close the client. One that was not opened does nothing."""
        self._client = None
        await self._stack.aclose()

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation, such as `send_message_batch`, and return its response. Raises BrokerUnavailable.

        After an error, AWS may or may not have run the operation.
        """
        assert self._client is not None, "open the client first"
        with mapped_errors(self.service, operation):
            response: dict[str, Any] = await getattr(self._client, operation)(**parameters)
            return response


@contextmanager
def mapped_errors(service: str, operation: str) -> Iterator[None]:
    """Raise BrokerUnavailable for every error of AWS's client, also while a body is read.

    Its text has the operation and the code of the error. AWS's own text is left out, because it can contain parts of
    the credentials.
    """
    import aiohttp
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))[:100]
        raise _unavailable(service, operation, code.rpartition(".")[2] or "Unknown") from None
    except (BotoCoreError, aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
        raise _unavailable(service, operation, type(error).__name__) from None


def _unavailable(service: str, operation: str, code: str) -> BrokerUnavailable:
    hint = f": {HINTS[code]}" if code in HINTS else ""
    return BrokerUnavailable(f"{operation} of AWS {service} failed with {code}{hint}", code=code)
