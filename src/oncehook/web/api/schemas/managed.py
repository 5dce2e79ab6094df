"""Managed sources and tenants in requests and responses. No response contains a secret."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from oncehook.config.managed_secrets import MAX_SECRETS
from oncehook.model.values import LONGEST

Secret = Annotated[str, Meta(min_length=1, max_length=20_000)]
Secrets = Annotated[list[Secret], Meta(max_length=MAX_SECRETS)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class NewSource(Struct, forbid_unknown_fields=True):
    """A source to add. `settings` are the keys of `[sources.NAME]`, other than `provider` and `secrets`."""

    name: Name
    provider: Name | None = None
    secrets: Secrets = []
    settings: dict[str, Any] = {}


class NewTenant(Struct, forbid_unknown_fields=True):
    """A tenant to add."""

    tenant: Name
    secrets: Secrets = []


class Rotation(Struct, forbid_unknown_fields=True):
    """A new `secret`, after which the older ones end in `grace_seconds`; or `finish`, which ends the older ones now."""

    secret: Secret | None = None
    finish: bool = False
    grace_seconds: Annotated[float, Meta(ge=0, le=LONGEST)] | None = None


class SourceChange(Struct):
    """The source that was changed."""

    source: str


class TenantChange(Struct):
    """The tenant that was changed."""

    source: str
    tenant: str


class TenantSecret(Struct):
    """A secret of a tenant, by its fingerprint. It is accepted until `ends_at`."""

    fingerprint: str
    added_at: str
    ends_at: str | None


class TenantState(Struct):
    """A managed tenant, and who changed it last. `problem` says why its secrets cannot be decrypted, or is null."""

    source: str
    tenant: str
    address: str
    secrets: list[TenantSecret]
    created_at: str
    updated_at: str
    actor: str
    problem: str | None


class Tenants(Struct):
    """A page of tenants by name. `next` is the cursor of the next page."""

    tenants: list[TenantState]
    next: str | None


class TenantsQuery(Struct):
    """Which tenants are listed: those that begin with `search`, after `cursor`."""

    search: Annotated[str, Meta(max_length=200)] = ""
    cursor: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
