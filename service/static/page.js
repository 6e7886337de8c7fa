"use strict";

// Charts: each block of JSON becomes a Vega-Lite chart in the colours of the style sheet.

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

function chartConfig() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const font = getComputedStyle(document.body).fontFamily;
  const quiet = color("--quiet");
  return {
    background: null,
    font,
    range: {
      category: [color("--ours"), color("--paper"), color("--third"), color("--fourth")],
      symbol: ["circle", "diamond", "square", "triangle-up"],
    },
    axis: {
      labelColor: quiet, titleColor: quiet, gridColor: color("--line"), domain: false, ticks: false,
      labelFontSize: 13, titleFontSize: 12, titleFontWeight: "normal", labelPadding: 8,
    },
    axisX: { titleAnchor: window.innerWidth < 480 ? "end" : "middle" },
    axisY: { labelColor: color("--ink"), labelLimit: window.innerWidth / 3 },
    legend: { labelColor: color("--ink"), labelFontSize: 13, symbolSize: 110 },
    view: { stroke: null },
    text: { color: color("--ink") },
    rule: { color: color("--ours") }, // intervals of ours, and the line of no gain
  };
}

async function drawCharts(within = document) {
  for (const block of within.querySelectorAll("script[data-chart]")) {
    if (block.closest("details:not([open])")) continue; // it has no width yet
    const target = document.getElementById(block.dataset.chart);
    const figure = target.closest("figure");
    const spec = JSON.parse(block.textContent);
    figure.hidden = false;
    const { view } = await window.vegaEmbed(target, spec, {
      ast: true, // expressions are interpreted, so that the page needs no eval
      actions: false,
      defaultStyle: false,
      renderer: "canvas",
      tooltip: { disableDefaultStyle: true },
      config: chartConfig(),
    });
    offerFiles(figure, view, spec, block.dataset.chart);
  }
}

// Below a chart: the same as a drawing, as a picture of twice its size, and its numbers.
function offerFiles(figure, view, spec, name) {
  const page = location.pathname.split("/").filter(Boolean).join("-") || "claimcheck";
  const files = {
    SVG: async () => new Blob([await view.toSVG()], { type: "image/svg+xml" }),
    PNG: async () => {
      const canvas = await view.toCanvas(2);
      return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    },
    CSV: async () => new Blob([asCSV(spec.data.values)], { type: "text/csv" }),
  };
  const line = document.createElement("p");
  line.className = "files";
  line.append("Save as ");
  for (const [kind, make] of Object.entries(files)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.addEventListener("click", async () => save(await make(), `${page}-${name}.${kind.toLowerCase()}`));
    line.append(button);
  }
  figure.querySelector(".files")?.remove(); // drawn again in other colours
  figure.append(line);
}

function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function asCSV(rows) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((column) => row[column]))]
    .map((line) => `${line.map(quoted).join(",")}\r\n`).join("");
}

// Asking: the same form that works without this file, answered in place.

function setUpForm(form) {
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  const result = document.getElementById("result");
  const status = document.getElementById("status");
  const key = document.getElementById("key"); // there where the service asks for one
  let underWay = new AbortController();
  document.documentElement.classList.add("has-script");

  function headers() {
    const accept = { Accept: "text/html, application/problem+json" }; // a page, and of an error its sentence alone
    if (!key) return accept;
    sessionStorage.setItem("api-key", key.value); // this tab's alone, and never in an address or a form
    return { ...accept, Authorization: `Bearer ${key.value}` };
  }

  async function ask(truth = null) {
    underWay.abort(); // an answer that comes late would stand under the next picture
    const mine = underWay = new AbortController();
    const files = [...input.files];
    result.replaceChildren();
    if (!form.querySelector("[name=checkpoint]:checked")) {
      status.textContent = "Choose at least one model.";
      return;
    }
    status.textContent = "Asking…";
    try {
      const response = await fetch("/predict", {
        method: "POST", body: new FormData(form), headers: headers(), signal: mine.signal,
      });
      if (!response.ok) {
        const { detail } = await response.json();
        if (!mine.signal.aborted) status.textContent = detail;
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (mine.signal.aborted) return;
      const answers = document.importNode(page.getElementById("answers"), true);
      addPreviews(answers, files);
      if (truth) tellTruth(answers, truth);
      result.replaceChildren(answers);
      status.textContent = "";
    } catch {
      if (!mine.signal.aborted) status.textContent = "The service did not answer. Is it still running?";
    }
  }

  async function trySample(button) {
    const response = await fetch(button.dataset.sample);
    if (!response.ok) { status.textContent = "This image is no longer there; load the page again."; return; }
    const content = await response.blob();
    const files = new DataTransfer();
    files.items.add(new File([content], `${button.title}.png`, { type: content.type }));
    input.files = files.files;
    ask({ name: button.dataset.truth, isPlaceholder: "placeholder" in button.dataset });
  }

  if (key) key.value = sessionStorage.getItem("api-key") || "";
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  input.addEventListener("change", () => { if (input.files.length) ask(); });
  for (const box of form.querySelectorAll("input[type=checkbox]")) {
    box.addEventListener("change", () => { if (input.files.length) ask(); });
  }
  for (const button of form.querySelectorAll("[data-sample]")) {
    button.addEventListener("click", () => trySample(button));
  }
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("is-over"); });
  }
  for (const name of ["dragleave", "drop"]) {
    drop.addEventListener(name, () => drop.classList.remove("is-over"));
  }
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) { input.files = event.dataTransfer.files; ask(); }
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) { input.files = event.clipboardData.files; ask(); }
  });
}

function addPreviews(answers, files) {
  for (const places of [".image h4", ".grid-of-answers tbody th"]) {
    answers.querySelectorAll(places).forEach((place, index) => {
      const preview = document.createElement("img");
      preview.alt = "";
      preview.src = URL.createObjectURL(files[index]);
      preview.addEventListener("load", () => URL.revokeObjectURL(preview.src));
      place.prepend(preview);
    });
  }
}

// Beside the answers to a sample: its true class, and on each card whether the likeliest class is that one.
function tellTruth(answers, { name, isPlaceholder }) {
  const told = document.createElement("span");
  told.className = "truth";
  told.textContent = isPlaceholder ? `a placeholder image, made as ${name}` : `true class: ${name}`;
  answers.querySelector(".image h4").append(told);
  for (const card of answers.querySelectorAll(".card")) {
    if (isPlaceholder && !card.classList.contains("is-stand-in")) continue; // it never saw such images
    const isRight = card.querySelector(".top .name").textContent === name;
    const mark = document.createElement("span");
    mark.className = `badge ${isRight ? "for" : "against"}`;
    mark.textContent = isRight ? "right" : "wrong";
    card.querySelector("header").append(mark);
  }
}

drawCharts();
darkScheme.addEventListener("change", () => drawCharts());
for (const details of document.querySelectorAll("details:has(script[data-chart])")) {
  details.addEventListener("toggle", () => drawCharts(details));
}
const form = document.getElementById("try");
if (form) setUpForm(form);
