"use strict";

// Asking: the same form that works without this file, answered in place.

function setUpForm(form) {
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  const result = document.getElementById("result");
  const status = document.getElementById("status");
  const progress = document.getElementById("progress");
  const key = document.getElementById("key"); // there where the service asks for one
  let underWay = new AbortController();
  document.documentElement.classList.add("has-script");

  function headers() {
    const accept = { Accept: "text/html, application/problem+json" }; // a page, and of an error its sentence alone
    if (!key) return accept;
    sessionStorage.setItem("api-key", key.value); // this tab's alone, and never in an address or a form
    return { ...accept, Authorization: `Bearer ${key.value}` };
  }

  function tell(text, isError = false) {
    status.textContent = text;
    status.className = isError ? "problem" : "";
  }

  async function ask() {
    underWay.abort(); // an answer that comes late would stand under the next picture
    const mine = underWay = new AbortController();
    const files = [...input.files];
    result.replaceChildren();
    if (!form.querySelector("[name=checkpoint]:checked")) {
      tell("Choose at least one model.", true);
      return;
    }
    if (!files.length && !form.querySelector("[name=sample]:checked")) {
      tell("Choose an image.");
      return;
    }
    const titles = [...form.querySelectorAll("[name=checkpoint]:checked")].map((box) => box.parentElement.textContent.trim());
    tell(`Asking ${titles.join(", ")}. A model that was not asked lately is loaded first.`);
    progress.hidden = false;
    try {
      const response = await fetch(form.action, {
        method: "POST", body: new FormData(form), headers: headers(), signal: mine.signal,
      });
      if (!response.ok) {
        const { detail } = await response.json();
        if (!mine.signal.aborted) tell(adviseOn(response.status, detail), true);
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const link = await linkTo(form, files).catch(() => ({ note: "This browser can’t make the image small enough for a link." }));
      if (mine.signal.aborted) return;
      const answers = document.importNode(page.getElementById("answers"), true);
      addPreviews(answers, files);
      answers.append(offerLink(link));
      result.replaceChildren(answers);
      tell("");
    } catch {
      if (!mine.signal.aborted) tell("The service did not answer. Is it still running?", true);
    } finally {
      if (mine === underWay) progress.hidden = true;
    }
  }

  const samples = form.querySelectorAll("[name=sample]");
  const forget = () => { for (const sample of samples) sample.checked = false; };
  const askOf = (files) => { if (files.length) { input.files = files; forget(); ask(); } };

  if (key) key.value = sessionStorage.getItem("api-key") || "";
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  input.addEventListener("change", () => askOf(input.files));
  for (const box of form.querySelectorAll("input[type=checkbox]")) {
    box.addEventListener("change", () => {
      if (input.files.length || form.querySelector("[name=sample]:checked")) ask();
    });
  }
  for (const sample of samples) {
    sample.addEventListener("change", () => { input.value = ""; ask(); });
  }
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("is-over"); });
  }
  for (const name of ["dragleave", "drop"]) {
    drop.addEventListener(name, () => drop.classList.remove("is-over"));
  }
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    askOf(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => askOf(event.clipboardData.files));

  function openLink() {
    const { files, isRefused } = imagesInLink(Number(form.dataset.most));
    const sample = form.querySelector("[name=sample]:checked");
    if (isRefused) tell("The link holds no image that can be read here.", true);
    else if (files.length) { input.files = files; forget(); }
    else if (!sample) return;
    document.getElementById("try-title").scrollIntoView();
    if (isRefused) return;
    if (key) tell("Press Ask to ask about the image of this link."); // a link spends nobody's key
    else ask();
  }

  openLink();
  window.addEventListener("hashchange", () => { if (location.hash.startsWith("#image=")) openLink(); });
}

// What a person can do about a request that was refused whole.
function adviseOn(status, detail) {
  const advice = {
    401: "Enter the key that the service’s operator gave you.",
    413: "Choose fewer or smaller images.",
    422: "Save the image as PNG, JPEG or WebP and try again.",
    429: "Wait a minute, then press Ask again.",
    503: "Wait a few seconds, then press Ask again.",
  }[status];
  return advice ? `${detail.replace(/[.]$/, "")}. ${advice}` : detail;
}

function addPreviews(answers, files) {
  const uploaded = [...answers.querySelectorAll(".image h4")].slice(0, files.length); // test images bring their own
  uploaded.forEach((place, index) => {
    if (place.closest(".failed")) return;
    const preview = document.createElement("img");
    preview.alt = "";
    preview.src = URL.createObjectURL(files[index]);
    preview.addEventListener("load", () => URL.revokeObjectURL(preview.src));
    place.prepend(preview);
  });
}

// A link to an answer.  A test image is named in it; an image of one's own is in the fragment, which browsers send to
// no server: whoever opens the link has their browser ask again.

const MOST_AS_IS = 6_000; // bytes of a file that a link holds as it is
const MOST_IN_LINK = 24_000; // bytes of all images of a link
const BEGINNINGS = { "image/png": [0x89, 0x50, 0x4e, 0x47], "image/jpeg": [0xff, 0xd8, 0xff], "image/webp": [0x52, 0x49, 0x46, 0x46] };

async function linkTo(form, files) {
  const address = new URL(document.querySelector(".brand").href);
  address.searchParams.set("dataset", form.dataset.dataset);
  for (const box of form.querySelectorAll("[name=checkpoint]:checked")) {
    address.searchParams.append("checkpoint", box.value);
  }
  const samples = form.querySelectorAll("[name=sample]:checked");
  if (samples.length) {
    for (const sample of samples) address.searchParams.append("sample", sample.value.split("/")[1]);
    address.hash = "try-title";
    return { address, note: `It names the test image${samples.length > 1 ? "s" : ""} and the models.` };
  }
  const side = Math.max(64, Number(form.dataset.side));
  const small = await Promise.all(files.map((file) => file.size > MOST_AS_IS ? reduced(file, side) : file));
  if (small.reduce((sum, image) => sum + image.size, 0) > MOST_IN_LINK) {
    return { note: `${files.length > 1 ? "These images are" : "This image is"} too large for a link.` };
  }
  const parts = await Promise.all(small.map(async (image) => `image=${inLetters(await image.arrayBuffer())}`));
  address.hash = parts.join("&");
  const isReduced = small.some((image, index) => image !== files[index]);
  const held = files.length > 1 ? "the images themselves" : "the image itself";
  const size = isReduced ? `, at ${side} × ${side} pixels, so that answers may differ a little` : "";
  return { address, note: `It holds ${held}${size}; this service keeps nothing. Whoever has the link sees the image.` };
}

// The middle of an image, as the models see it, in fewer pixels.
async function reduced(file, side) {
  const image = await createImageBitmap(file);
  const length = Math.min(image.width, image.height);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, (image.width - length) / 2, (image.height - length) / 2, length, length, 0, 0, side, side);
  image.close();
  return new Promise((resolve) => canvas.toBlob(resolve, "image/webp", 0.9));
}

function inLetters(bytes) {
  const text = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// The images in this page's own fragment.  Anyone can write a link, so only what begins as an image of the three kinds
// becomes a file, at most as much as `linkTo` writes, and the service decodes it as it does any upload.
function imagesInLink(most) {
  const written = new URLSearchParams(location.hash.slice(1)).getAll("image");
  const files = new DataTransfer();
  let left = MOST_IN_LINK;
  for (const [index, letters] of written.slice(0, most).entries()) {
    if (letters.length > 2 * left) break;
    let bytes;
    try {
      bytes = Uint8Array.from(atob(letters.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    } catch {
      break;
    }
    const type = Object.keys(BEGINNINGS).find((kind) => BEGINNINGS[kind].every((byte, at) => bytes[at] === byte));
    left -= bytes.length;
    if (!type || left < 0) break;
    files.items.add(new File([bytes], `shared-${index + 1}.${type.split("/")[1]}`, { type }));
  }
  return { files: files.files, isRefused: files.files.length < written.length };
}

function offerLink({ address, note }) {
  const line = document.createElement("p");
  line.className = "share";
  if (address) {
    const label = document.createElement("label");
    const field = Object.assign(document.createElement("input"), { type: "text", readOnly: true, value: address.href });
    label.append("Link to this answer ", field);
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
    button.addEventListener("click", async () => {
      field.select();
      try {
        await navigator.clipboard.writeText(field.value);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Press Ctrl+C"; // without TLS a page may not write there
      }
    });
    line.append(label, " ", button, " ");
  }
  const told = document.createElement("span");
  told.className = "quiet";
  told.textContent = note;
  line.append(told);
  return line;
}

const form = document.getElementById("try");
if (form) setUpForm(form);
