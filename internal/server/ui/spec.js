// What drafts gain while an answer streams: the headline over the conversation, and the panel beside it.

import { $ } from './dom.js';

const svg = 'http://www.w3.org/2000/svg';
const shown = 80; // passes in the chart

// A factor is shown only of an answer that is long enough to mean something.
const enoughTokens = 64;
const enoughMS = 500;
const worth = 1.05; // less than that is no gain one could tell from noise

const times = (x) => (x < 1 ? x.toFixed(2) : x < 10 ? x.toFixed(1) : Math.round(x)) + '×';

// verdict says in words what drafting did for an answer. r: {tokens, accepted, passes, ms, rate, plain, off, idle};
// off says why there are no drafts, and idle is how many passes there were since something was drafted.
export function verdict(r) {
  if (r.off && !r.accepted) return { kind: 'off', text: r.off };
  if (!r.tokens) return { kind: 'none', text: '' };
  if (r.idle >= enoughTokens) return { kind: 'paused', text: 'Drafting is paused: it would not pay here' };
  if (r.tokens < enoughTokens || r.ms < enoughMS) return { kind: 'short', text: '' };
  if (!r.plain) return { kind: 'unknown', text: '' };
  const factor = r.rate / r.plain;
  // A pass that checks drafts is never cheaper than a plain one, so drafts cannot gain more than the tokens of a pass.
  // Where they seem to, the speed of plain passes was measured while the machine did something else.
  if (factor > worth * r.tokens / r.passes) return { kind: 'noisy', text: '' };
  if (factor < 1 / worth) return { kind: 'slower', text: `${times(factor)} the speed without drafts` };
  if (factor < worth) return { kind: 'even', text: 'As fast as without drafts' };
  return { kind: 'gain', text: `${times(factor)} faster, same text` };
}

// details is the line under the verdict: numbers that hold for short answers too.
export function details(r) {
  if (!r.tokens) return '';
  const parts = [];
  if (!r.off || r.accepted) {
    parts.push(`${r.accepted} of ${r.tokens} tokens accepted from drafts`);
    parts.push(`${(r.tokens / r.passes).toFixed(1)} per pass`);
  }
  if (r.rate && r.tokens > 8) parts.push(`${r.rate.toFixed(r.rate < 100 ? 1 : 0)} tokens/s`);
  if (r.seen) parts.push(`read ${r.read} of ${r.seen} prompt tokens`);
  return parts.join(' · ');
}

const plainRates = {}; // how fast plain decoding is, by model, as last measured; it outlives an answer

// Speed is what is known of an answer while it is written.
export class Speed {
  // off says why there are no drafts, '' if there are.
  constructor(off, model) {
    this.off = off;
    this.model = model;
    this.done = false;
    this.plain = plainRates[model] ?? 0;
    this.passes = []; // tokens of each pass
    this.run = 0; // accepted guesses since the last token of the model's own
    this.accepted = 0;
    this.tokens = 0;
    this.most = 1; // tokens of a pass
    this.idle = 0;
    this.rate = 0;
    this.ms = 0;
    this.guessed = 0;
    this.read = 0; // tokens of a prompt that was shortened,
    this.seen = 0; // and before
    this.used = 0; // tokens of the context
  }

  // take adds, for each new token, whether it was guessed. A pass ends with a token of the model's own.
  take(drafted) {
    for (const d of drafted) {
      this.tokens++;
      if (d) {
        this.accepted++;
        this.run++;
        this.idle = 0;
        continue;
      }
      this.passes.push(this.run + 1);
      this.most = Math.max(this.most, this.run + 1);
      this.run = 0;
      this.idle++;
    }
  }

  timings(t) {
    this.rate = t.predicted_per_second;
    this.ms = t.predicted_ms;
    if (t.plain_per_second) this.plain = plainRates[this.model] = t.plain_per_second;
    if (t.draft_n > this.guessed) {
      this.guessed = t.draft_n;
      this.idle = 0;
    }
  }

  // usage says how much of the prompt was read, if parts were left out.
  usage(u) {
    this.read = u.prompt_tokens_details?.kept_tokens ?? 0;
    this.seen = u.prompt_tokens_details?.seen_tokens ?? 0;
    this.used = u.total_tokens ?? 0;
  }

  record() {
    const passes = this.passes.length + (this.run ? 1 : 0);
    const { tokens, accepted, ms, rate, plain, off, idle, read, seen } = this;
    return { tokens, accepted, passes, ms, rate, plain, off, idle, read, seen };
  }
}

// drawSpeed shows how fast an answer is; null is none.
export function drawSpeed(speed) {
  const s = speed ?? new Speed('', '');
  const r = s.record();
  const v = verdict(r);
  $('speed').dataset.kind = v.kind;
  const waits = s.done ? 'Too short to measure the gain' : 'Measuring the gain…';
  const noisy = 'The machine is too busy to measure the gain';
  const unknown = s.done ? 'The gain could not be measured' : waits;
  const why = { none: $('headline').dataset.idle, short: waits, unknown, noisy };
  $('headline').textContent = v.text || why[v.kind];
  $('details').textContent = details(r);

  const num = (x, digits) => (x ? x.toFixed(digits) : '–');
  $('rate').textContent = num(s.rate, 1);
  $('plain').textContent = num(s.plain, 1);
  $('mean').textContent = num(r.passes && r.tokens / r.passes, 2);
  $('accepted').textContent = s.guessed ? Math.round(100 * s.accepted / s.guessed) + ' %' : '–';

  const chart = $('chart');
  const last = s.passes.slice(-shown);
  const high = Math.max(4, ...last);
  chart.replaceChildren(...last.map((v, i) => {
    const bar = document.createElementNS(svg, 'rect');
    const h = 60 * v / high;
    bar.setAttribute('x', 240 - (last.length - i) * 3);
    bar.setAttribute('y', 64 - h);
    bar.setAttribute('width', 2);
    bar.setAttribute('height', h);
    return bar;
  }));
  chart.setAttribute('aria-label', r.passes
    ? `${r.passes} passes, ${(r.tokens / r.passes).toFixed(2)} tokens each on average, ${s.most} at most`
    : 'No passes yet');
}
