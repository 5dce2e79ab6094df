"""What a sender writes is shown and never run: sixty payloads in every place that a sender or an error can fill."""

import re
import time

import httpx
import pytest

from tests.browser.conftest import Opened, Service
from tests.browser.test_pages import until_settled
from tests.support.email_payloads import sendgrid
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("browser")

CALLS = ["alert(1)", "confirm(1)", "prompt(1)", "top.hit=1"]
SHAPES = """
<script>{}</script>
"><script>{}</script>
'><script>{}</script>
</script><script>{}</script>
</title><script>{}</script>
</textarea><script>{}</script>
</pre><img src=x onerror={}>
<img src=x onerror={}>
"><img src=x onerror="{}">
<svg onload={}>
<svg><script>{}</script></svg>
<svg><animate onbegin={} attributeName=x dur=1s>
<body onload={}>
<iframe src="javascript:{}"></iframe>
<iframe srcdoc="<script>{}</script>"></iframe>
<a href="javascript:{}" autofocus onfocus={}>x</a>
<input autofocus onfocus={}>
<details open ontoggle={}>x</details>
<video><source onerror={}></video>
<math><mtext></form><form><mglyph><style></math><img src onerror={}>
<object data="javascript:{}"></object>
<embed src="javascript:{}">
<link rel=stylesheet href="javascript:{}">
<meta http-equiv=refresh content="0;url=javascript:{}">
<base href="javascript:{}//">
<form action="javascript:{}"><button autofocus>x</button></form>
" autofocus onfocus="{}" x="
' autofocus onfocus='{}' x='
` onmouseover={}
javascript:{}
javascript&colon;{}
data:text/html,<script>{}</script>
{{{{constructor.constructor('{}')()}}}}
${{{}}}
{{% print('{}') %}}<script>{}</script>
&lt;script&gt;{}&lt;/script&gt;
&#60;script&#62;{}&#60;/script&#62;
%3Cscript%3E{}%3C/script%3E
\\u003cscript\\u003e{}\\u003c/script\\u003e
<scr<script>ipt>{}</scr</script>ipt>
<<script>{}//<</script>
<ScRiPt>{}</sCrIpT>
<script/x>{}</script>
<img/src=x/onerror={}>
<style>@import 'javascript:{}';</style>
<div style="background:url(javascript:{})">
<!--><img src=x onerror={}>-->
<![CDATA[<script>{}</script>]]>
<xss id=x tabindex=1 onactivate={}></xss>
<template><script>{}</script></template><img src=x onerror={}>
<noscript><p title="</noscript><img src=x onerror={}>">
<select autofocus onfocus={}>
<marquee onstart={}>x</marquee>
<audio src=x onerror={}>
<isindex type=image src=1 onerror={}>
<button popovertarget=x autofocus onfocus={}>x</button>
<time datetime="x" onclick={}>x</time>
\u202e<script>{}</script>
<script>{}</script>
x' or '1'='1<script>{}</script>
""".strip().splitlines()


def filled(shape: str, call: str) -> str:
    return re.sub(r"(?<!\{)\{\}(?!\})|\{\{\{\}\}\}", lambda _: call, shape)


PAYLOADS = [filled(shape, CALLS[n % len(CALLS)]) for n, shape in enumerate(SHAPES)]

DANGEROUS = """() => [...document.querySelectorAll("main *")].filter((e) =>
  /^(script|iframe|object|embed|style|img|video|audio|base|template|marquee)$/i.test(e.tagName)
  || [...e.attributes].some((a) => /^on|^style$/.test(a.name)
    || (/^(href|src|action)$/.test(a.name) && /^\\s*(javascript|data):/i.test(a.value)))).map((e) => e.outerHTML)"""


def test_there_are_sixty_of_them() -> None:
    assert len(set(PAYLOADS)) == 60 and all(re.search(r"alert|confirm|prompt|hit=1", one) for one in PAYLOADS)


def sent(service: Service) -> list[int]:
    """An event for each payload, in its id, type, object and error; and one with all of them in body and headers."""
    receipts = []
    for n, payload in enumerate(PAYLOADS):
        thing = {"id": f"{payload[:180]}{n}", "error": payload}
        receipts.append(service.send(f"{payload[:180]}#{n}", payload[:200], data={"object": thing}))
    headers = {f"X-Note-{n}": payload.replace("\u202e", "").strip() or "x" for n, payload in enumerate(PAYLOADS)}
    whole = {"data": {"object": {"id": "in_all", "error": "x"}}, **{payload: payload for payload in PAYLOADS}}
    receipts.append(service.send("all of them", "all.of.them", headers | {"User-Agent": PAYLOADS[0]}, **whole))
    return receipts


def mailed(service: Service) -> None:
    """Effects with each payload in key, arguments and error; email events with it in recipient, reason, id and tags."""
    service.send("evt_xss", "customer.created", data={"object": {"id": "cus_xss", "mail": PAYLOADS}})
    now = int(time.time())
    bounces = [
        sendgrid("bounce", now - n, email=f'"{payload.replace(chr(34), "")[:120]}"@x{n}.example', reason=payload,
                 sg_message_id=f"{n}{payload[:150]}", category=[payload], order=payload, type="bounce")
        for n, payload in enumerate(PAYLOADS)
    ]  # fmt: skip
    service.mailed(*bounces)
    wait_until(lambda: service.api("/api/effects?limit=500")["counts"]["failed"] >= 60)
    wait_until(lambda: sum(row["events"] for row in service.api("/api/email/counts?by=type")["counts"]) >= 60)


def test_no_payload_is_run_wherever_it_stands(sqlite_service: Service, open_page: Opened) -> None:
    service = sqlite_service
    receipts = sent(service)
    mailed(service)
    until_settled(service, *receipts)
    assert service.api("/api/dead")["total"] >= 60
    page = open_page(service)

    def look_at(path: str) -> str:
        page.goto(path)
        assert page.evaluate("window.hit === undefined && top.hit === undefined")
        assert page.evaluate(DANGEROUS) == [], path
        return str(page.locator("main").inner_text())

    for path in (
        "/",
        "/events",
        "/dead",
        "/audit",
        "/sources",
        "/events?status=failed",
        "/effects",
        "/email/suppressions",
    ):
        look_at(path)
    page.route("**/static/*", lambda route: route.fulfill(body=""))  # many pages, for what is in them
    page.goto("/events?status=failed")
    while page.get_by_role("link", name="Older").count():
        look_at(str(page.get_by_role("link", name="Older").get_attribute("href")))
    whole = look_at(f"/events/{receipts[-1]}")
    assert sum(whole.count(call) for call in CALLS) >= 180  # as keys, as values and in headers
    for receipt in receipts[:-1:6]:
        look_at(f"/events/{receipt}")
    found = service.api("/api/effects?limit=60&target=mail")["effects"]
    assert "onerror" in look_at(f"/effects?cursor={found[20]['id']}")
    for effect in found[::10]:
        assert "no mailbox of" in look_at(f"/effects/{effect['id']}")
    look_at("/effects/replay?target=mail")
    assert look_at("/email?by=tag").count("<script>") > 15
    assert look_at("/email/suppressions").count("<script>") > 10
    facts = [row for row in service.api("/api/email/suppressed?limit=500")["suppressions"] if "<" in row["address"]]
    assert len(facts) >= 45
    for row in facts[::10]:
        named = look_at(f"/email/message?{httpx.QueryParams({'message': row['message_id']})}")
        assert "Email events" in named and row["address"][1:20] in named
    for payload in PAYLOADS[::10]:
        everywhere = dict.fromkeys(("search", "type", "object", "source", "since"), payload)
        look_at(f"/events?{httpx.QueryParams(everywhere)}")
        look_at(f"/replay?{httpx.QueryParams({'status': 'failed', 'error': payload, 'object': payload})}")
        asked = dict.fromkeys(("source", "target", "key", "search", "message", "done"), payload)
        for path in ("/effects", "/effects/replay", "/email/message", "/email/suppressions"):
            look_at(f"{path}?{httpx.QueryParams(asked)}")


def test_no_payload_is_run_on_the_sign_in_page(sqlite_service: Service, open_page: Opened) -> None:
    page = open_page(sqlite_service, None, "/sign-in")
    for payload in PAYLOADS[::20]:
        page.goto(f"/sign-in?{httpx.QueryParams({'next': payload})}")
        page.get_by_label("Name").fill(payload)
        page.get_by_label("Password").fill(payload)
        page.get_by_role("button", name="Sign in").first.click()
        page.wait_for_load_state()
        assert page.evaluate("top.hit === undefined")
