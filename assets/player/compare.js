/**
 * The glassblock comparison: two to four runs of the same requests, in lock step on one clock.
 *
 * Sections: runs, reasons, canvases, view (DOM), input, mount. It owns the clock (by engine step or
 * by sampled token) and what is said of several runs at once. The fold, the drawing of a memory,
 * the controls and the pacing are the player's; this file draws no block by itself.
 * Invariant: all runs show the same tick; a run that ended earlier rests at its end.
 */
import {
  Fold, INKS, MARK_GLYPHS, MARK_INKS, Playback, SANS, alpha, blockFacts, boldParts, buildBar,
  buildButtons, buildChoice, buildHelpButton, buildHelpCard, buildSpeed, buildTable, clip, countUpTo,
  drawSplit, fillTip, grouped, h, heldBlocks, listenToTimeline, logId, memoryCanvas, needsOf,
  ownerColour, ownerGlyph, ownersOf, percent, pieceFacts, plainSentence, readLog, renderBar,
  renderChoice, renderPlayButton, roundBar, setAttribute, setText, slotTexts, statusLine, unpack,
  waitValues, waitWords,
} from "./player.js";

// ---------------------------------------------------------------------------------------- runs

const CLOCKS = ["step", "token"];
const RUN_DASHES = [[7, 4], [], [2, 3], [9, 3, 2, 3]];
const RUN_INKS = {
  light: ["#b5330a", "#0072b2", "#00704f", "#a03a74"],
  dark: ["#ff8a65", "#4ba3e0", "#2cc498", "#dd97be"],
};

/** One of the runs: its fold, and where it is on the common clock. */
class Run {
  constructor(bytes, { title, detail }) {
    this.fold = new Fold(readLog(bytes));
    this.title = title;
    this.detail = detail;
    this.position = 0;
    this.owners = null;
    this.colours = []; // by sequence number; the same label has the same colour in every run
  }

  /** The last tick of a clock. */
  last(clock) {
    const { facts } = this.fold;
    return clock === "token" ? facts.sampledEvent.length : this.lastStep;
  }

  get lastStep() {
    const { stepIds } = this.fold.facts;
    return stepIds.length ? stepIds.data[stepIds.length - 1] : 0;
  }

  get firstStep() {
    const { stepIds } = this.fold.facts;
    return stepIds.length ? stepIds.data[0] : 0;
  }

  positionAt(clock, tick) {
    return clock === "token" ? this.fold.afterTokens(tick) : this.fold.endOfStep(tick);
  }

  /** The first tick at which event `i` has happened. */
  tickOf(clock, i) {
    const { facts, log } = this.fold;
    if (clock === "step") return log.steps.data[i];
    if (log.steps.data[i] <= 0) return 0;
    const before = countUpTo(facts.sampledEvent.data, facts.sampledEvent.length, i - 1);
    return Math.min(before + 1, facts.sampledEvent.length);
  }

  go(clock, tick) {
    this.position = this.positionAt(clock, tick);
    this.fold.seek(this.position);
  }

  get isDone() {
    return this.position > 0 && this.position === this.fold.length && this.fold.state.requests.size === 0;
  }

  /** The step that the run shows. */
  get step() {
    return this.position ? this.fold.log.steps.data[this.position - 1] : 0;
  }

  get numbers() {
    const { state, facts } = this.fold;
    const before = ({ data, length }) => countUpTo(data, length, this.position - 1);
    const ended = before(facts.endEvent) - 1;
    const seconds = ended < 0 ? 0 : facts.endSeconds.data[ended];
    return {
      running: state.running.length, waiting: state.waiting.length + state.swapped.length,
      finished: before(facts.finishedEvent), refused: before(facts.rejectedEvent),
      rate: seconds ? facts.endSampled.data[ended] / seconds : null,
    };
  }

  /** Slots that finished requests hold until their batch ends. */
  get heldSlots() {
    const { state, layout } = this.fold;
    let slots = 0;
    for (const { seq, size } of state.regions.values()) if (state.sequences.get(seq)?.retired) slots += size;
    const blocks = new Set();
    for (const one of state.sequences.values()) if (one.retired) for (const block of one.table) blocks.add(block);
    return slots + blocks.size * layout.blockSize;
  }
}

/** Splits the logs that follow each other, by the lengths that the options name. */
function splitRuns(bytes, runs) {
  let at = 0;
  return runs.map(({ bytes: length }) => bytes.subarray(at, (at += length)));
}

/** The requests of all runs by label: { label, numbers: by run, -1 where it never comes }. */
function indexRequests(runs) {
  const index = new Map();
  runs.forEach((run, k) => {
    run.fold.facts.requests.forEach(({ label }, number) => {
      if (!index.has(label)) index.set(label, { label, numbers: runs.map(() => -1) });
      const { numbers } = index.get(label);
      if (numbers[k] < 0) numbers[k] = number;
    });
  });
  return [...index.values()];
}

/** Gives every sequence of every run the colour of its label. */
function colourRuns(runs, colours) {
  for (const run of runs) {
    const { sequences } = run.fold.facts;
    for (let k = run.colours.length; k < sequences.length; k++) {
      const { label } = sequences[k];
      if (!colours.has(label)) colours.set(label, colours.size);
      run.colours.push(colours.get(label));
    }
  }
}

// ------------------------------------------------------------------------------------- reasons

const WAIT_ORDER = ["fragmented", "no_room_region", "batch", "no_room", "watermark", "seqs", "budget"];

/** One sentence on why the runs differ at this moment, from their folds. */
function whyTheyDiffer({ runs, t, allRequests }) {
  if (runs.every((run) => run.position === 0 || run.step === 0)) return t("compare.why_start");
  const ways = [waitContrast, heldContrast, endContrast, concurrencyContrast, wasteContrast];
  for (const way of ways) {
    const sentence = way(runs, t, allRequests);
    if (sentence) return sentence;
  }
  return t("compare.why_same");
}

/** A request that waits in one run and is further in another. */
function waitContrast(runs, t, requests) {
  const waits = runs.flatMap((run, k) => {
    const event = run.fold.deferral();
    if (!event) return [];
    const { label } = run.fold.facts.requests[run.fold.state.deferred.request];
    return [{ run, k, event, label, rank: WAIT_ORDER.indexOf(event.reason.code) }];
  });
  waits.sort((a, b) => a.rank - b.rank);
  for (const { run, k, event, label } of waits) {
    const { numbers } = requests.find((one) => one.label === label);
    const others = runs.filter((_, j) => j !== k && isFurther(runs[j], numbers[j]));
    const other = others.find((one) => one.fold.layout.isPaged) ?? others[0];
    if (!other) continue;
    const { tokens } = run.fold.breakdown();
    const empty = percent(run.fold.usableSlots - tokens, run.fold.usableSlots);
    const values = { run: run.title, who: label, empty, ...waitValues(run.fold, event) };
    return joined(t, t(`compare.why_${event.reason.code}`, values), gave(other, numbers[runs.indexOf(other)], label, t));
  }
  return "";
}

function isFurther({ fold, position }, number) {
  if (number < 0) return false;
  const { spans } = fold.facts.requests[number];
  return spans.some(({ kind, from }) => kind === "running" && from < position);
}

/** What another run gave the request. */
function gave({ fold, title, position }, number, who, t) {
  const live = fold.state.requests.get(number);
  const { spans } = fold.facts.requests[number];
  const ended = spans.findLast(({ kind, to }) => kind === "running" && to >= 0 && to < position);
  if (!live && ended) return t("compare.gave_done", { run: title, who, step: fold.log.steps.data[ended.to] });
  const seq = fold.state.sequences.get(live?.sequences[0]);
  if (!seq) return "";
  if (fold.layout.isPaged) return t("compare.gave_blocks", { run: title, who, blocks: seq.table.length, tokens: seq.stored });
  const region = fold.state.regions.get(seq.region);
  return region ? t("compare.gave_region", { run: title, who, slots: region.size, tokens: seq.stored }) : "";
}

/** Memory of finished members that one run holds until its batch ends, and another freed. */
function heldContrast(runs, t) {
  const holder = runs.find((run) => run.heldSlots > 0);
  const other = runs.find((run) => run.heldSlots === 0 && !run.isDone);
  if (!holder || !other) return "";
  return t("compare.why_held", { run: holder.title, slots: holder.heldSlots, other: other.title });
}

function endContrast(runs, t) {
  const done = runs.filter((run) => run.isDone);
  const rest = runs.find((run) => !run.isDone);
  if (!done.length || rest?.fold.state.requests.size === 0) return "";
  const ended = done.map((run) => t("compare.ended", { run: run.title, step: run.lastStep })).reduce((a, b) => t("compare.list", { a, b }));
  if (done.length === runs.length) return t("compare.why_all_done", { ended });
  const left = rest.fold.state.requests.size;
  return t("compare.why_one_done", { ended, run: rest.title, left });
}

function concurrencyContrast(runs, t) {
  const ranked = [...runs].sort((a, b) => b.numbers.running - a.numbers.running);
  const most = ranked[0];
  const least = ranked.at(-1);
  if (most.numbers.running === least.numbers.running) return "";
  return t("compare.why_running", {
    run: most.title, n: most.numbers.running, other: least.title, m: least.numbers.running,
    share: percent(emptyOwned(least), least.fold.usableSlots), ours: percent(emptyOwned(most), most.fold.usableSlots),
  });
}

/** Slots that somebody holds or nobody can use, without a token in them. */
function emptyOwned({ fold }) {
  const { reserved, unused, tail, hole } = fold.breakdown();
  return reserved + unused + tail + hole;
}

function wasteContrast(runs, t) {
  const ranked = [...runs].sort((a, b) => emptyOwned(b) - emptyOwned(a));
  const most = ranked[0];
  const least = ranked.at(-1);
  if (emptyOwned(most) === emptyOwned(least)) return "";
  return t("compare.why_waste", {
    run: most.title, n: emptyOwned(most), other: least.title, m: emptyOwned(least),
  });
}

function joined(t, ...sentences) {
  return sentences.filter(Boolean).reduce((a, b) => t("compare.both", { a, b }));
}

/** What a request does in a run at this moment, in a few words. */
function requestWords({ fold, position }, number, t) {
  const { facts, state } = fold;
  if (number < 0) return t("compare.never_here");
  const fact = facts.requests[number];
  if (fact.event >= position) return t("compare.not_yet");
  if (fact.rejected) return t("compare.is_refused");
  const live = state.requests.get(number);
  if (!live) return finishedWords(fold, fact, position, t);
  if (state.deferred?.request === number) return waitWords(t, fold);
  const seq = state.sequences.get(live.sequences[0]);
  if (!seq) return "";
  const words = [statusLine(t, fold, live, seq), placeWords(fold, seq, t)];
  if (live.status === "running") words.push(t("compare.in_since", { step: admittedAt(fold, fact, position) }));
  return words.filter(Boolean).join(" · ");
}

/** The step at which a request was last admitted. */
function admittedAt({ log }, { spans }, position) {
  const span = spans.findLast(({ kind, from }) => kind === "running" && from < position);
  return span ? log.steps.data[span.from] : 0;
}

function finishedWords(fold, fact, position, t) {
  const { spans } = fact;
  const ended = spans.findLast(({ kind, to }) => kind !== "held" && to >= 0 && to < position);
  const step = ended ? fold.log.steps.data[ended.to] : 0;
  const wasIn = ended?.kind === "running";
  const words = t(wasIn ? "compare.finished_in" : "compare.finished_at", { step, from: admittedAt(fold, fact, position) });
  const held = spans.find(({ kind, from, to }) => kind === "held" && from < position && (to < 0 || to >= position));
  return held ? `${words} · ${t("compare.still_held")}` : words;
}

function placeWords({ layout, state }, seq, t) {
  if (layout.isPaged) return seq.table.length ? t("compare.in_blocks", { blocks: seq.table.length }) : "";
  const region = state.regions.get(seq.region);
  return region ? t("slots_range", { first: seq.region, last: seq.region + region.size - 1 }) : "";
}

/** A system in a few words, from its settings: for a run without a detail of its own. */
function systemWords(fold, t) {
  const { config } = fold.log.header;
  const words = fold.layout.isPaged
    ? [t("compare.sys_paged", { slots: fold.layout.blockSize })]
    : [t(`compare.sys_${fold.layout.reserve}`, { slots: fold.layout.maxModelLen }), t(`compare.sys_${fold.layout.placement}`)];
  if (config.batching === "static") words.push(t("compare.sys_static"));
  return words.join(" · ");
}

// ------------------------------------------------------------------------------------ canvases

/** A canvas with a past and a future, drawn once and then cut at the cursor. */
class SplitCanvas {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.layers = [document.createElement("canvas"), document.createElement("canvas")];
    this.key = "";
  }

  resize() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    for (const canvas of [this.canvas, ...this.layers]) {
      canvas.width = Math.max(1, Math.round(this.width * this.ratio));
      canvas.height = Math.max(1, Math.round(this.height * this.ratio));
    }
    this.key = "";
  }

  /** The place of a tick: `left` px are kept for names. */
  xOf(view, tick) {
    return this.left + (tick / Math.max(1, view.end)) * (this.width - this.left - this.right);
  }

  tickAt(view, x) {
    const share = (x - this.left) / Math.max(1, this.width - this.left - this.right);
    return Math.round(Math.max(0, Math.min(1, share)) * view.end);
  }

  draw(view) {
    if (!this.width) return;
    const { context, ratio } = this;
    const key = `${view.dataKey} ${view.theme} ${view.clock}`;
    if (key !== this.key) this.drawLayers(view);
    this.key = key;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    drawSplit(context, this.layers, Math.round(this.xOf(view, view.position) * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawOver(view, this.xOf(view, view.position));
  }

  drawLayers(view) {
    this.layers.forEach((layer, k) => {
      const context = layer.getContext("2d");
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      this.drawLayer(context, view, k === 1);
    });
  }

  drawCursorLine(x, theme) {
    this.context.fillStyle = INKS[theme].text;
    this.context.fillRect(Math.round(x) - 0.75, 0, 1.5, this.height);
  }
}

/** For every request a row: when it waited, ran and ended, in each run below the other. */
class LanesCanvas extends SplitCanvas {
  left = 66;
  right = 8;

  static laneHeight = 9;

  static heightFor(runs, requests) {
    return Math.max(40, requests * LanesCanvas.pitch(runs) + 2);
  }

  static pitch(runs) {
    return runs * LanesCanvas.laneHeight + 6;
  }

  /** The request at a height, or null. */
  requestAt(view, y) {
    return view.requests[Math.floor(y / LanesCanvas.pitch(view.runs.length))] ?? null;
  }

  drawLayer(context, view, isFuture) {
    context.globalAlpha = isFuture ? 0.3 : 1;
    const pitch = LanesCanvas.pitch(view.runs.length);
    view.requests.forEach((request, row) => {
      const top = row * pitch + 3;
      this.drawName(context, view, request, top, pitch);
      view.runs.forEach((run, k) => {
        const y = top + k * LanesCanvas.laneHeight;
        if (request.numbers[k] >= 0) this.drawLane(context, view, run, k, request, y);
      });
    });
    context.globalAlpha = 1;
  }

  drawName(context, view, request, top, pitch) {
    const ink = INKS[view.theme];
    const share = context.globalAlpha;
    context.globalAlpha = 1; // names belong to both layers
    const colour = view.colourOfRequest(request);
    context.fillStyle = colour < 0 ? ink.muted : ownerColour(view.theme, colour);
    context.fillRect(2, top + (pitch - 7) / 2 - 4, 8, 8);
    context.fillStyle = ink.text;
    context.font = `600 11px ${SANS}`;
    const glyph = colour < 0 ? "" : ownerGlyph(colour);
    context.fillText(`${clip(request.label, 5)}${glyph}`, 14, top + (pitch - 7) / 2 + 4, 36);
    context.font = `8.5px ${SANS}`;
    view.runs.forEach((_, k) => {
      context.fillStyle = RUN_INKS[view.theme][k];
      context.fillText(k + 1, this.left - 11, top + k * LanesCanvas.laneHeight + 7);
    });
    context.globalAlpha = share;
  }

  drawLane(context, view, run, k, request, y) {
    const ink = INKS[view.theme];
    const number = request.numbers[k];
    const { spans, rejected, event } = run.fold.facts.requests[number];
    const colour = view.colourOfRequest(request);
    const fillWith = colour < 0 ? ink.muted : ownerColour(view.theme, colour);
    if (rejected) return this.drawEnd(context, "✕", this.xOf(view, run.tickOf(view.clock, event)), y, ink.evict);
    for (const { kind, from, to } of spans) {
      const start = this.xOf(view, run.tickOf(view.clock, from));
      const end = this.xOf(view, to < 0 ? run.last(view.clock) : run.tickOf(view.clock, to));
      if (kind === "running") {
        context.fillStyle = fillWith;
        roundBar(context, start, y + 1, Math.max(2, end - start), 5.5);
      } else if (kind === "held") {
        context.fillStyle = alpha(ink.hole, 0.35);
        if (end - start > 1) context.fillRect(start, y + 2.5, end - start, 2.5);
      } else this.drawWait(context, start, end, y + 4, kind === "waiting" ? ink.muted : ink.preempt);
    }
    const last = spans.findLast(({ kind }) => kind !== "held");
    if (last?.to >= 0) this.drawEnd(context, "■", this.xOf(view, run.tickOf(view.clock, last.to)), y, ink.finish);
  }

  drawWait(context, start, end, y, stroke) {
    context.strokeStyle = stroke;
    context.lineWidth = 1.2;
    context.setLineDash([2, 2]);
    context.beginPath();
    context.moveTo(start, y);
    context.lineTo(end, y);
    context.stroke();
    context.setLineDash([]);
  }

  drawEnd(context, glyph, x, y, ink) {
    context.fillStyle = ink;
    context.font = `8px ${SANS}`;
    context.fillText(glyph, Math.min(x - 3, this.width - 8), y + 6.8);
  }

  drawOver(view, x) {
    const { context } = this;
    const pitch = LanesCanvas.pitch(view.runs.length);
    const row = view.requests.findIndex(({ label }) => label === view.hotLabel());
    if (row >= 0) {
      context.strokeStyle = INKS[view.theme].accent;
      context.lineWidth = 1.5;
      context.strokeRect(1, row * pitch + 1, this.width - 2, pitch - 2);
    }
    this.drawCursorLine(x, view.theme);
  }
}

/** A count of every run over the ticks: one dashed or plain line a run. */
class ChartCanvas extends SplitCanvas {
  left = 22;
  right = 14;

  constructor(canvas, name) {
    super(canvas);
    this.name = name; // "endWaiting" or "endRunning" of the facts
  }

  points(view, run) {
    const { facts } = run.fold;
    const ticks = view.clock === "token" ? facts.endSampled : facts.endStep;
    return { ticks: ticks.data, counts: facts[this.name].data, length: ticks.length };
  }

  findMost(view) {
    let most = 1;
    for (const run of view.runs) {
      const { counts, length } = this.points(view, run);
      for (let k = 0; k < length; k++) most = Math.max(most, counts[k]);
    }
    return most;
  }

  yOf(count, most) {
    return this.height - 6 - (count / most) * (this.height - 16);
  }

  drawLayer(context, view, isFuture) {
    const ink = INKS[view.theme];
    const most = this.findMost(view);
    this.most = most;
    this.drawGrid(context, ink, most);
    context.globalAlpha = isFuture ? 0.28 : 1;
    view.runs.forEach((run, k) => {
      const { ticks, counts, length } = this.points(view, run);
      context.beginPath();
      context.moveTo(this.xOf(view, run.firstStep * (view.clock === "step")), this.yOf(0, most));
      const stride = Math.max(1, Math.floor(length / (2 * this.width)));
      for (let i = 0; i < length; i += stride) context.lineTo(this.xOf(view, ticks[i]), this.yOf(counts[i], most));
      if (length) context.lineTo(this.xOf(view, ticks[length - 1]), this.yOf(counts[length - 1], most));
      context.strokeStyle = RUN_INKS[view.theme][k];
      context.setLineDash(RUN_DASHES[k]);
      context.lineWidth = 1.9;
      context.stroke();
    });
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  drawGrid(context, ink, most) {
    context.font = `10px ${SANS}`;
    context.textAlign = "right";
    for (const count of most > 1 ? [0, most] : [0, 1]) {
      context.fillStyle = ink.line;
      context.fillRect(this.left, this.yOf(count, most) - 0.5, this.width - this.left, 1);
      context.fillStyle = ink.muted;
      context.fillText(count, this.left - 5, this.yOf(count, most) + 3.5);
    }
    context.textAlign = "left";
  }

  drawOver(view, x) {
    const { context, most } = this;
    const taken = [];
    view.runs.forEach((run, k) => {
      const { numbers } = run;
      const y = this.yOf(this.name === "endWaiting" ? numbers.waiting : numbers.running, most);
      const at = x - 12 * taken.filter((other) => Math.abs(other - y) < 11).length;
      taken.push(y);
      context.beginPath();
      context.arc(at, y, 6, 0, 7);
      context.fillStyle = RUN_INKS[view.theme][k];
      context.fill();
      context.fillStyle = INKS[view.theme].card;
      context.font = `700 9px ${SANS}`;
      context.textAlign = "center";
      context.fillText(k + 1, at, y + 3.2);
      context.textAlign = "left";
    });
  }
}

/** The common timeline: a row a run, a bar a tick, marks above them, one cursor. */
class CompareTimeline extends SplitCanvas {
  left = 16;
  right = 6;

  static rowHeight = 27;

  static heightFor(runs) {
    return runs * CompareTimeline.rowHeight + 14;
  }

  drawLayer(context, view, isFuture) {
    view.runs.forEach((run, k) => {
      const top = k * CompareTimeline.rowHeight;
      context.font = `700 10px ${SANS}`;
      context.fillStyle = RUN_INKS[view.theme][k];
      context.fillText(k + 1, 3, top + 24);
      this.drawBars(context, view, run, top, isFuture);
      this.drawMarks(context, view, run, top);
    });
  }

  /** The most tokens scheduled in each bar, prefills among them. */
  bars(view, run) {
    const { prefill, decoded, stepStart } = run.fold.facts;
    const width = this.width - this.left - this.right;
    const count = Math.max(1, Math.min(view.end, Math.floor(width / 3)));
    const bars = Array.from({ length: count }, () => ({ prefill: 0, total: 0 }));
    for (let k = 0; k < stepStart.length; k++) {
      const total = prefill.data[k] + decoded.data[k];
      if (!total) continue;
      const after = k + 1 < stepStart.length ? stepStart.data[k + 1] : run.fold.length;
      const tick = run.tickOf(view.clock, after - 1);
      const bar = bars[Math.max(0, Math.min(count - 1, Math.ceil((tick / view.end) * count) - 1))];
      if (total > bar.total) Object.assign(bar, { total, prefill: prefill.data[k] });
    }
    return bars;
  }

  drawBars(context, view, run, top, isFuture) {
    const ink = INKS[view.theme];
    const bars = this.bars(view, run);
    const most = Math.max(1, ...bars.map((bar) => bar.total));
    const pitch = (this.width - this.left - this.right) / bars.length;
    const gap = pitch > 8 ? 2 : pitch > 4 ? 1 : 0;
    bars.forEach((bar, k) => {
      if (!bar.total) return;
      // A square root keeps a decode step of a few tokens visible beside a prefill of hundreds.
      const height = Math.max(2, 14 * Math.sqrt(bar.total / most));
      const x = this.left + k * pitch + gap / 2;
      context.fillStyle = isFuture ? ink.future : ink.bar;
      roundBar(context, x, top + 26 - height, pitch - gap, height);
      if (!bar.prefill) return;
      context.fillStyle = isFuture ? ink.futurePrefill : ink.barPrefill;
      roundBar(context, x, top + 26 - height, pitch - gap, (height * bar.prefill) / bar.total);
    });
  }

  drawMarks(context, view, run, top) {
    const { markEvent, markKind } = run.fold.facts;
    context.font = `9px ${SANS}`;
    context.textAlign = "center";
    let last = -99;
    for (let k = 0; k < markEvent.length; k++) {
      const kind = markKind.data[k];
      const place = this.xOf(view, run.tickOf(view.clock, markEvent.data[k]));
      const x = Math.max(place, last + 8); // neighbours move aside, crowds thin out
      if (x - place > 12) continue;
      last = x;
      context.fillStyle = INKS[view.theme][MARK_INKS[kind]];
      context.fillText(MARK_GLYPHS[kind], Math.min(this.width - 5, x), top + 9);
    }
    context.textAlign = "left";
  }

  drawOver(view, x) {
    this.drawCursorLine(x, view.theme);
    const { context } = this;
    context.beginPath();
    context.arc(x, this.height - 6, 5, 0, 7);
    context.fill();
  }
}

// ----------------------------------------------------------------------------------- view (DOM)

const NUMBERS = ["running", "waiting", "in_memory", "rate", "finished", "refused"];
const MOST_REQUESTS = 60;

function buildView(view) {
  const { t } = view;
  const regions = { root: h("div", { class: "gb gc" }) };
  regions.shell = h("div", { class: "gb-shell gc-shell", tabindex: "0", role: "group", "aria-label": t("compare.title") });
  regions.runs = h("div", { class: "gc-runs", "data-count": view.runs.length });
  view.runs.forEach((run, k) => regions.runs.append(buildRun(view, run, k)));
  regions.table = h("section", { class: "gb-card gb-table gc-table gb-scroll", hidden: "", tabindex: "0", "aria-label": t("compare.table") });
  buildBelow(regions, view);
  buildCompareTransport(regions, view);
  regions.tip = h("div", { class: "gb-tip", role: "tooltip", hidden: "" });
  regions.live = h("div", { class: "gb-live", "aria-live": "polite", role: "status" });
  const looks = ["written", "reserved", "unused", "rounding", "hole", "room", "held", "tail", "cached"];
  regions.help = buildHelpCard(view, ["space", "ticks", "shift", "ends", "marks", "requests", "esc"], looks);
  regions.shell.append(regions.runs, regions.table, regions.below, regions.transport, regions.tip, regions.live, regions.help);
  regions.root.append(regions.shell);
  return regions;
}

function buildRun(view, run, k) {
  const { t } = view;
  const nodes = {
    title: h("button", { class: "gc-title", type: "button", title: t("compare.open"), onclick: () => view.open(k) }),
    detail: h("span", { class: "gc-detail" }), note: h("span", { class: "gc-note" }),
    canvas: h("canvas", { class: "gb-canvas", role: "img" }), ...buildBar(t, run.fold),
  };
  nodes.numbers = Object.fromEntries(NUMBERS.map((name) => [name, { value: h("dd"), name: h("dt") }]));
  nodes.picture = h("div", { class: "gc-picture" }, nodes.canvas);
  run.nodes = nodes;
  run.memory = memoryCanvas(nodes.canvas, run.fold);
  const list = Object.values(nodes.numbers).map(({ value, name }) => h("div", {}, name, value));
  return h("section", { class: "gb-card gc-run", "data-run": k },
    h("div", { class: "gc-head" }, h("i", { class: `gc-badge gc-badge-${k}` }, String(k + 1)), nodes.title, nodes.detail, nodes.note),
    nodes.picture, nodes.bar, nodes.legend, h("dl", { class: "gc-numbers" }, ...list));
}

function buildBelow(regions, view) {
  const { t } = view;
  regions.why = h("p", { class: "gb-sentence gc-why" });
  regions.tableToggle = h("button", {
    class: "gb-mini", type: "button", "aria-pressed": "false", onclick: () => view.toggleTable(),
  }, t("as_table"));
  regions.lanes = h("canvas", { class: "gc-lanes", role: "img", "aria-label": t("compare.lanes") });
  regions.lanesMore = h("p", { class: "gb-note" });
  regions.waiting = h("canvas", { class: "gc-chart", role: "img", "aria-label": t("compare.waiting_chart") });
  regions.running = h("canvas", { class: "gc-chart", role: "img", "aria-label": t("compare.running_chart") });
  regions.below = h("section", { class: "gb-card gc-below" },
    h("div", { class: "gc-reasons" }, h("h2", {}, t("compare.why")), regions.why,
      h("p", { class: "gb-note" }, t("compare.lanes_note")), h("div", { class: "gc-actions" }, regions.tableToggle)),
    h("div", { class: "gc-who" }, h("h2", {}, t("compare.lanes")),
      h("div", { class: "gb-scroll gc-lanes-box", tabindex: "0", "aria-label": t("compare.lanes") }, regions.lanes, regions.lanesMore)),
    h("div", { class: "gc-charts" }, h("h2", {}, t("compare.waiting_chart")), regions.waiting,
      h("h2", {}, t("compare.running_chart")), regions.running));
}

function buildCompareTransport(regions, view) {
  const { t } = view;
  regions.clock = buildChoice(t("compare.clock"), CLOCKS, (name) => t(`compare.clock_${name}`), (name) => view.setClock(name));
  regions.speed = buildSpeed(view);
  regions.fork = h("button", {
    class: "gb-pill gc-fork", type: "button", title: t("compare.fork_help"), onclick: () => view.fork(),
  }, t("compare.fork"));
  regions.where = h("div", { class: "gb-where" });
  regions.timeline = h("canvas", {
    class: "gb-timeline gc-timeline", tabindex: "0", role: "slider", "aria-label": t("timeline"), "aria-valuemin": 0,
    style: `height:${CompareTimeline.heightFor(view.runs.length)}px`,
  });
  regions.transport = h("section", { class: "gb-card gb-transport", "aria-label": t("transport") },
    h("div", { class: "gb-controls" }, buildButtons(regions, view),
      h("div", { class: "gb-options" }, regions.clock, regions.speed, regions.fork, buildHelpButton(view)), regions.where),
    regions.timeline);
}

function renderRun(view, run, k) {
  const { t } = view;
  const { nodes, fold, numbers } = run;
  const parts = fold.breakdown();
  setText(nodes.title, run.title);
  setText(nodes.detail, run.detail || `${systemWords(fold, t)} · ${sizeWords(view, run)}`);
  setText(nodes.note, noteWords(view, run));
  nodes.note.hidden = !nodes.note.textContent;
  renderBar(nodes, parts);
  const words = {
    running: numbers.running, waiting: numbers.waiting, in_memory: percent(parts.tokens, fold.usableSlots),
    rate: numbers.rate === null ? "–" : rateWords(numbers.rate), finished: numbers.finished, refused: numbers.refused,
  };
  for (const name of NUMBERS) {
    setText(nodes.numbers[name].value, words[name]);
    setText(nodes.numbers[name].name, t(`compare.${name === "rate" ? rateName(fold) : name}`));
  }
  setAttribute(nodes.canvas, "aria-label", `${run.title}. ${nodes.legend.textContent}`);
}

function sizeWords({ runs, t }, { fold }) {
  const isSame = runs.every((run) => run.fold.usableSlots === fold.usableSlots);
  return t(isSame ? "compare.same_slots" : "n_slots", { slots: grouped(fold.usableSlots) });
}

function noteWords({ t, clock, position }, run) {
  if (run.isDone) return t("compare.done_at", { step: run.lastStep });
  if (clock === "step" && position < run.firstStep) return t("compare.begins_at", { step: run.firstStep });
  return "";
}

function rateName(fold) {
  return fold.log.header.measured === false ? "rate_modelled" : "rate_measured";
}

function rateWords(rate) {
  return rate >= 10 ? grouped(Math.round(rate)) : rate.toFixed(1);
}

function renderWhy(view) {
  const { regions } = view;
  const sentence = whyTheyDiffer(view);
  view.sayNow(sentence);
  if (regions.why.dataset.sentence === sentence) return;
  regions.why.dataset.sentence = sentence;
  regions.why.replaceChildren(...boldParts(sentence).map(([text, isBold]) => {
    if (!isBold) return text;
    const isRequest = view.requests.some(({ label }) => label === text);
    return h("b", { "data-label": isRequest ? text : null, class: isRequest ? "gc-name" : null }, text);
  }));
}

function renderCompareTransport(view) {
  const { regions, t, position, end, clock } = view;
  const where = t(`compare.where_${clock}`, { at: grouped(position), last: grouped(end) });
  if (regions.where.dataset.text !== where) {
    regions.where.dataset.text = where;
    regions.where.replaceChildren(...boldParts(where).map(([text, bold]) => (bold ? h("b", {}, text) : text)));
  }
  setAttribute(regions.timeline, "aria-valuemax", end);
  setAttribute(regions.timeline, "aria-valuenow", position);
  setAttribute(regions.timeline, "aria-valuetext", plainSentence(where));
  renderChoice(regions.clock, clock);
  regions.speed.value = String(view.speed);
  renderPlayButton(view);
}

/** Both states as text: the numbers of every run, and what each request does in each. */
function renderTables(view) {
  const { regions, runs, t, requests } = view;
  const titles = runs.map((run) => run.title);
  const parts = ["tokens", "reserved", "unused", "tail", "cached", "hole", "free"];
  const breakdowns = runs.map((run) => run.fold.breakdown());
  const rows = [
    ...NUMBERS.map((name) => ({
      cells: [t(`compare.${name === "rate" ? "rate_plain" : name}`), ...runs.map((run) => run.nodes.numbers[name].value.textContent)],
    })),
    ...parts.map((part) => ({ cells: [t(`part_${part}`), ...breakdowns.map((one) => one[part])] })),
  ];
  const lives = requests.map(({ label, numbers }) => ({
    attributes: { "data-label": label },
    cells: [label, ...runs.map((run, k) => requestWords(run, numbers[k], t))],
  }));
  const caption = plainSentence(regions.where.dataset.text);
  regions.table.replaceChildren(
    buildTable(caption, [t("compare.table_numbers"), ...titles], rows),
    buildTable(t("compare.lanes"), [t("compare.table_request"), ...titles], lives));
}

// --------------------------------------------------------------------------------------- input

const COMPARE_KEYS = {
  " ": (v) => v.togglePlay(),
  ArrowLeft: (v, shift) => v.move(shift ? -10 : -1),
  ArrowRight: (v, shift) => v.move(shift ? 10 : 1),
  ArrowUp: (v) => v.walk(-1),
  ArrowDown: (v) => v.walk(1),
  Home: (v) => v.go(0),
  End: (v) => v.go(v.end),
  "[": (v) => v.goToMark(-1),
  "]": (v) => v.goToMark(1),
  "?": (v) => v.toggleHelp(),
  Escape: (v) => v.escape(),
};

/** Hover and tap on a memory: the request there lights up everywhere. */
function listenToMemory(view, run) {
  const { canvas } = run.nodes;
  const find = (event) => {
    const box = canvas.getBoundingClientRect();
    return run.memory.hit(event.clientX - box.left, event.clientY - box.top);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "mouse") return;
    const hit = find(event);
    const label = hit && view.labelAt(run, hit);
    view.hover(label, event);
    if (hit && label === null) view.hoverPlace(run, hit.block, event);
  });
  canvas.addEventListener("pointerleave", () => view.hover(null));
  canvas.addEventListener("click", (event) => {
    const hit = find(event);
    view.pin(hit && view.labelAt(run, hit), event);
  });
}

function listenToLanes(view) {
  const { lanes } = view.regions;
  const find = (event) => view.lanes.requestAt(view, event.clientY - lanes.getBoundingClientRect().top)?.label ?? null;
  lanes.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") view.hover(find(event), event);
  });
  lanes.addEventListener("pointerleave", () => view.hover(null));
  lanes.addEventListener("click", (event) => view.pin(find(event), event));
}

/** Hover on a name in the sentence or the table. */
function listenToLabels(view) {
  const { shell } = view.regions;
  shell.addEventListener("pointerover", (event) => {
    const node = event.target.closest?.("[data-label]");
    if (node) view.hover(node.dataset.label, event);
    else if (event.target.tagName !== "CANVAS") view.hover(null);
  });
  shell.addEventListener("pointerleave", () => view.hover(null));
}

// --------------------------------------------------------------------------------------- mount

/** A comparison in one element. */
class Comparison extends Playback {
  constructor(element, bytes, options) {
    super(element, options);
    this.keys = COMPARE_KEYS;
    this.clock = "step";
    this.isTable = false;
    this.hot = this.pinned = null; // labels of requests
    this.load(bytes);
    this.recall();
    this.build();
    this.go(this.position, { still: true });
  }

  load(bytes) {
    const parts = splitRuns(bytes, this.options.runs);
    this.runs = this.options.runs.map((words, k) => new Run(parts[k], words));
    this.colours = new Map();
    this.takeIn();
  }

  /** After new data: requests, colours, and the key of all cached drawings. */
  takeIn() {
    this.allRequests = indexRequests(this.runs);
    this.requests = this.allRequests.slice(0, MOST_REQUESTS);
    colourRuns(this.runs, this.colours);
    this.marks = {};
    this.dataKey = this.runs.map((run) => run.fold.length).join();
  }

  get end() {
    return Math.max(1, ...this.runs.map((run) => run.last(this.clock)));
  }

  after(position, units) {
    return position + units;
  }

  colourOfRequest({ label }) {
    return this.colours.get(label) ?? -1;
  }

  build() {
    this.regions?.root.remove();
    this.regions = buildView(this);
    const { regions } = this;
    this.lanes = new LanesCanvas(regions.lanes);
    this.charts = [new ChartCanvas(regions.waiting, "endWaiting"), new ChartCanvas(regions.running, "endRunning")];
    this.timeline = new CompareTimeline(regions.timeline);
    this.applyLook();
    this.element.append(regions.root);
    this.listenToKeys();
    listenToTimeline(this);
    listenToLanes(this);
    listenToLabels(this);
    for (const run of this.runs) listenToMemory(this, run);
    this.fitLanes();
    this.observer?.disconnect();
    this.observer = new ResizeObserver(() => this.resize());
    const boxes = [regions.lanes, regions.timeline, regions.waiting, regions.running];
    for (const box of [...boxes, ...this.runs.map((run) => run.nodes.picture)]) this.observer.observe(box);
    this.resize();
  }

  fitLanes() {
    const { lanes, lanesMore } = this.regions;
    const hidden = this.allRequests.length - this.requests.length;
    setAttribute(lanes, "style", `height:${LanesCanvas.heightFor(this.runs.length, this.requests.length)}px`);
    lanesMore.hidden = hidden === 0;
    setText(lanesMore, this.t("compare.lanes_more", { n: hidden }));
  }

  resize() {
    for (const { nodes, memory, fold } of this.runs) {
      const { clientWidth, clientHeight } = nodes.picture;
      if (clientWidth && clientHeight) memory.resize(clientWidth, clientHeight, fold);
    }
    for (const one of [this.lanes, this.timeline, ...this.charts]) one.resize();
    this.draw();
  }

  /** New data or options for the same element: keeps the place, and follows growing runs. */
  update(bytes, options) {
    const before = this.options;
    this.setOptions(options);
    const parts = splitRuns(bytes, options.runs);
    const isSame = parts.length === this.runs.length && this.runs.every((run, k) => run.fold.log.isPrefixOf(parts[k]));
    const wasAtEnd = this.position >= Math.max(...this.runs.map((run) => run.last(this.clock)));
    if (isSame) this.grow(parts);
    else this.replace(bytes);
    if (isSame && before.lang === options.lang) this.applyLook();
    else this.build();
    this.go(isSame && wasAtEnd && !this.isPlaying ? this.end : this.position, { still: true });
  }

  grow(parts) {
    this.runs.forEach((run, k) => {
      Object.assign(run, { title: this.options.runs[k].title, detail: this.options.runs[k].detail });
      run.fold.log.extend(parts[k]);
      run.fold.load();
    });
    this.takeIn();
    this.fitLanes();
  }

  replace(bytes) {
    this.pause();
    this.hot = this.pinned = null;
    this.load(bytes);
    this.position = 0;
    this.recall();
  }

  // -- moving

  go(position, { still = false } = {}) {
    const target = Math.max(0, Math.min(this.end, Math.round(position)));
    if (target === this.position && !still) return;
    this.position = target;
    for (const run of this.runs) run.go(this.clock, target);
    this.render();
    if (still) this.draw();
    else this.settle();
    this.requestFrame();
  }

  /** Changes the clock and stays at the moment: the step that is shown, or its tokens. */
  setClock(clock) {
    if (clock === this.clock) return;
    this.pause();
    const [first] = [...this.runs].sort((a, b) => b.last(clock) - a.last(clock));
    const at = first.position ? first.tickOf(clock, first.position - 1) : 0;
    this.clock = clock;
    this.go(at, { still: true });
    this.settle();
  }

  /** To the next or previous tick at which any run has a mark. */
  goToMark(direction) {
    this.marks[this.clock] ??= this.findMarks();
    const marks = this.marks[this.clock];
    const at = countUpTo(marks, marks.length, direction > 0 ? this.position : this.position - 1);
    const next = direction > 0 ? marks[at] : marks[at - 1];
    this.pause();
    if (next !== undefined) this.go(next);
  }

  findMarks() {
    const ticks = new Set();
    for (const run of this.runs) {
      const { markEvent } = run.fold.facts;
      for (let k = 0; k < markEvent.length; k++) ticks.add(run.tickOf(this.clock, markEvent.data[k]));
    }
    return [...ticks].sort((a, b) => a - b);
  }

  // -- showing

  render() {
    for (const run of this.runs) run.owners = ownersOf(run.fold, run.owners, (number) => run.colours[number]);
    this.runs.forEach((run, k) => renderRun(this, run, k));
    renderWhy(this);
    renderCompareTransport(this);
    if (this.isTable) renderTables(this);
    const { root } = this.regions;
    root.dataset.tick = this.position;
    root.dataset.steps = this.runs.map((run) => run.step).join();
    root.dataset.positions = this.runs.map((run) => run.position).join();
    root.dataset.ready = "true";
  }

  draw() {
    if (!this.regions || !this.runs[0].owners) return;
    for (const run of this.runs) if (run.memory.layout && !this.isTable) run.memory.draw(this.scene(run));
    for (const one of [this.lanes, this.timeline, ...this.charts]) one.draw(this);
  }

  scene(run) {
    return {
      fold: run.fold, owners: run.owners, theme: this.theme, touched: NOTHING, hot: -1, focus: -1, arrows: [],
      progress: 1, t: this.t, colourOf: (number) => run.colours[number], needs: needsOf(run.fold),
      lit: this.litColours(run), held: heldBlocks(run.fold), slotTexts: (place) => slotTexts(run.fold, place),
    };
  }

  /** The colours of the request that is pointed at, or null. */
  litColours(run) {
    const label = this.hotLabel();
    if (label === null) return null;
    const { sequences, requests } = run.fold.facts;
    const lit = new Set();
    sequences.forEach((one, k) => {
      if (requests[one.request].label === label) lit.add(run.colours[k]);
    });
    return lit;
  }

  hotLabel() {
    return this.hot ?? this.pinned;
  }

  /** The label of the request at a place of a memory, or null. */
  labelAt({ fold, owners }, { block }) {
    const { facts, state, layout } = fold;
    if (!layout.isPaged) {
      const region = state.regions.get(block);
      return region ? facts.requests[region.request].label : null;
    }
    for (const seq of owners.first[block] < 0 ? [] : state.sequences.values()) {
      if (seq.table.includes(block)) return facts.requests[facts.sequences[seq.number].request].label;
    }
    return null;
  }

  hover(label, event = null) {
    if (label !== this.hot) {
      this.hot = label;
      this.markNames();
      this.requestFrame();
    }
    const { tip, shell } = this.regions;
    tip.hidden = label === null;
    if (label === null || !event) return;
    const request = this.allRequests.find((one) => one.label === label);
    fillTip(tip, label, this.runs.map((run, k) => [`${k + 1} ${run.title}`, requestWords(run, request.numbers[k], this.t)]));
    this.placeTip(tip, shell.getBoundingClientRect(), around(event));
  }

  /** A place that no request holds: a free block, a free piece, a hole. */
  hoverPlace({ fold, title }, place, event) {
    const { tip, shell } = this.regions;
    const { t } = this;
    const { isPaged } = fold.layout;
    const { state, piece } = isPaged ? blockFacts({ fold, t }, place) : pieceFacts({ fold, t }, place);
    const last = place + (piece?.size ?? 1) - 1;
    tip.hidden = false;
    fillTip(tip, isPaged ? t("block_n", { block: place }) : t("slots_range", { first: place, last }), [[title, state]]);
    this.placeTip(tip, shell.getBoundingClientRect(), around(event));
  }

  markNames() {
    const label = this.hotLabel();
    this.regions.root.dataset.hot = label ?? "";
    for (const node of this.regions.shell.querySelectorAll("[data-label]")) {
      node.classList.toggle("gb-hot", node.dataset.label === label);
    }
  }

  pin(label, event) {
    this.pinned = label === this.pinned ? null : label;
    this.markNames();
    if (event.pointerType !== "mouse") this.hover(this.pinned, event);
    this.requestFrame();
  }

  /** Pins the next or previous request, and says what it does in every run. */
  walk(direction) {
    const { requests, runs } = this;
    if (!requests.length) return;
    const at = requests.findIndex(({ label }) => label === this.pinned);
    const next = requests[at < 0 ? 0 : (at + direction + requests.length) % requests.length];
    this.pinned = next.label;
    this.markNames();
    const words = runs.map((run, k) => `${run.title}: ${requestWords(run, next.numbers[k], this.t)}`);
    this.say([next.label, ...words].join(". "));
    this.requestFrame();
  }

  escape() {
    if (!this.regions.help.hidden) return this.toggleHelp();
    this.pinned = null;
    this.hover(null);
    this.markNames();
    this.requestFrame();
  }

  toggleTable() {
    const { table, runs, tableToggle } = this.regions;
    this.isTable = !this.isTable;
    table.hidden = !this.isTable;
    runs.hidden = this.isTable;
    setAttribute(tableToggle, "aria-pressed", this.isTable);
    this.render();
    this.resize();
  }

  sayNow(sentence) {
    const where = this.t(`compare.where_${this.clock}`, { at: this.position, last: this.end });
    this.say(plainSentence(`${where}. ${sentence}`));
  }

  timelinePosition(x) {
    return this.timeline.tickAt(this, x);
  }

  timelineTitle(x) {
    const at = this.timeline.tickAt(this, x);
    this.regions.timeline.title = plainSentence(this.t(`compare.where_${this.clock}`, { at, last: this.end }));
  }

  // -- telling Python

  /** The engine step that is shown: the latest of all runs. */
  get step() {
    return Math.max(...this.runs.map((run) => run.step));
  }

  fork() {
    this.pause();
    this.options.onFork?.({ step: this.step });
  }

  open(index) {
    this.pause();
    this.options.onOpen?.({ index, event: this.runs[index].position });
  }

  get memoryKey() {
    return `glassblock.compare.${this.options.id ?? ""}.${this.runs.map((run) => logId(run.fold.log)).join(".")}`;
  }

  recall() {
    const kept = this.kept();
    this.clock = kept.clock ?? this.clock;
    this.position = Math.min(kept.position ?? this.options.start ?? 0, this.end);
    this.speed = kept.speed ?? this.speed;
  }

  remember() {
    const { position, clock, speed } = this;
    this.keep({ position, clock, speed });
  }

  settle() {
    this.whenSettled(() => {
      this.remember();
      this.options.onCursor?.({ clock: this.clock, at: this.position, step: this.step });
    });
  }
}

const NOTHING = new Set();

/** Where a tip may go around a pointer. */
function around({ clientX: x, clientY: y }) {
  return { left: x + 14, top: y - 6, bottom: y + 10 };
}

const comparisons = new WeakMap();

/**
 * Puts a comparison into an element, or updates the one that is there.
 * @param {HTMLElement} element
 * @param {Uint8Array} bytes the runs' delta logs, one behind the other
 * @param {object} options runs [{title, detail, bytes: length}], lang, theme, strings, height, id,
 *   start (a step), isLive, onCursor({clock, at, step}), onFork({step}), onOpen({index, event})
 */
export function mountCompare(element, bytes, options = {}) {
  const known = comparisons.get(element);
  if (known) known.update(bytes, options);
  else comparisons.set(element, new Comparison(element, bytes, options));
  return comparisons.get(element);
}

/** The entry point of `st.components.v2`, made the default export by Python. */
export function compareComponent({ data, key, parentElement, setStateValue, setTriggerValue }) {
  const { options, bytes } = unpack(data);
  mountCompare(parentElement, bytes, {
    ...options, id: options.id ?? key,
    onCursor: (cursor) => setStateValue("cursor", cursor),
    onFork: (fork) => setTriggerValue("fork", fork),
    onOpen: (open) => setTriggerValue("open", open),
  });
  return () => {
    comparisons.get(parentElement)?.destroy();
    comparisons.delete(parentElement);
  };
}
