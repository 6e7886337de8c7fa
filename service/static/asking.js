"use strict";

// Answers the form in place.  Without this file the form loads a page.

function setUpForm(form) {
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  const result = document.getElementById("result");
  const status = document.getElementById("status");
  const progress = document.getElementById("progress");
  const key = document.getElementById("key"); // only if the service requires one
  let pending = new AbortController();
  document.documentElement.classList.add("has-script");

  function headers() {
    const accept = { Accept: "text/html, application/problem+json" }; // answers as pages, errors as JSON
    if (!key) return accept;
    sessionStorage.setItem("api-key", key.value); // kept by this tab only, never in a URL or form
    return { ...accept, Authorization: `Bearer ${key.value}` };
  }

  function showStatus(text, isError = false) {
    status.textContent = text;
    status.className = isError ? "problem" : "";
  }

  async function ask() {
    pending.abort(); // a late answer would appear below the next image
    const mine = pending = new AbortController();
    const files = [...input.files];
    result.replaceChildren();
    if (!form.querySelector("[name=checkpoint]:checked")) {
      showStatus("Choose at least one model.", true);
      return;
    }
    if (!files.length && !form.querySelector("[name=sample]:checked")) {
      showStatus("Choose an image.");
      return;
    }
    const titles = [...form.querySelectorAll("[name=checkpoint]:checked")].map((box) => box.parentElement.textContent.trim());
    showStatus(`Asking ${titles.join(", ")}. A model that was not asked lately is loaded first.`);
    progress.hidden = false;
    try {
      const response = await fetch(form.action, {
        method: "POST", body: new FormData(form), headers: headers(), signal: mine.signal,
      });
      if (!response.ok) {
        const { detail } = await response.json();
        if (!mine.signal.aborted) showStatus(describeRefusal(response.status, detail), true);
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const link = await createLink(form, files).catch(() => ({ note: "This browser can’t make the image small enough for a link." }));
      if (mine.signal.aborted) return;
      const answers = document.importNode(page.getElementById("answers"), true);
      addPreviews(answers, files);
      answers.append(createLinkField(link));
      result.replaceChildren(answers);
      showStatus("");
    } catch {
      if (!mine.signal.aborted) showStatus("The service did not answer. Is it still running?", true);
    } finally {
      if (mine === pending) progress.hidden = true;
    }
  }

  const samples = form.querySelectorAll("[name=sample]");
  const clearSamples = () => { for (const sample of samples) sample.checked = false; };
  const askAbout = (files) => { if (files.length) { input.files = files; clearSamples(); ask(); } };

  if (key) key.value = sessionStorage.getItem("api-key") || "";
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  input.addEventListener("change", () => askAbout(input.files));
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
    askAbout(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => askAbout(event.clipboardData.files));

  function askFromLink() {
    const { files, isRefused } = readImagesFromLink(Number(form.dataset.most));
    const sample = form.querySelector("[name=sample]:checked");
    if (isRefused) showStatus("The link holds no image that can be read here.", true);
    else if (files.length) { input.files = files; clearSamples(); }
    else if (!sample) return;
    document.getElementById("try-title").scrollIntoView();
    if (isRefused) return;
    if (key) showStatus("Press Ask to ask about the image of this link."); // opening a link must not use up the key's quota
    else ask();
  }

  askFromLink();
  window.addEventListener("hashchange", () => { if (location.hash.startsWith("#image=")) askFromLink(); });
}

// The error of a refused request, with what the user can do.
function describeRefusal(status, detail) {
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
  const uploaded = [...answers.querySelectorAll(".image h4")].slice(0, files.length); // test images have their own
  uploaded.forEach((place, index) => {
    if (place.closest(".failed")) return;
    const preview = document.createElement("img");
    preview.alt = "";
    preview.src = URL.createObjectURL(files[index]);
    preview.addEventListener("load", () => URL.revokeObjectURL(preview.src));
    place.prepend(preview);
  });
}

// A link to an answer names test images.  Uploaded images are in its fragment, which browsers don't send to servers;
// the browser of the person who opens the link asks again.

const MAX_UNCHANGED = 6_000; // bytes; links contain smaller files unchanged
const MAX_IN_LINK = 24_000; // bytes of all images in a link
const SIGNATURES = { "image/png": [0x89, 0x50, 0x4e, 0x47], "image/jpeg": [0xff, 0xd8, 0xff], "image/webp": [0x52, 0x49, 0x46, 0x46] };

async function createLink(form, files) {
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
  const small = await Promise.all(files.map((file) => file.size > MAX_UNCHANGED ? shrink(file, side) : file));
  if (small.reduce((sum, image) => sum + image.size, 0) > MAX_IN_LINK) {
    return { note: `${files.length > 1 ? "These images are" : "This image is"} too large for a link.` };
  }
  const parts = await Promise.all(small.map(async (image) => `image=${encodeBase64Url(await image.arrayBuffer())}`));
  address.hash = parts.join("&");
  const isReduced = small.some((image, index) => image !== files[index]);
  const held = files.length > 1 ? "the images themselves" : "the image itself";
  const size = isReduced ? `, at ${side} × ${side} pixels, so that answers may differ a little` : "";
  return { address, note: `It holds ${held}${size}; this service keeps nothing. Whoever has the link sees the image.` };
}

// Crops an image to its centre, as the service does, and shrinks it.
async function shrink(file, side) {
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

function encodeBase64Url(bytes) {
  const text = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// Reads the images in this page's fragment.  Anyone can write a link, so only data with an image's signature becomes a
// file, within the size that `createLink` allows, and the service decodes it like any upload.
function readImagesFromLink(most) {
  const written = new URLSearchParams(location.hash.slice(1)).getAll("image");
  const files = new DataTransfer();
  let left = MAX_IN_LINK;
  for (const [index, letters] of written.slice(0, most).entries()) {
    if (letters.length > 2 * left) break;
    let bytes;
    try {
      bytes = Uint8Array.from(atob(letters.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    } catch {
      break;
    }
    const type = Object.keys(SIGNATURES).find((kind) => SIGNATURES[kind].every((byte, at) => bytes[at] === byte));
    left -= bytes.length;
    if (!type || left < 0) break;
    files.items.add(new File([bytes], `shared-${index + 1}.${type.split("/")[1]}`, { type }));
  }
  return { files: files.files, isRefused: files.files.length < written.length };
}

function createLinkField({ address, note }) {
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
        button.textContent = "Press Ctrl+C"; // pages without TLS may not write to the clipboard
      }
    });
    line.append(label, " ", button, " ");
  }
  const remark = document.createElement("span");
  remark.className = "quiet";
  remark.textContent = note;
  line.append(remark);
  return line;
}

const form = document.getElementById("try");
if (form) setUpForm(form);
