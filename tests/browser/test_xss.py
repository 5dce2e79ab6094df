"""Cross-site scripting: what a sender writes is shown as text, wherever a sender or an error can put it.

Most pages are fetched over HTTP and joined into one document, which the browser loads once, without the dashboard's
Content-Security-Policy. A payload that is not escaped would run there. A few pages are also opened as a user does.
"""

import re
import time

import httpx
import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import OpenPage, Service
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


def fill(shape: str, call: str) -> str:
    return re.sub(r"(?<!\{)\{\}(?!\})|\{\{\{\}\}\}", lambda _: call, shape)


PAYLOADS = [fill(shape, CALLS[n % len(CALLS)]) for n, shape in enumerate(SHAPES)]

DANGEROUS = """() => [...document.querySelectorAll("main *, title *")].filter((e) =>
  /^(script|iframe|object|embed|style|img|video|audio|base|template|marquee)$/i.test(e.tagName)
  || [...e.attributes].some((a) => /^on|^style$/.test(a.name)
    || (/^(href|src|action)$/.test(a.name) && /^\\s*(javascript|data):/i.test(a.value)))).map((e) => e.outerHTML)"""

OWN_RESOURCES = re.compile(
    r'<script src="/static/live\.js[^>]*></script>|<link [^>]*>|<noscript><meta[^>]*></noscript>'
)


def test_there_are_sixty_distinct_payloads() -> None:
    assert len(set(PAYLOADS)) == 60
    assert all(re.search(r"alert|confirm|prompt|hit=1", payload) for payload in PAYLOADS)


def test_payload_that_is_not_escaped_runs_and_is_detected(chromium: Browser) -> None:
    """The check itself: a joined document with one payload that is not escaped."""
    page = chromium.new_page()
    page.set_content("<main><img src=x onerror='top.hit=1'></main>")
    page.wait_for_function("top.hit === 1")
    assert page.evaluate(DANGEROUS) == ['<img src="x" onerror="top.hit=1">']
    page.close()


def send_events(service: Service) -> list[int]:
    """One event per payload, in its id, type, object and error; and one with all of them in its body and headers."""
    receipts = []
    for n, payload in enumerate(PAYLOADS):
        thing = {"id": f"{payload[:180]}{n}", "error": payload}
        receipts.append(service.send(f"{payload[:180]}#{n}", payload[:200], data={"object": thing}))
    headers = {f"X-Note-{n}": payload.replace("\u202e", "").strip() or "x" for n, payload in enumerate(PAYLOADS)}
    body = {"data": {"object": {"id": "in_all", "error": "x"}}, **{payload: payload for payload in PAYLOADS}}
    receipts.append(service.send("all of them", "all.of.them", headers | {"User-Agent": PAYLOADS[0]}, **body))
    return receipts


def send_effects_and_email_events(service: Service) -> None:
    """Effects with each payload in key, arguments and error; email events with it in recipient, reason, id and tags."""
    service.send("evt_xss", "customer.created", data={"object": {"id": "cus_xss", "mail": PAYLOADS}})
    now = int(time.time())
    bounces = [
        sendgrid("bounce", now - n, email=f'"{payload.replace(chr(34), "")[:120]}"@x{n}.example', reason=payload,
                 sg_message_id=f"{n}{payload[:150]}", category=[payload], order=payload, type="bounce")
        for n, payload in enumerate(PAYLOADS)
    ]  # fmt: skip
    service.send_email_events(*bounces)
    wait_until(lambda: service.api("/api/effects?limit=1")["counts"]["failed"] >= 60, "the 60 effects fail")

    def are_counted() -> bool:
        counts = service.api("/api/email/counts?by=type")["counts"]
        return sum(int(row["events"]) for row in counts) >= 60

    wait_until(are_counted, "the 60 email events are stored")


def page_paths(service: Service, receipts: list[int]) -> list[str]:
    """Every page with payloads of senders, and every page with payloads in its address."""
    paths = [f"/events/{receipt}" for receipt in receipts]
    effects = service.api("/api/effects?limit=60&target=mail")["effects"]
    paths += [f"/effects?cursor={effects[20]['id']}", "/effects/replay?target=mail", "/email?by=tag"]
    paths += [f"/effects/{effect['id']}" for effect in effects[::10]]
    suppressions = service.api("/api/email/suppressed?limit=500")["suppressions"]
    hostile = [row for row in suppressions if "<" in row["address"]]
    assert len(hostile) >= 45
    paths += [f"/email/message?{httpx.QueryParams({'message': row['message_id']})}" for row in hostile[::5]]
    for payload in PAYLOADS:
        filters = dict.fromkeys(("search", "type", "object", "source", "since"), payload)
        paths.append(f"/events?{httpx.QueryParams(filters)}")
    for payload in PAYLOADS[::6]:
        paths.append(f"/replay?{httpx.QueryParams({'status': 'failed', 'error': payload, 'object': payload})}")
        query = httpx.QueryParams(dict.fromkeys(("source", "target", "key", "search", "message", "done"), payload))
        paths += [
            f"{path}?{query}" for path in ("/effects", "/effects/replay", "/email/message", "/email/suppressions")
        ]
    return paths


def test_no_payload_runs_on_any_page(sqlite_service: Service, open_page: OpenPage) -> None:
    service = sqlite_service
    receipts = send_events(service)
    send_effects_and_email_events(service)
    wait_until(lambda: service.api("/api/dead")["total"] >= 61, "every event becomes a dead letter")
    pages = {path: service.page(path) for path in page_paths(service, receipts)}
    whole = pages[f"/events/{receipts[-1]}"]
    assert sum(whole.count(call) for call in CALLS) >= 180, "all payloads are shown as keys, as values and in headers"
    assert all("no mailbox of" in html for path, html in pages.items() if re.match(r"/effects/\d+$", path))
    page = open_page(service, None, "about:blank")
    page.set_content("".join(OWN_RESOURCES.sub("", html) for html in pages.values()), wait_until="domcontentloaded")
    assert page.locator("main").count() == len(pages), "no payload may break the structure of a page"
    assert page.evaluate("window.hit === undefined && top.hit === undefined")
    assert page.evaluate(DANGEROUS) == []


def test_no_payload_runs_on_the_pages_with_scripts_and_live_updates(
    sqlite_service: Service, open_page: OpenPage
) -> None:
    service = sqlite_service
    receipt = send_events(service)[-1]
    page = open_page(service)
    for path in (
        "/", "/events", "/dead", "/audit", "/sources", "/effects", "/email/suppressions", f"/events/{receipt}",
    ):  # fmt: skip
        page.goto(path)
        assert page.evaluate("window.hit === undefined && top.hit === undefined")
        assert page.evaluate(DANGEROUS) == [], path


def test_no_payload_runs_on_the_sign_in_page(sqlite_service: Service, open_page: OpenPage) -> None:
    page = open_page(sqlite_service, None, "/sign-in")
    for payload in PAYLOADS[::20]:
        page.goto(f"/sign-in?{httpx.QueryParams({'next': payload})}")
        page.get_by_label("Name").fill(payload)
        page.get_by_label("Password").fill(payload)
        page.get_by_role("button", name="Sign in").first.click()
        page.wait_for_load_state()
        assert page.evaluate("top.hit === undefined")
