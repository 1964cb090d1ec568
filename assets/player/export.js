// Buttons beside a chart: save it as PNG, as SVG, or its data as CSV; or one that copies a text.
//
// It owns the way from Plotly's layers in the document to one file: Plotly draws a chart as several
// SVG layers above one another, which become groups of one SVG; the PNG is that SVG, painted at
// twice the size. A drawing that was made without Plotly comes as its SVG. Nothing is fetched. It does not know what the chart shows.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TYPE = "image/svg+xml";
const SCALE = 2;
// Layers of the mouse: no part of the picture.
const UNSEEN = ".hoverlayer, .draglayer, .zoomlayer, .cursor-crosshair, .legendtoggle, .scrollbar";

// What each group of buttons saves. Streamlit mounts again with every rerun of the page: the buttons
// stay, because one that is replaced while it is pressed would lose the click.
const shown = new WeakMap();

export default function mount({ data, parentElement }) {
  const root = parentElement.querySelector(".gbx-export");
  const isNew = !shown.has(root);
  shown.set(root, data);
  root.setAttribute("aria-label", data.words.label);
  if (isNew) root.append(...data.kinds.map((kind) => button(kind, root)));
  for (const item of root.children) {
    item.textContent = data.words[item.dataset.kind];
    item.title = data.words[`${item.dataset.kind}_help`];
  }
}

function button(kind, root) {
  const item = document.createElement("button");
  item.type = "button";
  item.dataset.kind = kind;
  const act = kind === "copy" ? copy : save;
  item.addEventListener("click", () => act(kind, shown.get(root), root));
  return item;
}

async function save(kind, data, root) {
  root.dataset.state = "busy";
  try {
    const blob = await BLOBS[kind](data);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${data.name}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    root.dataset.state = "done";
  } catch (fault) {
    root.dataset.state = "failed";
    console.error(fault);
  }
}

async function copy(kind, data, root) {
  try {
    await written(data.text);
    root.dataset.state = "done";
    const item = root.querySelector(`[data-kind=${kind}]`);
    item.textContent = data.words.copied;
    setTimeout(() => (item.textContent = shown.get(root).words[kind]), 2000);
  } catch (fault) {
    root.dataset.state = "failed";
    console.error(fault);
  }
}

// A page from another machine without https has no clipboard: there a selection is copied.
async function written(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("the browser did not copy");
}

const BLOBS = {
  csv: async (data) => new Blob([data.csv], { type: "text/csv;charset=utf-8" }),
  svg: async (data) => new Blob([drawing(data).text], { type: "image/svg+xml;charset=utf-8" }),
  png: async (data) => painted(drawing(data)),
};

// The chart as one SVG text, with its size in CSS pixels.
function drawing(data) {
  if (data.svg) {
    const root = new DOMParser().parseFromString(data.svg, SVG_TYPE).documentElement;
    return { text: data.svg, width: +root.getAttribute("width"), height: +root.getAttribute("height") };
  }
  const chart = document.querySelector(`.st-key-${CSS.escape(data.target)} .js-plotly-plot`);
  const layers = chart ? [...chart.querySelectorAll("svg.main-svg")] : [];
  if (!layers.length) throw new Error(`no chart ${data.target}`);
  const { width, height } = layers[0].getBoundingClientRect();
  const out = document.createElementNS(SVG, "svg");
  for (const [name, value] of [["width", width], ["height", height]]) out.setAttribute(name, value);
  out.setAttribute("viewBox", `0 0 ${width} ${height}`);
  out.append(element("title", data.title), element("desc", data.source), ground(data.ground));
  for (const layer of layers) {
    const group = document.createElementNS(SVG, "g");
    group.append(...[...layer.childNodes].map((node) => node.cloneNode(true)));
    out.append(group);
  }
  for (const node of out.querySelectorAll(UNSEEN)) node.remove();
  const text = new XMLSerializer().serializeToString(out);
  // A reference to a clip or a hatch may carry the page's address, which the file does not have.
  return { text: text.replace(/url\((&quot;|")?[^)#]*#([^)"&]+)(&quot;|")?\)/g, "url(#$2)"), width, height };
}

function element(name, text) {
  const node = document.createElementNS(SVG, name);
  node.textContent = text;
  return node;
}

function ground(colour) {
  const node = document.createElementNS(SVG, "rect");
  node.setAttribute("width", "100%");
  node.setAttribute("height", "100%");
  node.setAttribute("fill", colour);
  return node;
}

async function painted({ text, width, height }) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml;charset=utf-8" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * SCALE);
  canvas.height = Math.round(height * SCALE);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done, failed) =>
    canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/png"),
  );
}
