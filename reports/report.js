// Saves pictures of the page and their numbers. Nothing is fetched, so that it works for a page without its results directory.
function saves(selector, content) {
  for (const link of document.querySelectorAll(selector)) {
    link.hidden = false;
    link.addEventListener("click", async event => {
      if (link.protocol === "blob:") return;
      event.preventDefault();
      link.href = URL.createObjectURL(await content(link.dataset));
      setTimeout(() => link.click());  // After this click: a click within it would have no effect.
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
