// The same prompt with and without drafts, side by side.

import * as api from './api.js';
import * as models from './models.js';
import * as store from './store.js';
import { $, element } from './dom.js';
import { Prose } from './prose.js';
import { Speed, verdict } from './spec.js';
import { request } from './request.js';
import { take } from './answers.js';

const sides = [{ name: 'With drafts', draft: '' }, { name: 'Without drafts', draft: 'off' }];

let abort = null; // of the comparison that runs

function column(name) {
  const box = element('section', 'column');
  const rate = element('p', 'rate note', 'Waiting…');
  const text = element('div', 'text');
  text.tabIndex = 0;
  box.append(element('h3', '', name), rate, text);
  box.setAttribute('aria-label', name);
  $('columns').append(box);
  return { box, rate, text };
}

async function side({ name, draft }, turns, settings, plain, signal) {
  const { box, rate, text } = column(name);
  const prose = new Prose(text, { plain });
  const turn = { content: '', reasoning: '', calls: [], drafted: [], guessed: [], end: '' };
  const speed = new Speed(draft === 'off' ? 'Drafting is off' : '', settings.model);
  box.setAttribute('aria-busy', 'true');
  let timer = 0;
  const draw = () => {
    timer = 0;
    prose.show(turn.content || turn.reasoning, turn.content ? turn.drafted : turn.guessed, Boolean(turn.end));
    const r = speed.record();
    const mean = (r.tokens / r.passes).toFixed(1);
    if (r.tokens) rate.textContent = `${r.tokens} tokens, ${r.rate.toFixed(1)} tokens/s, ${mean} per pass`;
    text.scrollTop = text.scrollHeight;
  };
  try {
    const [path, req] = request(turns, { ...settings, draft: draft || settings.draft }, plain);
    for await (const chunk of api.stream(path, req, store.key(), signal)) {
      take(chunk, turn, speed);
      timer ||= setTimeout(draw, 50);
    }
  } finally {
    clearTimeout(timer);
    draw();
    box.removeAttribute('aria-busy');
  }
  return { turn, speed };
}

// run compares the two for what follows these turns. Both have the same seed, so their texts are the same.
export async function run(turns, settings) {
  abort?.abort();
  abort = new AbortController();
  const { signal } = abort;
  $('columns').replaceChildren();
  $('compare-result').textContent = 'Both answers are written at the same time and share the machine.';
  $('compare-dialog').showModal();
  try {
    const facts = await models.ready(settings.model, store.key(), signal);
    const plain = models.continues(settings.mode, facts);
    const seeded = { ...settings, seed: settings.seed || String(Math.floor(Math.random() * 1e9)) };
    if (seeded.draft === 'off') seeded.draft = '';
    const [drafted, bare] = await Promise.all(sides.map((s) => side(s, turns, seeded, plain, signal)));
    const same = drafted.turn.content === bare.turn.content && drafted.turn.reasoning === bare.turn.reasoning;
    const r = drafted.speed.record();
    r.plain = bare.speed.rate;
    const gain = verdict(r).text || 'The answers are too short to measure a gain';
    const texts = same ? 'Both texts are the same.' : 'The texts differ.';
    $('compare-result').textContent = `${gain.replace(/, same text$/, '')}. ${texts}`;
  } catch (err) {
    if (err.name !== 'AbortError') $('compare-result').textContent = err.message;
  }
}

export function wire() {
  $('compare-close').addEventListener('click', () => $('compare-dialog').close());
  $('compare-dialog').addEventListener('close', () => abort?.abort());
}

