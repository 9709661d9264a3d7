// Asks again every two seconds and puts in place what changed; what is ticked, chosen or pointed at stays.
"use strict";
(() => {
  const EVERY = 2000;
  const read = (page) => JSON.parse(page.getElementById("curves")?.textContent ?? "[]");
  let drawn = null, titles = "";

  // Charts are made once there is something to draw, and again where a measure came.
  function draw(charts) {
    const place = document.getElementById("charts"), now = charts.map((one) => one.title).join("\n");
    if (!place || !charts.length) return;
    if (drawn && now === titles) return drawn.update(charts);
    titles = now;
    const places = charts.map(() => Charts.made("div", { className: "lively" }));
    place.replaceChildren(...places);
    drawn = Charts.curves(places, charts);
  }

  function replace(old, fresh) {
    if (!fresh || old.isEqualNode(fresh)) return;
    const same = (one) => `input[name="${one.name}"][value="${one.value}"]`;
    const ticked = [...old.querySelectorAll("input:checked")].map(same);
    const here = old.contains(document.activeElement) ? document.activeElement : null;
    const back = here?.name ? same(here) : here?.getAttribute("href") ? `a[href="${here.getAttribute("href")}"]` : null;
    old.replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
    for (const one of ticked) old.querySelector(one)?.click();
    if (back) old.querySelector(back)?.focus();
  }

  async function look() {
    if (document.visibilityState === "visible") {
      try {
        const answer = await fetch(location.href, { signal: AbortSignal.timeout(30000) });
        if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          for (const old of document.querySelectorAll("[data-live]")) replace(old, page.getElementById(old.id));
          draw(read(page));
        }
        document.getElementById("lost").hidden = true;
      } catch {
        document.getElementById("lost").hidden = false;
      }
    }
    setTimeout(look, EVERY);
  }

  draw(read(document));
  setTimeout(look, EVERY);
})();
