// A report that its reader can look into. Without this script it shows the same as pictures and tables.
(() => {
  const { made, choice } = Charts;

  const numbers = (place) => JSON.parse(place.querySelector("script").textContent);

  function signed(value, digits) {
    const text = value.toFixed(digits);
    return Number(text) === 0 ? text.replace("-", "") : value > 0 ? "+" + text : text;
  }

  function curves(places) {
    Charts.curves(places, places.map(numbers));
    for (const place of places) {
      const still = place.querySelector(".still"), caption = still.querySelector("figcaption");
      if (caption) place.append(made("p", { className: "note", textContent: caption.textContent }));
      still.hidden = true;
    }
  }

  function queries(place) {
    const data = numbers(place);
    const digits = Math.round(Math.log10(data.steps)), view = { measure: 0, first: data.first, second: data.second, filter: "", most: 20 };
    const names = data.names.map((name, i) => [String(i), name]);
    const told = made("p", { className: "tally" }), body = made("tbody"), head = made("tr");
    told.setAttribute("aria-live", "polite");
    const wide = made("div", { className: "wide" }, made("table", {}, made("thead", {}, head), body));
    const more = made("button", { type: "button", textContent: "More queries" });

    function fill() {
      const ours = data.values[view.measure][view.first], theirs = data.values[view.measure][view.second];
      const rows = [];
      let equal = 0;
      data.queries.forEach((name, i) => {
        if (ours[i] === null || theirs[i] === null) return;
        if (ours[i] === theirs[i]) equal++;
        else rows.push([name, ours[i], theirs[i], ours[i] - theirs[i]]);
      });
      const won = rows.filter((row) => row[3] > 0).length;
      told.textContent = `${data.names[view.first]} wins ${won.toLocaleString("en")} queries against ` +
        `${data.names[view.second]}, loses ${(rows.length - won).toLocaleString("en")}, and ${equal.toLocaleString("en")} are equal.`;
      const wanted = { "": () => true, won: (row) => row[3] > 0, lost: (row) => row[3] < 0 }[view.filter];
      const listed = rows.filter(wanted).sort((one, two) => Math.abs(two[3]) - Math.abs(one[3]));
      const titles = ["query", data.names[view.first], data.names[view.second], "difference"];
      head.replaceChildren(...titles.map((textContent, i) => made("th", { textContent, className: i ? "n" : "w", scope: "col" })));
      body.replaceChildren(...listed.slice(0, view.most).map((row) => made("tr", {},
        made("td", { className: "w", textContent: row[0] }),
        ...[row[1], row[2]].map((value) => made("td", { className: "n", textContent: (value / data.steps).toFixed(digits) })),
        made("td", { className: "n " + (row[3] > 0 ? "better" : "worse"), textContent: signed(row[3] / data.steps, digits) }),
      )));
      more.hidden = listed.length <= view.most;
    }

    const set = (key) => (value) => { view[key] = key === "filter" ? value : Number(value); view.most = 20; fill(); };
    const filters = [["", "won and lost"], ["won", "won"], ["lost", "lost"]];
    const controls = made("div", { className: "controls" },
      choice("Variant", names, String(view.first), set("first")), choice("against", names, String(view.second), set("second")));
    if (data.measures.length > 1)
      controls.append(choice("Measure", data.measures.map((name, i) => [String(i), name]), "0", set("measure")));
    controls.append(choice("Queries", filters, "", set("filter")));
    more.addEventListener("click", () => { view.most += 100; fill(); });
    fill();
    place.querySelector(".still").hidden = true;
    place.append(controls, told, wide, more);
  }

  for (const article of document.querySelectorAll("article")) {
    const places = [...article.querySelectorAll(".lively[data-shows=curves]")];
    if (places.length) curves(places);
    for (const place of article.querySelectorAll(".lively[data-shows=queries]")) queries(place);
  }
})();
