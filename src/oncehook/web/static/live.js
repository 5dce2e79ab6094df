// Live updates and copy buttons. Every page also works without JavaScript.
"use strict";

(() => {
  const home = new URL("../", document.currentScript.src);
  const regions = () => [...document.querySelectorAll("[data-live]")];

  const prepare = (root) => {
    if (!navigator.clipboard) return;
    for (const button of root.querySelectorAll("[data-copy]")) {
      button.hidden = false;
      button.onclick = async () => {
        await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      };
    }
  };

  const inUse = (region) => {
    const selection = getSelection();
    return (region.contains(document.activeElement) && document.activeElement.tagName !== "DIV")
      || (selection && !selection.isCollapsed && region.contains(selection.anchorNode));
  };

  const swap = (region, fresh) => {
    if (region.innerHTML === fresh.innerHTML || inUse(region)) return;
    const known = new Set([...region.querySelectorAll("tbody tr a[href]")].map((a) => a.getAttribute("href")));
    const opened = [...region.querySelectorAll("details")].map((d) => d.open);
    const left = [...region.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    region.replaceWith(fresh);
    if (opened.length === fresh.querySelectorAll("details").length)
      fresh.querySelectorAll("details").forEach((d, i) => { d.open = opened[i]; });
    fresh.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = left[i] || 0; });
    if (known.size)
      for (const row of fresh.querySelectorAll("tbody tr")) {
        const link = row.querySelector('a[href*="/events/"]');
        if (link && !known.has(link.getAttribute("href"))) row.classList.add("fresh");
      }
    prepare(fresh);
  };

  let loading = false, again = false;
  const refresh = async () => {
    if (document.hidden) { again = true; return; }
    if (loading) { again = true; return; }
    loading = true; again = false;
    try {
      const response = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (response.ok) {
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        for (const region of regions()) {
          const other = fresh.getElementById(region.id);
          if (other) swap(region, document.importNode(other, true));
          else location.reload();
        }
      }
    } catch { /* the next change retries */ }
    loading = false;
    if (again) setTimeout(refresh, 500);
  };

  prepare(document);
  if (!regions().length || location.search.includes("cursor=") || document.getElementById("rehearsal")) return;
  const stream = new EventSource(new URL("live?seen=" + encodeURIComponent(document.body.dataset.seen), home));
  stream.addEventListener("changed", refresh);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && again) refresh(); });
  addEventListener("pagehide", () => stream.close());
  const poll = setInterval(() => {
    if (document.querySelector("[data-poll]")) refresh();
    else if (!document.querySelector(".tiles")) clearInterval(poll);
    else if (!document.hidden) refresh();
  }, document.querySelector("[data-poll]") ? 700 : 15000);
})();
