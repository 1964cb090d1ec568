// One decode step's reads, drawn on the pool: which blocks each program reads, in which order.
//
// It owns the drawing, the turns of the kernel's loop, and the keys. What is read was derived in
// Python from the trace and the kernel's loop; nothing is computed here but places and colours.
// Every program makes its turn at the same time, as a GPU runs them.

const PAUSE = 750; // milliseconds of a turn
const SHOWN = 6; // programs that the line of text names

export default function mount({ data, parentElement }) {
  const root = parentElement.querySelector(".gbx-traffic");
  const view = root.view ?? (root.view = makeView(root));
  view.update(data);
  return () => view.stop();
}

function makeView(root) {
  const find = (name) => root.querySelector(`[data-part=${name}]`);
  const parts = Object.fromEntries(
    ["back", "play", "next", "turn", "count", "programs", "pool", "says", "about"].map((name) => [
      name,
      find(name),
    ]),
  );
  const view = { data: null, turn: 0, focus: null, cell: null, timer: 0, parts };

  view.stop = () => {
    clearInterval(view.timer);
    view.timer = 0;
    if (view.data) parts.play.textContent = view.data.words.play;
  };
  view.go = (turn) => {
    view.turn = Math.max(0, Math.min(view.data.turns, turn));
    view.cell = null;
    paint(view);
  };
  view.update = (data) => {
    const isNew = !view.data || view.data.key !== data.key;
    view.data = data;
    view.places = placesOf(data);
    if (isNew) {
      view.stop();
      view.turn = data.turns;
      view.focus = null;
      view.cell = null;
    }
    label(view);
    paint(view);
  };

  parts.back.addEventListener("click", () => (view.stop(), view.go(view.turn - 1)));
  parts.next.addEventListener("click", () => (view.stop(), view.go(view.turn + 1)));
  parts.turn.addEventListener("input", () => (view.stop(), view.go(Number(parts.turn.value))));
  parts.play.addEventListener("click", () => {
    if (view.timer) return view.stop();
    view.go(view.turn >= view.data.turns ? 0 : view.turn);
    parts.play.textContent = view.data.words.pause;
    view.timer = setInterval(() => {
      view.go(view.turn + 1);
      if (view.turn >= view.data.turns) view.stop();
    }, PAUSE);
  });
  parts.pool.addEventListener("pointermove", (event) => point(view, cellAt(view, event)));
  parts.pool.addEventListener("pointerleave", () => point(view, null));
  parts.pool.addEventListener("keydown", (event) => walk(view, event));
  new ResizeObserver(() => view.data && paint(view)).observe(root);
  return view;
}

// For each block the programs that read it: at which turn, and as their how many-th block.
function placesOf(data) {
  const places = new Map();
  data.programs.forEach((program, index) => {
    let order = 0;
    const seen = new Set();
    program.turns.forEach((blocks, turn) => {
      for (const block of blocks) {
        if (seen.has(block)) continue;
        seen.add(block);
        order += 1;
        if (!places.has(block)) places.set(block, []);
        places.get(block).push({ program: index, order, turn: turn + 1 });
      }
    });
  });
  return places;
}

function label(view) {
  const { parts, data } = view;
  const { words } = data;
  parts.back.setAttribute("aria-label", words.back);
  parts.next.setAttribute("aria-label", words.next);
  parts.turn.setAttribute("aria-label", words.turn);
  parts.turn.max = data.turns;
  parts.play.textContent = view.timer ? words.pause : words.play;
  parts.pool.setAttribute("aria-label", words.pool);
  parts.about.textContent = data.about;
  const chips = data.programs.map((program, index) => {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.dataset.program = index;
    const swatch = document.createElement("i");
    swatch.style.background = colour(view, index);
    chip.append(swatch, program.name);
    chip.title = program.title;
    chip.addEventListener("click", () => {
      view.focus = view.focus === index ? null : index;
      paint(view);
    });
    return chip;
  });
  parts.programs.replaceChildren(...chips);
  parts.programs.setAttribute("aria-label", words.programs);
}

function paint(view) {
  const { parts, data } = view;
  parts.turn.value = view.turn;
  parts.count.textContent = fill(data.words.at, { turn: view.turn, turns: data.turns });
  for (const chip of parts.programs.children) {
    chip.setAttribute("aria-pressed", String(Number(chip.dataset.program) === view.focus));
  }
  draw(view);
  say(view);
}

// ------------------------------------------------------------------------------------ the pool

function layout(view) {
  const count = view.data.blocks.length;
  const width = Math.max(120, view.parts.pool.parentElement.clientWidth);
  const size = count <= 40 ? 62 : count <= 120 ? 46 : count <= 500 ? 34 : count <= 1600 ? 24 : 12;
  const columns = Math.max(1, Math.floor(width / (size + 4)));
  return { width, size, columns, rows: Math.ceil(count / columns) };
}

function draw(view) {
  const canvas = view.parts.pool;
  const { width, size, columns, rows } = layout(view);
  const scale = window.devicePixelRatio || 1;
  const height = rows * (size + 4) + 4;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  view.data.blocks.forEach((block, index) => {
    const x = 2 + (index % columns) * (size + 4);
    const y = 2 + Math.floor(index / columns) * (size + 4);
    cell(view, pen, block, x, y, size, index === view.cell);
  });
}

// One block: dashed while free, pale when only held, its program's colour when it is read.
function cell(view, pen, block, x, y, size, isPointed) {
  const { look } = view.data;
  const all = view.places.get(block.id) ?? [];
  const mine = view.focus === null ? all : all.filter((read) => read.program === view.focus);
  const read = mine.find((one) => one.turn === view.turn) ?? mine[0];
  const now = read && read.turn === view.turn;
  const done = read && read.turn <= view.turn;
  pen.beginPath();
  pen.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, size > 20 ? 5 : 2);
  pen.fillStyle = look.ground;
  pen.fill();
  if (done) {
    pen.globalAlpha = now ? 1 : 0.34;
    pen.fillStyle = colour(view, read.program);
    pen.fill();
    pen.globalAlpha = 1;
  } else if (block.filled) {
    pen.fillStyle = look.free;
    pen.fill();
  }
  pen.setLineDash(block.filled ? [] : [3, 3]);
  pen.lineWidth = isPointed ? 3 : now ? 2.5 : 1;
  pen.strokeStyle = isPointed ? look.accent : now ? look.text : read ? colour(view, read.program) : look.muted;
  if (!read && !isPointed) pen.globalAlpha = 0.6;
  pen.stroke();
  pen.globalAlpha = 1;
  pen.setLineDash([]);
  if (size < 24) return;
  const ink = now ? inkOn(colour(view, read.program)) : look.text;
  const name = read && mine.length === 1 ? view.data.programs[read.program].name : "";
  words(pen, block, x, y, size, ink, read, mine.length, look, name);
}

function words(pen, block, x, y, size, ink, read, count, look, name) {
  pen.fillStyle = read ? ink : look.muted;
  pen.font = `${size > 60 ? 12 : size > 40 ? 10 : 8}px ui-monospace, monospace`;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(String(block.id), x + 4, y + 4);
  if (read && size >= 34) {
    pen.font = `650 ${Math.round(size * 0.38)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(read.order), x + size / 2, y + size * 0.58);
  }
  if (name && name.length <= 4 && size >= 46) {
    // Who reads it, for eyes that don't tell the colours apart and where colours repeat.
    pen.font = "9px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "top";
    pen.fillText(name, x + size - 4, y + 4);
  }
  if (count > 1 && size >= 34) {
    pen.font = "9px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "top";
    pen.fillText(`×${count}`, x + size - 4, y + 4);
  }
  if (block.filled) {
    // How much of the block holds tokens.
    pen.fillRect(x + 4, y + size - 5, (size - 8) * block.filled, 2);
  }
}

function colour(view, index) {
  const { lines } = view.data.look;
  return lines[index % lines.length];
}

function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.5 ? "#111111" : "#ffffff";
}

// ------------------------------------------------------------------------------ words and keys

function cellAt(view, event) {
  const { size, columns } = layout(view);
  const column = Math.floor((event.offsetX - 2) / (size + 4));
  const index = Math.floor((event.offsetY - 2) / (size + 4)) * columns + column;
  const inside = column >= 0 && column < columns && index >= 0 && index < view.data.blocks.length;
  return inside ? index : null;
}

function point(view, index) {
  if (index === view.cell) return;
  view.cell = index;
  draw(view);
  say(view);
}

function walk(view, event) {
  const { columns } = layout(view);
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const last = view.data.blocks.length - 1;
  let index = view.cell ?? -1;
  if (event.key in moves) index = view.cell === null ? 0 : index + moves[event.key];
  else if (event.key === "Home") index = 0;
  else if (event.key === "End") index = last;
  else if (event.key === "Escape") return point(view, null);
  else return;
  event.preventDefault();
  if (index >= 0 && index <= last) point(view, index);
}

// What the picture shows, in words: the block under the pointer, else this turn.
function say(view) {
  const { words: w, programs, blocks, turns } = view.data;
  let text;
  if (view.cell !== null) {
    const block = blocks[view.cell];
    const reads = (view.places.get(block.id) ?? []).map((read) =>
      fill(w.read, { name: programs[read.program].name, order: read.order, turn: read.turn }),
    );
    const held = block.filled ? w.held : w.free;
    text = `${fill(w.block, { id: block.id })} ${reads.slice(0, SHOWN).join(" ") || held}`;
  } else if (view.turn === 0) {
    text = w.before;
  } else {
    const now = programs
      .map((program, index) => ({ program, index, blocks: program.turns[view.turn - 1] ?? [] }))
      .filter((one) => one.blocks.length && (view.focus === null || view.focus === one.index));
    const shown = now
      .slice(0, SHOWN)
      .map((one) => `${one.program.name} → ${one.blocks.slice(0, 16).join(", ")}`);
    if (now.length > SHOWN) shown.push(fill(w.more, { n: now.length - SHOWN }));
    text = `${fill(w.at, { turn: view.turn, turns })}: ${shown.join("  ·  ") || w.idle}`;
  }
  view.parts.says.textContent = text;
}

function fill(template, values) {
  return template.replace(/\{(\w+)\}/g, (slot, name) => values[name] ?? slot);
}
