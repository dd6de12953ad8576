// Saves pictures as they stand in the page, and their numbers: nothing is fetched, so that a page that was moved alone does it, too.
function saves(selector, content) {
  for (const link of document.querySelectorAll(selector)) {
    link.hidden = false;
    link.addEventListener("click", async event => {
      if (link.protocol === "blob:") return;
      event.preventDefault();
      link.href = URL.createObjectURL(await content(link.dataset));
      setTimeout(() => link.click());  // after this click is over: within it, another does nothing
    });
  }
}
saves("a[data-svg]", async ({svg}) => {
  const picture = document.querySelector(`svg[aria-labelledby^="${svg}-title"]`);
  return new Blob([new XMLSerializer().serializeToString(picture)], {type: "image/svg+xml"});
});
saves("a[data-csv]", async ({csv}) => {
  const packed = new Blob([Uint8Array.from(atob(csv), each => each.charCodeAt())]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).blob();
});
