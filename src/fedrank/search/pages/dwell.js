// A click is not learned from if the user leaves the document within five seconds.
// The server detects going back. This script reports only the closing of a separate tab.
"use strict";
const where = document.currentScript.dataset.bounced;
// Reload a page that the browser restores from memory; otherwise the server would not see the return.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
if (where && history.length === 1) {
  const ENOUGH = 5000; // milliseconds visible
  let seen = 0;
  let since = null;
  let stays = false;
  const look = () => {
    const now = performance.now();
    if (since !== null) seen += now - since;
    since = document.visibilityState === "visible" ? now : null;
  };
  const stay = () => { stays = true; };
  look();
  document.addEventListener("visibilitychange", look);
  document.addEventListener("submit", stay);
  document.addEventListener("copy", stay);
  window.navigation?.addEventListener("navigate", stay); // after a reload or a link the tab stays open
  addEventListener("pagehide", () => {
    look();
    if (!stays && seen < ENOUGH) navigator.sendBeacon(where);
  });
}
