/**
 * The glassblock player: one recorded run, drawn and walked through.
 *
 * Sections: text, reader, fold, explain, palette, layout, draw, view (DOM), input, mount.
 * It reads the binary delta log of `core/trace/delta_log.py` and folds events exactly as
 * `core/trace/snapshot.py` does; a test compares the two at every event. It knows neither
 * Streamlit nor the network: `playerComponent` adapts it to `st.components.v2`, and `mountPlayer`
 * serves any other page; `compare.js` builds on what it exports. User text reaches the page through `textContent` only.
 */

// ---------------------------------------------------------------------------------------- text

const SLOT = /\{([\p{L}\p{N}_]+)(?:\|([^|{}]*)\|([^|{}]*)|#(\d+))?\}/gu;

/**
 * A template with its values, as `core.text.fill` does it.
 * @param {string} template
 * @param {Object<string, unknown>} values
 */
export function fill(template, values) {
  return template.replace(SLOT, (whole, name, singular, plural, length) => {
    if (!Object.hasOwn(values, name)) return `{${name}}`;
    const value = String(values[name]);
    if (length) return [...value].slice(0, Number(length)).join("");
    if (singular === undefined) return value;
    return `${value} ${value === "1" ? singular : plural}`;
  });
}

/** A float with three significant digits, as Python's `format(value, ".3g")`. */
export function threeDigits(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const [digits, power] = value.toExponential(2).split("e");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= 3) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${stripZeros(digits)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return stripZeros(Number(`${digits}e${exponent}`).toFixed(2 - exponent));
}

function stripZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// -------------------------------------------------------------------------------------- reader

const MAGIC = 0x4c444247; // "GBDL", little-endian
const FIRST_EVENT = 2;
const KINDS = ["int", "bool", "float", "str", "ints", "strs", "ints_by_name", "floats_by_name"];
const [INT, BOOL, FLOAT, STR, INTS, STRS, INTS_BY_NAME, FLOATS_BY_NAME] = KINDS.keys();
const FLOATS = Symbol("names of an event's float fields");

/** A typed array that grows by doubling. */
class Grow {
  constructor(Type, fillWith = 0) {
    this.Type = Type;
    this.fillWith = fillWith;
    this.data = new Type(1024).fill(fillWith);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.data.length) this.reserve(this.length + 1);
    this.data[this.length++] = value;
  }

  reserve(length) {
    if (length <= this.data.length) return;
    const larger = new this.Type(Math.max(length, this.data.length * 2)).fill(this.fillWith);
    larger.set(this.data);
    this.data = larger;
  }
}

/** How many of the first `length` sorted values are <= `value`. */
export function countUpTo(values, length, value) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The log with an offset for every event. `decode(i)` fills the scratch fields `v` (numbers, string
 * numbers, or the sum of numbers by name), `n` (list lengths) and `list` without making objects;
 * `event(i)` makes one.
 */
export class Log {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (bytes.length < 9 || view.getUint32(0, true) !== MAGIC) throw new Error("not a delta log");
    if (bytes[4] !== 1) throw new Error(`delta log version ${bytes[4]} is not known`);
    this.start = 9 + view.getUint32(5, true);
    this.header = JSON.parse(new TextDecoder().decode(bytes.subarray(9, this.start)));
    this.readSchema(this.header.log_schema);
    this.strings = [];
    this.shapes = [];
    this.offsets = new Grow(Uint32Array);
    this.steps = new Grow(Int32Array);
    this.indices = new Grow(Int32Array);
    this.shapeOf = new Grow(Uint16Array);
    this.end = this.start;
    this.v = new Float64Array(64);
    this.n = new Int32Array(64);
    this.list = [];
    this.bytes = bytes;
    this.view = view;
  }

  readSchema({ phases, types }) {
    this.phases = phases;
    this.types = types.map(([name]) => name);
    this.typeCode = Object.fromEntries(this.types.map((name, code) => [name, code]));
    this.fields = types.map(([, fields]) => fields.map(([name]) => name));
    this.kinds = types.map(([, fields]) => fields.map(([, kind]) => KINDS.indexOf(kind)));
    this.floats = types.map(([, fields]) => new Set(fields.filter(([, k]) => k === "float").map(([n]) => n)));
  }

  get length() {
    return this.offsets.length;
  }

  /** Whether `bytes` is this log, or this log and more. */
  isPrefixOf(bytes) {
    if (bytes.length < this.bytes.length) return false;
    for (let i = 0; i < this.bytes.length; i++) if (bytes[i] !== this.bytes[i]) return false;
    return true;
  }

  /** Takes a longer log, whose beginning is this one. */
  extend(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /**
   * Reads definitions up to the next event and registers it, leaving it decoded.
   * @returns {boolean} false at the end, or where the rest is no whole event.
   */
  readNext() {
    this.at = this.end;
    while (this.at < this.bytes.length) {
      const tag = this.varint();
      if (tag === 0) this.readString();
      else if (tag === 1) this.readShape();
      else return this.registerEvent(tag - FIRST_EVENT);
      if (this.at > this.bytes.length) return false;
      this.end = this.at;
    }
    return false;
  }

  readString() {
    const length = this.varint();
    const end = this.at + length;
    if (end <= this.bytes.length) this.strings.push(decodeText(this.bytes.subarray(this.at, end)));
    this.at = end;
  }

  readShape() {
    const shape = { type: this.varint(), phase: this.varint(), at: this.varint() };
    shape.code = this.varint();
    shape.names = [];
    shape.texts = [];
    for (let left = this.varint(); left > 0; left--) {
      shape.names.push(this.varint());
      shape.texts.push(this.varint() === 1);
    }
    if (this.at <= this.bytes.length) this.shapes.push(shape);
  }

  registerEvent(shapeNumber) {
    const place = this.at;
    const shape = this.shapes[shapeNumber];
    if (!shape) return false;
    const last = this.length - 1;
    const time = this.varint();
    const step = (last < 0 ? 0 : this.steps.data[last]) + unzigzag(Math.floor(time / 2));
    const jump = time % 2 ? this.int() : 0;
    this.readFields(shape);
    if (this.at > this.bytes.length) return false;
    this.offsets.push(place);
    this.steps.push(step);
    this.indices.push((last < 0 ? -1 : this.indices.data[last]) + 1 + jump);
    this.shapeOf.push(shapeNumber);
    this.end = this.at;
    return true;
  }

  /** Fills `v`, `n` and `list` with event `i`'s own fields; returns its type's code. */
  decode(i) {
    this.at = this.offsets.data[i];
    if (this.varint() % 2) this.varint();
    const shape = this.shapes[this.shapeOf.data[i]];
    this.readFields(shape);
    return shape.type;
  }

  readFields(shape) {
    for (let left = shape.names.length; left > 0; left--) this.varint();
    const kinds = this.kinds[shape.type];
    this.list.length = 0;
    for (let f = 0; f < kinds.length; f++) {
      const kind = kinds[f];
      if (kind === INT) this.v[f] = this.int();
      else if (kind === STR || kind === BOOL) this.v[f] = this.varint();
      else if (kind === FLOAT) this.v[f] = this.float();
      else this.readList(f, kind);
    }
  }

  readList(f, kind) {
    const count = this.varint();
    const isNamed = kind === INTS_BY_NAME || kind === FLOATS_BY_NAME;
    this.v[f] = isNamed ? 0 : this.list.length;
    this.n[f] = count;
    for (let i = 0; i < count && this.at <= this.bytes.length; i++) {
      if (kind === INTS) this.list.push(this.int());
      else if (kind === STRS) this.list.push(this.varint());
      else this.v[f] += this.named(kind);
    }
  }

  named(kind) {
    this.varint();
    return kind === INTS_BY_NAME ? this.int() : this.float();
  }

  /** Event `i` as plain values: type, step, index, phase, at, reason and its own fields. */
  event(i) {
    const shape = this.shapes[this.shapeOf.data[i]];
    const event = { type: this.types[shape.type], step: this.steps.data[i] };
    event[FLOATS] = this.floats[shape.type];
    event.index = this.indices.data[i];
    event.phase = this.phases[shape.phase];
    event.at = this.strings[shape.at];
    this.at = this.offsets.data[i];
    if (this.varint() % 2) this.varint();
    const values = {};
    shape.names.forEach((name, k) => {
      values[this.strings[name]] = shape.texts[k] ? this.strings[this.varint()] : this.int();
    });
    event.reason = { code: this.strings[shape.code], values };
    this.fields[shape.type].forEach((name, f) => {
      event[name] = this.value(KINDS[this.kinds[shape.type][f]]);
    });
    return event;
  }

  value(kind) {
    if (kind === "int") return this.int();
    if (kind === "bool") return this.varint() === 1;
    if (kind === "float") return this.float();
    if (kind === "str") return this.strings[this.varint()];
    const count = this.varint();
    if (kind === "ints" || kind === "strs") {
      return Array.from({ length: count }, () => this.value(kind.slice(0, -1)));
    }
    const one = kind === "ints_by_name" ? "int" : "float";
    const pairs = Array.from({ length: count }, () => [this.value("str"), this.value(one)]);
    return Object.fromEntries(pairs);
  }

  typeOf(i) {
    return this.types[this.shapes[this.shapeOf.data[i]].type];
  }

  phaseOf(i) {
    return this.shapes[this.shapeOf.data[i]].phase;
  }

  codeOf(i) {
    return this.strings[this.shapes[this.shapeOf.data[i]].code];
  }

  varint() {
    const bytes = this.bytes;
    let byte = bytes[this.at++];
    if (byte < 0x80) return byte;
    let value = byte & 0x7f;
    let scale = 128;
    do {
      byte = bytes[this.at++];
      value += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte >= 0x80);
    return value;
  }

  int() {
    return unzigzag(this.varint());
  }

  float() {
    this.at += 8;
    return this.at <= this.bytes.length ? this.view.getFloat64(this.at - 8, true) : 0;
  }
}

function unzigzag(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
}

const utf8 = new TextDecoder();

function decodeText(bytes) {
  return utf8.decode(bytes);
}

/**
 * Reads the header of a log; a `Fold` reads its events.
 * @param {Uint8Array} bytes
 */
export function readLog(bytes) {
  return new Log(bytes);
}

// ---------------------------------------------------------------------------------------- fold

const KEYFRAME_BYTES = 64 << 20;
const FIRST_INTERVAL = 1024;
const COUNTERS = ["sampled", "copies", "evictions", "preemptions", "scheduled"];
const MARKS = ["BlockCopied", "BlockEvicted", "RequestPreempted", "RequestFinished", "RequestDeferred"];
const GIVEN_UP = "no_swap_space"; // why a request ends in the middle of a step
const MEMORY_CODES = ["no_room", "watermark", "no_room_region", "fragmented"]; // a deferral for these is worth a mark

/** What a fold must know of the configuration; the twin of `Layout`. */
function layoutOf(config) {
  const isV1 = config.semantics === "v1";
  const isPaged = (config.allocator ?? "paged") === "paged";
  const usable = config.num_blocks - (isV1 ? 1 : 0);
  return {
    isPaged, policy: config.policy ?? "fcfs", hostBlocks: config.num_host_blocks ?? 0,
    numBlocks: isPaged ? config.num_blocks : usable * config.block_size,
    blockSize: isPaged ? config.block_size : 1, nullBlock: isPaged && isV1,
    reserve: config.reserve ?? "max", placement: config.placement ?? "first_fit",
    maxModelLen: config.max_model_len ?? 0, isStatic: config.batching === "static",
  };
}

/** The state after some events: what the snapshot holds, in arrays that copy fast. */
class State {
  constructor(layout) {
    const size = layout.isPaged ? layout.numBlocks : 0;
    this.position = 0;
    this.refs = new Int32Array(size);
    this.hashes = new Int32Array(size); // string number + 1; 0 is none
    this.filled = new Uint16Array(size);
    this.next = new Int32Array(size + 1).fill(-1); // the queue's sentinel is `size`
    this.previous = new Int32Array(size + 1).fill(-1);
    this.next[size] = this.previous[size] = size;
    this.requests = new Map();
    this.sequences = new Map();
    this.waiting = [];
    this.running = [];
    this.swapped = [];
    this.hosts = new Map(); // host block -> slots filled
    this.regions = new Map(); // first slot -> { request, seq (-1: a spare), length, size }
    this.deferred = null; // { request, event }: who was not admitted, and where it says why
    for (const name of COUNTERS) this[name] = 0;
    this.planned = new Map(); // sequence -> tokens of this step
    this.numFree = layout.isPaged ? 0 : layout.numBlocks; // slots, in contiguous memory
    this.numCachedFree = this.ownedSlots = this.saved = 0;
    for (let b = layout.nullBlock ? 1 : 0; b < size; b++) this.insertAfter(-1, b, this.previous[size]);
  }

  insertAfter(after, block, previous = after === -1 ? this.refs.length : after) {
    const following = this.next[previous];
    this.next[previous] = this.previous[following] = block;
    this.next[block] = following;
    this.previous[block] = previous;
    this.numFree++;
    if (this.hashes[block]) this.numCachedFree++;
  }

  removeFree(block) {
    const following = this.next[block];
    if (following === -1) throw new Error(`block ${block} is not free`);
    const previous = this.previous[block];
    this.next[previous] = following;
    this.previous[following] = previous;
    this.next[block] = this.previous[block] = -1;
    this.numFree--;
    if (this.hashes[block]) this.numCachedFree--;
  }

  setHash(block, hash) {
    const isFree = this.next[block] !== -1;
    if (isFree) this.numCachedFree += (hash ? 1 : 0) - (this.hashes[block] ? 1 : 0);
    this.hashes[block] = hash;
  }

  setFilled(block, count) {
    if (this.refs[block]) this.ownedSlots += count - this.filled[block];
    this.filled[block] = count;
  }

  setRefs(block, count) {
    const before = this.refs[block];
    this.saved += Math.max(0, count - 1) - Math.max(0, before - 1);
    if (!before && count) this.ownedSlots += this.filled[block];
    if (before && !count) this.ownedSlots -= this.filled[block];
    this.refs[block] = count;
  }

  /** Gives a region to a sequence; what the sequence has stored lies in it. */
  hold(start, one) {
    one.region = start;
    this.ownedSlots += one.stored;
  }

  /** Takes a sequence's region from it. */
  letGo(one) {
    if (one.region < 0) return;
    one.region = -1;
    this.ownedSlots -= one.stored;
  }

  /** Free blocks, head first; at most `limit`. */
  freeQueue(limit = Infinity) {
    const ids = [];
    const end = this.refs.length;
    for (let b = this.next[end]; b !== end && ids.length < limit; b = this.next[b]) ids.push(b);
    return ids;
  }

  /** The tail of the queue in order. */
  freeTail(limit) {
    const ids = [];
    const end = this.refs.length;
    for (let b = this.previous[end]; b !== end && ids.length < limit; b = this.previous[b]) ids.push(b);
    return ids.reverse();
  }

  /** Makes this state equal to `other`; a keyframe leaves `previous` to be rebuilt. */
  copyFrom(other) {
    for (const name of ["refs", "hashes", "filled", "next"]) this[name].set(other[name]);
    this.rebuildPrevious();
    copyParts(other, this);
  }

  rebuildPrevious() {
    this.previous.fill(-1);
    const end = this.refs.length;
    for (let b = end, after; ; b = after) {
      after = this.next[b];
      this.previous[after] = b;
      if (after === end) return;
    }
  }

  /** A compact copy. */
  keyframe() {
    const frame = { refs: Uint16Array.from(this.refs) };
    for (const name of ["hashes", "filled", "next"]) frame[name] = this[name].slice();
    copyParts(this, frame);
    return frame;
  }
}

function copyParts(from, to) {
  for (const name of COUNTERS) to[name] = from[name];
  for (const name of ["position", "numFree", "numCachedFree", "ownedSlots", "saved"]) to[name] = from[name];
  for (const name of ["waiting", "running", "swapped"]) to[name] = from[name].slice();
  to.planned = new Map(from.planned);
  to.hosts = new Map(from.hosts);
  to.regions = new Map(from.regions); // a region is replaced, never changed
  to.deferred = from.deferred;
  to.requests = new Map();
  for (const [id, r] of from.requests) to.requests.set(id, { ...r, sequences: r.sequences.slice() });
  to.sequences = new Map();
  for (const [id, s] of from.sequences) {
    to.sequences.set(id, { ...s, table: s.table.slice(), hostTable: s.hostTable.slice() });
  }
}

function bytesOf(frame) {
  let bytes = frame.refs.length * 12 + 1024 + (frame.requests.size + frame.hosts.size + frame.regions.size) * 64;
  for (const s of frame.sequences.values()) bytes += 96 + 8 * (s.table.length + s.hostTable.length);
  return bytes;
}

/**
 * Facts of a run that do not change with the position: requests with the spans of their lives,
 * sequences with their tokens, steps, marks, hit counts, and for each block the events that filled
 * it.
 */
class Facts {
  constructor(log) {
    this.log = log;
    this.requests = [];
    this.sequences = [];
    this.requestOf = new Map();
    this.sequenceOf = new Map();
    this.labels = {};
    this.tokenText = new Map();
    this.stepIds = new Grow(Int32Array);
    this.stepStart = new Grow(Int32Array);
    this.prefill = new Grow(Int32Array);
    this.decoded = new Grow(Int32Array);
    this.usedSlots = new Grow(Int32Array); // at the end of each step
    this.ownedBlocks = new Grow(Int32Array);
    this.cachedBlocks = new Grow(Int32Array);
    this.markEvent = new Grow(Int32Array);
    this.markKind = new Grow(Uint8Array);
    this.prefillEvent = new Grow(Int32Array);
    this.sampledEvent = new Grow(Int32Array);
    this.finishedEvent = new Grow(Int32Array);
    this.rejectedEvent = new Grow(Int32Array);
    this.endStep = new Grow(Int32Array); // of each StepEnded: its step, and the totals up to it
    this.endEvent = new Grow(Int32Array);
    this.endSampled = new Grow(Int32Array);
    this.endRunning = new Grow(Int32Array);
    this.endWaiting = new Grow(Int32Array);
    this.endSeconds = new Grow(Float64Array);
    this.hits = Object.fromEntries(
      ["all", "recent", "returning"].map((name) => [
        name, { event: new Grow(Int32Array), asked: new Grow(Float64Array), hit: new Grow(Float64Array) },
      ]),
    );
    this.fillEvent = new Grow(Int32Array);
    this.fillBefore = new Grow(Int32Array, -1);
    this.fillLast = new Map(); // block, or host block as -1 - id -> its last entry
    this.kindPrefill = -1;
    this.planned = new Map(); // request -> what the step at hand gave it: [series, tokens]
    this.readers = log.types.map((name) => this[`note${name}`]?.bind(this) ?? null);
    this.field = fieldFinder(log);
    this.markOf = log.types.map((name) => MARKS.indexOf(name));
  }

  /** Notes event `i`, which the log has just decoded. */
  note(i, type) {
    const step = this.log.steps.data[i];
    const last = this.stepIds.length - 1;
    if (last < 0 || this.stepIds.data[last] !== step) {
      this.stepIds.push(step);
      this.stepStart.push(i);
      for (const one of [this.prefill, this.decoded, this.usedSlots, this.ownedBlocks, this.cachedBlocks]) one.push(0);
      this.planned.clear();
    }
    if (this.markOf[type] >= 0 && this.isWorthAMark(i, type)) {
      this.markEvent.push(i);
      this.markKind.push(this.markOf[type]);
    }
    const reader = this.readers[type];
    if (reader) reader(i);
  }

  /** Deferrals for want of memory are marked once a request, however its shortage changes. */
  isWorthAMark(i, type) {
    if (this.log.types[type] !== "RequestDeferred") return true;
    const request = this.log.v[this.field.RequestDeferred.request_id];
    if (!MEMORY_CODES.includes(this.log.codeOf(i)) || this.lastDeferred === request) return false;
    this.lastDeferred = request;
    return true;
  }

  noteRequestArrived(i) {
    const { v, n, list, strings } = this.log;
    const f = this.field.RequestArrived;
    const id = v[f.request_id];
    const prompt = list.slice(v[f.prompt_token_ids], v[f.prompt_token_ids] + n[f.prompt_token_ids]);
    const texts = list.slice(v[f.texts], v[f.texts] + n[f.texts]).map((s) => strings[s]);
    const label = strings[v[f.label]];
    this.requestOf.set(id, this.requests.length);
    this.requests.push({
      id: strings[id], label, priority: v[f.priority], arrival: v[f.arrival],
      maxTokens: v[f.max_tokens], event: i, spans: [{ kind: "waiting", from: i, to: -1 }],
      places: 0,
    });
    this.addSequence(id, this.requests.length - 1, label, prompt.length, i);
    prompt.forEach((token, k) => this.addToken(this.sequences.at(-1), token, texts[k] ?? "", i));
  }

  noteRequestRejected(i) {
    const { v, strings } = this.log;
    const f = this.field.RequestRejected;
    this.labels[strings[v[f.request_id]]] = strings[v[f.label]];
    this.requestOf.set(v[f.request_id], this.requests.length);
    this.requests.push({
      id: strings[v[f.request_id]], label: strings[v[f.label]], rejected: true, event: i, spans: [], places: 0,
    });
    this.rejectedEvent.push(i);
  }

  /** Ends the request's present span of life and begins the next; `kind` "" only ends. */
  turn(request, kind, i) {
    const { spans } = this.requests[request] ?? { spans: [] };
    const last = spans.at(-1);
    if (last && last.to < 0) last.to = i;
    if (kind) spans.push({ kind, from: i, to: -1 });
  }

  noteRequestPreempted(i) {
    const request = this.requestOf.get(this.log.v[this.field.RequestPreempted.request_id]);
    this.takeBack(request);
    this.turn(request, "preempted", i);
  }

  /** Takes the tokens that the step at hand gave to a request out of its bar. */
  takeBack(request) {
    for (const [series, tokens] of this.planned.get(request) ?? []) series.data[series.length - 1] -= tokens;
    this.planned.delete(request);
  }

  noteRequestFinished(i) {
    this.finishedEvent.push(i);
    const request = this.requestOf.get(this.log.v[this.field.RequestFinished.request_id]);
    if (this.log.codeOf(i) === GIVEN_UP) this.takeBack(request);
    this.turn(request, this.requests[request]?.places > 0 ? "held" : "", i);
  }

  noteRegionReserved(i) {
    this.holds(this.requestOf.get(this.log.v[this.field.RegionReserved.request_id]), 1, i);
  }

  noteRegionReleased(i) {
    this.holds(this.requestOf.get(this.log.v[this.field.RegionReleased.request_id]), -1, i);
  }

  noteBlockShared(i) {
    this.holds(this.requestWith(this.log.v[this.field.BlockShared.seq_id]), 1, i);
  }

  noteBlockReleased(i) {
    this.holds(this.requestWith(this.log.v[this.field.BlockReleased.seq_id]), -1, i);
  }

  requestWith(seq) {
    return this.sequences[this.sequenceOf.get(seq)]?.request;
  }

  /** A request has so many more places in memory; a finished one is gone with its last. */
  holds(request, more, i) {
    const one = this.requests[request];
    if (!one) return;
    one.places += more;
    const last = one.spans.at(-1);
    if (one.places === 0 && last?.kind === "held") last.to = i;
  }

  noteSequenceFinished() {
    const { v } = this.log;
    const f = this.field.SequenceFinished;
    const sequence = this.sequences[this.sequenceOf.get(v[f.seq_id])];
    // The last sampled token never gets a slot.
    if (sequence) sequence.final = sequence.promptTokens + Math.max(0, v[f.num_tokens] - 1);
  }

  noteStepEnded(i) {
    const { v, steps } = this.log;
    const f = this.field.StepEnded;
    const before = this.endSeconds.length ? this.endSeconds.data[this.endSeconds.length - 1] : 0;
    this.endStep.push(steps.data[i]);
    this.endEvent.push(i);
    this.endSampled.push(this.sampledEvent.length);
    this.endRunning.push(v[f.running]);
    this.endWaiting.push(v[f.waiting] + v[f.swapped]);
    this.endSeconds.push(before + v[f.timings]);
  }

  noteSequenceForked(i) {
    const { v, strings } = this.log;
    const f = this.field.SequenceForked;
    const parent = this.sequences[this.sequenceOf.get(v[f.parent_id])];
    const request = this.requestOf.get(v[f.request_id]);
    this.addSequence(v[f.child_id], request, strings[v[f.label]], parent.promptTokens, i);
    const child = this.sequences.at(-1);
    for (let k = 0; k < parent.tokens.length; k++) this.addToken(child, parent.tokens[k], parent.texts[k], i);
  }

  addSequence(id, request, label, promptTokens, event) {
    this.sequenceOf.set(id, this.sequences.length);
    this.labels[this.log.strings[id]] = label;
    this.sequences.push({
      id: this.log.strings[id], number: this.sequences.length, request, label, promptTokens, event,
      tokens: [], texts: [], since: [], final: -1, // stored in the end; -1: not known
    });
  }

  addToken(sequence, token, text, event) {
    sequence.tokens.push(token);
    sequence.texts.push(text);
    sequence.since.push(event);
    if (text && !this.tokenText.has(token)) this.tokenText.set(token, text);
  }

  noteTokenSampled(i) {
    const { v, strings } = this.log;
    const f = this.field.TokenSampled;
    const sequence = this.sequences[this.sequenceOf.get(v[f.seq_id])];
    this.addToken(sequence, v[f.token_id], strings[v[f.text]], i);
    this.sampledEvent.push(i);
  }

  noteRequestScheduled(i) {
    const { v, strings } = this.log;
    const f = this.field.RequestScheduled;
    const isPrefill = strings[v[f.kind]] === "prefill";
    const series = isPrefill ? this.prefill : this.decoded;
    series.data[series.length - 1] += v[f.tokens];
    const request = this.requestWith(v[f.seq_id]);
    this.planned.set(request, [...(this.planned.get(request) ?? []), [series, v[f.tokens]]]);
    if (isPrefill) this.prefillEvent.push(i);
  }

  noteRequestAdmitted(i) {
    const { v } = this.log;
    const f = this.field.RequestAdmitted;
    this.turn(this.requestOf.get(v[f.request_id]), "running", i);
    const add = (series) => {
      const last = series.event.length - 1;
      series.event.push(i);
      series.asked.push((last < 0 ? 0 : series.asked.data[last]) + v[f.queried_tokens]);
      series.hit.push((last < 0 ? 0 : series.hit.data[last]) + v[f.hit_tokens]);
    };
    add(this.hits.all);
    if (v[f.returning]) add(this.hits.returning);
    else if (v[f.queried_tokens]) add(this.hits.recent);
  }

  noteBlockAllocated(i) {
    this.holds(this.requestWith(this.log.v[this.field.BlockAllocated.seq_id]), 1, i);
    this.noteFill(this.log.v[this.field.BlockAllocated.block_id], i);
  }

  noteBlockCopied(i) {
    this.noteFill(this.log.v[this.field.BlockCopied.destination], i);
  }

  noteSlotsWritten(i) {
    this.noteFill(this.log.v[this.field.SlotsWritten.block_id], i);
  }

  noteBlocksSwappedIn(i) {
    const { v, n, list } = this.log;
    const f = this.field.BlocksSwappedIn;
    for (let k = 0; k < n[f.blocks]; k++) this.noteFill(list[v[f.blocks] + k], i);
  }

  noteBlocksSwappedOut(i) {
    const { v, n, list } = this.log;
    const f = this.field.BlocksSwappedOut;
    for (let k = 0; k < n[f.hosts]; k++) this.noteFill(-1 - list[v[f.hosts] + k], i);
  }

  noteFill(key, event) {
    this.fillBefore.push(this.fillLast.get(key) ?? -1);
    this.fillLast.set(key, this.fillEvent.length);
    this.fillEvent.push(event);
  }

  /** Token ids in a block (or, as -1 - id, a host block) after `position` events. */
  contents(key, position) {
    const events = [];
    let entry = this.fillLast.get(key) ?? -1;
    for (; entry >= 0; entry = this.fillBefore.data[entry]) {
      const i = this.fillEvent.data[entry];
      if (i >= position) continue;
      events.push(i);
      if (this.log.typeOf(i) !== "SlotsWritten") break;
    }
    let slots = [];
    for (const i of events.reverse()) slots = this.refill(slots, key, i);
    return slots;
  }

  refill(slots, key, i) {
    const event = this.log.event(i);
    if (event.type === "BlockAllocated") return [];
    if (event.type === "BlockCopied") return this.contents(event.source, i).slice(0, event.tokens);
    if (event.type === "BlocksSwappedIn") {
      return this.contents(-1 - event.hosts[event.blocks.indexOf(key)], i);
    }
    if (event.type === "BlocksSwappedOut") {
      return this.contents(event.blocks[event.hosts.indexOf(-1 - key)], i);
    }
    event.token_ids.forEach((token, k) => (slots[event.offset + k] = token));
    return slots;
  }

  /** Tokens hit and asked after `position` events, in one of the three readings. */
  hitRate(name, position) {
    const series = this.hits[name];
    const count = countUpTo(series.event.data, series.event.length, position - 1);
    const first = name === "recent" ? Math.max(0, count - 1000) : 0;
    const at = (grow, k) => (k > 0 ? grow.data[k - 1] : 0);
    const hit = at(series.hit, count) - at(series.hit, first);
    return { hit, asked: at(series.asked, count) - at(series.asked, first) };
  }
}

/** `finder.Type.field` is the field's place in the log's scratch. */
function fieldFinder(log) {
  return Object.fromEntries(
    log.types.map((name, code) => [
      name, Object.fromEntries(log.fields[code].map((field, place) => [field, place])),
    ]),
  );
}

/** How each type of event changes a state; the twin of `Snapshot`'s methods. */
function makeHandlers(log, facts, layout) {
  const { v, n } = log;
  const field = fieldFinder(log);
  const sequence = (s, id) => {
    const found = s.sequences.get(facts.sequenceOf.get(id));
    if (!found) throw new Error(`sequence ${log.strings[id]} is not known`);
    return found;
  };
  const request = (s, id) => s.requests.get(facts.requestOf.get(id));
  const place = (s, id, index, block) => {
    const { table } = sequence(s, id);
    if (index > table.length) throw new Error(`logical block ${index} of ${table.length}`);
    table[index] = block;
  };
  const take = (queue, number) => {
    const at = queue.indexOf(number);
    if (at >= 0) queue.splice(at, 1);
  };
  const enqueue = (s, number, first) => {
    if (layout.policy === "fcfs") {
      if (first) s.waiting.unshift(number);
      else s.waiting.push(number);
      return;
    }
    const after = (other) => compareRank(facts.requests[other], facts.requests[number]) <= 0;
    s.waiting.splice(s.waiting.filter(after).length, 0, number);
  };
  const addSequence = (s, number, parent) => {
    s.sequences.set(number, {
      number, stored: parent ? parent.stored : 0, table: [], hostTable: [], region: -1, retired: false, ended: false,
      tokens: parent ? parent.tokens : facts.sequences[number].promptTokens,
    });
  };
  const forget = (s, one) => {
    const holds = one.table.length || one.hostTable.length || one.region >= 0;
    if (one.retired && !holds) s.sequences.delete(one.number);
  };
  const admitted = (s, number) => {
    if (s.deferred?.request === number) s.deferred = null;
  };
  /** The step computes nothing of a request that it preempts or gives up. */
  const takeBack = (s, number) => {
    for (const [seq, tokens] of s.planned) {
      if (facts.sequences[seq].request !== number) continue;
      s.scheduled -= tokens;
      s.planned.delete(seq);
    }
  };
  const retire = (s, id) => {
    const one = sequence(s, id);
    one.retired = one.ended = true;
    const owner = s.requests.get(facts.sequences[one.number].request);
    if (owner) take(owner.sequences, one.number);
    const gone = one.hostTable;
    one.hostTable = [];
    if (gone.length) {
      const held = new Set();
      for (const other of s.sequences.values()) for (const host of other.hostTable) held.add(host);
      for (const host of gone) if (!held.has(host)) s.hosts.delete(host);
    }
    forget(s, one);
  };

  const table = {
    RequestArrived(s) {
      const number = facts.requestOf.get(v[field.RequestArrived.request_id]);
      const first = facts.sequenceOf.get(v[field.RequestArrived.request_id]);
      s.requests.set(number, { number, status: "waiting", sequences: [first], preemptions: 0 });
      addSequence(s, first, null);
      enqueue(s, number, false);
    },
    RequestAdmitted(s) {
      const f = field.RequestAdmitted;
      const one = request(s, v[f.request_id]);
      take(one.status === "swapped" ? s.swapped : s.waiting, one.number);
      one.status = "running";
      s.running.push(one.number);
      admitted(s, one.number);
      for (const id of one.sequences) {
        const seq = s.sequences.get(id);
        if (!seq.stored) seq.stored = v[f.computed_tokens];
      }
    },
    RequestScheduled(s) {
      const f = field.RequestScheduled;
      const { number } = sequence(s, v[f.seq_id]);
      s.planned.set(number, (s.planned.get(number) ?? 0) + v[f.tokens]);
      s.scheduled += v[f.tokens];
    },
    BlockAllocated(s) {
      const f = field.BlockAllocated;
      const block = v[f.block_id];
      s.removeFree(block);
      s.setFilled(block, 0);
      s.setRefs(block, 1);
      place(s, v[f.seq_id], v[f.logical_index], block);
    },
    BlockEvicted(s) {
      const block = v[field.BlockEvicted.block_id];
      s.setHash(block, 0);
      s.evictions++;
      if (!s.refs[block]) s.setFilled(block, 0);
    },
    BlockShared(s) {
      const f = field.BlockShared;
      const block = v[f.block_id];
      if (!s.refs[block]) s.removeFree(block);
      s.setRefs(block, v[f.ref_count]);
      place(s, v[f.seq_id], v[f.logical_index], block);
    },
    SequenceForked(s) {
      const f = field.SequenceForked;
      const child = facts.sequenceOf.get(v[f.child_id]);
      addSequence(s, child, sequence(s, v[f.parent_id]));
      request(s, v[f.request_id]).sequences.push(child);
    },
    BlockCopied(s) {
      const f = field.BlockCopied;
      s.setFilled(v[f.destination], Math.min(v[f.tokens], s.filled[v[f.source]]));
      s.copies++;
    },
    SlotsWritten(s) {
      const f = field.SlotsWritten;
      const block = v[f.block_id];
      const end = v[f.offset] + n[f.token_ids];
      if (layout.isPaged) s.setFilled(block, Math.max(s.filled[block], end));
      else s.ownedSlots += n[f.token_ids];
      sequence(s, v[f.seq_id]).stored += n[f.token_ids];
    },
    RequestDeferred(s) {
      const number = facts.requestOf.get(v[field.RequestDeferred.request_id]);
      s.deferred = { request: number, event: s.position };
    },
    RegionReserved(s) {
      const f = field.RegionReserved;
      const seq = log.strings[v[f.seq_id]] ? facts.sequenceOf.get(v[f.seq_id]) : -1;
      const request = facts.requestOf.get(v[f.request_id]);
      s.regions.set(v[f.start], { request, seq, length: v[f.length], size: v[f.size] });
      s.numFree -= v[f.size];
      if (seq >= 0) s.hold(v[f.start], s.sequences.get(seq));
    },
    RegionCopied(s) {
      const f = field.RegionCopied;
      const one = sequence(s, v[f.seq_id]);
      s.regions.set(v[f.destination], { ...s.regions.get(v[f.destination]), seq: one.number });
      s.hold(v[f.destination], one);
      s.copies++;
    },
    RegionReleased(s) {
      const f = field.RegionReleased;
      const { seq, size } = s.regions.get(v[f.start]);
      s.regions.delete(v[f.start]);
      s.numFree += size;
      if (seq < 0) return;
      const one = s.sequences.get(seq);
      s.letGo(one);
      forget(s, one);
    },
    BlockSealed(s) {
      s.setHash(v[field.BlockSealed.block_id], v[field.BlockSealed.hash] + 1);
    },
    TokenSampled(s) {
      sequence(s, v[field.TokenSampled.seq_id]).tokens++;
      s.sampled++;
    },
    SequenceFinished: (s) => retire(s, v[field.SequenceFinished.seq_id]),
    SequenceDropped(s) {
      const id = v[field.SequenceDropped.seq_id];
      const one = sequence(s, id);
      if (one.region >= 0) s.regions.set(one.region, { ...s.regions.get(one.region), seq: -1 });
      s.letGo(one);
      retire(s, id);
    },
    BlockReleased(s) {
      const f = field.BlockReleased;
      const block = v[f.block_id];
      const one = sequence(s, v[f.seq_id]);
      if (one.table[v[f.logical_index]] === block) one.table.splice(v[f.logical_index], 1);
      s.setRefs(block, v[f.ref_count]);
      if (v[f.ref_count] === 0) {
        s.insertAfter(v[f.after], block);
        if (!s.hashes[block]) s.setFilled(block, 0);
      }
      forget(s, one);
    },
    RequestPreempted(s) {
      const f = field.RequestPreempted;
      const one = request(s, v[f.request_id]);
      one.preemptions++;
      s.preemptions++;
      takeBack(s, one.number);
      take(s.running, one.number);
      if (log.strings[v[f.mode]] === "swap") {
        one.status = "swapped";
        s.swapped.push(one.number);
        return;
      }
      one.status = "preempted";
      for (const id of one.sequences) s.sequences.get(id).stored = 0;
      enqueue(s, one.number, true);
    },
    BlocksSwappedOut(s) {
      const f = field.BlocksSwappedOut;
      const hostOf = new Map();
      for (let k = 0; k < n[f.blocks]; k++) {
        const block = log.list[v[f.blocks] + k];
        const host = log.list[v[f.hosts] + k];
        hostOf.set(block, host);
        s.hosts.set(host, s.filled[block]);
      }
      for (const id of request(s, v[f.request_id]).sequences) {
        const seq = s.sequences.get(id);
        seq.hostTable = seq.table.map((block) => hostOf.get(block));
      }
    },
    BlocksSwappedIn(s) {
      const f = field.BlocksSwappedIn;
      for (let k = 0; k < n[f.hosts]; k++) {
        const host = log.list[v[f.hosts] + k];
        s.setFilled(log.list[v[f.blocks] + k], s.hosts.get(host) ?? 0);
        s.hosts.delete(host);
      }
      for (const id of request(s, v[f.request_id]).sequences) s.sequences.get(id).hostTable = [];
    },
    RequestFinished(s) {
      const one = request(s, v[field.RequestFinished.request_id]);
      if (!one) return;
      if (log.codeOf(s.position) === GIVEN_UP) takeBack(s, one.number);
      for (const queue of [s.waiting, s.running, s.swapped]) take(queue, one.number);
      admitted(s, one.number);
      for (const id of one.sequences) {
        const seq = s.sequences.get(id);
        seq.retired = true;
        forget(s, seq);
      }
      s.requests.delete(one.number);
    },
    PrefixCacheReset(s) {
      for (let b = 0; b < s.hashes.length; b++) if (s.hashes[b]) s.setHash(b, 0);
      for (const b of s.freeQueue()) s.setFilled(b, 0);
    },
  };
  return log.types.map((name) => table[name] ?? null);
}

function compareRank(a, b) {
  return a.priority - b.priority || a.arrival - b.arrival;
}

/**
 * A run at a position: `seek(k)` makes `state` the state after k events, by the nearest keyframe
 * and a replay. Keyframes stay below 64 MB: past that, every other one is dropped.
 */
export class Fold {
  /** @param {Log} log */
  constructor(log) {
    const { config } = log.header;
    this.log = log;
    this.layout = layoutOf(config);
    this.facts = new Facts(log);
    this.handlers = makeHandlers(log, this.facts, this.layout);
    this.head = new State(this.layout);
    this.state = new State(this.layout);
    this.frames = [this.head.keyframe()];
    this.frameBytes = bytesOf(this.frames[0]);
    this.interval = FIRST_INTERVAL;
    this.load();
  }

  /** Events known. */
  get length() {
    return this.head.position;
  }

  get usableBlocks() {
    return this.layout.numBlocks - (this.layout.nullBlock ? 1 : 0);
  }

  /** Slots that requests can own. */
  get usableSlots() {
    return this.usableBlocks * this.layout.blockSize;
  }

  /** Reads what the log holds beyond the known events. */
  load() {
    const { log, facts, head } = this;
    while (log.readNext()) {
      const i = head.position;
      const type = log.shapes[log.shapeOf.data[i]].type;
      facts.note(i, type);
      this.step(head, i, type);
      if (head.position % this.interval === 0) this.keep();
      this.noteUsage();
    }
  }

  /** Applies event `i`, which the log has just decoded. */
  step(state, i, type) {
    if (i > 0 && this.log.steps.data[i] !== this.log.steps.data[i - 1]) {
      state.scheduled = 0;
      state.planned.clear();
    }
    const handler = this.handlers[type];
    if (handler) handler(state);
    state.position = i + 1;
  }

  noteUsage() {
    const { facts, head } = this;
    const last = facts.stepIds.length - 1;
    facts.usedSlots.data[last] = head.ownedSlots;
    facts.ownedBlocks.data[last] = this.usableBlocks - head.numFree;
    facts.cachedBlocks.data[last] = head.numCachedFree;
  }

  keep() {
    const frame = this.head.keyframe();
    this.frames.push(frame);
    this.frameBytes += bytesOf(frame);
    if (this.frameBytes <= KEYFRAME_BYTES || this.frames.length < 4) return;
    this.interval *= 2;
    this.frames = this.frames.filter((one) => one.position % this.interval === 0);
    this.frameBytes = this.frames.reduce((sum, one) => sum + bytesOf(one), 0);
  }

  /** Applies one more event to `state`. */
  apply() {
    const i = this.state.position;
    this.step(this.state, i, this.log.decode(i));
  }

  /** Moves `state` to the moment after `position` events. */
  seek(position) {
    const target = Math.max(0, Math.min(position, this.length));
    const frame = this.frames[countUpToFrame(this.frames, target) - 1];
    const here = this.state.position;
    if (target < here || frame.position > here) this.state.copyFrom(frame);
    while (this.state.position < target) this.apply();
    return this.state;
  }

  /** The state as plain values, with the names of the Python snapshot. */
  snapshot() {
    const { state, log, facts } = this;
    const out = {
      block_tables: {}, host_tables: {}, ref_counts: {}, free_queue: state.freeQueue(), cached: {},
      computed: {}, tokens: {}, preemptions: {}, slots: {}, host_slots: {},
    };
    for (const seq of state.sequences.values()) {
      const { id } = facts.sequences[seq.number];
      if (seq.table.length) out.block_tables[id] = seq.table.slice();
      if (seq.hostTable.length) out.host_tables[id] = seq.hostTable.slice();
    }
    for (let b = 0; b < state.refs.length; b++) {
      if (state.refs[b]) out.ref_counts[b] = state.refs[b];
      if (state.hashes[b]) out.cached[b] = log.strings[state.hashes[b] - 1];
      if (state.filled[b]) out.slots[b] = this.slots(b);
    }
    for (const host of state.hosts.keys()) out.host_slots[host] = this.facts.contents(-1 - host, state.position);
    this.snapshotRequests(out);
    this.snapshotRegions(out);
    for (const name of COUNTERS) out[name === "preemptions" ? "preemptions_total" : name] = state[name];
    out.num_owned = this.usableBlocks - state.numFree;
    out.num_cached_free = state.numCachedFree;
    out.written_slots = state.ownedSlots;
    for (const name of ["all", "recent", "returning"]) {
      const { hit, asked } = facts.hitRate(name, state.position);
      out[`hits_${name}`] = [hit, asked];
    }
    return out;
  }

  snapshotRequests(out) {
    const { state, facts } = this;
    for (const queue of ["waiting", "running", "swapped"]) {
      out[queue] = state[queue].map((number) => facts.requests[number].id);
      for (const number of state[queue]) {
        const one = state.requests.get(number);
        out.preemptions[facts.requests[number].id] = one.preemptions;
        for (const seq of one.sequences) {
          const fact = facts.sequences[seq];
          out.computed[fact.id] = state.sequences.get(seq).stored;
          out.tokens[fact.id] = fact.tokens.slice(0, state.sequences.get(seq).tokens);
        }
      }
    }
  }

  snapshotRegions(out) {
    const { state, facts } = this;
    out.regions = {};
    for (const [start, { request, seq, length, size }] of state.regions) {
      const holder = seq < 0 ? "" : facts.sequences[seq].id;
      out.regions[start] = [facts.requests[request].id, holder, length, size];
    }
    const event = this.deferral();
    out.deferred = event && [event.request_id, event.need, event.free, event.largest, event.reason.code];
    const { tokens, reserved, unused, tail, cached, hole, free } = this.breakdown();
    out.breakdown = [tokens, reserved, unused, tail, cached, hole, free];
  }

  /** The RequestDeferred that holds now, or null. */
  deferral() {
    return this.state.deferred && this.log.event(this.state.deferred.event);
  }

  /** Where the memory goes now, in slots; the twin of `core.trace.metrics.breakdown`. */
  breakdown() {
    return this.layout.isPaged ? this.pagedBreakdown() : this.regionBreakdown();
  }

  pagedBreakdown() {
    const { state, layout } = this;
    let reserved = 0;
    for (const { number, table, tokens, stored } of state.sequences.values()) {
      const request = state.requests.get(this.facts.sequences[number].request);
      if (request?.status === "preempted") continue; // its blocks are on their way back
      if (table.length) reserved += Math.max(0, Math.min(tokens - 1, table.length * layout.blockSize) - stored);
    }
    const owned = (this.usableBlocks - state.numFree) * layout.blockSize;
    const cached = state.numCachedFree * layout.blockSize;
    const tail = owned - state.ownedSlots - reserved;
    const free = this.usableSlots - owned - cached;
    return { tokens: state.ownedSlots, reserved, unused: 0, tail, cached, hole: 0, free };
  }

  regionBreakdown() {
    const parts = { tokens: 0, reserved: 0, unused: 0, tail: 0, cached: 0, hole: 0, free: 0 };
    for (const region of this.state.regions.values()) {
      const { tokens, reserved, unused, rounding } = this.regionParts(region);
      parts.tokens += tokens;
      parts.reserved += reserved;
      parts.unused += unused;
      parts.hole += rounding;
    }
    for (const { size, region, isHole } of this.pieces()) {
      if (!region) parts[isHole ? "hole" : "free"] += size;
    }
    return parts;
  }

  /** How a region's slots divide: written, to be written, never written, lost to rounding. */
  regionParts({ request, seq, length, size }) {
    const holder = seq < 0 ? null : this.state.sequences.get(seq);
    const tokens = holder ? holder.stored : 0;
    const last = holder?.ended ? tokens : Math.min(length, Math.max(tokens, this.lastSlot(request, seq)));
    return { tokens, reserved: last - tokens, unused: length - last, rounding: size - length };
  }

  /** Slots that a region's sequence will have written in the end, as far as the log knows. */
  lastSlot(request, seq) {
    const { requests, sequences } = this.facts;
    if (seq >= 0 && sequences[seq].final >= 0) return sequences[seq].final;
    const { promptTokens } = sequences[seq < 0 ? firstSequenceOf(this, request) : seq];
    return promptTokens + requests[request].maxTokens - 1;
  }

  /**
   * Regions and free pieces by address: { start, size, region, isHole }. A free piece is a hole
   * when it is too small for what is needed next; a buddy's pieces are aligned powers of two.
   */
  pieces() {
    const { state, layout } = this;
    const key = `${state.position} ${this.length}`;
    if (this.piecesKey === key) return this.piecesNow;
    const need = this.neededNext();
    const pieces = [];
    let at = 0;
    const free = (end) => {
      for (const [start, size] of freePieces(at, end, layout.placement)) {
        pieces.push({ start, size, region: null, isHole: size < need });
      }
    };
    for (const start of [...state.regions.keys()].sort((a, b) => a - b)) {
      free(start);
      const region = state.regions.get(start);
      pieces.push({ start, size: region.size, region, isHole: false });
      at = start + region.size;
    }
    free(layout.numBlocks);
    this.piecesKey = key;
    this.piecesNow = pieces;
    return pieces;
  }

  /** The length that the next region must have, 0 when nothing is known to need one. */
  neededNext() {
    if (this.layout.reserve === "max") return this.layout.maxModelLen;
    return this.deferral()?.need ?? 0;
  }

  /** The position at the end of a step: all there is when the log knows no later step. */
  endOfStep(step) {
    const { stepIds, stepStart, endStep, endEvent } = this.facts;
    const next = countUpTo(stepIds.data, stepIds.length, step);
    if (next >= stepIds.length) return this.length;
    const ended = countUpTo(endStep.data, endStep.length, step);
    return ended ? endEvent.data[ended - 1] + 1 : stepStart.data[next];
  }

  /** The position after so many sampled tokens. */
  afterTokens(count) {
    const { sampledEvent } = this.facts;
    if (count <= 0) return this.endOfStep(0);
    return count >= sampledEvent.length ? this.length : sampledEvent.data[count - 1] + 1;
  }

  /** Token ids in a block now. */
  slots(block) {
    const { state } = this;
    return this.facts.contents(block, state.position).slice(0, state.filled[block]);
  }

  /** Which entry of the step table holds event `i`. */
  stepOf(i) {
    return Math.max(0, countUpTo(this.facts.stepStart.data, this.facts.stepStart.length, i) - 1);
  }
}

/** The free pieces [start, size] of slots from..end. */
function freePieces(from, end, placement) {
  if (placement !== "buddy") return end > from ? [[from, end - from]] : [];
  const pieces = [];
  for (let at = from; at < end; at += pieces.at(-1)[1]) {
    let size = 2 ** Math.floor(Math.log2(end - at));
    while (at % size) size /= 2;
    pieces.push([at, size]);
  }
  return pieces;
}

function countUpToFrame(frames, position) {
  let low = 0;
  let high = frames.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (frames[middle].position <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ------------------------------------------------------------------------------------- explain

/**
 * The sentence of an event, as `core.trace.explain.explain` makes it.
 * @param {object} event from `Log.event`
 * @param {Object<string, string>} labels display names by id
 * @param {Object<string, string>} templates `event.Type.code` or `event.Type` to a template
 */
export function explain(event, labels, templates) {
  const exact = templates[`event.${event.type}.${event.reason.code}`];
  const template = exact || (templates[`event.${event.type}`] ?? event.type);
  return fill(template, sentenceValues(event, labels));
}

function sentenceValues(event, labels) {
  const values = {};
  const named = (value) => (Object.hasOwn(labels, value) ? labels[value] : value);
  for (const [name, value] of Object.entries(event)) {
    const isMapping = value !== null && typeof value === "object" && !Array.isArray(value);
    if (!isMapping) values[name] = plainValue(value, event[FLOATS]?.has(name));
  }
  for (const [name, value] of Object.entries(event.reason.values)) values[name] = String(named(value));
  if (event.token_ids) values.count = String(event.token_ids.length);
  const who = values.seq_id ?? values.request_id;
  if (who !== undefined) values.who = named(who);
  for (const name of ["parent", "child"]) {
    if (`${name}_id` in values) values[name] = named(values[`${name}_id`]);
  }
  return values;
}

function plainValue(value, isFloat) {
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "boolean") return value ? "True" : "False";
  return isFloat ? threeDigits(value) : String(value);
}

// ------------------------------------------------------------------------------------- palette

const OWNERS = {
  light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"],
  dark: ["#4ba3e0", "#efb03a", "#2cc498", "#dd97be", "#7fc9f3", "#ff8c42", "#f3e95e"],
};
// The same hues where they colour text: dark enough for AA on a white card.
const OWNER_TEXT = {
  light: ["#00639c", "#865c00", "#00704f", "#a03a74", "#1d6d9f", "#ae4a00", "#6a6200"],
  dark: OWNERS.dark,
};
const GLYPHS = ["", "●", "▲", "◆", "■", "✚", "★"];
export const INKS = {
  light: {
    text: "#1c2130", muted: "#5d6475", line: "#dfe3ea", dash: "#cfd4de", slot: "#e9ecf1",
    slash: "#aeb5c2", cached: "#c9cdd7", cachedLine: "#b3b9c6", accent: "#3b57d9", card: "#ffffff",
    badge: "#1c2130", badgeText: "#ffffff", copy: "#b4528b", hatch: "rgba(255,255,255,.8)",
    bar: "#94a3ec", barPrefill: "#5a6fdc", future: "#e2e6ee", futurePrefill: "#cdd3e0",
    evict: "#b5330a", preempt: "#b87a00", finish: "#5d6475", bookmark: "#3b57d9", hole: "#b5330a",
  },
  dark: {
    text: "#e9ecf3", muted: "#9aa3b5", line: "#2b3140", dash: "#3b4356", slot: "#272d3a",
    slash: "#56607a", cached: "#525a6b", cachedLine: "#6a7387", accent: "#93a5ff", card: "#181c26",
    badge: "#f1f3f8", badgeText: "#12151d", copy: "#dd97be", hatch: "rgba(12,15,22,.75)",
    bar: "#5a69a8", barPrefill: "#8a9bf0", future: "#262c39", futurePrefill: "#394154",
    evict: "#ff8a65", preempt: "#efb03a", finish: "#9aa3b5", bookmark: "#93a5ff", hole: "#ff8a65",
  },
};
export const MARK_GLYPHS = ["◆", "✕", "▲", "■", "○", "●"];
export const MARK_INKS = ["copy", "evict", "preempt", "finish", "hole", "muted"];
const MARK_NAMES = ["copy", "evict", "preempt", "finish", "defer", "prefill"];

export function ownerColour(theme, number) {
  return OWNERS[theme][number % 7];
}

export function ownerGlyph(number) {
  return GLYPHS[Math.floor(number / 7) % GLYPHS.length];
}

function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

export function alpha(hex, share) {
  return `rgba(${rgb(hex).join(",")},${share})`;
}

// -------------------------------------------------------------------------------------- layout

/**
 * Where blocks lie in the pool: columns, pitch and slot grid, fitted to a viewport.
 * @param {number} count blocks
 * @param {number} blockSize slots a block
 */
export function poolLayout(count, blockSize, width, height) {
  const across = Math.ceil(Math.sqrt(blockSize));
  const down = Math.ceil(blockSize / across);
  const layout = { count, across, down };
  for (let slot = 26; slot >= 4; slot -= 0.5) {
    const pitchX = across * slot + 22;
    const pitchY = down * slot + 40;
    const columns = Math.max(1, Math.floor((width - 4) / pitchX));
    if (Math.ceil(count / columns) * pitchY <= height - 4) {
      return { ...layout, columns, pitchX, pitchY };
    }
  }
  return { ...layout, ...squareGrid(count, width, height) };
}

/** The largest square cells with which `count` fit. */
function squareGrid(count, width, height) {
  let columns = Math.max(1, Math.ceil(Math.sqrt((count * width) / height)));
  while (Math.ceil(count / columns) * (width / columns) > height && columns < count) columns++;
  const pitch = Math.min(width / columns, 64);
  return { columns, pitchX: pitch, pitchY: pitch };
}

// ---------------------------------------------------------------------------------------- draw

const MOST_DRAWN = 1500;

/** Draws the pool on a canvas: cards, small cells, tiles or pixels, whichever the zoom shows. */
class PoolCanvas {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.pixels = document.createElement("canvas");
    this.resetView();
    this.layout = null;
  }

  resetView() {
    this.zoom = 1;
    this.x = 0;
    this.y = 0;
  }

  fitCanvas(width, height) {
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
  }

  resize(width, height, fold) {
    this.fitCanvas(width, height);
    this.layout = poolLayout(fold.layout.numBlocks, fold.layout.blockSize, width, height);
    this.clampView();
  }

  get pitchX() {
    return this.layout.pitchX * this.zoom;
  }

  get pitchY() {
    return this.layout.pitchY * this.zoom;
  }

  get rows() {
    return Math.ceil(this.layout.count / this.layout.columns);
  }

  /** Zooms by `factor` around a point of the canvas. */
  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const { pitchX, pitchY } = this;
    this.zoom = Math.max(1, Math.min(this.largestZoom, this.zoom * factor));
    this.x = ((this.x + x) * this.pitchX) / pitchX - x;
    this.y = ((this.y + y) * this.pitchY) / pitchY - y;
    this.clampView();
  }

  get largestZoom() {
    return Math.max(1, 420 / this.layout.pitchX);
  }

  /** The block that an arrow key leads to from `block` (-1: from outside), -1 when none. */
  neighbour(block, key) {
    const { columns, count } = this.layout;
    const moves = { ArrowUp: -columns, ArrowDown: columns };
    if (block >= 0) Object.assign(moves, { ArrowLeft: -1, ArrowRight: 1 });
    if (!(key in moves)) return -1;
    return block < 0 ? 0 : Math.max(0, Math.min(count - 1, block + moves[key]));
  }

  panBy(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.clampView();
  }

  clampView() {
    const maxX = Math.max(0, this.layout.columns * this.pitchX - this.width);
    const maxY = Math.max(0, this.rows * this.pitchY - this.height);
    this.x = Math.max(0, Math.min(maxX, this.x));
    this.y = Math.max(0, Math.min(maxY, this.y));
  }

  /** The centring offset when the grid is narrower than the canvas. */
  get left() {
    return Math.max(0, (this.width - this.layout.columns * this.pitchX) / 2) - this.x;
  }

  /** The block's rectangle on the canvas. */
  rect(block) {
    const { columns } = this.layout;
    const gap = this.pitchX >= 34 ? Math.min(12, this.pitchX * 0.15) : this.pitchX >= 6 ? 1.5 : 0;
    return {
      x: this.left + (block % columns) * this.pitchX + gap / 2,
      y: Math.floor(block / columns) * this.pitchY - this.y + gap / 2 + 2,
      w: this.pitchX - gap, h: this.pitchY - gap,
    };
  }

  /** The block (and slot) under a point, or null. */
  hit(x, y) {
    const column = Math.floor((x - this.left) / this.pitchX);
    const row = Math.floor((y + this.y - 2) / this.pitchY);
    if (column < 0 || column >= this.layout.columns || row < 0) return null;
    const block = row * this.layout.columns + column;
    if (block >= this.layout.count) return null;
    return { block, slot: this.slotAt(this.rect(block), x, y) };
  }

  slotAt(rect, x, y) {
    const grid = this.slotGrid(rect);
    if (!grid) return -1;
    const column = Math.floor((x - grid.x) / grid.size);
    const row = Math.floor((y - grid.y) / grid.size);
    if (column < 0 || row < 0 || column >= this.layout.across) return -1;
    return row * this.layout.across + column;
  }

  slotGrid({ x, y, w, h }) {
    if (this.pitchX < 34) return null;
    const head = h > w * 1.08 || w > 70 ? Math.max(13, Math.min(22, h * 0.2)) : 0;
    const pad = Math.max(2, w * 0.07);
    const size = Math.min((w - 2 * pad) / this.layout.across, (h - head - pad) / this.layout.down);
    return { x: x + (w - size * this.layout.across) / 2, y: y + head, size, head };
  }

  /** Scrolls so that a block is seen. */
  reveal(block) {
    const { x, y, w, h } = this.rect(block);
    if (x < 0) this.x += x - 8;
    else if (x + w > this.width) this.x += x + w - this.width + 8;
    if (y < 0) this.y += y - 8;
    else if (y + h > this.height) this.y += y + h - this.height + 8;
    this.clampView();
  }

  /** Draws the scene: fold, owners, theme, touched, hot, arrows, progress. */
  begin() {
    const { context, ratio } = this;
    context.gbFont = ""; // others set fonts, too
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.badges = [];
    this.canvas.style.touchAction = this.zoom > 1 ? "none" : "pan-y";
  }

  draw(scene) {
    this.begin();
    if (this.isCrowded() && this.pitchX >= 4) this.drawTiles(scene);
    else if (this.pitchX < 6) this.drawPixels(scene);
    else this.drawCells(scene);
    this.drawOutlines(scene);
    this.drawBadges();
    for (const arrow of scene.arrows) this.drawArrow(arrow, scene);
  }

  /** Whether so many small blocks are seen that drawing each by itself would miss a frame. */
  isCrowded() {
    return this.pitchX < 16 && this.layout.count > MOST_DRAWN && this.zoom === 1;
  }

  /** Blocks as tiles of an image: filled from below in the owner's colour, paler above. */
  drawTiles({ fold, owners, theme, lit }) {
    const { pixels, ratio, layout } = this;
    const width = this.canvas.width;
    const height = this.canvas.height;
    if (pixels.width !== width || pixels.height !== height || !this.image) {
      pixels.width = width;
      pixels.height = height;
      this.image = new ImageData(width, height);
    }
    const out = new Uint32Array(this.image.data.buffer);
    out.fill(0);
    const colours = tileColours(theme);
    const { refs, hashes, filled } = fold.state;
    const pitch = this.pitchX * ratio;
    const rise = this.pitchY * ratio;
    const side = Math.max(2, Math.floor(pitch - ratio));
    const tall = Math.max(2, Math.floor(rise - ratio));
    for (let b = 0; b < layout.count; b++) {
      const x = Math.round(this.left * ratio + (b % layout.columns) * pitch);
      const y = Math.round(2 * ratio + Math.floor(b / layout.columns) * rise);
      const owner = owners.first[b];
      const isPale = lit && !lit.has(owner);
      const full = !refs[b] ? (hashes[b] ? colours.cached : colours.free) : (isPale ? colours.pale : colours.owners)[owner < 0 ? 0 : owner % 7];
      const empty = refs[b] ? colours.pale[owner < 0 ? 0 : owner % 7] : full;
      const edge = y + tall - Math.round((tall * filled[b]) / fold.layout.blockSize);
      for (let row = y; row < y + tall && row < height; row++) {
        const at = row * width + x;
        out.fill(row >= edge ? full : empty, at, at + side);
        if (refs[b] > 1 && (row - y) % 3 === 0) out[at + ((row - y) % side)] = colours.mark;
      }
    }
    pixels.getContext("2d").putImageData(this.image, 0, 0);
    this.context.drawImage(pixels, 0, 0, this.width, this.height);
  }

  drawPixels({ fold, owners, theme, lit }) {
    const { columns, count } = this.layout;
    const { pixels, rows } = this;
    if (pixels.width !== columns || pixels.height !== rows) {
      pixels.width = columns;
      pixels.height = rows;
      this.image = new ImageData(columns, rows);
    }
    const colours = tileColours(theme);
    const out = new Uint32Array(this.image.data.buffer);
    const { refs, hashes } = fold.state;
    for (let b = 0; b < count; b++) {
      const owner = owners.first[b];
      if (refs[b]) out[b] = (lit && !lit.has(owner) ? colours.pale : colours.owners)[owner < 0 ? 0 : owner % 7];
      else out[b] = hashes[b] ? colours.cached : colours.free;
    }
    pixels.getContext("2d").putImageData(this.image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(pixels, this.left, 2 - this.y, columns * this.pitchX, rows * this.pitchY);
  }

  drawCells(scene) {
    const firstRow = Math.max(0, Math.floor((this.y - 2) / this.pitchY));
    const lastRow = Math.min(this.rows - 1, Math.floor((this.y + this.height) / this.pitchY));
    const { columns, count } = this.layout;
    const firstColumn = Math.max(0, Math.floor(-this.left / this.pitchX));
    const lastColumn = Math.min(columns - 1, Math.floor((this.width - this.left) / this.pitchX));
    for (let row = firstRow; row <= lastRow; row++) {
      for (let column = firstColumn; column <= lastColumn; column++) {
        const block = row * columns + column;
        if (block < count) this.drawBlock(block, scene);
      }
    }
  }

  drawBlock(block, scene) {
    const { fold, owners, theme } = scene;
    const { state } = fold;
    const first = owners.first[block];
    const look = {
      ink: INKS[theme], refs: state.refs[block], filled: state.filled[block], block,
      isNull: fold.layout.nullBlock && block === 0, isHeld: scene.held?.has(block),
      hash: state.hashes[block] ? fold.log.strings[state.hashes[block] - 1] : "",
      colour: first >= 0 ? ownerColour(theme, first) : INKS[theme].cached,
      edge: first >= 0 ? alpha(OWNER_TEXT[theme][first % 7], 0.7) : INKS[theme].cachedLine,
      glyph: first >= 0 ? ownerGlyph(first) : "",
      second: owners.second[block] >= 0 ? ownerColour(theme, owners.second[block]) : null,
    };
    const rect = this.rect(block);
    if (this.pitchX >= 34) this.drawCard(rect, look, scene);
    else this.drawSmall(rect, look, scene.fold.layout.blockSize);
    if (look.isHeld) this.hatch(rect, look.ink.text, 6);
  }

  drawSmall({ x, y, w, h }, look, blockSize) {
    const { context } = this;
    const { ink } = look;
    if (look.refs || look.hash) {
      context.fillStyle = alpha(look.colour, 0.28);
      context.fillRect(x, y, w, h);
      context.fillStyle = look.colour;
      const share = look.filled / blockSize;
      context.fillRect(x, y + h * (1 - share), w, h * share);
      if (look.refs > 1) this.hatch({ x, y, w, h }, ink.hatch, 4);
      if (!look.refs) this.frame({ x, y, w, h }, ink.cachedLine, 0);
    } else if (look.isNull) this.hatch({ x, y, w, h }, ink.slash, 4);
    else this.frame({ x, y, w, h }, ink.dash, w > 10 ? 2 : 0);
    if (w >= 22) {
      context.fillStyle = look.refs || look.hash ? ink.text : ink.muted;
      context.font = `${Math.min(11, w / 2.6)}px ${MONO}`;
      context.fillText(look.block, x + 2, y + Math.min(11, h / 2.2));
    }
  }

  frame({ x, y, w, h }, stroke, dash) {
    const { context } = this;
    context.setLineDash(dash ? [dash, dash] : []);
    context.strokeStyle = stroke;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    context.setLineDash([]);
  }

  hatch({ x, y, w, h }, stroke, gap) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.beginPath();
    for (let d = -h; d < w; d += gap) {
      context.moveTo(x + d, y + h);
      context.lineTo(x + d + h, y);
    }
    context.strokeStyle = stroke;
    context.lineWidth = 1.2;
    context.stroke();
    context.restore();
  }

  drawCard(rect, look, scene) {
    const { context } = this;
    const { x, y, w, h } = rect;
    const { ink } = look;
    const radius = Math.min(7, w * 0.1);
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, w - 1, h - 1, radius);
    if (look.refs) {
      context.fillStyle = alpha(look.colour, scene.theme === "dark" ? 0.13 : 0.1);
      context.fill();
    }
    context.lineWidth = 1.2;
    context.strokeStyle = look.refs || look.hash ? look.edge : ink.dash;
    context.setLineDash(look.refs || look.hash || look.isNull ? [] : [3, 3]);
    context.stroke();
    context.setLineDash([]);
    const grid = this.slotGrid(rect);
    this.drawHead(rect, look, grid.head);
    if (look.isNull) this.hatch({ x: x + 3, y: grid.y, w: w - 6, h: h - grid.head - 4 }, ink.slash, 7);
    else this.drawSlots(grid, look, scene);
    if (look.refs > 1) this.drawCorner(rect, look, radius);
  }

  drawHead({ x, y, w }, look, head) {
    if (head < 10) return;
    const { context } = this;
    const size = Math.max(8, Math.min(12, head * 0.6, w / 6));
    const base = y + head * 0.72;
    context.fillStyle = look.ink.text;
    if (!look.refs && !look.hash) context.fillStyle = look.ink.muted;
    context.font = `${size + 0.5}px ${MONO}`;
    context.textBaseline = "alphabetic";
    const label = `${look.block}${look.glyph}`;
    context.fillText(label, x + 6, base);
    const used = context.measureText(label).width + 12;
    context.fillStyle = look.ink.muted;
    context.font = `${size - 1}px ${MONO}`;
    const mark = look.hash ? `#${look.hash.slice(0, 4)}` : look.isNull ? "null" : "";
    if (mark && used + context.measureText(mark).width < w) context.fillText(mark, x + used, base);
  }

  drawSlots(grid, look, scene) {
    const { context } = this;
    const { across } = this.layout;
    const { blockSize } = scene.fold.layout;
    const inner = grid.size * 0.82;
    const words = grid.size >= 30 && look.filled ? scene.slotTexts(look.block) : null;
    for (let k = 0; k < blockSize; k++) {
      const x = grid.x + (k % across) * grid.size + (grid.size - inner) / 2;
      const y = grid.y + Math.floor(k / across) * grid.size + (grid.size - inner) / 2;
      const isFilled = k < look.filled;
      context.beginPath();
      context.roundRect(x, y, inner, inner, Math.min(4, inner * 0.22));
      context.fillStyle = isFilled ? (look.refs ? alpha(look.colour, 0.85) : look.ink.cached) : look.ink.slot;
      context.fill();
      if (isFilled && look.refs > 1) this.slash(x, y, inner, look.ink.hatch, 1.4);
      if (!isFilled && look.refs) this.slash(x, y, inner, look.ink.slash, 1);
      if (words && isFilled) this.drawWord(words[k], x, y, inner, scene.theme, look);
    }
  }

  slash(x, y, size, stroke, width) {
    const { context } = this;
    const pad = width > 1 ? 0 : size * 0.2;
    context.beginPath();
    context.moveTo(x + pad, y + size - pad);
    context.lineTo(x + size - pad, y + pad);
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.stroke();
  }

  drawWord(word, x, y, size, theme, look) {
    const { context } = this;
    context.fillStyle = theme === "light" && look.refs && luminance(look.colour) < 0.18 ? "#fff" : "#10131a";
    if (!look.refs) context.fillStyle = look.ink.text;
    context.font = `${Math.min(13, size / 3.2)}px ${MONO}`;
    context.fillText(clip(word, 5), x + 3, y + size / 2 + 4, size - 6);
  }

  drawCorner({ x, y, w }, look, radius) {
    const { context } = this;
    const corner = Math.min(26, w * 0.36);
    context.save();
    context.beginPath();
    context.roundRect(x, y, w, corner + radius, [0, radius, 0, 0]);
    context.clip();
    context.beginPath();
    context.moveTo(x + w - corner, y);
    context.lineTo(x + w, y);
    context.lineTo(x + w, y + corner);
    context.fillStyle = look.second ?? look.colour;
    context.fill();
    context.restore();
    this.badges.push({ x: x + w - 2, y: y + 2, size: Math.min(9.5, w * 0.14), text: look.refs, ink: look.ink });
  }

  /** Counts of shared blocks; drawn last, so that no outline crosses a number. */
  drawBadges() {
    const { context } = this;
    context.textAlign = "center";
    for (const { x, y, size, text, ink } of this.badges) {
      context.beginPath();
      context.arc(x, y, size, 0, 7);
      context.fillStyle = ink.badge;
      context.fill();
      context.fillStyle = ink.badgeText;
      context.font = `700 ${size * 1.25}px ${SANS}`;
      context.fillText(text, x, y + size * 0.45);
    }
    context.textAlign = "left";
  }

  drawOutlines(scene) {
    const { touched, hot, focus, theme, progress } = scene;
    const accent = INKS[theme].accent;
    if (scene.lit) this.outlineLit(scene, accent);
    for (const block of touched) this.outline(block, accent, 2.2, 1 + (1 - progress) * 4);
    if (focus >= 0) this.outline(focus, INKS[theme].text, 1.5, 4, [3, 2]);
    if (hot >= 0) this.outline(hot, accent, 3, 2);
  }

  /** Outlines every block of some owners; an image of tiles pales the others instead. */
  outlineLit({ lit, owners: { first, second } }, accent) {
    if (this.isCrowded() || this.pitchX < 6) return;
    for (let b = 0; b < this.layout.count; b++) {
      if (lit.has(first[b]) || lit.has(second[b])) this.outline(b, accent, 2, 1);
    }
  }

  outline(block, stroke, width, away, dash = []) {
    if (block >= this.layout.count) return;
    const { x, y, w, h } = this.rect(block);
    if (x > this.width || y > this.height || x + w < 0 || y + h < 0) return;
    const { context } = this;
    const out = this.pitchX >= 34 ? away - 1 : 1;
    context.beginPath();
    context.roundRect(x - out, y - out, w + 2 * out, h + 2 * out, Math.min(8, w * 0.12 + out));
    context.setLineDash(dash);
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.stroke();
    context.setLineDash([]);
  }

  drawArrow({ from, to, label }, { theme, progress }) {
    const { context } = this;
    const ink = INKS[theme];
    const a = this.rect(from);
    const b = to >= 0 ? this.rect(to) : { x: a.x, y: this.height - 12, w: a.w, h: 12 };
    const [start, control, end] = arrowPath(a, b);
    const tip = along(start, control, end, progress);
    context.strokeStyle = context.fillStyle = ink.copy;
    context.lineWidth = 3;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(start.x, start.y);
    const middle = { x: start.x + (control.x - start.x) * progress, y: start.y + (control.y - start.y) * progress };
    context.quadraticCurveTo(middle.x, middle.y, tip.x, tip.y);
    context.stroke();
    arrowHead(context, middle, tip);
    if (label) this.drawLabel(label, along(start, control, end, 0.5), ink);
  }

  drawLabel(text, at, ink) {
    const { context } = this;
    context.font = `600 12px ${SANS}`;
    const width = context.measureText(text).width + 18;
    const x = Math.max(2, Math.min(this.width - width - 2, at.x - width / 2));
    const y = Math.max(2, at.y - 9);
    context.beginPath();
    context.roundRect(x, y, width, 19, 5);
    context.fill();
    context.fillStyle = ink.card;
    context.fillText(text, x + 9, y + 13.5);
  }
}

/**
 * Draws contiguous memory: the address space in rows of slots, each region and free piece a strip.
 * A piece is named by its first slot, where `PoolCanvas` names a block.
 */
class StripCanvas extends PoolCanvas {
  resize(width, height, fold) {
    this.fitCanvas(width, height);
    this.fold = fold;
    this.layout = stripLayout(fold.layout, width, height);
    this.clampView();
  }

  get pitchY() {
    const { pitchY } = this.layout;
    return Math.min(pitchY * this.zoom, Math.max(pitchY, 64));
  }

  get largestZoom() {
    return Math.max(1, 46 / this.layout.pitchX);
  }

  /** Rectangles of `count` slots from `from`: one a row. */
  segments(from, count) {
    const { columns } = this.layout;
    const gap = Math.min(9, this.pitchY * 0.2);
    const out = [];
    for (let at = from; at < from + count; ) {
      const row = Math.floor(at / columns);
      const end = Math.min(from + count, (row + 1) * columns);
      const x = this.left + (at - row * columns) * this.pitchX;
      const y = row * this.pitchY - this.y + 2;
      out.push({ x, y, w: (end - at) * this.pitchX, h: this.pitchY - gap, from: at, count: end - at });
      at = end;
    }
    return out;
  }

  /** The first row of the piece that begins at `start`. */
  rect(start) {
    const piece = this.piece(start);
    return this.segments(start, piece?.start === start ? piece.size : 1)[0];
  }

  /** The piece that holds a slot. */
  piece(slot) {
    const pieces = this.fold.pieces();
    let low = 0;
    let high = pieces.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pieces[middle].start <= slot) low = middle + 1;
      else high = middle;
    }
    return pieces[low - 1] ?? null;
  }

  hit(x, y) {
    const column = Math.floor((x - this.left) / this.pitchX);
    const row = Math.floor((y + this.y - 2) / this.pitchY);
    if (column < 0 || column >= this.layout.columns || row < 0) return null;
    const address = row * this.layout.columns + column;
    if (address >= this.layout.count) return null;
    const piece = this.piece(address);
    return piece && { block: piece.start, slot: address - piece.start };
  }

  /** The piece that an arrow key leads to. */
  neighbour(start, key) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
    if (!(key in moves)) return -1;
    if (start < 0 && !key.endsWith("Down")) return -1;
    const pieces = this.fold.pieces();
    const at = pieces.findIndex((piece) => piece.start === start);
    return pieces[Math.max(0, Math.min(pieces.length - 1, at + moves[key]))]?.start ?? -1;
  }

  draw(scene) {
    this.begin();
    for (const piece of this.fold.pieces()) {
      if (piece.region) this.drawRegion(piece, scene);
      else this.drawFree(piece, scene);
    }
    this.drawOutlines(scene);
    for (const arrow of scene.arrows) this.drawArrow(arrow, scene);
  }

  isSeen({ x, y, w, h }) {
    return x < this.width && y < this.height && x + w > 0 && y + h > 0;
  }

  drawFree({ start, size, isHole }, { theme, t, needs }) {
    const ink = INKS[theme];
    const segments = this.segments(start, size).filter((one) => this.isSeen(one));
    for (const { x, y, w, h } of segments) {
      if (isHole) {
        this.context.fillStyle = alpha(ink.hole, 0.06);
        this.context.fillRect(x + 1, y, Math.max(1, w - 2), h);
      }
      if (w >= 3) this.frame({ x: x + 1, y, w: w - 2, h }, isHole ? ink.hole : ink.dash, Math.min(4, h / 4));
    }
    const words = isHole
      ? [needs ? t("strip_hole_for", { slots: size, ...needs }) : "", t("strip_hole", { slots: size }), size]
      : [t("strip_free", { slots: size }), size];
    this.drawWords(segments, words, isHole ? ink.hole : ink.muted, null);
  }

  drawRegion({ start, region }, scene) {
    const { fold, theme, colourOf, lit } = scene;
    const { request, seq } = region;
    const number = seq >= 0 ? seq : firstSequenceOf(fold, request);
    const owner = colourOf(number);
    const colour = ownerColour(theme, owner);
    const parts = fold.regionParts(region);
    const look = {
      colour, edge: OWNER_TEXT[theme][owner % 7], ink: INKS[theme], isSpare: seq < 0, parts, start,
      isHeld: seq >= 0 && fold.state.sequences.get(seq).retired,
      label: `${fold.facts.sequences[number].label}${ownerGlyph(owner)}`,
    };
    this.context.globalAlpha = lit && !lit.has(owner) ? 0.35 : 1;
    this.fillParts(look, scene);
    for (const one of this.segments(start, region.size)) {
      if (this.isSeen(one) && one.w >= 3) this.frame({ ...one, x: one.x + 1, w: one.w - 2 }, look.edge, look.isSpare ? 5 : 0);
    }
    this.nameParts(look, scene);
    this.context.globalAlpha = 1;
  }

  /** Solid: written. Fine hatch: to be written. Wide hatch the other way: never. Dots: rounding. */
  fillParts({ start, parts, colour, ink, isHeld }, { theme }) {
    const { context } = this;
    const paint = (from, count, fills) => {
      for (const one of this.segments(from, count)) {
        if (!this.isSeen(one)) continue;
        for (const fillWith of fills) {
          context.fillStyle = fillWith;
          context.fillRect(one.x, one.y, one.w, one.h);
        }
      }
    };
    const pale = alpha(colour, theme === "dark" ? 0.3 : 0.26);
    const { tokens, reserved, unused, rounding } = parts;
    paint(start, tokens, isHeld ? [alpha(colour, 0.45), this.pattern("cross", ink.hatch)] : [alpha(colour, 0.88)]);
    paint(start + tokens, reserved, [pale, this.pattern("rise", ink.hatch)]);
    paint(start + tokens + reserved, unused, [alpha(colour, 0.06), this.pattern("fall", alpha(colour, 0.6))]);
    paint(start + tokens + reserved + unused, rounding, [alpha(ink.hole, 0.07), this.pattern("dots", ink.hole)]);
    if (this.pitchX >= 12) this.drawSlotLines(start, tokens, ink);
  }

  nameParts(look, scene) {
    const { start, parts, label, edge, ink, colour, isHeld, isSpare } = look;
    const { t, theme } = scene;
    const { tokens, reserved, unused, rounding } = parts;
    const all = tokens + reserved + unused + rounding;
    if (all * this.pitchX < 84) return this.drawWords(this.segments(start, all), [label], ink.text, ink.card);
    const onColour = theme === "light" && luminance(colour) < 0.18 && !isHeld ? "#ffffff" : "#10131a";
    const written = isHeld ? ink.text : onColour;
    const ended = t(scene.fold.layout.isStatic ? "strip_held" : "strip_ended");
    const held = isHeld ? [`${label} ${tokens} · ${ended}`, `${label} ${tokens} ■`] : [];
    const deep = this.pitchX >= 30;
    if (deep) this.drawSlotWords(start, tokens, written, scene);
    else this.drawWords(this.segments(start, tokens), [...held, `${label} ${tokens}`, label], written, null);
    const later = isSpare ? [t("strip_spare", { who: label }), t("strip_spare_short")] : [];
    const name = deep || tokens * this.pitchX < 20 ? `${label} ${tokens} · ` : "";
    later.push(`${name}${t("strip_reserved", { slots: reserved })}`, t("strip_reserved", { slots: reserved }), reserved);
    this.drawWords(this.segments(start + tokens, reserved), later, edge, ink.card);
    const never = [t("strip_unused", { slots: unused }), t("strip_unused_short", { slots: unused }), unused];
    this.drawWords(this.segments(start + tokens + reserved, unused), never, ink.text, ink.card);
    const lost = [t("strip_rounding", { slots: rounding }), rounding];
    this.drawWords(this.segments(start + tokens + reserved + unused, rounding), lost, ink.hole, ink.card);
  }

  /** The first of the texts that fits, in the widest segment, on a ground when there is one. */
  drawWords(segments, texts, ink, ground) {
    const place = segments.reduce((best, one) => (one.w > (best?.w ?? 0) ? one : best), null);
    if (!place || place.h < 9 || place.w < 10) return;
    const { context } = this;
    const left = Math.max(0, place.x);
    const width = Math.min(this.width, place.x + place.w) - left;
    const size = Math.round(Math.max(8, Math.min(12, place.h * 0.5)));
    const weight = ground ? 400 : 600;
    const text = texts.find((one) => one !== "" && widthOf(context, one, weight) * size <= width - 8);
    if (text === undefined) return;
    const wide = widthOf(context, text, weight) * size;
    setFont(context, `${weight} ${size}px ${SANS}`);
    const x = left + (width - wide) / 2;
    const y = place.y + place.h / 2;
    if (ground) {
      context.fillStyle = alpha(ground, 0.86);
      context.beginPath();
      context.roundRect(x - 3, y - size * 0.68, wide + 6, size * 1.36, 3);
      context.fill();
    }
    context.fillStyle = ink;
    context.textBaseline = "alphabetic";
    context.fillText(text, x, y + size * 0.36);
  }

  drawSlotLines(start, count, ink) {
    const { context } = this;
    context.fillStyle = alpha(ink.card, 0.5);
    for (const one of this.segments(start, count)) {
      if (!this.isSeen(one)) continue;
      const first = Math.max(1, Math.floor(-one.x / this.pitchX));
      const last = Math.min(one.count - 1, Math.ceil((this.width - one.x) / this.pitchX));
      for (let k = first; k <= last; k++) context.fillRect(one.x + k * this.pitchX - 0.5, one.y, 1, one.h);
    }
  }

  /** Deep zoom: each written slot with its token's text. */
  drawSlotWords(start, count, ink, { slotTexts }) {
    const { context } = this;
    const words = slotTexts(start);
    context.fillStyle = ink;
    setFont(context, `${Math.min(12, this.pitchX / 3.4)}px ${MONO}`);
    for (const one of this.segments(start, count)) {
      if (!this.isSeen(one)) continue;
      const first = Math.max(0, Math.floor(-one.x / this.pitchX));
      const last = Math.min(one.count - 1, Math.ceil((this.width - one.x) / this.pitchX));
      for (let k = first; k <= last; k++) {
        const word = clip(words[one.from - start + k] ?? "", 5);
        context.fillText(word, one.x + k * this.pitchX + 3, one.y + one.h / 2 + 4, this.pitchX - 5);
      }
    }
  }

  /** A hatch that keeps its size at any zoom. */
  pattern(kind, colour) {
    this.patterns ??= new Map();
    const key = `${kind} ${colour} ${this.ratio}`;
    if (!this.patterns.has(key)) this.patterns.set(key, makePattern(this.context, kind, colour, this.ratio));
    return this.patterns.get(key);
  }

  outlineLit({ lit, fold, colourOf }, accent) {
    for (const [start, { request, seq }] of fold.state.regions) {
      const owner = colourOf(seq < 0 ? firstSequenceOf(fold, request) : seq);
      if (lit.has(owner)) this.outline(start, accent, 2.5, 1);
    }
  }

  outline(start, stroke, width, away, dash = []) {
    const piece = this.piece(start);
    if (!piece) return;
    const { context } = this;
    context.setLineDash(dash);
    context.strokeStyle = stroke;
    context.lineWidth = width;
    for (const { x, y, w, h } of this.segments(piece.start, piece.size)) {
      context.beginPath();
      context.roundRect(x, y - away / 2, Math.max(2, w), h + away, 3);
      context.stroke();
    }
    context.setLineDash([]);
  }
}

const letterWidths = new Map();

/** A text's width at a size of 1 px: its letters are measured once, for measuring is slow. */
function widthOf(context, text, weight) {
  let width = 0;
  for (const letter of String(text)) {
    const key = weight + letter;
    if (!letterWidths.has(key)) {
      setFont(context, `${weight} 100px ${SANS}`);
      letterWidths.set(key, context.measureText(letter).width / 100);
    }
    width += letterWidths.get(key);
  }
  return width;
}

/** Sets a font unless it is set: the browser parses it every time. */
function setFont(context, font) {
  if (context.gbFont === font) return;
  context.font = font;
  context.gbFont = font;
}

/** Rows of the address space: as many longest contexts a row as make the rows readable. */
function stripLayout({ numBlocks, maxModelLen }, width, height) {
  const most = Math.max(3, Math.min(24, Math.floor(height / 26)));
  const contexts = maxModelLen ? numBlocks / maxModelLen : 0;
  let columns = Math.ceil(numBlocks / Math.max(1, Math.min(16, Math.floor(height / 46))));
  if (contexts >= 1.5) columns = maxModelLen * Math.ceil(contexts / most);
  else columns = Math.ceil(columns / 8) * 8;
  const down = Math.ceil(numBlocks / columns);
  return { count: numBlocks, columns, pitchX: width / columns, pitchY: Math.min(72, (height - 4) / down) };
}

const HATCH_LINES = {
  rise: [[0, 8, 8, 0]],
  fall: [[0, 0, 8, 8]],
  cross: [[0, 0, 8, 8], [0, 8, 8, 0]],
};

function makePattern(context, kind, colour, ratio) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(8 * ratio);
  const paint = tile.getContext("2d");
  paint.scale(tile.width / 8, tile.height / 8);
  paint.strokeStyle = paint.fillStyle = colour;
  paint.lineWidth = kind === "rise" ? 1.6 : 1.1;
  if (kind === "dots") for (const [x, y] of [[1, 1], [5, 5]]) paint.fillRect(x, y, 2, 2);
  paint.beginPath();
  for (const [x1, y1, x2, y2] of HATCH_LINES[kind] ?? []) {
    // Drawn thrice, so that the corners of the tile join.
    for (const shift of [-8, 0, 8]) {
      paint.moveTo(x1 + shift, y1);
      paint.lineTo(x2 + shift, y2);
    }
  }
  paint.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(8 / tile.width));
  return pattern;
}

function firstSequenceOf(fold, request) {
  return fold.facts.sequences.findIndex((one) => one.request === request);
}

/** The canvas for a run's kind of memory. */
export function memoryCanvas(canvas, fold) {
  return fold.layout.isPaged ? new PoolCanvas(canvas) : new StripCanvas(canvas);
}

export const SANS = '"Inter", system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';
const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Noto Sans CJK SC", monospace';

function tileColours(theme) {
  const ink = INKS[theme];
  const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const [whiteR, whiteG, whiteB] = rgb(ink.card);
  const blend = (hex) => {
    const [r, g, b] = rgb(hex);
    return [r * 0.3 + whiteR * 0.7, g * 0.3 + whiteG * 0.7, b * 0.3 + whiteB * 0.7].map(Math.round);
  };
  return {
    owners: OWNERS[theme].map((hex) => pack(rgb(hex))), pale: OWNERS[theme].map((hex) => pack(blend(hex))),
    cached: pack(rgb(ink.cached)), free: pack(rgb(ink.slot)), mark: pack(rgb(ink.card)),
  };
}

function luminance(hex) {
  const [r, g, b] = rgb(hex).map((c) => ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function clip(text, length) {
  const letters = [...text.trim()];
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join("");
}

function edgePoints(a, b) {
  const centre = (r) => ({ x: r.x + r.w / 2, y: r.y + r.h / 2 });
  const p = centre(a);
  const q = centre(b);
  if (Math.abs(q.y - p.y) >= a.h * 0.8) {
    const down = q.y > p.y;
    return [{ x: p.x, y: down ? a.y + a.h : a.y }, { x: q.x, y: down ? b.y - 2 : b.y + b.h + 2 }];
  }
  const right = q.x > p.x;
  return [{ x: right ? a.x + a.w : a.x, y: p.y }, { x: right ? b.x - 2 : b.x + b.w + 2, y: q.y }];
}

/** Start, control point and end of an arrow; neighbours in a row are joined by a bow below them. */
function arrowPath(a, b) {
  const [start, end] = edgePoints(a, b);
  const length = Math.hypot(end.x - start.x, end.y - start.y);
  if (length < 48 && Math.abs(a.y - b.y) < 1) {
    const bottom = a.y + a.h;
    const from = { x: a.x + a.w / 2, y: bottom };
    const to = { x: b.x + b.w / 2, y: bottom + 2 };
    return [from, { x: (from.x + to.x) / 2, y: bottom + Math.min(44, a.w * 0.4) }, to];
  }
  const control = { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 };
  const bend = Math.min(40, length / 3);
  if (Math.abs(end.x - start.x) > Math.abs(end.y - start.y)) control.y -= bend;
  else control.x += bend;
  return [start, control, end];
}

function along(a, c, b, t) {
  const u = 1 - t;
  return { x: u * u * a.x + 2 * u * t * c.x + t * t * b.x, y: u * u * a.y + 2 * u * t * c.y + t * t * b.y };
}

function arrowHead(context, from, tip) {
  const angle = Math.atan2(tip.y - from.y, tip.x - from.x);
  context.beginPath();
  context.moveTo(tip.x, tip.y);
  for (const turn of [2.6, -2.6]) {
    context.lineTo(tip.x + 12 * Math.cos(angle + turn), tip.y + 12 * Math.sin(angle + turn));
  }
  context.fill();
}

/** Draws the timeline: a bar a step (or a run of steps), marks above, the cursor. */
class TimelineCanvas {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.layers = [document.createElement("canvas"), document.createElement("canvas")];
    this.key = "";
  }

  resize(width, height) {
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    for (const canvas of [this.canvas, ...this.layers]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
    }
    this.key = "";
  }

  draw({ fold, theme, position, bookmarks, playedTo }) {
    const { context, ratio } = this;
    const key = `${fold.length} ${theme} ${this.width}`;
    if (key !== this.key) this.drawLayers(fold, theme);
    this.key = key;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const x = this.xOf(fold, position);
    drawSplit(context, this.layers, Math.round(this.xOf(fold, playedTo) * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const mark of bookmarks) this.drawBookmark(this.xOf(fold, mark), theme);
    this.drawCursor(x, theme);
  }

  /** Where a position lies: its step's bar, and how far within it. */
  xOf(fold, position) {
    const { stepStart } = fold.facts;
    if (position <= 0 || !stepStart.length) return 0;
    const k = fold.stepOf(position - 1);
    const first = stepStart.data[k];
    const after = k + 1 < stepStart.length ? stepStart.data[k + 1] : fold.length;
    return ((k + (position - first) / (after - first)) / stepStart.length) * this.width;
  }

  /** The position at a place: the end of the step there when `whole`, else within it. */
  positionAt(fold, x, whole) {
    const { stepStart } = fold.facts;
    const place = Math.max(0, Math.min(0.999999, x / this.width)) * stepStart.length;
    const k = Math.floor(place);
    const first = stepStart.data[k] ?? 0;
    const after = k + 1 < stepStart.length ? stepStart.data[k + 1] : fold.length;
    return whole ? after : first + Math.max(1, Math.round((place - k) * (after - first)));
  }

  drawLayers(fold, theme) {
    const ink = INKS[theme];
    const bars = this.bars(fold.facts);
    this.drawBars(this.layers[0], bars, ink.bar, ink.barPrefill);
    this.drawBars(this.layers[1], bars, ink.future, ink.futurePrefill);
    for (const layer of this.layers) this.drawMarks(layer.getContext("2d"), fold, theme);
  }

  bars({ prefill, decoded, stepStart }) {
    const steps = stepStart.length;
    const count = Math.min(steps, Math.max(1, Math.floor(this.width / 3)));
    const bars = Array.from({ length: count }, () => ({ prefill: 0, total: 0 }));
    for (let k = 0; k < steps; k++) {
      const bar = bars[Math.floor((k * count) / steps)];
      const total = prefill.data[k] + decoded.data[k];
      if (total > bar.total) Object.assign(bar, { total, prefill: prefill.data[k] });
    }
    return bars;
  }

  drawBars(canvas, bars, decodeInk, prefillInk) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const most = Math.max(1, ...bars.map((bar) => bar.total));
    const pitch = this.width / bars.length;
    const gap = pitch > 8 ? 2 : pitch > 4 ? 1 : 0;
    const floor = this.height - 14;
    const tall = this.height - 32;
    bars.forEach((bar, k) => {
      // A square root keeps a decode step of a few tokens visible beside a prefill of hundreds.
      const height = bar.total ? Math.max(4, tall * Math.sqrt(bar.total / most)) : 2;
      const upper = bar.total ? (height * bar.prefill) / bar.total : 0;
      context.fillStyle = decodeInk;
      roundBar(context, k * pitch + gap / 2, floor - height, pitch - gap, height);
      if (!upper) return;
      context.fillStyle = prefillInk;
      roundBar(context, k * pitch + gap / 2, floor - height, pitch - gap, upper);
    });
  }

  drawMarks(context, fold, theme) {
    const { markEvent, markKind } = fold.facts;
    context.font = `11px ${SANS}`;
    context.textAlign = "center";
    let last = -99;
    for (let k = 0; k < markEvent.length; k++) {
      const kind = markKind.data[k];
      const place = this.xOf(fold, markEvent.data[k] + 1);
      const x = Math.max(place, last + 10); // neighbours move aside, crowds thin out
      if (x - place > 14) continue;
      last = x;
      context.fillStyle = INKS[theme][MARK_INKS[kind]];
      context.fillText(MARK_GLYPHS[kind], Math.max(6, Math.min(this.width - 6, x)), 11);
    }
    context.textAlign = "left";
  }

  drawBookmark(x, theme) {
    const { context, height } = this;
    context.fillStyle = INKS[theme].bookmark;
    context.beginPath();
    context.moveTo(x - 4, height - 12);
    context.lineTo(x + 4, height - 12);
    context.lineTo(x + 4, height - 1);
    context.lineTo(x, height - 4);
    context.lineTo(x - 4, height - 1);
    context.fill();
  }

  drawCursor(x, theme) {
    const { context, height } = this;
    const at = Math.max(5, Math.min(this.width - 5, x));
    context.fillStyle = INKS[theme].text;
    context.fillRect(at - 1, 14, 2, height - 22);
    context.beginPath();
    context.arc(at, height - 7, 5, 0, 7);
    context.fill();
  }
}

/** Draws the past's layer left of a pixel and the future's right of it. */
export function drawSplit(context, [past, future], split) {
  if (split > 0) context.drawImage(past, 0, 0, split, past.height, 0, 0, split, past.height);
  const rest = future.width - split;
  if (rest > 0) context.drawImage(future, split, 0, rest, future.height, split, 0, rest, future.height);
}

export function roundBar(context, x, y, w, h) {
  context.beginPath();
  context.roundRect(x, y, w, h, Math.min(3, w / 3, h / 2));
  context.fill();
}

/** The small chart of usage over steps, up to the cursor. */
function drawUsage(canvas, { width, height, ratio }, { fold, theme, position }) {
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const { facts, layout } = fold;
  const steps = facts.stepStart.length;
  if (!steps) return;
  const slots = Math.max(1, fold.usableBlocks * layout.blockSize);
  const used = (k) => facts.usedSlots.data[k] / slots;
  const owned = (k) => facts.ownedBlocks.data[k] / fold.usableBlocks;
  const shape = { width, height, steps, now: fold.stepOf(Math.max(0, position - 1)) };
  const blue = OWNERS[theme][0];
  drawSeries(context, shape, used, alpha(blue, 0.12), null, steps - 1);
  drawSeries(context, shape, used, alpha(blue, 0.34), null, shape.now);
  drawSeries(context, shape, owned, null, alpha(blue, 0.25), steps - 1);
  drawSeries(context, shape, owned, null, blue, shape.now);
}

function drawSeries(context, { width, height, steps }, value, fillInk, lineInk, until) {
  const stride = Math.max(1, Math.floor(steps / width));
  const x = (k) => (steps > 1 ? (k / (steps - 1)) * width : width);
  const y = (k) => height - 1 - value(k) * (height - 4);
  context.beginPath();
  context.moveTo(x(0), fillInk ? height : y(0));
  for (let k = 0; k <= until; k += stride) context.lineTo(x(k), y(k));
  context.lineTo(x(until), y(until));
  if (fillInk) {
    context.lineTo(x(until), height);
    context.fillStyle = fillInk;
    context.fill();
  } else {
    context.strokeStyle = lineInk;
    context.lineWidth = 1.8;
    context.stroke();
  }
}

// ----------------------------------------------------------------------------------- view (DOM)

/** An element: `h("div", { class: "a", onclick }, child, "text")`; text is never HTML. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A count with its thousands set apart. */
export function grouped(count) {
  return count < 10_000 ? String(count) : count.toLocaleString("en-US");
}

export function setText(node, text) {
  const plain = String(text);
  if (node.textContent !== plain) node.textContent = plain;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Makes `parent` hold exactly `count` children, made by `make`; returns them. */
export function sized(parent, count, make) {
  while (parent.children.length > count) parent.lastChild.remove();
  while (parent.children.length < count) parent.append(make());
  return parent.children;
}

/** `**bold**` of a sentence as [text, isBold] pairs. */
export function boldParts(sentence) {
  return sentence.split("**").map((text, k) => [text, k % 2 === 1]).filter(([text]) => text);
}

const ICONS = {
  first: "M4 3v10M13 3v10L6 8z", back: "M12 3v10L4 8z", play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z", ahead: "M4 3v10L12 8z", last: "M12 3v10M3 3v10l7-5z",
};

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

const UNITS = ["event", "phase", "step"];
const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32, 64];
const UNITS_A_SECOND = 2; // at 1x
const ANIMATION_MS = 240;
const SETTLE_MS = 400;
const MOST_SEQUENCES = 24;
const MOST_CONDENSED = 60;
const LOGICAL_NODES = 140; // shared by the sequences shown, so that a frame's layout stays cheap
const MOST_LOGICAL = 24;
const FEWEST_LOGICAL = 4;
const TABLE_ROWS = 400;
const PAGED_PARTS = ["tokens", "reserved", "tail", "cached", "free"];
const REGION_PARTS = ["tokens", "reserved", "unused", "hole", "free"];
const PAGED_LOOKS = ["free", "owned", "tail", "shared", "cached", "null", "held_block"];
const REGION_LOOKS = ["written", "reserved", "unused", "rounding", "hole", "room", "held"];

/** The page's regions; built once, then only changed. */
function buildRegions(player) {
  const t = player.t;
  const regions = { root: h("div", { class: "gb" }) };
  regions.shell = h("div", { class: "gb-shell", tabindex: "0", role: "group", "aria-label": t("player") });
  const requests = t(player.fold.layout.isPaged ? "requests" : "requests_regions");
  regions.requests = h("section", { class: "gb-card gb-requests", "aria-label": requests });
  regions.requestsTitle = h("h2", {}, requests);
  regions.sequences = h("div", { class: "gb-scroll", tabindex: "-1" });
  regions.requests.append(regions.requestsTitle, regions.sequences);
  buildPool(regions, player);
  regions.side = h("div", { class: "gb-side" });
  buildHappened(regions, player);
  buildFree(regions, player);
  buildMemory(regions, player);
  regions.main = h("div", { class: "gb-main" }, regions.requests, regions.pool, regions.side);
  buildTransport(regions, player);
  regions.lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  regions.lines.setAttribute("class", "gb-lines");
  regions.lines.setAttribute("aria-hidden", "true");
  regions.tip = h("div", { class: "gb-tip", role: "tooltip", hidden: "" });
  regions.live = h("div", { class: "gb-live", "aria-live": "polite", role: "status" });
  buildHelp(regions, player);
  regions.shell.append(regions.main, regions.transport, regions.lines, regions.tip, regions.live, regions.help);
  regions.root.append(regions.shell);
  return regions;
}

function buildPool(regions, player) {
  const t = player.t;
  regions.poolTitle = h("h2");
  regions.poolCounts = h("div", { class: "gb-counts" });
  regions.tableToggle = h("button", {
    class: "gb-mini", type: "button", "aria-pressed": "false", onclick: () => player.toggleTable(),
  }, t("as_table"));
  const zoom = (label, name, action) =>
    h("button", { class: "gb-mini gb-square", type: "button", "aria-label": t(name), title: t(name), onclick: action }, label);
  regions.zoom = h("div", { class: "gb-zoom" },
    regions.tableToggle,
    zoom("−", "zoom_out", () => player.zoom(1 / 1.5)),
    zoom("⤢", "zoom_fit", () => player.zoom(0)),
    zoom("+", "zoom_in", () => player.zoom(1.5)));
  regions.canvas = h("canvas", { class: "gb-canvas", tabindex: "0", role: "img", "aria-label": t("pool") });
  regions.canvasBox = h("div", { class: "gb-canvas-box" }, regions.canvas);
  regions.table = h("div", { class: "gb-table gb-scroll", hidden: "", tabindex: "0" });
  regions.host = h("div", { class: "gb-host", hidden: "" });
  regions.pool = h("section", { class: "gb-card gb-pool", "aria-label": t("pool") },
    h("div", { class: "gb-head" }, regions.poolTitle, regions.poolCounts),
    regions.canvasBox, regions.table, h("div", { class: "gb-foot" }, regions.host, regions.zoom));
}

function buildHappened(regions, player) {
  const t = player.t;
  regions.phases = h("ol", { class: "gb-phases" },
    ...player.fold.log.phases.map((phase) => h("li", { "data-phase": phase }, t(`phase_${phase}`))));
  regions.sentence = h("p", { class: "gb-sentence" });
  regions.source = h("code", { class: "gb-source" });
  regions.moreButton = h("button", {
    class: "gb-link", type: "button", "aria-expanded": "false", onclick: () => player.toggleMore(),
  });
  regions.more = h("ol", { class: "gb-more gb-scroll", hidden: "" });
  regions.happened = h("section", { class: "gb-card gb-happened", "aria-label": t("happened") },
    h("h2", {}, t("happened")), regions.phases, regions.sentence, regions.source,
    regions.moreButton, regions.more);
  regions.side.append(regions.happened);
}

function buildFree(regions, player) {
  const title = player.t(player.fold.layout.isPaged ? "free_queue" : "free_pieces");
  regions.chips = h("div", { class: "gb-chips" });
  regions.freeNote = h("p", { class: "gb-note" });
  regions.free = h("section", { class: "gb-card gb-free", "aria-label": title },
    h("h2", {}, title), regions.chips, regions.freeNote);
  regions.side.append(regions.free);
}

function buildMemory(regions, player) {
  const t = player.t;
  regions.memoryTitle = h("h2");
  Object.assign(regions, buildBar(t, player.fold));
  regions.usage = h("canvas", { class: "gb-usage", role: "img", "aria-label": t("usage_chart") });
  const facts = player.fold.layout.isPaged ? ["live", "cached_share", "hit_rate", "saved"] : ["live", "largest", "held"];
  regions.facts = h("ul", { class: "gb-facts" }, ...facts.map((name) =>
    h("li", { "data-fact": name }, `${t(name)} `, h("b"))));
  regions.memory = h("section", { class: "gb-card gb-memory", "aria-label": t("memory") },
    regions.memoryTitle, regions.bar, regions.legend, h("p", { class: "gb-note" }, t("usage_chart")),
    regions.usage, regions.facts);
  regions.side.append(regions.memory);
}

/** The parts of a run's memory in fixed order: a bar, and a legend with the slots of each. */
export function buildBar(t, fold) {
  const parts = fold.layout.isPaged ? PAGED_PARTS : REGION_PARTS;
  const bar = h("div", { class: "gb-bar", role: "img" },
    ...parts.map((part) => h("span", { class: `gb-part-${part}`, "data-part": part })));
  const legend = h("ul", { class: "gb-legend" }, ...parts.map((part) =>
    h("li", { "data-part": part, title: t(`means_${part}`) }, h("i", { class: `gb-part-${part}` }), `${t(`part_${part}`)} `, h("b"))));
  return { bar, legend };
}

/** Fills what `buildBar` made. */
export function renderBar({ bar, legend }, breakdown) {
  [...bar.children].forEach((span, k) => {
    const slots = breakdown[span.dataset.part];
    setAttribute(span, "style", `flex-grow:${slots}`);
    setText(legend.children[k].lastChild, grouped(slots));
  });
  setAttribute(bar, "aria-label", legend.textContent);
}

/** To the beginning, back, play, forward, to the end. */
export function buildButtons(regions, player) {
  const t = player.t;
  const button = (name, action) =>
    h("button", { class: "gb-button", type: "button", "data-do": name, "aria-label": t(name), title: t(name), onclick: action }, icon(name));
  regions.play = button("play", () => player.togglePlay());
  regions.play.classList.add("gb-primary");
  return h("div", { class: "gb-buttons" },
    button("first", () => player.go(0)), button("back", () => player.move(-1)), regions.play,
    button("ahead", () => player.move(1)), button("last", () => player.go(player.end)));
}

export function buildSpeed(player) {
  return h("select", {
    class: "gb-pill", "aria-label": player.t("speed"), onchange: (e) => player.setSpeed(Number(e.target.value)),
  }, ...SPEEDS.map((speed) => h("option", { value: speed }, `${speed}×`)));
}

/** One of several named choices, as a group of radio buttons. */
export function buildChoice(label, names, word, choose) {
  return h("div", { class: "gb-pill gb-units", role: "radiogroup", "aria-label": label },
    ...names.map((name) => h("button", {
      type: "button", role: "radio", "data-unit": name, onclick: () => choose(name),
    }, word(name))));
}

export function renderChoice(node, chosen) {
  for (const button of node.children) setAttribute(button, "aria-checked", button.dataset.unit === chosen);
}

export function buildHelpButton(player) {
  const label = player.t("help");
  return h("button", {
    class: "gb-pill", type: "button", "aria-label": label, title: label, onclick: () => player.toggleHelp(),
  }, "?");
}

function buildTransport(regions, player) {
  const t = player.t;
  const buttons = buildButtons(regions, player);
  regions.units = buildChoice(t("unit"), UNITS, (unit) => t(`unit_${unit}`), (unit) => player.setUnit(unit));
  regions.speed = buildSpeed(player);
  regions.nextKind = h("select", { class: "gb-next-kind", "aria-label": t("next_what") },
    ...MARK_NAMES.map((name, k) => h("option", { value: k }, `${t(`mark_${name}`)} ${MARK_GLYPHS[k]}`)));
  regions.nextGo = h("button", {
    class: "gb-next-go", type: "button", "aria-label": t("next_go"), title: t("next_go"),
    onclick: () => player.goToKind(Number(regions.nextKind.value)),
  }, t("next"));
  regions.bookmark = h("button", {
    class: "gb-pill gb-bookmark", type: "button", title: t("bookmark_add"), onclick: () => player.toggleBookmark(),
  }, t("bookmark"));
  regions.bookmarks = h("select", {
    class: "gb-pill", "aria-label": t("bookmarks"), hidden: "",
    onchange: (e) => player.go(Number(e.target.value)),
  });
  regions.helpButton = buildHelpButton(player);
  regions.where = h("div", { class: "gb-where" });
  regions.timeline = h("canvas", {
    class: "gb-timeline", tabindex: "0", role: "slider", "aria-label": t("timeline"), "aria-valuemin": 0,
  });
  regions.transport = h("section", { class: "gb-card gb-transport", "aria-label": t("transport") },
    h("div", { class: "gb-controls" }, buttons,
      h("div", { class: "gb-options" }, regions.units, regions.speed,
        h("div", { class: "gb-pill gb-next" }, regions.nextGo, regions.nextKind),
        regions.bookmark, regions.bookmarks, regions.helpButton),
      regions.where),
    regions.timeline);
}

function buildHelp(regions, player) {
  const { isPaged } = player.fold.layout;
  const looks = isPaged ? PAGED_LOOKS : REGION_LOOKS;
  const keys = ["space", "arrows", "shift", "ends", "marks", "bookmark", "zoom", "pool", "esc"];
  regions.help = buildHelpCard(player, keys, [...looks, "touched"]);
}

const WORDS = ["kv", "block", "region", "preemption"];

/** Words, keys, marks and how things look, over everything. */
export function buildHelpCard(player, keys, looks) {
  const t = player.t;
  return h("div", { class: "gb-help", role: "dialog", "aria-label": t("help"), hidden: "", tabindex: "-1" },
    h("div", { class: "gb-help-card" }, h("div", { class: "gb-help-columns" },
      h("section", {}, h("h2", {}, t("words")), h("ul", {}, ...WORDS.map((name) => h("li", {}, t(`means_${name}`))))),
      h("section", {}, h("h2", {}, t("keys")),
        h("dl", {}, ...keys.flatMap((key) => [h("dt", {}, t(`key_${key}`)), h("dd", {}, t(`key_${key}_does`))]))),
      h("section", {}, h("h2", {}, t("marks")), h("ul", { class: "gb-help-marks" },
        ...MARK_NAMES.map((name, k) => h("li", {}, `${MARK_GLYPHS[k]} ${t(`mark_${name}`)}`)))),
      h("section", {}, h("h2", {}, t("legend")), h("ul", {}, ...looks.map((name) => h("li", {}, t(`look_${name}`)))))),
      h("button", { class: "gb-pill", type: "button", onclick: () => player.toggleHelp() }, t("close"))));
}

/** What one sequence shows in the left card, as plain values. */
function sequenceView(player, request, number) {
  const { fold, t } = player;
  const seq = fold.state.sequences.get(number);
  const fact = fold.facts.sequences[number];
  const isHost = !seq.table.length && seq.hostTable.length > 0;
  const table = isHost ? seq.hostTable : seq.table;
  const isDeferred = fold.state.deferred?.request === request.number;
  return {
    number, seq, fact, isHost, table, region: seq.region, status: statusLine(t, fold, request, seq),
    waits: isDeferred ? waitWords(t, fold) : "",
  };
}

/** What a sequence does, in a few words. */
export function statusLine(t, fold, request, seq) {
  const { blockSize, isPaged } = fold.layout;
  const values = { stored: seq.stored, tokens: seq.tokens, blocks: Math.ceil(seq.tokens / blockSize) };
  const { status } = request;
  if (status === "waiting" && !isPaged) return t("status_waiting_slots", { slots: neededSlots(fold, seq.number) });
  if (status !== "running") return t(`status_${status}`, values);
  return t(seq.stored < seq.tokens - 1 ? "status_prefill" : "status_running", values);
}

/** How many slots a sequence's region must have: the twin of the engine's reservation. */
function neededSlots({ layout, facts }, number) {
  const { promptTokens, request } = facts.sequences[number];
  const { maxTokens } = facts.requests[request];
  const longest = layout.maxModelLen || Infinity;
  if (layout.reserve === "max") return layout.maxModelLen;
  if (layout.reserve === "exact") return Math.min(longest, promptTokens + maxTokens) - 1;
  return Math.min(longest, promptTokens + 2 ** Math.ceil(Math.log2(maxTokens)));
}

/** Why a request was not admitted, in a few words. */
export function waitWords(t, fold) {
  const event = fold.deferral();
  return t(`waits_${event.reason.code}`, waitValues(fold, event));
}

/** A deferral's values; of a batch as many members as run now, for the event is told only once. */
export function waitValues({ state }, { need, free, largest, reason }) {
  const values = { need, free, largest, ...reason.values };
  return "running" in values ? { ...values, running: Math.max(1, state.running.length) } : values;
}

/** Sequences that hold memory outside the queues: finished ones of a batch, and spares. */
function heldViews(player) {
  return player.fold.layout.isPaged ? heldTables(player) : heldRegions(player);
}

function heldTables({ fold, t }) {
  if (!fold.layout.isStatic) return []; // elsewhere a table is given back within the step
  const held = [...fold.state.sequences.values()].filter((one) => one.retired && one.table.length);
  return held.map((seq) => ({
    number: seq.number, seq, fact: fold.facts.sequences[seq.number], isHost: false, table: seq.table, region: -1,
    status: t("status_held"), waits: "",
  }));
}

/** The blocks of finished members of a static batch. */
export function heldBlocks({ layout, state }) {
  const held = new Set();
  if (!layout.isStatic || !layout.isPaged) return held;
  for (const one of state.sequences.values()) if (one.retired) for (const block of one.table) held.add(block);
  return held;
}

function heldRegions({ fold, t }) {
  const views = [];
  for (const [start, { request, seq, size }] of fold.state.regions) {
    const one = fold.state.sequences.get(seq < 0 ? firstSequenceOf(fold, request) : seq);
    if (seq >= 0 && !one?.retired) continue;
    const number = seq < 0 ? firstSequenceOf(fold, request) : seq;
    const ended = fold.layout.isStatic ? "status_held" : "status_ended";
    const status = seq < 0 ? t("status_spare", { slots: size }) : t(ended);
    views.push({ number, seq: one, fact: fold.facts.sequences[number], table: [], region: start, status, waits: "" });
  }
  return views;
}

/** Fills the left card: running, swapped, then waiting requests. */
function renderRequests(player) {
  const { fold, regions } = player;
  const { state } = fold;
  const views = [];
  for (const queue of [state.running, state.swapped, state.waiting]) {
    for (const id of queue) {
      const request = state.requests.get(id);
      for (const number of request.sequences) views.push(sequenceView(player, request, number));
      if (views.length > MOST_SEQUENCES + MOST_CONDENSED) break;
    }
    if (queue === state.running) views.push(...heldViews(player));
  }
  const rows = Math.min(views.length, MOST_SEQUENCES + MOST_CONDENSED);
  const hidden = Math.max(views.length, countSequences(state)) - rows;
  const nodes = sized(regions.sequences, Math.max(1, rows) + (hidden > 0 ? 1 : 0), () => h("div"));
  for (let k = 0; k < rows; k++) renderSequence(player, nodes[k], views[k], k < MOST_SEQUENCES);
  if (!rows) renderNote(nodes[0], player.t("no_requests"));
  if (hidden > 0) renderNote(nodes[rows], player.t("more_sequences", { n: hidden }));
  showTouched(player);
}

/** Scrolls the left card, and nothing else, to the logical block that the event touched. */
function showTouched({ regions, isPlaying, touched }) {
  if (isPlaying || touched.size > 4) return;
  const list = regions.sequences;
  const node = list.querySelector(".gb-touched");
  if (!node) return;
  const box = list.getBoundingClientRect();
  const { top, bottom } = node.getBoundingClientRect();
  if (top < box.top) list.scrollTop += top - box.top - 40;
  else if (bottom > box.bottom) list.scrollTop += bottom - box.bottom + 12;
}

function countSequences(state) {
  let count = 0;
  for (const request of state.requests.values()) count += request.sequences.length;
  return count;
}

function renderNote(node, text) {
  setAttribute(node, "class", "gb-note");
  setText(node, text);
  node.gb = null;
}

function renderSequence(player, node, view, isFull) {
  const showBlocks = isFull && (view.table.length > 0 || view.region >= 0);
  if (!node.gb) {
    node.textContent = "";
    node.gb = {
      swatch: h("i", { class: "gb-swatch" }), name: h("b"), status: h("span", { class: "gb-status" }),
      waits: h("p", { class: "gb-waits" }), blocks: h("div", { class: "gb-logical-blocks" }),
    };
    const { swatch, name, status, waits, blocks } = node.gb;
    node.append(h("div", { class: "gb-sequence-head" }, swatch, name, status), waits, blocks);
  }
  const { swatch, name, status, waits, blocks } = node.gb;
  waits.hidden = !view.waits;
  setText(waits, view.waits);
  setAttribute(node, "class", `gb-sequence${showBlocks ? "" : " gb-condensed"}`);
  setAttribute(node, "data-seq", view.number);
  setAttribute(node, "style", ownerStyle(player.theme, view.number));
  setText(swatch, ownerGlyph(view.number));
  setText(name, view.fact.label);
  setText(status, view.status + (isFull || !view.table.length ? "" : ` · ${view.table.slice(0, 8).join(", ")}`));
  if (!showBlocks) sized(blocks, 0);
  else if (view.region >= 0) renderRegion(player, blocks, view);
  else renderLogicalBlocks(player, blocks, view);
}

/** A sequence's one region: where it lies, its text, and how much of it is written. */
function renderRegion(player, parent, view) {
  const { fold, t } = player;
  const [node] = sized(parent, 1, () => h("div"));
  if (!node.gb) {
    const bar = h("div", { class: "gb-region-bar" }, ...["tokens", "reserved", "unused", "hole"].map((part) => h("span", { class: `gb-own-${part}` })));
    node.gb = { name: h("span"), to: h("b"), text: h("span"), bar, share: h("span") };
    node.append(h("div", { class: "gb-logical-head" }, node.gb.name, h("span", { class: "gb-to" }, "→ ", node.gb.to)),
      h("div", { class: "gb-logical-text" }, node.gb.text), bar, h("div", { class: "gb-region-share" }, node.gb.share));
  }
  const region = fold.state.regions.get(view.region);
  const isSpare = region.seq < 0;
  const { tokens, reserved, unused, rounding } = fold.regionParts(region);
  const touched = player.touched.has(view.region) ? " gb-touched" : "";
  setAttribute(node, "class", `gb-logical gb-region${touched}`);
  setAttribute(node, "data-block", view.region);
  setText(node.gb.name, t("region"));
  setText(node.gb.to, t("slots_range", { first: view.region, last: view.region + region.size - 1 }));
  setText(node.gb.text, isSpare ? t("strip_spare", { who: view.fact.label }) : visible(view.fact.texts.slice(0, view.seq.tokens).join("")));
  [tokens, reserved, unused, rounding].forEach((slots, k) => setAttribute(node.gb.bar.children[k], "style", `flex-grow:${slots}`));
  setText(node.gb.share, t("region_share", { tokens, length: region.length, reserved, unused, rounding }));
}

function ownerStyle(theme, number) {
  const colour = OWNERS[theme][number % 7];
  const glyph = luminance(colour) < 0.18 ? "#fff" : "#10131a";
  return `--own:${colour};--own-text:${OWNER_TEXT[theme][number % 7]};--own-glyph:${glyph}`;
}

function renderLogicalBlocks(player, parent, view) {
  const share = Math.floor(LOGICAL_NODES / Math.max(1, player.fold.state.sequences.size));
  const most = Math.max(FEWEST_LOGICAL, Math.min(MOST_LOGICAL, share));
  const first = Math.max(0, view.table.length - most);
  const lead = first > 0 ? 1 : 0;
  const nodes = sized(parent, view.table.length - first + lead, () => h("div"));
  if (lead) {
    setAttribute(nodes[0], "class", "gb-earlier");
    nodes[0].gb = null;
    for (const name of ["data-block", "data-logical"]) nodes[0].removeAttribute(name);
    setText(nodes[0], player.t("earlier_blocks", { n: first }));
  }
  for (let k = first; k < view.table.length; k++) renderLogical(player, nodes[k - first + lead], view, k);
}

function renderLogical(player, node, view, logical) {
  const { fold } = player;
  const { blockSize } = fold.layout;
  const block = view.table[logical];
  if (!node.gb) {
    node.textContent = "";
    node.gb = { index: h("span"), to: h("b"), refs: h("span", { class: "gb-refs" }), text: h("span"), dots: h("span", { class: "gb-dots" }) };
    const { index, to, refs, text, dots } = node.gb;
    node.append(h("div", { class: "gb-logical-head" }, index, h("span", { class: "gb-to" }, "→ ", to, refs)),
      h("div", { class: "gb-logical-text" }, text, dots));
  }
  const filled = view.isHost ? fold.state.hosts.get(block) ?? 0 : fold.state.filled[block];
  const words = view.fact.texts.slice(logical * blockSize, Math.min(logical * blockSize + filled, view.seq.tokens));
  const refs = view.isHost ? 1 : fold.state.refs[block];
  const touched = !view.isHost && player.touched.has(block) ? " gb-touched" : "";
  setAttribute(node, "class", `gb-logical${touched}${refs > 1 ? " gb-shared" : ""}`);
  setAttribute(node, "data-logical", logical);
  if (view.isHost) node.removeAttribute("data-block");
  else setAttribute(node, "data-block", block);
  setText(node.gb.index, logical);
  setText(node.gb.to, view.isHost ? player.t("host_block", { id: block }) : block);
  setText(node.gb.refs, refs > 1 ? ` ×${refs}` : "");
  setText(node.gb.text, visible(words.join("")));
  setText(node.gb.dots, filled < blockSize ? ` ${"·".repeat(Math.min(blockSize - filled, 24))}` : "");
}

/** Line breaks as a mark, so that a block's text keeps to its lines. */
function visible(text) {
  return text.replace(/\r?\n/g, "⏎").trimStart();
}

function renderPoolHead(player) {
  const { fold, regions, t } = player;
  const { state } = fold;
  if (!fold.layout.isPaged) return renderSpaceHead(player);
  const owned = fold.usableBlocks - state.numFree;
  setText(regions.poolTitle, t("pool_title", { blocks: grouped(fold.usableBlocks), slots: fold.layout.blockSize }));
  setText(regions.poolCounts, t("pool_counts", {
    owned: grouped(owned), cached: grouped(state.numCachedFree), free: grouped(state.numFree - state.numCachedFree),
  }));
  setAttribute(regions.canvas, "aria-label", `${t("pool")}. ${regions.poolCounts.textContent}`);
  const hosts = [...state.hosts.keys()];
  regions.host.hidden = hosts.length === 0;
  if (hosts.length) setText(regions.host, t("host_used", { n: hosts.length, of: fold.layout.hostBlocks }));
}

function renderSpaceHead({ fold, regions, t }) {
  const { numFree } = fold.state;
  const pieces = fold.pieces().filter((piece) => !piece.region).length;
  const owned = fold.usableSlots - numFree;
  setText(regions.poolTitle, t("space_title", { slots: grouped(fold.usableSlots) }));
  setText(regions.poolCounts, t("space_counts", { owned: grouped(owned), free: grouped(numFree), pieces }));
  setAttribute(regions.canvas, "aria-label", `${regions.poolTitle.textContent}. ${regions.poolCounts.textContent}`);
}

function renderHappened(player) {
  const { fold, regions, t, position } = player;
  const event = position > 0 ? fold.log.event(position - 1) : null;
  for (const chip of regions.phases.children) {
    if (chip.dataset.phase === event?.phase) setAttribute(chip, "aria-current", "step");
    else chip.removeAttribute("aria-current");
  }
  const sentence = event ? explain(event, fold.facts.labels, player.strings) : t("start_sentence");
  renderSentence(regions.sentence, sentence, event, fold);
  regions.source.hidden = !event;
  setText(regions.source, event ? event.at.replace(":", " · ") : "");
  const [first] = player.unitRange();
  const others = Math.max(0, position - 1 - first);
  regions.moreButton.style.visibility = others ? "visible" : "hidden";
  setText(regions.moreButton, t(player.unit === "phase" ? "more_in_phase" : "more_in_step", { n: others }));
  if (!others) player.isMoreOpen = false;
  regions.more.hidden = !player.isMoreOpen;
  setAttribute(regions.moreButton, "aria-expanded", player.isMoreOpen);
  if (player.isMoreOpen) renderMore(player, first);
  player.say(plainSentence(sentence));
}

export function plainSentence(sentence) {
  return sentence.replaceAll("**", "");
}

function renderSentence(node, sentence, event, fold) {
  if (node.dataset.sentence === sentence) return;
  node.dataset.sentence = sentence;
  const blocks = event ? blocksOf(event) : [];
  node.replaceChildren(...boldParts(sentence).map(([text, isBold]) => {
    if (!isBold) return text;
    const block = /^\d+$/.test(text) && blocks.includes(Number(text)) ? text : null;
    const seq = fold.facts.sequences.find((one) => one.label === text);
    return h("b", { "data-block": block, "data-seq": block || !seq ? null : seq.number }, text);
  }));
}

/** Block ids that an event names. */
export function blocksOf(event) {
  const one = [event.block_id, event.source, event.destination].filter((id) => id !== undefined);
  const many = Array.isArray(event.blocks) ? event.blocks : [];
  if (event.type.startsWith("Region") && event.start !== undefined) many.push(event.start);
  return [...one, ...(event.block_ids ?? []), ...many];
}

function renderMore(player, first) {
  const { fold, regions, position } = player;
  const from = Math.max(first, position - 201);
  const nodes = sized(regions.more, position - 1 - from, () => h("li", {}, h("button", { type: "button", class: "gb-link" })));
  for (let k = from; k < position - 1; k++) {
    const button = nodes[k - from].firstChild;
    setText(button, plainSentence(explain(fold.log.event(k), fold.facts.labels, player.strings)));
    button.onclick = () => {
      player.setUnit("event");
      player.go(k + 1);
    };
  }
}

const CHIPS_HEAD = 13;
const CHIPS_TAIL = 4;

/** Free pieces by address; a hole is outlined as on the strip. */
function renderFreePieces({ fold, regions, t }) {
  const pieces = fold.pieces().filter((piece) => !piece.region);
  const shown = pieces.slice(0, CHIPS_HEAD);
  const hidden = pieces.length - shown.length;
  const nodes = sized(regions.chips, shown.length + (hidden ? 1 : 0), () => h("span", {}));
  shown.forEach(({ start, size, isHole }, k) => {
    setAttribute(nodes[k], "class", `gb-chip${isHole ? " gb-chip-hole" : ""}`);
    setAttribute(nodes[k], "data-block", start);
    setText(nodes[k], t("piece_at", { size, start }));
  });
  if (hidden) {
    setAttribute(nodes[shown.length], "class", "gb-chip gb-fold");
    nodes[shown.length].removeAttribute("data-block");
    setText(nodes[shown.length], `+${grouped(hidden)}`);
  }
  const need = fold.neededNext();
  setText(regions.freeNote, !pieces.length ? t("none_free_slots") : need ? t("hole_note", { need }) : t("hole_note_none"));
}

function renderFree(player) {
  const { fold, regions, t } = player;
  const { state } = fold;
  if (!fold.layout.isPaged) return renderFreePieces(player);
  const fits = state.numFree <= CHIPS_HEAD + CHIPS_TAIL + 1;
  const head = state.freeQueue(fits ? Infinity : CHIPS_HEAD);
  const tail = fits ? [] : state.freeTail(CHIPS_TAIL);
  const hidden = state.numFree - head.length - tail.length;
  const chips = [...head, ...(hidden ? [null] : []), ...tail];
  const nodes = sized(regions.chips, chips.length, () => h("span", {}));
  chips.forEach((block, k) => {
    const node = nodes[k];
    const hash = block !== null && state.hashes[block] ? fold.log.strings[state.hashes[block] - 1].slice(0, 4) : "";
    setAttribute(node, "class", `gb-chip${hash ? " gb-hatched" : ""}${block === null ? " gb-fold" : ""}`);
    if (block === null) node.removeAttribute("data-block");
    else setAttribute(node, "data-block", block);
    setText(node, block === null ? `+${grouped(hidden)}` : hash ? `${block} #${hash}` : block);
  });
  setText(regions.freeNote, t(state.numFree ? "hatched_note" : "none_free"));
}

function renderMemory(player) {
  const { fold, regions, t, position } = player;
  const { state } = fold;
  setText(regions.memoryTitle, t("memory_title", { slots: grouped(fold.usableSlots) }));
  renderBar(regions, fold.breakdown());
  if (!fold.layout.isPaged) return renderRegionFacts(player);
  const rates = ["all", "recent", "returning"].map((name) => fold.facts.hitRate(name, position));
  const [live, cachedShare, hit, saved] = regions.facts.children;
  setText(live.lastChild, percent(fold.usableBlocks - state.numFree, fold.usableBlocks));
  setText(cachedShare.lastChild, percent(state.numCachedFree, fold.usableBlocks));
  setText(hit.lastChild, percent(rates[0].hit, rates[0].asked));
  const texts = rates.map((rate) => percent(rate.hit, rate.asked));
  setAttribute(hit, "title", t("hit_rate_three", { all: texts[0], recent: texts[1], returning: texts[2] }));
  setText(saved.lastChild, t("saved_blocks", { n: state.saved }));
}

export function percent(share, of) {
  return of ? `${Math.round((100 * share) / of)} %` : "–";
}

function renderRegionFacts({ fold, regions, t }) {
  const { state } = fold;
  const [live, largest, held] = regions.facts.children;
  const free = fold.pieces().filter((piece) => !piece.region);
  setText(live.lastChild, percent(fold.usableSlots - state.numFree, fold.usableSlots));
  setText(largest.lastChild, t("n_slots", { slots: Math.max(0, ...free.map((piece) => piece.size)) }));
  let slots = 0;
  for (const { seq, size } of state.regions.values()) if (state.sequences.get(seq)?.retired) slots += size;
  setText(held.lastChild, t("n_slots", { slots }));
}

function renderTransport(player) {
  const { fold, regions, t, position } = player;
  const { facts } = fold;
  const steps = facts.stepIds.length;
  const step = position > 0 ? fold.log.steps.data[position - 1] : 0;
  const lastStep = steps ? facts.stepIds.data[steps - 1] : 0;
  const where = t("where", {
    step, steps: grouped(lastStep), event: grouped(position), events: grouped(fold.length),
  });
  if (regions.where.dataset.text !== where) {
    regions.where.dataset.text = where;
    regions.where.replaceChildren(...boldParts(where).map(([text, bold]) => (bold ? h("b", {}, text) : text)));
  }
  setAttribute(regions.timeline, "aria-valuemax", fold.length);
  setAttribute(regions.timeline, "aria-valuenow", position);
  setAttribute(regions.timeline, "aria-valuetext", plainSentence(where));
  renderChoice(regions.units, player.unit);
  regions.speed.value = String(player.speed);
  renderPlayButton(player);
  renderBookmarks(player);
}

export function renderPlayButton({ regions, isPlaying, t }) {
  const name = isPlaying ? "pause" : "play";
  if (regions.play.dataset.shows === name) return;
  regions.play.dataset.shows = name;
  regions.play.replaceChildren(icon(name));
  setAttribute(regions.play, "aria-label", t(name));
  setAttribute(regions.play, "title", t(name));
}

function renderBookmarks({ regions, bookmarks, position, t, fold }) {
  setAttribute(regions.bookmark, "aria-pressed", bookmarks.includes(position));
  const key = bookmarks.join();
  if (regions.bookmarks.dataset.key === key) return;
  regions.bookmarks.dataset.key = key;
  regions.bookmarks.hidden = !bookmarks.length;
  const name = (mark) => t("bookmark_at", { step: mark ? fold.log.steps.data[mark - 1] : 0, event: mark });
  regions.bookmarks.replaceChildren(
    h("option", { value: "", selected: "", disabled: "" }, t("bookmarks_n", { n: bookmarks.length })),
    ...bookmarks.map((mark) => h("option", { value: mark }, name(mark))));
}

/** The same state as rows of text: for screen readers, and for copying. */
function renderTable(player) {
  const { regions } = player;
  const { columns, rows } = player.fold.layout.isPaged ? blockRows(player) : pieceRows(player);
  regions.table.replaceChildren(buildTable(regions.poolCounts.textContent, columns.map((name) => player.t(`col_${name}`)), rows));
}

/** A table of rows { attributes, cells }. */
export function buildTable(caption, columns, rows) {
  return h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map(({ attributes, cells }) => h("tr", attributes, ...cells.map((cell) => h("td", {}, String(cell)))))));
}

function pieceRows(player) {
  const { fold } = player;
  const columns = ["slots", "state", "owners", "tokens", "size", "text"];
  const rows = fold.pieces().slice(0, TABLE_ROWS).map(({ start, size, region }) => {
    const facts = pieceFacts(player, start);
    const tokens = region ? `${fold.regionParts(region).tokens} / ${region.length}` : "";
    const cells = [`${start}–${start + size - 1}`, facts.state, facts.owners, tokens, size, facts.text];
    return { attributes: { "data-block": start }, cells };
  });
  return { columns, rows };
}

/** All there is to know of a region or free piece, as text. */
export function pieceFacts({ fold, t }, start) {
  const piece = fold.pieces().find((one) => one.start === start);
  if (!piece) return { state: "", owners: "", text: "", piece: null };
  const { region, isHole } = piece;
  if (!region) return { state: t(isHole ? "state_hole" : "state_free"), owners: "", text: "", piece };
  const number = region.seq < 0 ? firstSequenceOf(fold, region.request) : region.seq;
  const fact = fold.facts.sequences[number];
  const one = fold.state.sequences.get(region.seq);
  const ended = fold.layout.isStatic ? "held" : "ended";
  const name = region.seq < 0 ? "spare" : one.retired ? ended : "region";
  const text = region.seq < 0 ? "" : visible(fact.texts.slice(0, one.stored).join(""));
  return { state: t(`state_${name}`), owners: fact.label, text, piece };
}

function blockRows(player) {
  const { fold } = player;
  const { state, layout } = fold;
  const ids = [];
  for (let b = 0; b < layout.numBlocks && ids.length < TABLE_ROWS; b++) {
    if (state.refs[b] || state.hashes[b]) ids.push(b);
  }
  const columns = ["block", "state", "ref_count", "owners", "tokens", "hash", "text"];
  const rows = ids.map((block) => {
    const facts = blockFacts(player, block);
    const cells = [
      block, facts.state, state.refs[block], facts.owners, `${state.filled[block]} / ${layout.blockSize}`,
      facts.hash.slice(0, 8), facts.text,
    ];
    return { attributes: { "data-block": block }, cells };
  });
  return { columns, rows };
}

/** All there is to know of a block, as text. */
export function blockFacts(player, block) {
  const { fold, t } = player;
  const { state, facts, layout } = fold;
  const owners = [];
  for (const seq of state.sequences.values()) {
    const logical = seq.table.indexOf(block);
    if (logical >= 0) owners.push(t("owner_at", { who: facts.sequences[seq.number].label, logical }));
  }
  const hash = state.hashes[block] ? fold.log.strings[state.hashes[block] - 1] : "";
  const isNull = layout.nullBlock && block === 0;
  const name = isNull ? "null" : state.refs[block] > 1 ? "shared" : state.refs[block] ? "owned" : hash ? "cached" : "free";
  const text = fold.slots(block).map((token) => facts.tokenText.get(token) ?? "").join("");
  return { state: t(`state_${name}`), owners: owners.join(", "), hash, text: visible(text) };
}

function renderTip(player, { block, slot = -1 }) {
  const { fold, regions, t } = player;
  const { state, layout } = fold;
  if (!layout.isPaged) return renderPieceTip(player, block, slot);
  const facts = blockFacts(player, block);
  const rows = [[t("col_state"), facts.state]];
  if (facts.owners) rows.push([t("col_owners"), facts.owners]);
  if (state.refs[block]) rows.push([t("col_ref_count"), state.refs[block]]);
  if (state.filled[block]) rows.push([t("col_tokens"), `${state.filled[block]} / ${layout.blockSize}`]);
  if (facts.hash) rows.push([t("col_hash"), `#${facts.hash.slice(0, 16)}`]);
  if (facts.text) rows.push([t("col_text"), facts.text]);
  const token = fold.slots(block)[slot];
  if (slot >= 0) {
    const word = token === undefined ? t("slot_empty") : t("slot_token", { token, text: fold.facts.tokenText.get(token) ?? "" });
    rows.push([t("slot_at", { slot: block * layout.blockSize + slot }), word]);
  }
  fillTip(regions.tip, t("block_n", { block }), rows);
}

/** A title and rows of [name, value]. */
export function fillTip(tip, title, rows) {
  tip.replaceChildren(h("b", {}, title),
    h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])));
}

function renderPieceTip(player, start, slot) {
  const { fold, regions, t } = player;
  const { state, owners, text, piece } = pieceFacts(player, start);
  if (!piece) return void (regions.tip.hidden = true);
  const { size, region } = piece;
  const rows = [[t("col_state"), state], [t("col_size"), t("n_slots", { slots: size })]];
  if (owners) rows.push([t("col_owners"), owners]);
  if (region) {
    const parts = fold.regionParts(region);
    for (const name of ["tokens", "reserved", "unused"]) rows.push([t(`part_${name}`), parts[name]]);
    if (parts.rounding) rows.push([t("part_rounding"), parts.rounding]);
  }
  if (text) rows.push([t("col_text"), text]);
  if (slot >= 0) rows.push([t("slot_at", { slot: start + slot }), slotWords(player, region, slot)]);
  fillTip(regions.tip, t("slots_range", { first: start, last: start + size - 1 }), rows);
}

function slotWords({ fold, t }, region, slot) {
  if (!region) return t("state_free");
  const { tokens, reserved, unused } = fold.regionParts(region);
  const { seq } = region;
  if (slot < tokens) {
    const { tokens: ids, texts } = fold.facts.sequences[seq];
    return t("slot_token", { token: ids[slot], text: texts[slot] });
  }
  if (slot < tokens + reserved) return t("part_reserved");
  return t(slot < tokens + reserved + unused ? "part_unused" : "part_rounding");
}

// --------------------------------------------------------------------------------------- input

const KEYS = {
  " ": (p) => p.togglePlay(),
  ArrowLeft: (p, shift) => p.move(shift ? -10 : -1),
  ArrowRight: (p, shift) => p.move(shift ? 10 : 1),
  Home: (p) => p.go(0),
  End: (p) => p.go(p.end),
  "[": (p) => p.goToMark(-1),
  "]": (p) => p.goToMark(1),
  b: (p) => p.toggleBookmark(),
  "?": (p) => p.toggleHelp(),
  Escape: (p) => p.escape(),
  "+": (p) => p.zoom(1.5),
  "=": (p) => p.zoom(1.5),
  "-": (p) => p.zoom(1 / 1.5),
  0: (p) => p.zoom(0),
};

function onKey(player, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { tagName, type } = event.composedPath()[0];
  if (tagName === "SELECT" || (tagName === "INPUT" && type !== "range")) return;
  if (event.key === " " && tagName === "BUTTON") return;
  const onPool = event.composedPath()[0] === player.regions.canvas;
  const handled = (onPool && movePoolFocus(player, event.key)) || runKey(player, event);
  if (!handled) return;
  event.preventDefault();
  event.stopPropagation();
}

function runKey(player, event) {
  const action = player.keys[event.key] ?? player.keys[event.key.toLowerCase()];
  if (!action) return false;
  action(player, event.shiftKey);
  return true;
}

/** Up and Down enter the pool; then the arrows walk over blocks until Esc. */
function movePoolFocus(player, key) {
  if (player.focus >= 0 && (key === "Enter" || key === " ")) {
    player.pin(player.focus);
    return true;
  }
  const next = player.pool.neighbour(player.focus, key);
  if (next < 0) return false;
  player.focus = next;
  player.pool.reveal(player.focus);
  player.setHot({ block: player.focus });
  player.sayBlock(player.focus);
  return true;
}

/** Wheel, drag, pinch, hover and click on the pool. */
function listenToPool(player) {
  const { canvas } = player.regions;
  const pointers = new Map();
  let spread = 0;
  let moved = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && player.pool.zoom === 1 && event.deltaY > 0) return;
    event.preventDefault();
    const { x, y } = at(event);
    player.zoom(Math.exp(-event.deltaY / 300), x, y);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, at(event));
    moved = spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = at(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") player.hover(player.pool.hit(here.x, here.y), event);
      return;
    }
    pointers.set(event.pointerId, here);
    moved += Math.abs(here.x - before.x) + Math.abs(here.y - before.y);
    if (pointers.size === 2) spread = pinch(player, [...pointers.values()], spread);
    else if (player.pool.zoom > 1) player.pan(before.x - here.x, before.y - here.y);
  });
  const release = (event) => {
    const wasTap = pointers.delete(event.pointerId) && moved < 6 && event.type === "pointerup";
    const hit = wasTap && player.pool.hit(at(event).x, at(event).y);
    if (hit) player.pin(hit.block, hit, event);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => {
    pointers.delete(event.pointerId);
    player.hover(null);
  });
}

function pinch(player, [a, b], before) {
  const spread = Math.hypot(a.x - b.x, a.y - b.y);
  if (before) player.zoom(spread / before, (a.x + b.x) / 2, (a.y + b.y) / 2);
  return spread;
}

/** Dragging the timeline's cursor. */
export function listenToTimeline(player) {
  const { timeline } = player.regions;
  let isDown = false;
  const seek = (event) => {
    const x = event.clientX - timeline.getBoundingClientRect().left;
    player.go(player.timelinePosition(x));
  };
  timeline.addEventListener("pointerdown", (event) => {
    isDown = true;
    timeline.setPointerCapture(event.pointerId);
    player.pause();
    seek(event);
  });
  timeline.addEventListener("pointermove", (event) => {
    if (isDown) seek(event);
    else player.timelineTitle(event.clientX - timeline.getBoundingClientRect().left);
  });
  for (const name of ["pointerup", "pointercancel"]) timeline.addEventListener(name, () => (isDown = false));
}

/** Hover and click on anything that names a block or a sequence. */
function listenToNames(player) {
  const { shell } = player.regions;
  const named = (event) => event.target.closest?.("[data-block], b[data-seq]");
  shell.addEventListener("pointerover", (event) => {
    if (event.target === player.regions.canvas) return;
    const node = named(event);
    if (!node) return player.hover(null);
    if (node.dataset.block !== undefined) player.hover({ block: Number(node.dataset.block) }, event, node);
    else player.setHot({ seq: Number(node.dataset.seq) });
  });
  shell.addEventListener("pointerleave", () => player.hover(null));
  shell.addEventListener("click", (event) => {
    const node = named(event);
    if (node?.dataset.block !== undefined) player.pin(Number(node.dataset.block));
  });
}

// --------------------------------------------------------------------------------------- mount

const memory = new Map(); // what a remount in the same page finds again

/**
 * What a player and a comparison share: words, theme, playing, one frame loop, and saying.
 * A subclass has `end`, `go(position)`, `after(position, units)`, `draw()`, `settle()`, `keys`.
 */
export class Playback {
  constructor(element, options) {
    this.element = element;
    this.t = (key, values = {}) => fill(this.strings[`player.${key}`] ?? key, values);
    this.setOptions(options);
    this.position = 0;
    this.speed = 1;
    this.isPlaying = false;
    this.carry = 0;
    this.animationStart = -Infinity;
  }

  setOptions(options) {
    this.options = options;
    this.strings = options.strings ?? {};
    this.theme = resolveTheme(options.theme, this.element);
    this.reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  applyLook() {
    const { root } = this.regions;
    root.dataset.theme = this.theme;
    root.lang = this.options.lang ?? "en";
    if (this.options.height) root.style.setProperty("--gb-height", `${this.options.height}px`);
  }

  listenToKeys() {
    this.regions.shell.addEventListener("keydown", (event) => onKey(this, event));
    // A visitor who has clicked nothing yet means the only player on the page.
    this.onPageKey ??= (event) => {
      if (event.target === document.body && mounted.size === 1) onKey(this, event);
    };
    document.addEventListener("keydown", this.onPageKey);
    mounted.add(this);
  }

  /** Moves by so many units of the chosen size. */
  move(units) {
    this.pause();
    this.go(this.after(this.position, units));
  }

  setSpeed(speed) {
    this.speed = speed;
    this.remember();
  }

  togglePlay() {
    if (this.isPlaying) return this.pause();
    if (this.position >= this.end) this.go(0);
    this.isPlaying = true;
    this.carry = 0;
    this.lastFrame = performance.now();
    renderPlayButton(this);
    this.requestFrame();
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    renderPlayButton(this);
    this.settle();
  }

  requestFrame() {
    this.frameId ||= requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.frameId = 0;
    if (!this.element.isConnected) return;
    if (this.isPlaying) this.playFrame(now);
    this.draw();
    if (this.isPlaying || this.progress() < 1) this.requestFrame();
  }

  playFrame(now) {
    this.carry += Math.min(0.25, Math.max(0, (now - this.lastFrame) / 1000)) * UNITS_A_SECOND * this.speed;
    this.lastFrame = now;
    const units = Math.floor(this.carry);
    this.carry -= units;
    if (units) this.go(this.after(this.position, units));
    if (this.position >= this.end && !this.options.isLive) this.pause();
  }

  /** How far the animation of the last move is, 0 to 1. */
  progress() {
    const passed = (performance.now() - this.animationStart) / ANIMATION_MS;
    return passed >= 1 ? 1 : 1 - (1 - Math.max(0, passed)) ** 3;
  }

  /** Below what it explains, or above where there is no room. */
  placeTip(tip, box, { left, top, bottom }) {
    const x = Math.max(4, Math.min(left - box.left, box.width - tip.offsetWidth - 8));
    const below = bottom - box.top + 6;
    const fits = below + tip.offsetHeight < box.height;
    tip.style.left = `${x}px`;
    tip.style.top = `${fits ? below : Math.max(4, top - box.top - tip.offsetHeight - 6)}px`;
  }

  toggleHelp() {
    const { help, shell } = this.regions;
    help.hidden = !help.hidden;
    (help.hidden ? shell : help).focus();
  }

  /** Says a sentence to screen readers, once the player rests on it. */
  say(sentence) {
    clearTimeout(this.sayTimer);
    this.sayTimer = setTimeout(() => setText(this.regions.live, sentence), this.isPlaying ? 2000 : 250);
  }

  /** Calls `report` once the cursor has rested. */
  whenSettled(report) {
    clearTimeout(this.settleTimer);
    this.settleTimer = setTimeout(report, SETTLE_MS);
  }

  keep(kept) {
    memory.set(this.memoryKey, kept);
    try {
      localStorage.setItem(this.memoryKey, JSON.stringify(kept));
    } catch {
      // A page without storage (a file, a private window) only forgets between visits.
    }
  }

  kept() {
    return memory.get(this.memoryKey) ?? readStored(this.memoryKey) ?? {};
  }

  destroy() {
    this.pause();
    this.remember();
    clearTimeout(this.settleTimer);
    clearTimeout(this.sayTimer);
    cancelAnimationFrame(this.frameId);
    document.removeEventListener("keydown", this.onPageKey);
    mounted.delete(this);
    this.observer.disconnect();
    this.regions.root.remove();
  }
}

/** One player in one element. */
class Player extends Playback {
  constructor(element, bytes, options) {
    super(element, options);
    this.keys = KEYS;
    this.fold = new Fold(readLog(bytes));
    this.unit = "event";
    this.bookmarks = [];
    this.isMoreOpen = this.isTable = false;
    this.hot = {};
    this.pinned = this.focus = -1;
    this.touched = new Set();
    this.arrows = [];
    this.recall();
    this.build();
    this.go(this.position, { still: true });
    if (this.position !== (options.start ?? 0)) this.settle(); // a place from before a remount
  }

  /** The last position. */
  get end() {
    return this.fold.length;
  }

  build() {
    this.regions?.root.remove();
    this.regions = buildRegions(this);
    const { regions } = this;
    this.pool = memoryCanvas(regions.canvas, this.fold);
    this.timeline = new TimelineCanvas(regions.timeline);
    this.applyLook();
    this.element.append(regions.root);
    this.listenToKeys();
    listenToPool(this);
    listenToTimeline(this);
    listenToNames(this);
    this.observer?.disconnect();
    this.observer = new ResizeObserver(() => this.resize());
    for (const box of [regions.canvasBox, regions.timeline, regions.usage]) this.observer.observe(box);
    this.resize();
  }

  /** New data or options for the same element: keeps the place, and follows a growing run. */
  update(bytes, options) {
    const before = this.options;
    this.setOptions(options);
    const { log, layout } = this.fold;
    if (log.isPrefixOf(bytes)) this.grow(bytes);
    else this.replace(bytes);
    const sameKind = layout.isPaged === this.fold.layout.isPaged;
    const sameWords = before.lang === options.lang && before.stringsKey === options.stringsKey;
    if (sameWords && sameKind) this.applyLook();
    else this.build();
    this.go(this.position, { still: true });
    if (before.isLive && !options.isLive) this.settle(); // it moved along without a hand
  }

  grow(bytes) {
    const wasAtEnd = this.position === this.fold.length;
    if (bytes.length === this.fold.log.bytes.length) return;
    this.fold.log.extend(bytes);
    this.fold.load();
    if (wasAtEnd && !this.isPlaying) this.position = this.fold.length;
  }

  replace(bytes) {
    this.pause();
    this.fold = new Fold(readLog(bytes));
    this.position = 0;
    this.bookmarks = [];
    this.pinned = this.focus = -1;
    this.owners = null;
    this.recall();
    this.resize();
  }

  resize() {
    const { canvasBox, timeline, usage } = this.regions;
    // Sizes are kept here: reading them while drawing would force a layout each frame.
    this.usageSize = { width: usage.clientWidth, height: usage.clientHeight, ratio: window.devicePixelRatio || 1 };
    usage.width = Math.round(usage.clientWidth * this.usageSize.ratio);
    usage.height = Math.round(usage.clientHeight * this.usageSize.ratio);
    const { clientWidth, clientHeight } = canvasBox;
    if (clientWidth && clientHeight) this.pool.resize(clientWidth, clientHeight, this.fold);
    if (timeline.clientWidth) this.timeline.resize(timeline.clientWidth, timeline.clientHeight);
    this.draw();
  }

  // -- moving

  /** Goes to the moment after `position` events. */
  go(position, { still = false } = {}) {
    const target = Math.max(0, Math.min(this.fold.length, Math.round(position)));
    const isMove = target !== this.position || still;
    this.position = target;
    this.fold.seek(target);
    if (!isMove) return;
    this.findTouched();
    this.animationStart = still || this.reducedMotion || this.touched.size > 400 ? -Infinity : performance.now();
    this.render();
    if (!still) this.settle();
    this.requestFrame();
  }

  after(position, units) {
    let at = position;
    for (let left = Math.abs(units); left > 0; left--) at = units > 0 ? this.unitEnd(at) : this.unitStart(at);
    return at;
  }

  /** The end of the unit that begins at `position`. */
  unitEnd(position) {
    const { log, length } = this.fold;
    if (position >= length) return length;
    let at = position + 1;
    if (this.unit === "event") return at;
    while (at < length && this.isSameUnit(log, at, position)) at++;
    return at;
  }

  /** The beginning of the unit that ends at `position`. */
  unitStart(position) {
    if (position <= 0) return 0;
    let at = position - 1;
    if (this.unit === "event") return at;
    while (at > 0 && this.isSameUnit(this.fold.log, at - 1, position - 1)) at--;
    return at;
  }

  isSameUnit(log, i, k) {
    if (log.steps.data[i] !== log.steps.data[k]) return false;
    return this.unit === "step" || log.phaseOf(i) === log.phaseOf(k);
  }

  /** First and one past the last event that led here. */
  unitRange() {
    return [this.unitStart(this.position), this.position];
  }

  goToKind(kind) {
    const { markEvent, markKind, prefillEvent } = this.fold.facts;
    this.pause();
    if (MARK_NAMES[kind] === "prefill") {
      const k = countUpTo(prefillEvent.data, prefillEvent.length, this.position - 1);
      if (k < prefillEvent.length) this.go(prefillEvent.data[k] + 1);
      return;
    }
    let k = countUpTo(markEvent.data, markEvent.length, this.position - 1);
    while (k < markEvent.length && markKind.data[k] !== kind) k++;
    if (k < markEvent.length) this.go(markEvent.data[k] + 1);
  }

  /** To the next or previous mark or bookmark. */
  goToMark(direction) {
    const { markEvent } = this.fold.facts;
    const k = countUpTo(markEvent.data, markEvent.length, this.position - 1);
    const mark = direction > 0 ? k : countUpTo(markEvent.data, markEvent.length, this.position - 2) - 1;
    const places = this.bookmarks.filter((p) => (direction > 0 ? p > this.position : p < this.position));
    if (mark >= 0 && mark < markEvent.length) places.push(markEvent.data[mark] + 1);
    this.pause();
    if (places.length) this.go(direction > 0 ? Math.min(...places) : Math.max(...places));
  }

  setUnit(unit) {
    this.unit = unit;
    this.findTouched();
    this.render();
    this.remember();
  }

  // -- showing

  findTouched() {
    this.touched = new Set();
    this.arrows = [];
    const [first, end] = this.unitRange();
    for (let i = Math.max(first, end - 1000); i < end; i++) {
      const event = this.fold.log.event(i);
      for (const block of blocksOf(event)) this.touched.add(block);
      this.arrows.push(...arrowsOf(event, this.t));
    }
    this.arrows = this.arrows.slice(-6);
  }

  findOwners() {
    this.owners = ownersOf(this.fold, this.owners, (number) => number);
  }

  render() {
    this.findOwners();
    renderRequests(this);
    renderPoolHead(this);
    renderHappened(this);
    renderFree(this);
    renderMemory(this);
    renderTransport(this);
    if (this.isTable) renderTable(this);
    const { root } = this.regions;
    const last = this.position - 1;
    root.dataset.event = this.position;
    root.dataset.step = last >= 0 ? this.fold.log.steps.data[last] : 0;
    root.dataset.phase = last >= 0 ? this.fold.log.phases[this.fold.log.phaseOf(last)] : "";
    root.dataset.live = this.options.isLive ? "true" : "false";
    root.dataset.ready = "true";
    this.markHot();
    this.draw();
  }

  draw() {
    if (!this.pool.layout || !this.owners) return;
    const scene = {
      fold: this.fold, owners: this.owners, theme: this.theme, touched: this.touched,
      hot: this.hotBlock(), focus: this.focus, arrows: this.arrows, progress: this.progress(),
      slotTexts: (block) => slotTexts(this.fold, block), t: this.t, colourOf: (number) => number,
      needs: needsOf(this.fold), held: heldBlocks(this.fold),
    };
    if (!this.isTable) this.pool.draw(scene);
    const { fold, theme, position, bookmarks } = this;
    if (this.timeline.width) this.timeline.draw({ fold, theme, position, bookmarks, playedTo: position });
    drawUsage(this.regions.usage, this.usageSize, { fold, theme, position });
  }

  // -- highlighting

  hotBlock() {
    return this.hot.block ?? this.pinned;
  }

  hover(hit, event, anchor = null) {
    this.setHot(hit ? { block: hit.block } : {});
    const { tip, shell } = this.regions;
    tip.hidden = !hit;
    if (!hit) return;
    renderTip(this, hit);
    const { clientX: x, clientY: y } = event;
    const around = anchor?.getBoundingClientRect() ?? { left: x + 14, top: y - 6, bottom: y + 10 };
    this.placeTip(tip, shell.getBoundingClientRect(), around);
  }

  setHot(hot) {
    if (hot.block === this.hot.block && hot.seq === this.hot.seq) return;
    this.hot = hot;
    this.markHot();
    this.requestFrame();
  }

  pin(block, hit = null, event = null) {
    this.pinned = this.pinned === block ? -1 : block;
    if (hit && event && event.pointerType !== "mouse") this.hover(this.pinned < 0 ? null : hit, event);
    this.markHot();
    this.requestFrame();
  }

  escape() {
    if (!this.regions.help.hidden) return this.toggleHelp();
    this.pinned = this.focus = -1;
    this.hover(null);
    this.markHot();
    this.requestFrame();
  }

  /** The same block or sequence lit everywhere, with a line from logical to physical. */
  markHot() {
    const { shell, root } = this.regions;
    for (const node of shell.querySelectorAll(".gb-hot")) node.classList.remove("gb-hot");
    const block = this.hotBlock();
    root.dataset.hot = block >= 0 ? block : "";
    const selector = this.hot.seq !== undefined ? `.gb-sequence[data-seq="${this.hot.seq}"]` : `[data-block="${block}"]`;
    const nodes = block >= 0 || this.hot.seq !== undefined ? [...shell.querySelectorAll(selector)] : [];
    for (const node of nodes) node.classList.add("gb-hot");
    this.drawLines(nodes.filter((node) => node.classList.contains("gb-logical")), block);
  }

  drawLines(nodes, block) {
    const { lines, shell, canvas, sequences } = this.regions;
    if (!nodes.length) return void lines.replaceChildren(); // measuring would force a layout
    const box = shell.getBoundingClientRect();
    const pool = canvas.getBoundingClientRect();
    const list = sequences.getBoundingClientRect();
    const isBeside = pool.left >= list.right - 4;
    const rect = block >= 0 && this.pool.layout && !this.isTable ? this.pool.rect(block) : null;
    const paths = !rect || !isBeside ? [] : nodes.flatMap((node) => {
      const from = node.getBoundingClientRect();
      const y1 = from.top + 12 - box.top;
      if (from.top < list.top - 4 || from.top + 14 > list.bottom) return [];
      const x1 = from.right - box.left;
      const x2 = pool.left + Math.max(0, Math.min(pool.width, rect.x)) - box.left;
      const y2 = pool.top + Math.max(0, Math.min(pool.height, rect.y + rect.h / 2)) - box.top;
      const bend = Math.max(30, (x2 - x1) / 2);
      return [`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 3} ${y2}`];
    });
    const nodesNow = sized(lines, paths.length, () => document.createElementNS("http://www.w3.org/2000/svg", "path"));
    paths.forEach((path, k) => nodesNow[k].setAttribute("d", path));
  }

  // -- small controls

  zoom(factor, x, y) {
    if (factor) this.pool.zoomBy(factor, x, y);
    else this.pool.resetView();
    this.markHot();
    this.requestFrame();
  }

  pan(dx, dy) {
    this.pool.panBy(dx, dy);
    this.markHot();
    this.requestFrame();
  }

  /** Where a point of the timeline leads. */
  timelinePosition(x) {
    return this.timeline.positionAt(this.fold, x, this.unit === "step");
  }

  timelineTitle(x) {
    const { facts, log } = this.fold;
    const position = this.timeline.positionAt(this.fold, x, true);
    if (!position) return;
    const k = this.fold.stepOf(position - 1);
    const values = { step: log.steps.data[position - 1], prefill: facts.prefill.data[k], decode: facts.decoded.data[k] };
    this.regions.timeline.title = this.t("timeline_at", values);
  }

  toggleTable() {
    const { table, canvasBox, tableToggle } = this.regions;
    this.isTable = !this.isTable;
    table.hidden = !this.isTable;
    canvasBox.hidden = this.isTable;
    setAttribute(tableToggle, "aria-pressed", this.isTable);
    this.render();
  }

  toggleMore() {
    this.isMoreOpen = !this.isMoreOpen;
    this.render();
  }

  toggleBookmark() {
    const { bookmarks, position } = this;
    this.bookmarks = bookmarks.includes(position)
      ? bookmarks.filter((mark) => mark !== position)
      : [...bookmarks, position].sort((a, b) => a - b);
    this.remember();
    this.render();
  }

  sayBlock(block) {
    const { isPaged } = this.fold.layout;
    const facts = isPaged ? blockFacts(this, block) : pieceFacts(this, block);
    const size = facts.piece?.size ?? 1;
    const name = isPaged ? this.t("block_n", { block }) : this.t("slots_range", { first: block, last: block + size - 1 });
    this.say([name, facts.state, facts.owners, facts.text].filter(Boolean).join(". "));
  }

  // -- what outlives a remount

  get memoryKey() {
    return `glassblock.${this.options.id ?? ""}.${logId(this.fold.log)}`;
  }

  recall() {
    const kept = this.kept();
    this.position = Math.min(kept.position ?? this.options.start ?? 0, this.fold.length);
    this.bookmarks = kept.bookmarks ?? [];
    this.unit = kept.unit ?? this.unit;
    this.speed = kept.speed ?? this.speed;
  }

  remember() {
    const { position, bookmarks, unit, speed } = this;
    this.keep({ position, bookmarks, unit, speed });
  }

  /** Reports the cursor once it has rested. */
  settle() {
    this.whenSettled(() => {
      this.remember();
      const { step, phase } = this.regions.root.dataset;
      this.options.onCursor?.({ event: this.position, step: Number(step), phase });
    });
  }
}

/**
 * The first and second owner of each block, as colours; `before` is filled again when it fits.
 * @param {(sequence: number) => number} colourOf
 */
export function ownersOf(fold, before, colourOf) {
  const size = fold.state.refs.length;
  const fits = before?.first.length === size;
  const owners = fits ? before : { first: new Int32Array(size), second: new Int32Array(size) };
  const { first, second } = owners;
  first.fill(-1);
  second.fill(-1);
  for (const seq of fold.state.sequences.values()) {
    const colour = colourOf(seq.number);
    for (const block of seq.table) {
      if (first[block] < 0) first[block] = colour;
      else if (second[block] < 0) second[block] = colour;
    }
  }
  return owners;
}

/** The texts of a block's slots, or of a region's. */
export function slotTexts(fold, place) {
  const { facts, layout, state } = fold;
  if (layout.isPaged) return fold.slots(place).map((id) => facts.tokenText.get(id) ?? "");
  const { seq } = state.regions.get(place) ?? { seq: -1 };
  return seq < 0 ? [] : facts.sequences[seq].texts.slice(0, state.sequences.get(seq).stored);
}

/** Who needs how many slots and was not admitted, or null. */
export function needsOf(fold) {
  const event = fold.layout.isPaged ? null : fold.deferral();
  return event?.need > 0 ? { who: fold.facts.labels[event.request_id] ?? event.request_id, need: event.need } : null;
}

/** Arrows that show an event: source, destination (-1: out of the pool) and label. */
function arrowsOf(event, t) {
  if (event.type === "BlockCopied" || event.type === "RegionCopied") {
    return [{ from: event.source, to: event.destination, label: t("copy_label", { n: event.tokens }) }];
  }
  if (event.type === "BlocksSwappedOut") {
    return event.blocks.slice(0, 6).map((from, k) => ({
      from, to: -1, label: k ? "" : t("swap_label", { n: event.blocks.length }),
    }));
  }
  return [];
}

function resolveTheme(theme, element) {
  if (theme === "light" || theme === "dark") return theme;
  const ground = getComputedStyle(element.host ?? element).getPropertyValue("--st-background-color").trim();
  if (/^#[0-9a-f]{6}$/i.test(ground)) return luminance(ground) < 0.3 ? "dark" : "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** A short name for a run: its header and first events. */
export function logId(log) {
  let hash = 0x811c9dc5;
  const end = Math.min(log.bytes.length, log.start + 64);
  for (let i = 0; i < end; i++) hash = Math.imul(hash ^ log.bytes[i], 0x01000193);
  return (hash >>> 0).toString(16);
}

function readStored(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

const mounted = new Set();
const players = new WeakMap();

/**
 * Puts a player into an element, or updates the one that is there.
 * @param {HTMLElement} element
 * @param {Uint8Array} bytes a delta log
 * @param {object} options lang, theme ("light", "dark", "auto"), strings, height, id, start,
 *   isLive, onCursor({event, step, phase})
 * @returns {Player}
 */
export function mountPlayer(element, bytes, options = {}) {
  const known = players.get(element);
  if (known) known.update(bytes, options);
  else players.set(element, new Player(element, bytes, options));
  return players.get(element);
}

/** Splits what Python sends: u32 length, JSON options, log. */
export function unpack(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const length = view.getUint32(0, true);
  const options = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length)));
  return { options, bytes: data.subarray(4 + length) };
}

/**
 * The entry point of `st.components.v2`; called again on every change of data or theme. Python
 * makes it the module's default export, as it does with a comparison's.
 */
export function playerComponent({ data, key, parentElement, setStateValue }) {
  const { options, bytes } = unpack(data);
  const onCursor = (cursor) => setStateValue("cursor", cursor);
  mountPlayer(parentElement, bytes, { ...options, id: options.id ?? key, onCursor });
  return () => {
    players.get(parentElement)?.destroy();
    players.delete(parentElement);
  };
}
