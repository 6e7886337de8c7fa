"use strict";

// Charts: each block of JSON becomes a Vega-Lite chart in the colours of the style sheet.

const own = document.currentScript;
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

// The chart library is large, so it comes with the first chart that is seen.
let library;
function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(own.dataset.vega, own.src);
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return library;
}

async function drawCharts(within = document) {
  for (const block of within.querySelectorAll("script[data-chart]")) {
    if (block.closest("details:not([open])")) continue; // it has no width yet
    await loadLibrary();
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

drawCharts();
darkScheme.addEventListener("change", () => drawCharts());
for (const details of document.querySelectorAll("details:has(script[data-chart])")) {
  details.addEventListener("toggle", () => drawCharts(details));
}
