// Who leaves a document within five seconds did not find what they looked for: that click is not learned from.
// Going back is noticed without this; a tab that is closed is not.
"use strict";
(() => {
  const ENOUGH = 5000; // milliseconds in sight
  const where = document.currentScript.dataset.bounced;
  let seen = 0;
  let since = null;
  let stays = false;
  const look = () => {
    const now = performance.now();
    if (since !== null) seen += now - since;
    since = document.visibilityState === "visible" ? now : null;
  };
  const useful = () => { stays = true; };
  look();
  document.addEventListener("visibilitychange", look);
  document.addEventListener("submit", useful);
  document.addEventListener("copy", useful);
  for (const link of document.querySelectorAll("a.leave, nav.pages a")) link.addEventListener("click", useful);
  addEventListener("pagehide", () => {
    look();
    if (!stays && seen < ENOUGH) navigator.sendBeacon(where);
  });
})();
