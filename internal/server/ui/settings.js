// Settings: those of a conversation, presets of them, and how the page looks.

import * as store from './store.js';
import { $ } from './dom.js';
import { numbers } from './request.js';
import { wrapCode } from './prose.js';
import { mark } from './toolbox.js';

export const fields = ['model', 'mode', 'system', ...numbers, 'thinking', 'draft', 'tools', 'mcp']; // of a conversation
const looks = ['tint', 'theme']; // of the page
const names = {
  temperature: 'temperature', top_p: 'top p', top_k: 'top k', min_p: 'min p', max_tokens: 'longest answer',
  seed: 'seed',
};

// read returns the settings of the conversation that is shown.
export const read = () => Object.fromEntries(fields.map((id) => [id, $(id).value]));

// fill shows the settings of a conversation. A model that is not here any more is replaced by the one that is chosen.
export function fill(values = {}) {
  for (const id of fields) {
    if (id === 'model') {
      if ([...$(id).options].some((o) => o.value === values[id])) $(id).value = values[id];
    } else {
      $(id).value = values[id] ?? '';
    }
  }
  mark();
  problem();
}

// problem says what is wrong with the settings, '' for nothing, and marks the field.
export function problem() {
  let first = '';
  for (const id of numbers) {
    const e = $(id);
    const ok = e.checkValidity();
    if (ok) e.removeAttribute('aria-invalid'); else e.setAttribute('aria-invalid', 'true');
    const least = e.min ? `${e.min} or more, without a fraction` : 'a whole number';
    const range = e.max ? `between ${e.min} and ${e.max}` : least;
    if (!ok) first ||= `The ${names[id]} must be ${range}.`;
  }
  return first;
}

// hint shows the values in force in fields that are empty. p is what the server says of the model, null if that is not
// known.
export function hint(p) {
  const now = p?.default_generation_settings.params ?? {};
  for (const id of numbers) $(id).placeholder = '';
  for (const id of ['temperature', 'top_p', 'top_k', 'min_p']) {
    if (now[id] !== undefined) $(id).placeholder = String(Number(now[id].toFixed(3)));
  }
  if (p) {
    $('max_tokens').placeholder = now.max_tokens > 0 ? String(now.max_tokens) : 'no limit';
    $('seed').placeholder = 'random';
  }
}

// keep remembers the settings for conversations that begin later, and how the page looks.
export function keep() {
  const saved = read();
  for (const id of looks) saved[id] = $(id).value;
  saved.wrap = document.body.classList.contains('wrap');
  saved.speed = $('speed').open;
  store.saveSettings(saved);
}

// look applies how the page looks.
export function look() {
  document.documentElement.dataset.theme = $('theme').value;
  document.body.classList.toggle('tint', $('tint').value !== 'off');
}

export function restore() {
  const saved = store.settings();
  for (const id of looks) if (typeof saved[id] === 'string') $(id).value = saved[id];
  if (saved.tint === false) $('tint').value = 'off'; // an older version's
  if (saved.wrap) wrapCode(true);
  if (saved.speed === false) $('speed').open = false;
  look();
  fill(saved);
  $('key').value = store.key();
}

// --- presets

function list(chosen = '') {
  const names = Object.keys(store.presets()).sort();
  const first = new Option(names.length ? 'choose…' : 'none yet', '');
  $('preset').replaceChildren(first, ...names.map((n) => new Option(n, n)));
  $('preset').value = chosen;
  $('preset-remove').disabled = !chosen;
}

// presets wires the choice of presets; changed is called after one was taken.
export function presets(changed) {
  list();
  $('preset').addEventListener('change', () => {
    const values = store.presets()[$('preset').value];
    $('preset-remove').disabled = !values;
    if (!values) return;
    fill({ ...values, model: $('model').value });
    changed();
  });
  $('preset-save').addEventListener('click', () => {
    $('preset-name').value = $('preset').value;
    $('preset-dialog').showModal();
  });
  $('preset-cancel').addEventListener('click', () => $('preset-dialog').close());
  $('preset-form').addEventListener('submit', (e) => {
    e.preventDefault();
    const name = $('preset-name').value.trim();
    $('preset-dialog').close();
    if (!name) return;
    store.savePresets({ ...store.presets(), [name]: read() });
    list(name);
  });
  $('preset-remove').addEventListener('click', () => {
    const rest = store.presets();
    delete rest[$('preset').value];
    store.savePresets(rest);
    list();
  });
}
