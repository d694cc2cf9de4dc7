// The page: a conversation, its settings, and the panel beside it.

import * as api from './api.js';
import { Panel } from './spec.js';

const $ = (id) => document.getElementById(id);
const fields = ['mode', 'system', 'temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'thinking', 'draft', 'tint'];
const panel = new Panel();
let turns = []; // {role, content, reasoning, item}
let abort = null; // ends the answer being written
let plainText = false; // the model has no chat template: it continues texts

// Settings stay in this browser; the key only as long as the tab is open.
function restore() {
  try {
    const saved = JSON.parse(localStorage.getItem('strobe') || '{}');
    for (const id of fields) {
      if (!(id in saved)) continue;
      if (id === 'tint') $(id).checked = saved[id]; else $(id).value = saved[id];
    }
    $('key').value = sessionStorage.getItem('strobe-key') || '';
  } catch { /* storage may be forbidden */ }
}

function save() {
  try {
    const saved = {};
    for (const id of fields) saved[id] = id === 'tint' ? $(id).checked : $(id).value;
    saved.model = $('model').value;
    localStorage.setItem('strobe', JSON.stringify(saved));
    sessionStorage.setItem('strobe-key', $('key').value);
  } catch { /* storage may be forbidden */ }
}

async function listModels() {
  try {
    const list = await api.models($('key').value);
    let want = $('model').value;
    try { want ||= JSON.parse(localStorage.getItem('strobe') || '{}').model; } catch { /* as above */ }
    $('model').replaceChildren(...list.map((m) => new Option(m.state === 'loaded' ? m.id : `${m.id} (${m.state})`, m.id)));
    if (list.some((m) => m.id === want)) $('model').value = want;
    say('');
    await learn();
  } catch (err) {
    complain(err.message);
  }
}

// learn finds out what the chosen model is for.
async function learn() {
  const props = await api.props($('model').value, $('key').value);
  plainText = props?.chat_template_caps.fallback ?? false;
  $('input').placeholder = continues() ? 'Begin a text' : 'Write a message';
}

const continues = () => ($('mode').value || (plainText ? 'text' : 'chat')) === 'text';

const complain = (text) => { $('alert').textContent = text; };
const say = (text) => { $('status').textContent = text; if (text) complain(''); };

function element(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text) e.textContent = text;
  return e;
}

// show adds a turn to the log and returns the parts an answer is written into.
function show(turn) {
  const li = element('li', turn.role);
  li.append(element('p', 'who', turn.role === 'user' ? 'You' : 'Answer'));
  const text = element('p', 'text', turn.content);
  const parts = { li, text };
  if (turn.role === 'assistant') {
    parts.thoughts = element('details', 'thoughts');
    parts.thoughts.hidden = true;
    parts.reasoning = element('p', 'text');
    parts.thoughts.append(element('summary', '', 'Thoughts'), parts.reasoning);
    li.append(parts.thoughts);
    parts.acts = element('div', 'acts');
  }
  li.append(text);
  if (parts.acts) li.append(parts.acts);
  turn.item = li;
  $('log').append(li);
  return parts;
}

// scroller is what scrolls: the log, or on a small screen the whole page.
const scroller = () => (getComputedStyle($('log')).overflowY === 'visible' ? document.scrollingElement : $('log'));

function atBottom() {
  if (scroller() !== $('log')) return $('form').getBoundingClientRect().bottom < innerHeight + 80;
  return $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 80;
}

function toBottom() {
  if (scroller() === $('log')) $('log').scrollTop = $('log').scrollHeight;
  else $('form').scrollIntoView({ block: 'end' });
}

// request returns where to ask for the next turn, and what.
function request() {
  const req = { model: $('model').value || 'any', strobe: { spans: true } };
  for (const id of ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed']) {
    if ($(id).value !== '') req[id] = Number($(id).value);
  }
  if ($('draft').value) req.strobe.draft = $('draft').value;
  if (continues()) {
    req.prompt = turns.map((t) => t.content).join('');
    req.max_tokens ??= 256; // such models seldom end by themselves
    return ['v1/completions', req];
  }
  const messages = turns.map(({ role, content, reasoning }) => (reasoning ? { role, content, reasoning_content: reasoning } : { role, content }));
  if ($('system').value.trim()) messages.unshift({ role: 'system', content: $('system').value });
  req.messages = messages;
  if ($('thinking').value) req.chat_template_kwargs = { enable_thinking: $('thinking').value === 'on' };
  return ['v1/chat/completions', req];
}

// answer asks for the next turn and writes it as it comes.
async function answer() {
  const [path, req] = request();
  const turn = { role: 'assistant', content: '', reasoning: '' };
  const parts = show(turn);
  turns.push(turn);
  busy(true);
  parts.li.setAttribute('aria-busy', 'true'); // read out when it is complete
  panel.begin();
  say('The answer is being written.');
  abort = new AbortController();
  let drawn = 0;
  let end = '';
  let failed = false;
  try {
    for await (const chunk of api.stream(path, req, $('key').value, abort.signal)) {
      const follow = atBottom();
      for (const s of chunk.strobe?.spans ?? []) {
        const to = s.kind === 'reasoning' ? parts.reasoning : parts.text;
        parts.thoughts.hidden = parts.thoughts.hidden && s.kind !== 'reasoning';
        write(to, s.text, s.drafted);
        if (s.kind === 'reasoning') turn.reasoning += s.text; else turn.content += s.text;
      }
      panel.tokens(chunk.strobe?.drafted ?? []);
      if (chunk.timings) panel.timings(chunk.timings);
      end = chunk.choices[0]?.finish_reason ?? end;
      if (performance.now() - drawn > 100) { panel.draw(); drawn = performance.now(); }
      if (follow) toBottom();
    }
  } catch (err) {
    if (err.name === 'AbortError') end = 'stopped';
    else { failed = true; complain(err.message); }
  }
  abort = null;
  panel.draw();
  parts.li.removeAttribute('aria-busy');
  busy(false);
  if (failed && !turn.content && !turn.reasoning) {
    turns.pop();
    parts.li.remove();
  } else {
    finish(turn, parts, end);
  }
}

// write adds a token's text, joined with the text before it when that was made in the same way.
function write(to, text, drafted) {
  const last = to.lastChild;
  const name = drafted ? 'drafted' : 'own';
  if (last && last.className === name) last.firstChild.data += text;
  else to.append(element('span', name, text));
}

const endings = { length: 'The answer reached its longest length.', stopped: 'You stopped the answer.' };

function finish(turn, parts, end) {
  if (endings[end]) {
    parts.acts.append(element('span', 'note', endings[end]));
  }
  const again = element('button', '', 'Regenerate');
  again.type = 'button';
  again.addEventListener('click', () => regenerate(turn));
  const copy = element('button', '', 'Copy');
  copy.type = 'button';
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(turn.content);
      say('Copied.');
    } catch {
      complain('The browser does not allow copying here.');
    }
  });
  parts.acts.append(again, copy);
  if (!$('alert').textContent) say(endings[end] ?? 'The answer is complete.');
}

// regenerate drops an answer and what came after it, and asks anew.
function regenerate(turn) {
  if (abort) return;
  const at = turns.indexOf(turn);
  if (at < 0) return;
  for (const t of turns.splice(at)) t.item.remove();
  $('input').focus();
  answer();
}

function busy(on) {
  $('send').disabled = on;
  $('stop').disabled = !on;
  $('new').disabled = on;
}

function send() {
  const content = continues() ? $('input').value : $('input').value.trim();
  if (!content.trim() || abort) return;
  $('input').value = '';
  complain('');
  const turn = { role: 'user', content };
  turns.push(turn);
  show(turn);
  toBottom();
  answer();
}

const stop = () => abort?.abort();

$('form').addEventListener('submit', (e) => { e.preventDefault(); send(); });
$('input').addEventListener('keydown', (e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
});
document.addEventListener('keydown', (e) => { if (e.key === 'Escape') stop(); });
$('stop').addEventListener('click', () => { stop(); $('input').focus(); });
$('new').addEventListener('click', () => {
  turns = [];
  $('log').replaceChildren();
  complain('');
  say('A new conversation begins.');
  $('input').focus();
});
for (const id of [...fields, 'key', 'model']) $(id).addEventListener('change', save);
$('key').addEventListener('change', listModels);
$('model').addEventListener('change', learn);
$('mode').addEventListener('change', learn);
const tint = () => document.body.classList.toggle('tint', $('tint').checked);
$('tint').addEventListener('change', tint);

restore();
tint();
listModels();
$('input').focus();
