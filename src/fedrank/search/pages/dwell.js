// Who leaves a document within five seconds did not find what they looked for: that click is not learned from.
// Going back is noticed without a script. What is not is a tab of its own that is closed: only this is told here.
"use strict";
const where = document.currentScript.dataset.bounced;
// A browser that keeps pages in memory would go back without asking: then nobody notices.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
if (where && history.length === 1) {
  const ENOUGH = 5000; // milliseconds in sight
  let seen = 0;
  let since = null;
  let stays = false;
  const look = () => {
    const now = performance.now();
    if (since !== null) seen += now - since;
    since = document.visibilityState === "visible" ? now : null;
  };
  const goesOn = () => { stays = true; };
  look();
  document.addEventListener("visibilitychange", look);
  document.addEventListener("submit", goesOn);
  document.addEventListener("copy", goesOn);
  window.navigation?.addEventListener("navigate", goesOn); // a reload, or a link: the tab is still there
  addEventListener("pagehide", () => {
    look();
    if (!stays && seen < ENOUGH) navigator.sendBeacon(where);
  });
}
