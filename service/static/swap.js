"use strict";

// Shows the answers of links and forms marked data-swap without a reload; without this file they load the page.

const place = () => location.pathname + location.search;
let shown = place();

async function swap(address) {
  shown = place();
  const response = await fetch(address, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.getElementById("swapped");
  if (!response.ok || !fresh) return location.assign(address);
  const { name, value } = document.activeElement;
  document.getElementById("swapped").replaceWith(document.importNode(fresh, true));
  document.title = page.title;
  if (name) [...document.getElementsByName(name)].find((field) => field.value === value)?.focus();
}

function show(address) {
  history.pushState(null, "", address);
  swap(address).catch(() => location.assign(address));
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-swap] a[href]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  show(link.href);
});
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-swap]");
  if (form) show(`${form.action}?${new URLSearchParams(new FormData(form))}`);
});
addEventListener("popstate", () => {
  if (place() !== shown) swap(location.href); // a jump within the page needs no request
});
