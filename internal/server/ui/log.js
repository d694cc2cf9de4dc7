// The conversation that is shown: its turns, and what one can do with each.

import { running, tab } from './answers.js';
import { $, button, copyButton, element } from './dom.js';
import { thumbnail } from './images.js';
import { Prose, forgetMarks } from './prose.js';
import { details, verdict } from './spec.js';
import { endings, textOf, versions } from './thread.js';
import { result, results } from './toolbox.js';

const names = { user: 'You', assistant: 'Answer', tool: 'Tool result' };
const inOtherTab = 10000; // ms since an unfinished answer was stored: another tab writes it

// follow keeps the end of the conversation in sight unless the person scrolled up.
export const follow = {
  on: true,
  top: 0,
  now() {
    if (this.on) $('scroll').scrollTop = $('welcome').hidden ? $('scroll').scrollHeight : 0;
    $('latest').hidden = this.on;
  },
  scrolled() {
    const s = $('scroll');
    if (s.scrollHeight - s.scrollTop - s.clientHeight < 40) this.on = true;
    else if (s.scrollTop < this.top) this.on = false; // people scroll up, the page never does
    this.top = s.scrollTop;
    $('latest').hidden = this.on || !$('welcome').hidden;
  },
};

// asks marks a button that begins an answer or changes the path: there is none while an answer is written.
function asks(b) {
  b.classList.add('asks');
  return b;
}

// render shows turns. acts has the conversation (chat()), and what buttons do: {edit, regenerate, goOn, remove, choose,
// results, allow}.
export function render(turns, acts) {
  forgetMarks();
  $('log').replaceChildren();
  turns.forEach((turn, i) => entry(turns, i, acts));
  $('welcome').hidden = turns.length > 0;
  follow.now();
}

// entry adds turn i to the log. Of an answer it returns what draws it again.
export function entry(turns, i, acts) {
  const turn = turns[i];
  const li = element('li', turn.role + (turn.plain ? ' continued' : ''));
  li.append(element('h2', 'who', names[turn.role]));
  li.dataset.id = turn.id;
  $('log').append(li);
  if (turn.role === 'assistant') return answer(li, turns, i, acts);

  if (turn.images?.length) {
    const pictures = element('div', 'pictures');
    pictures.append(...turn.images.map((image) => thumbnail(image.url, image.name)));
    li.append(pictures);
  }
  for (const file of turn.files ?? []) {
    const box = element('details', 'file');
    const pre = element('pre', '', file.text);
    pre.tabIndex = 0;
    box.append(element('summary', '', file.name), pre);
    li.append(box);
  }
  if (turn.server) li.append(result(`${turn.name} of ${turn.server}`, turn.content));
  const text = element('div', 'text plain', turn.content);
  text.tabIndex = 0; // a long one scrolls
  text.dir = 'auto';
  text.hidden = !turn.content || Boolean(turn.server);
  const row = element('div', 'acts');
  li.append(text, row);
  if (turn.role === 'user') {
    row.append(asks(button('Edit', () => acts.edit(li, turn))), copyButton(() => textOf(turn)));
  }
  row.append(asks(button('Delete', () => acts.remove(turn))));
  pick(row, turn, acts);
  return null;
}

// pick adds arrows between the versions of a turn.
function pick(row, turn, acts) {
  const all = versions(acts.chat(), turn);
  const at = all.findIndex((t) => t.id === turn.id);
  if (at < 0 || all.length < 2) return;
  const step = (by, label, sign) => {
    const b = asks(button(sign, () => acts.choose(all[at + by].id)));
    b.setAttribute('aria-label', label);
    b.disabled = !all[at + by];
    return b;
  };
  const box = element('span', 'versions');
  box.append(step(-1, 'Version before', '‹'), element('span', 'note', `${at + 1} of ${all.length}`),
    step(1, 'Version after', '›'));
  row.append(box);
}

function answer(li, turns, i, acts) {
  const turn = turns[i];
  const thoughts = element('details', 'thoughts');
  const title = thoughts.appendChild(element('summary'));
  const reasoning = new Prose(thoughts.appendChild(element('div', 'text')), { after: () => follow.now() });
  const to = element('div', 'text');
  const text = new Prose(to, { plain: turn.plain, after: () => follow.now() });
  const calls = element('div', 'calls');
  const row = element('div', 'acts');
  li.append(thoughts, to, calls, row);
  const parts = {
    li,
    turn,
    // draw shows what was written. finished also shows what one can do with it.
    draw(finished) {
      thoughts.hidden = !turn.reasoning;
      title.textContent = !turn.content && !finished ? 'Thinking…'
        : turn.thought ? `Thought for ${Math.max(1, Math.round(turn.thought / 1000))} s` : 'Thoughts';
      reasoning.show(turn.reasoning, turn.guessed, finished);
      text.show(turn.content, turn.drafted, finished);
      calls.replaceChildren(...turn.calls.map(showCall));
      if (finished) {
        li.removeAttribute('aria-busy');
        row.replaceChildren();
        finish(row, turns, i, acts, raw);
      }
    },
    fade() {
      text.fade();
      reasoning.fade();
    },
  };
  // raw shows the text as the model wrote it, or as Markdown.
  const raw = (on) => {
    to.querySelector('.source')?.remove();
    for (const block of to.children) block.hidden = on;
    if (!on) return;
    const pre = element('pre', 'source', turn.content);
    pre.tabIndex = 0;
    to.append(pre);
  };
  if (turn.end) parts.draw(true);
  else if (running.get(acts.chat().id)?.turn === turn) {
    li.setAttribute('aria-busy', 'true'); // read out when it is complete
    parts.draw(false);
  } else if (turn.writer !== tab && Date.now() - (turn.saved ?? 0) < inOtherTab) {
    parts.draw(false);
    row.append(element('span', 'note', 'Another tab writes this answer.'));
    setTimeout(acts.look, inOtherTab);
  } else {
    turn.end = 'left';
    parts.draw(true);
  }
  return parts;
}

// pretty is JSON on several lines; what is no JSON (yet) stays.
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function showCall(call) {
  const box = element('details', 'call');
  box.open = true;
  box.append(element('summary', '', `Calls ${call.name}`), element('pre', '', pretty(call.arguments)));
  box.lastChild.tabIndex = 0;
  return box;
}

// finish adds what one can do with a complete answer.
function finish(row, turns, i, acts, raw) {
  const turn = turns[i];
  const last = i === turns.length - 1;
  if (turn.error) row.append(element('span', 'note bad', `The answer broke off: ${turn.error}`));
  else if (endings[turn.end]) row.append(element('span', 'note', endings[turn.end]));
  if (turn.calls.length && last) row.append(results(turn, acts));
  if (last && turn.end !== 'stop' && turn.content && !turn.calls.length || last && turn.plain) {
    row.append(asks(button('Continue', () => acts.goOn(turn))));
  }
  row.append(asks(button(turn.error ? 'Retry' : 'Regenerate', () => acts.regenerate(turn))));
  // A text that was continued is one with its beginning.
  row.append(copyButton(() => (turn.plain ? turns.slice(0, i + 1).map(textOf).join('') : turn.content)));
  if (!turn.plain) {
    const b = button('Plain text', () => {
      const on = b.getAttribute('aria-pressed') !== 'true';
      b.setAttribute('aria-pressed', String(on));
      raw(on);
    });
    b.setAttribute('aria-pressed', 'false');
    row.append(b);
  }
  row.append(asks(button('Delete', () => acts.remove(turn))));
  pick(row, turn, acts);
  if (turn.speed) {
    const line = [verdict(turn.speed).text, details(turn.speed)].filter(Boolean).join(' · ');
    row.append(element('span', 'note speed', line));
  }
}

// edit lets the person change a message. send gets the new text, cancel is called when it stays.
export function edit(li, text, send, cancel) {
  const form = element('form', 'edit');
  const area = element('textarea');
  area.value = text;
  area.dir = 'auto';
  area.rows = Math.min(12, text.split('\n').length + 1);
  area.setAttribute('aria-label', 'Edit the message');
  const row = element('div', 'acts');
  row.append(element('button', 'primary', 'Send'), button('Cancel', cancel),
    element('span', 'note', 'The earlier version stays: arrows lead back to it.'));
  form.append(area, row);
  form.addEventListener('submit', (e) => { e.preventDefault(); if (area.value.trim()) send(area.value); });
  area.addEventListener('keydown', (e) => { if (e.key === 'Escape') { e.stopPropagation(); cancel(); } });
  li.replaceChildren(li.firstChild, form);
  area.focus();
}
