// Prints what the player's reader, fold and explain make of a log, for the Python tests.
//
//   node fold.mjs states LOG            a JSON line a position: the fold's snapshot
//   node fold.mjs seeks LOG             the same, visited in a scattered order
//   node fold.mjs sentences LOG TEXTS   a JSON line an event: its sentence
//   node fold.mjs bars LOG              a JSON line a step: its number, prefill and decode tokens
//   node fold.mjs fill CASES            a JSON line a [template, values] pair
//   node fold.mjs grow LOG              how many events each cut of the log holds, then the states
//   node fold.mjs time LOG              load and seek times in milliseconds
import { readFileSync } from "node:fs";
import { Fold, explain, fill, readLog } from "../../assets/player/player.js";

const [, , mode, path, extra] = process.argv;
const bytes = () => new Uint8Array(readFileSync(path));
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

const modes = {
  states() {
    const fold = new Fold(readLog(bytes()));
    for (let k = 0; k <= fold.length; k++) {
      fold.seek(k);
      say(fold.snapshot());
    }
  },

  seeks() {
    const fold = new Fold(readLog(bytes()));
    const places = Array.from({ length: fold.length + 1 }, (_, k) => (k * 7919) % (fold.length + 1));
    const states = new Map();
    for (const k of places) {
      fold.seek(k);
      states.set(k, fold.snapshot());
    }
    for (let k = 0; k <= fold.length; k++) say(states.get(k) ?? null);
  },

  sentences() {
    const templates = JSON.parse(readFileSync(extra, "utf8"));
    const fold = new Fold(readLog(bytes()));
    for (let i = 0; i < fold.length; i++) say(explain(fold.log.event(i), fold.facts.labels, templates));
  },

  bars() {
    const { facts } = new Fold(readLog(bytes()));
    for (let k = 0; k < facts.stepIds.length; k++) {
      say([facts.stepIds.data[k], facts.prefill.data[k], facts.decoded.data[k]]);
    }
  },

  fill() {
    for (const [template, values] of JSON.parse(readFileSync(path, "utf8"))) say(fill(template, values));
  },

  grow() {
    const whole = bytes();
    const { start } = readLog(whole);
    const fold = new Fold(readLog(whole.subarray(0, start)));
    for (let end = start; end <= whole.length; end += 97) {
      fold.log.extend(whole.subarray(0, end));
      fold.load();
    }
    fold.log.extend(whole);
    fold.load();
    fold.seek(fold.length);
    say(fold.snapshot());
  },

  time() {
    const data = bytes();
    let start = performance.now();
    const fold = new Fold(readLog(data));
    const load = performance.now() - start;
    const seeks = [];
    for (let k = 0; k < 200; k++) {
      start = performance.now();
      fold.seek(Math.floor((((k * 7919 + 13) % 1000) / 1000) * fold.length));
      seeks.push(performance.now() - start);
    }
    seeks.sort((a, b) => a - b);
    const { frames, frameBytes, interval } = fold;
    say({ events: fold.length, bytes: data.length, load, median: seeks[100], p95: seeks[190], worst: seeks[199], keyframes: frames.length, frameBytes, interval });
  },
};

modes[mode]();
