"""The shop's web app with the inbox mounted in it. Run it with `uvicorn examples.shop.app:app`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from examples.shop.hooks import engine, inbox
from examples.shop.models import Base, Entitlement, Invoice, Sale
from examples.shop.services import broker, mail_service


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    async with inbox.lifespan():  # accepts deliveries, runs the handlers and the effects
        yield
    engine.dispose()


app = FastAPI(title="A small shop", lifespan=lifespan)
app.mount("/webhooks", inbox)  # POST /webhooks/stripe


@app.get("/invoices")
def invoices() -> list[dict[str, Any]]:
    return rows_of(Invoice)


@app.get("/entitlements")
def entitlements() -> list[dict[str, Any]]:
    return rows_of(Entitlement)


@app.get("/sales")
def sales() -> list[dict[str, Any]]:
    """The sales that analytics counted."""
    return rows_of(Sale)


@app.get("/mails")
def mails() -> list[dict[str, Any]]:
    """The mails that the mail service accepted."""
    return mail_service.accepted()


@app.get("/bus")
def bus() -> list[dict[str, Any]]:
    """The messages that the broker accepted."""
    return broker.accepted()


@app.get("/", response_class=HTMLResponse)
def page() -> str:
    sections = {"Invoices": invoices(), "Entitlements": entitlements(), "Sales": sales()}
    sections |= {"Mails": mails(), "Bus": bus()}
    return HEAD + "".join(table(title, rows) for title, rows in sections.items())


HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>A small shop</title>
<style>body { font: 1rem system-ui; margin: 2rem } th, td { text-align: left; padding: .2rem 1rem .2rem 0 }</style>
<h1>A small shop</h1>
"""


def rows_of(model: type[Base]) -> list[dict[str, Any]]:
    with Session(engine) as session:
        return [dict(row) for row in session.execute(select(*model.__table__.columns)).mappings()]


def table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """A section of the page. Values are escaped, because senders control them."""
    heads = "".join(f"<th>{escape(name)}" for name in (rows[0] if rows else ()))
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(value))}" for value in row.values()) for row in rows[-50:])
    return f"<h2>{title}: {len(rows)}</h2><table><tr>{heads}{lines}</table>"
