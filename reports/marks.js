const seriesStatus = document.body.appendChild(document.createElement("p"));
seriesStatus.className = "unseen";
seriesStatus.setAttribute("role", "status");

// Shows the values of a cell at its mark in a picture, and switches series of a picture off. Positions of marks are those of
// campaign/report/plot.py (link_cells): row of the table of all cells, x, y, and for bars half their width and their base.
if (cellsTable) {
  for (const help of document.querySelectorAll(".marks-help")) help.hidden = false;
  const REACH = 14;  // Distance from a mark to the pointer, in pixels of the screen.
  const box = document.body.appendChild(document.createElement("div"));
  Object.assign(box, {className: "mark-values", hidden: true});
  box.setAttribute("role", "status");
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", 8);
  let current;  // Picture and mark that are shown.

  function hide() {
    current = undefined;
    box.hidden = true;
    ring.remove();
  }
  async function show(svg, mark) {
    if (current?.svg === svg && current.mark === mark) return;
    current = {svg, mark};
    const lines = await cellsTable.describeCell(mark.row);
    if (current?.mark !== mark) return;
    ring.setAttribute("cx", mark.x);
    ring.setAttribute("cy", mark.y);
    svg.append(ring);
    box.replaceChildren(...lines.map(line => Object.assign(document.createElement("p"), {textContent: line})));
    box.hidden = false;
    const place = new DOMPoint(mark.x, mark.y).matrixTransform(svg.getScreenCTM());
    box.style.left = `${Math.max(4, Math.min(place.x + 14, innerWidth - box.offsetWidth - 4))}px`;
    box.style.top = `${place.y - box.offsetHeight - 10 > 0 ? place.y - box.offsetHeight - 10 : place.y + 14}px`;
  }

  function findMark(svg, marks, event) {
    const matrix = svg.getScreenCTM();
    const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    const reach = REACH / matrix.a;
    const distance = mark => {
      const inBar = mark.half && Math.abs(x - mark.x) <= mark.half && y >= mark.y - 2 && y <= mark.base;
      return inBar ? 0 : Math.hypot(x - mark.x, y - mark.y);
    };
    const nearest = marks.reduce((best, mark) => !best || distance(mark) < distance(best) ? mark : best, undefined);
    return nearest && distance(nearest) <= reach ? nearest : undefined;
  }

  for (const svg of document.querySelectorAll("svg[data-cells]")) {
    const marks = svg.dataset.cells.split(";").filter(Boolean).map(text => {
      const [row, x, y, half, base] = text.split(",").map(Number);
      return {row, x, y, half, base};
    });
    if (!marks.length) continue;
    svg.classList.add("answers");
    svg.addEventListener("pointermove", event => {
      const mark = findMark(svg, marks, event);
      if (mark) show(svg, mark); else hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("click", event => {
      const mark = findMark(svg, marks, event);
      if (!mark) return;
      hide();
      cellsTable.showCell(mark.row);
    });
    // The box of a picture has the focus: arrow keys go through the marks, Enter goes to the row of the cell.
    const picture = svg.closest(".picture");
    picture.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight Enter");
    picture.addEventListener("blur", hide);
    picture.addEventListener("keydown", event => {
      if (!svg.checkVisibility() || event.altKey || event.ctrlKey || event.metaKey) return;
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      const number = current?.svg === svg ? marks.indexOf(current.mark) : -1;
      if (step) show(svg, marks[number < 0 ? 0 : (number + step + marks.length) % marks.length]);
      else if (event.key === "Escape") hide();
      else if (event.key === "Enter" && number >= 0) { hide(); cellsTable.showCell(marks[number].row); }
      else return;
      event.preventDefault();
    });
  }
}

// A click on an entry of a legend switches its series off: all that has its colour. A colour of several entries, and ink, belong to
// no single series. With the focus on the picture, the keys 1 to 9 do the same.
for (const svg of document.querySelectorAll(".picture svg")) {
  const legend = svg.querySelector('g[id*="-legend_"]');
  if (!legend) continue;
  function listColours(element) {
    const paints = [...(element.getAttribute("style") ?? "").matchAll(/(?:fill|stroke): (?:(#[0-9a-f]{6})|url\(#([^)]*)\))/g)];
    return paints.map(([, colour, pattern]) => colour ?? document.getElementById(pattern)?.querySelector("rect").getAttribute("fill"));
  }
  const entries = [];
  let keys = [];
  for (const group of legend.children) {
    keys.push(group);
    if (!group.querySelector("text")) continue;
    const colours = new Set(keys.flatMap(key => [...key.querySelectorAll("[style]")].flatMap(listColours)).filter(Boolean));
    if (colours.size === 1) entries.push({groups: keys, name: group.textContent.trim(), colour: [...colours][0]});
    keys = [];
  }
  const series = entries.filter(entry => entries.filter(other => other.colour === entry.colour).length === 1);
  if (series.length < 2) continue;
  const picture = svg.closest(".picture");
  function toggle({groups, name, colour}) {
    const off = groups[0].classList.toggle("pale");
    groups.slice(1).forEach(group => group.classList.toggle("pale", off));
    const painted = [...svg.querySelectorAll("[style]")].filter(element => !legend.contains(element) && listColours(element).includes(colour));
    for (const element of [...painted, ...svg.querySelectorAll(`.series-${colour.slice(1)}`)]) element.classList.toggle("off", off);
    seriesStatus.textContent = `${name} ${off ? "hidden" : "shown"}`;
  }
  for (const entry of series) {
    for (const group of entry.groups) {
      group.classList.add("toggle");
      group.addEventListener("click", () => toggle(entry));
    }
  }
  picture.addEventListener("keydown", event => {
    const entry = series[Number(event.key) - 1];
    if (!entry || !svg.checkVisibility() || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    toggle(entry);
  });
}
