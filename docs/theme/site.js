// The search, the colours and the menu of the site. It works from a file: nothing is fetched, the index is a script.
"use strict";
(() => {
  const MOST = 20;           // sections shown
  const AROUND = 70;         // characters of text on each side of what was found
  const root = document.documentElement;
  const by = id => document.getElementById(id);
  const dialog = by("search"), input = by("words"), list = by("found"), count = by("count");

  // ---- colours: those of the system, until the reader chooses

  const theme = by("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("fedrank-theme", root.dataset.theme); } catch { /* the browser stores nothing */ }
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();

  // ---- menu and contents on narrow screens

  const menu = by("menu");
  menu.addEventListener("click", () => {
    const open = menu.getAttribute("aria-expanded") !== "true";
    menu.setAttribute("aria-expanded", String(open));
    by("pages").classList.toggle("open", open);
  });
  const toc = document.querySelector(".toc");
  if (toc && !matchMedia("(min-width: 1180px)").matches) toc.open = false;
  const here = document.querySelector("#pages [aria-current]");
  if (here && here.offsetParent) by("pages").scrollTop = Math.max(0, here.offsetTop - 200);
  document.querySelectorAll("article table").forEach((table, place) => {  // wide tables scroll, also with the keyboard
    const frame = document.createElement("div");
    frame.className = "wide";
    table.replaceWith(frame);
    frame.append(table);
    if (frame.scrollWidth <= frame.clientWidth) return;
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", `table ${place + 1}`);
  });
  for (const block of document.querySelectorAll("article pre")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
  }

  // ---- search

  let sections = null, loading = null, chosen = -1;

  function load() {
    loading ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = `${root.dataset.base}/search-index.js`;
      script.onload = () => { sections = prepared(window.searchIndex); done(); };
      script.onerror = () => failed(new Error("search-index.js is not beside the pages; build the site again"));
      document.head.append(script);
    });
    return loading;
  }

  const plain = text => text.normalize("NFKD").replace(/[\u0300-\u036f]/g, "").toLowerCase();

  function prepared(pages) {
    return pages.flatMap(page => page.sections.map(([anchor, heading, text], place) => ({
      page: page.title,
      heading: place ? heading : "",
      url: `${root.dataset.base}/${page.url}${place && anchor ? "#" + anchor : ""}`,
      text,
      side: page.url.startsWith("files/"),
      low: { page: ` ${plain(page.title)} `, heading: ` ${plain(heading)} `, text: ` ${plain(text)} ` },
    })));
  }

  // Number of words that begin with a term.
  function occurrences(text, term, enough) {
    let found = 0;
    for (let at = text.indexOf(term); at >= 0 && found < enough; at = text.indexOf(term, at + 1)) {
      if (!/[\p{L}\p{N}]/u.test(text[at - 1] ?? " ") || !/^[\p{L}\p{N}]/u.test(term)) found += 1;
    }
    return found;
  }

  const whole = (text, term) => !/[\p{L}\p{N}_-]/u.test(text[text.indexOf(term) + term.length] ?? " ");

  function search(words) {
    const terms = [...new Set(plain(words).match(/[\p{L}\p{N}_][\p{L}\p{N}_@.:-]*/gu) ?? [])].slice(0, 8)
      .map(term => term.length > 4 ? term.replace(/s$/, "") : term);  // plurals find their singulars
    if (!terms.length) return { terms, rows: [], total: 0 };
    const hits = terms.map(term => sections.map(({ low }) => {
      const inHeading = occurrences(low.heading, term, 1), inPage = occurrences(low.page, term, 1);
      const inText = occurrences(low.text, term, 6);
      if (!inHeading && !inPage && !inText) return 0;
      return inHeading * (whole(low.heading, term) ? 10 : 6) + inPage * 4 + inText / (inText + 1.5) * 4;
    }));
    const rare = hits.map(one => Math.log(1 + sections.length / (1 + one.filter(Boolean).length)));
    let rows = sections.map((section, row) => {
      const held = hits.filter(one => one[row]).length;
      const named = section.low.heading.trim() === terms.join(" ") ? 20 : 0;
      const score = named + hits.reduce((sum, one, term) => sum + one[row] * rare[term], 0);
      return { section, held, score: section.side ? score / 3 : score };
    }).filter(row => row.held);
    const most = Math.max(0, ...rows.map(row => row.held));
    rows = rows.filter(row => row.held === most).sort((a, b) => b.score - a.score);
    return { terms, rows: rows.slice(0, MOST), total: rows.length };
  }

  // Text with the terms marked, as nodes: text of a page is never parsed as HTML.
  function marked(into, text, terms) {
    const low = plain(text).length === text.length ? plain(text) : text.toLowerCase();
    let at = 0;
    while (at < text.length) {
      let next = -1, length = 0;
      for (const term of terms) {
        let place = low.indexOf(term, at);
        while (place > 0 && /[\p{L}\p{N}]/u.test(low[place - 1]) && /^[\p{L}\p{N}]/u.test(term)) place = low.indexOf(term, place + 1);
        if (place >= 0 && (next < 0 || place < next)) { next = place; length = term.length; }
      }
      if (next < 0) break;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(next, next + length);
      into.append(text.slice(at, next), mark);
      at = next + length;
    }
    into.append(text.slice(at));
    return into;
  }

  function excerpt(section, terms) {
    const places = terms.map(term => section.low.text.indexOf(` ${term}`)).filter(place => place >= 0);
    const at = places.length ? Math.min(...places) : 0;
    const from = at > AROUND ? section.text.indexOf(" ", at - AROUND) + 1 : 0;  // whole words
    const end = section.text.indexOf(" ", at + 2 * AROUND), to = end < 0 ? section.text.length : end;
    return (from ? "… " : "") + section.text.slice(from, to).trim() + (to < section.text.length ? " …" : "");
  }

  function show() {
    if (!sections) return;
    const { terms, rows, total } = search(input.value);
    list.replaceChildren(...rows.map(({ section }, row) => {
      const item = document.createElement("li"), link = document.createElement("a");
      item.id = `found-${row}`;
      item.setAttribute("role", "option");
      link.href = section.url;
      link.tabIndex = -1;
      const title = document.createElement("strong"), text = document.createElement("span");
      marked(title, section.heading ? `${section.page} › ${section.heading}` : section.page, terms);
      marked(text, excerpt(section, terms), terms);
      link.append(title, text);
      item.append(link);
      return item;
    }));
    input.setAttribute("aria-expanded", String(rows.length > 0));
    count.textContent = !terms.length ? "" : !total ? `No section contains “${input.value.trim()}”. Try fewer or shorter words.`
      : total > rows.length ? `The best ${rows.length} of ${total} sections` : `${total} section${total > 1 ? "s" : ""}`;
    choose(rows.length ? 0 : -1);
  }

  function choose(row) {
    list.children[chosen]?.removeAttribute("aria-selected");
    chosen = row;
    const item = list.children[row];
    item?.setAttribute("aria-selected", "true");
    item?.scrollIntoView({ block: "nearest" });
    if (item) input.setAttribute("aria-activedescendant", item.id); else input.removeAttribute("aria-activedescendant");
  }

  function open() {
    if (!dialog.open) dialog.showModal();
    input.focus();
    input.select();
    load().then(show, failed => { count.textContent = failed.message; });
  }

  by("find").addEventListener("click", open);
  input.addEventListener("input", show);
  input.addEventListener("keydown", event => {
    const last = list.children.length - 1;
    if (event.key === "ArrowDown") choose(Math.min(last, chosen + 1));
    else if (event.key === "ArrowUp") choose(Math.max(Math.min(0, last), chosen - 1));
    else if (event.key === "Enter") list.children[chosen]?.firstElementChild.click();
    else return;
    event.preventDefault();
  });
  list.addEventListener("click", event => { if (event.target.closest("a")) dialog.close(); });
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/" || event.key === "s") { event.preventDefault(); open(); }
  });
})();
