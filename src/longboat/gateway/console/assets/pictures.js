// Images of the playground: chosen files become data addresses of a bounded size, and are drawn without being loaded.

import { h, text } from "./dom.js";
import { bytes } from "./format.js";

const MOST = 4;
const MOST_BYTES = 4 * 2 ** 20;
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** wrong: the element that says why a file is not taken */
export function picture(wrong) {
  const chosen = [];
  const node = h("div", { class: "pictures row hidden" });
  const field = h("input", { type: "file", accept: TYPES.join(","), multiple: true, class: "hidden", "aria-label": "Images" });
  const button = h("button", { type: "button", text: "Image", title: "Add an image to the message", onclick: () => field.click() });
  field.addEventListener("change", async () => {
    text(wrong, "");
    for (const file of field.files) await take(file);
    field.value = "";
  });

  async function take(file) {
    const problem = !TYPES.includes(file.type) ? `${file.name} is not a PNG, JPEG, WebP or GIF image.`
      : file.size > MOST_BYTES ? `${file.name} has ${bytes(file.size)}; ${bytes(MOST_BYTES)} is the most.`
        : chosen.length >= MOST ? `A message has at most ${MOST} images.` : "";
    if (problem) {
      text(wrong, problem);
      return;
    }
    const image = { name: file.name, url: await addressOf(file) };
    chosen.push(image);
    const chip = h("span", { class: "chip" }, await drawn(file), h("span", { class: "name", text: `${file.name} · ${bytes(file.size)}` }),
      h("button", { type: "button", class: "plain", text: "×", "aria-label": `Remove ${file.name}`, onclick: () => {
        chosen.splice(chosen.indexOf(image), 1);
        chip.remove();
        node.classList.toggle("hidden", !chosen.length);
      } }));
    node.append(chip);
    node.classList.remove("hidden");
  }

  return { node, button: h("span", {}, field, button), chosen, clear: () => {
    chosen.length = 0;
    node.replaceChildren();
    node.classList.add("hidden");
  } };
}

function addressOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Draw a small copy. The page may show no image of an address, which a canvas does not need. */
async function drawn(file) {
  const canvas = h("canvas", { width: "36", height: "36", "aria-hidden": "true" });
  try {
    const image = await createImageBitmap(file);
    const scale = Math.min(36 / image.width, 36 / image.height);
    canvas.getContext("2d").drawImage(image, (36 - image.width * scale) / 2, (36 - image.height * scale) / 2, image.width * scale, image.height * scale);
    image.close();
  } catch {
    // the engine says what is wrong with it
  }
  return canvas;
}
