// Sorts, filters, pages through and exports the table of all cells, whose rows open the runs of a cell. Formats are those of
// campaign/report/cells_table.py and cell_runs.py.
const cellsTable = (() => {
  const data = document.getElementById("cells-data");
  if (!data) return null;
  const {columns, rows_per_page: size, bar_headroom: headroom} = JSON.parse(data.textContent);
  const section = document.getElementById("cells");
  const body = section.querySelector("tbody");
  const column = name => columns.find(each => each.name === name);
  const total = columns[0].values.length;
  const text = (each, row) => each.kind === "text" ? each.texts[each.values[row]] : each.values[row] ?? "";
  const shown = columns.filter(each => each.kind !== "bound");

  const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
  const digits = new Intl.NumberFormat("en", {minimumSignificantDigits: 4, maximumSignificantDigits: 4});
  function rate(value) {
    const rounded = Math.abs(Number(value.toPrecision(4)));
    if (rounded && rounded < 1e-4) return String(Number(value.toPrecision(4))).replaceAll("-", "−");
    return (rounded >= 1000 ? whole : digits).format(value).replaceAll("-", "−");
  }
  const formats = {
    text: (value, each) => each.texts[value],
    count: value => whole.format(value),
    percent: value => `${whole.format(value).replace("-", "−")}\u202f%`,
    ratio: value => `${value.toFixed(2)}×`,
    rate(value, each, row) {
      const [low, high] = ["ci_low", "ci_high"].map(name => column(name).values[row]);
      return rate(value) + (low === null || high === null ? "" : ` [${rate(low)} to ${rate(high)}]`);
    },
  };
  const scales = [];  // Largest value of a bar, by workload.
  column("mean").values.forEach((mean, row) => {
    const workload = column("workload").values[row];
    scales[workload] = Math.max(scales[workload] ?? 0, (mean ?? 0) * headroom);
  });
  function drawBar(row) {
    const [mean, low, high] = ["mean", "ci_low", "ci_high"].map(name => column(name).values[row]);
    const x = value => Math.min(100, Math.max(0, 100 * value / scales[column("workload").values[row]])).toFixed(1);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true"}))
      svg.setAttribute(name, value);
    for (const [name, path] of [["", mean === null ? "" : `M0 5H${x(mean)}`], ["line", low === null || high === null ? "" : `M${x(low)} 5H${x(high)}`]]) {
      const element = svg.appendChild(document.createElementNS(svg.namespaceURI, "path"));
      element.setAttribute("class", name);
      element.setAttribute("d", path);
    }
    return svg;
  }

  // A text is compared by its place among the distinct texts of its column. Cells without a value come last in both directions.
  const collator = new Intl.Collator("en", {numeric: true});
  function listKeys(each) {
    if (each.kind !== "text") return each.values;
    const places = [];
    each.texts.map((_, number) => number).sort((a, b) => collator.compare(each.texts[a], each.texts[b]))
      .forEach((number, place) => { places[number] = each.texts[number] ? place : null; });
    return each.values.map(number => places[number]);
  }
  let order = Array.from({length: total}, (_, row) => row), kept = order, page = 0;
  const heads = [...section.querySelectorAll("thead th")];
  function sortRows(head, each) {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const keys = listKeys(each);
    order.sort((a, b) =>
      keys[a] === null || keys[b] === null ? (keys[a] === null) - (keys[b] === null) || a - b : direction * (keys[a] - keys[b]) || a - b);
    filterRows();
  }
  heads.forEach((head, number) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.addEventListener("click", () => sortRows(head, shown[number]));
    head.replaceChildren(button);
  });

  const tools = document.createElement("p");
  tools.className = "tools";
  const search = document.createElement("input");
  Object.assign(search, {type: "search", placeholder: "Filter"});
  search.setAttribute("aria-label", "Filter cells by words");
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  const [previous, next] = [["Previous", -1], ["Next", 1]].map(([name, step]) => {
    const button = document.createElement("button");
    button.textContent = name;
    button.addEventListener("click", () => { page += step; showPage(); });
    return button;
  });
  const link = document.createElement("a");
  Object.assign(link, {textContent: "CSV", download: "cells.csv", href: "#cells"});
  link.setAttribute("aria-label", "CSV of the cells that match");
  tools.append(search, status, previous, next, link);
  section.querySelector(".scroll").before(tools);
  section.querySelector(".plain")?.remove();

  let searched;  // Text of each row in lower case, made at the first key.
  function filterRows() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) searched ??= order.map(() => "").map((_, row) => columns.map(each => text(each, row)).join(" ").toLowerCase());
    kept = words.length ? order.filter(row => words.every(word => searched[row].includes(word))) : order;
    page = 0;
    showPage();
  }
  search.addEventListener("input", filterRows);

  const make = (name, content, properties = {}) => {
    const element = document.createElement(name);
    element.append(...[content].flat());
    return Object.assign(element, properties);
  };

  // Runs are unpacked when they are first needed.
  const {runs, results} = section.dataset;
  let unpacked;
  async function unpackRuns() {
    const packed = new Blob([Uint8Array.from(atob(runs), each => each.charCodeAt())]);
    const list = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).json();
    const runsOfRow = [];
    list.cell.forEach((row, run) => (runsOfRow[row] ??= []).push(run));
    return {list, of: row => runsOfRow[row] ?? []};
  }
  const loadRuns = () => unpacked ??= unpackRuns();

  function drawSteps(levels) {
    if (!levels) return "–";
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = svg.appendChild(document.createElementNS(svg.namespaceURI, "path"));
    const points = [...levels].map((level, number) => `${number} ${35 - parseInt(level, 36)}`);
    path.setAttribute("d", `M${points.join("L")}${points.length > 1 ? "" : "h1"}`);
    for (const [name, value] of Object.entries({class: "steps", viewBox: `0 -2 ${Math.max(1, points.length - 1)} 39`, preserveAspectRatio: "none", role: "img", "aria-label": `${points.length} step times, from 0 to the longest step of the cell`}))
      svg.setAttribute(name, value);
    return svg;
  }
  // In an archive, and on a page that was made without its results, a file is a name without a link.
  const linkFile = (name, path) => !path ? "–" : results
    ? make("a", name, {href: [results, ...path.split("/").map(encodeURIComponent)].join("/"), title: path})
    : make("code", path);
  function listRuns({list, of}, row) {
    const heads = ["Run", column("mean").heading.replace(/ \[.*/, ""), ...(list.steps ? ["Step times"] : []), "Status", "Log", "Record", "Flags"];
    const lines = of(row).map(run => make("tr", [
      make("th", list.number.texts[list.number.values[run]], {scope: "row"}),
      make("td", list.value[run] === null ? "–" : rate(list.value[run])),
      ...(list.steps ? [make("td", drawSteps(list.steps[run]))] : []),
      make("td", list.status.texts[list.status.values[run]]),
      make("td", linkFile("log", list.log[run])),
      make("td", linkFile("record", list.record[run])),
      make("td", list.flags.texts[list.flags.values[run]] || "–"),
    ]));
    return lines.length
      ? make("table", [make("thead", make("tr", heads.map(head => make("th", head, {scope: "col"})))), make("tbody", lines)])
      : "This cell has no runs.";
  }
  async function toggleRuns(button, line, row) {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) return line.nextElementSibling.remove();
    const cell = make("td", "Loading", {colSpan: shown.length});
    line.after(make("tr", cell, {className: "runs"}));
    cell.replaceChildren(listRuns(await loadRuns(), row));
  }

  function showPage() {
    const rows = kept.slice(page * size, (page + 1) * size);
    body.replaceChildren(...rows.map(row => {
      const line = document.createElement("tr");
      shown.forEach((each, number) => {
        const value = each.values[row];
        const words = value === null ? "–" : formats[each.kind](value, each, row);
        if (number) return line.append(make("td", each.kind === "rate" ? [drawBar(row), words] : words));
        const button = make("button", words, {type: "button"});
        button.setAttribute("aria-expanded", "false");
        button.addEventListener("click", () => toggleRuns(button, line, row));
        line.append(make("th", button, {scope: "row"}));
      });
      return line;
    }));
    const first = page * size;
    status.textContent = `${rows.length ? `${whole.format(first + 1)}–${whole.format(first + rows.length)} of ` : ""}${whole.format(kept.length)}`;
    previous.disabled = !page;
    next.disabled = first + size >= kept.length;
    previous.hidden = next.hidden = kept.length <= size;
  }

  // A spreadsheet would evaluate a text that begins like a formula.
  const quote = value => `"${String(value).replace(/^(?=[=+\-@\t\r])/, isNaN(value) ? "'" : "").replaceAll('"', '""')}"`;
  link.addEventListener("click", () => {
    if (link.protocol === "blob:") URL.revokeObjectURL(link.href);
    const lines = [columns.map(each => each.name), ...kept.map(row => columns.map(each => text(each, row)))];
    link.href = URL.createObjectURL(new Blob([lines.map(line => `${line.map(quote).join(",")}\n`).join("")], {type: "text/csv"}));
  });
  showPage();

  function showCell(row) {
    if (!kept.includes(row)) {
      search.value = "";
      filterRows();
    }
    page = Math.floor(kept.indexOf(row) / size);
    showPage();
    const button = body.rows[kept.indexOf(row) % size].querySelector("button");
    section.scrollIntoView();
    button.scrollIntoView({block: "center"});
    button.focus();
  }
  async function describeCell(row) {
    const {list, of} = await loadRuns();
    const valid = of(row).filter(run => list.value[run] !== null);
    const compositions = new Set(valid.map(run => list.number.texts[list.number.values[run]].split(",")[0]));
    const count = (number, noun) => `${whole.format(number)} ${noun}${number === 1 ? "" : "s"}`;
    const named = shown.slice(0, shown.findIndex(each => each.kind === "rate"));
    return [
      named.map(each => `${each.name === "batch" ? "batch " : ""}${text(each, row)}`).join(", "),
      ...shown.filter(each => ["rate", "percent", "ratio"].includes(each.kind) && each.values[row] !== null)
        .map(each => `${each.heading.replace(/ \[.*/, "")}: ${formats[each.kind](each.values[row], each, row)}`),
      `${count(valid.length, "run")} on ${count(compositions.size, "composition")}`,
    ];
  }
  return {showCell, describeCell};
})();
