// Text of the model as a part of the page: Markdown, cleaned, with highlighted code, and with a mark on what was
// drafted and accepted.

import { copyButton, button, element } from './dom.js';
import { extensions, formulas } from './math.js';
import { Marked } from './vendor/marked.js';
import hljs from './vendor/highlight/core.js';
import bash from './vendor/highlight/bash.js';
import c from './vendor/highlight/c.js';
import cpp from './vendor/highlight/cpp.js';
import css from './vendor/highlight/css.js';
import diff from './vendor/highlight/diff.js';
import go from './vendor/highlight/go.js';
import java from './vendor/highlight/java.js';
import javascript from './vendor/highlight/javascript.js';
import json from './vendor/highlight/json.js';
import md from './vendor/highlight/markdown.js';
import python from './vendor/highlight/python.js';
import rust from './vendor/highlight/rust.js';
import sql from './vendor/highlight/sql.js';
import typescript from './vendor/highlight/typescript.js';
import xml from './vendor/highlight/xml.js';
import yaml from './vendor/highlight/yaml.js';

const languages = {
  bash, c, cpp, css, diff, go, java, javascript, json, markdown: md, python, rust, sql, typescript, xml, yaml,
};
for (const [name, grammar] of Object.entries(languages)) hljs.registerLanguage(name, grammar);

const escape = (s) => s.replace(/[&<>"]/g, (ch) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[ch]);

const marked = new Marked({
  extensions,
  renderer: {
    // Models write tags to talk about them: they are shown, not obeyed.
    html: ({ text }) => escape(text),
    // A picture would ask somebody else for a file, and could carry the conversation there in its address.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
    // Models begin with any level: for those who hear the page all are below the turn's own, and none is left out.
    heading({ tokens, depth }) { return `<h3 class="depth${depth}">${this.parser.parseInline(tokens)}</h3>`; },
    code({ text, lang }) {
      const name = (lang || '').match(/^[\w+#.-]*/)[0];
      const known = hljs.getLanguage(name);
      const inner = known ? hljs.highlight(text, { language: name, ignoreIllegals: true }).value : escape(text);
      return `<pre title="${escape(name)}"><code>${inner}</code></pre>`;
    },
  },
});

const allowed = {
  ALLOWED_TAGS: ['p', 'br', 'hr', 'h3', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'span', 'em', 'strong',
    'del', 'a', 'table', 'thead', 'tbody', 'tr', 'th', 'td'],
  ALLOWED_ATTR: ['href', 'class', 'title', 'align', 'start'],
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ['align', 'start'], // no addresses: the rule above is not for them
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

let wrapped = false; // long lines of code are folded

// wrapCode folds the long lines of all code, or lets them scroll.
export function wrapCode(on) {
  wrapped = on;
  document.body.classList.toggle('wrap', on);
  for (const b of document.querySelectorAll('.code .wrapper')) b.setAttribute('aria-pressed', String(on));
}

// html turns one block of Markdown into clean nodes.
function html(token, after) {
  const part = DOMPurify.sanitize(marked.parser([token]).trim(), allowed);
  for (const a of part.querySelectorAll('a')) {
    a.target = '_blank';
    a.rel = 'noopener noreferrer';
  }
  for (const pre of part.querySelectorAll('pre')) {
    const box = element('div', 'code');
    const bar = element('div', 'bar');
    const wrap = button('Wrap', () => wrapCode(!wrapped), 'wrapper');
    wrap.setAttribute('aria-pressed', String(wrapped));
    bar.append(element('span', 'lang', pre.title), wrap, copyButton(() => pre.textContent));
    pre.replaceWith(box);
    pre.removeAttribute('title');
    pre.tabIndex = 0; // it may scroll sideways
    pre.dir = 'ltr';
    box.append(bar, pre);
  }
  for (const table of part.querySelectorAll('table')) {
    const box = element('div', 'table');
    box.tabIndex = 0;
    table.replaceWith(box);
    box.append(table);
  }
  formulas(part, after);
  return part;
}

const marks = globalThis.Highlight && CSS.highlights ? new Highlight() : null;
if (marks) CSS.highlights.set('drafted', marks);

// forgetMarks drops the marks of texts that are no longer shown.
export const forgetMarks = () => marks?.clear();

// grow adds text to what was written: text[field], and the lengths of runs of it in text[runs], the first not drafted,
// then in turn.
export function grow(to, field, runs, text, drafted) {
  to[field] += text;
  const list = (to[runs] ??= []);
  if (drafted && !list.length) list.push(0);
  const last = list.length - 1;
  if (last >= 0 && (last % 2 === 1) === drafted) list[last] += text.length;
  else list.push(text.length);
}

// Prose shows a growing text in an element. Blocks that did not change stay as they are, so what one has
// selected stays selected, and a long answer costs no more than its last paragraphs.
export class Prose {
  // plain leaves the text as it is; after is called when a part changed its height later.
  constructor(to, { plain = false, after = () => {} } = {}) {
    this.to = to;
    this.plain = plain;
    this.after = after;
    this.text = '';
    this.runs = [];
    this.blocks = []; // {raw, at, node, ranges}
    if (plain) to.classList.add('plain');
    to.dir = 'auto';
  }

  // show draws a text that begins with the one before, or another one. complete says that it will not grow.
  show(text, runs = [], complete = true) {
    const grows = !complete && text.startsWith(this.text);
    if (complete && /^ {0,3}\[[^\]]+\]:/m.test(text)) this.clear(); // addresses of links elsewhere
    this.text = text;
    this.runs = runs;
    // Text that is added changes the last block, and what stands between it and the one before. What a definition at
    // the end changes elsewhere is drawn when the text is complete.
    const keep = grows ? Math.max(0, this.blocks.length - 3) : 0;
    let at = keep ? this.blocks[keep].at : 0;
    const rest = text.slice(at);
    const tokens = this.plain ? [{ raw: rest }] : marked.lexer(rest);
    tokens.forEach((token, n) => {
      const i = keep + n;
      const old = this.blocks[i];
      if (old?.raw !== token.raw) {
        const node = element('div', 'block');
        node.dir = 'auto';
        node.append(this.plain ? token.raw : html(token, this.after));
        const block = { raw: token.raw, at, node, ranges: [] };
        if (old) {
          this.unmark(old);
          old.node.replaceWith(node);
        } else {
          this.to.append(node);
        }
        this.blocks[i] = block;
        this.mark(block, at);
      }
      this.blocks[i].at = at;
      at += token.raw.length;
    });
    for (const gone of this.blocks.splice(keep + tokens.length)) {
      this.unmark(gone);
      gone.node.remove();
    }
  }

  clear() {
    for (const b of this.blocks) this.unmark(b);
    this.blocks = [];
    this.to.replaceChildren();
  }

  unmark(block) { for (const r of block.ranges) marks?.delete(r); }

  // fade removes the marks.
  fade() { for (const b of this.blocks) this.unmark(b); }

  // mark finds the words of a block in its source, one after the other, and marks those parts that were drafted.
  // What Markdown itself changed (an entity, a bullet) is not found, and left without.
  mark(block, start) {
    const drafted = marks ? this.between(start, start + block.raw.length) : [];
    if (!drafted.length) return;
    if (this.plain) {
      for (const [a, b] of drafted) this.paint(block, block.node.firstChild, a, b);
      return;
    }
    const near = 500; // characters of markup, such as an address, between two words
    const walk = document.createTreeWalker(block.node, NodeFilter.SHOW_TEXT);
    let pos = 0;
    for (let node; (node = walk.nextNode());) {
      if (node.parentElement.closest('.bar, .math')) continue;
      for (const word of node.data.matchAll(/\S+/g)) {
        const from = block.raw.slice(pos, pos + near).indexOf(word[0]);
        if (from < 0) continue;
        pos += from;
        for (const [a, b] of drafted) {
          const low = Math.max(a, pos);
          const high = Math.min(b, pos + word[0].length);
          if (low < high) this.paint(block, node, word.index + low - pos, word.index + high - pos);
        }
        pos += word[0].length;
      }
    }
  }

  // between lists the drafted parts of the source between two places, relative to the first.
  between(from, to) {
    const out = [];
    let at = 0;
    this.runs.forEach((length, i) => {
      const a = Math.max(at, from);
      const b = Math.min(at + length, to);
      if (i % 2 === 1 && a < b) out.push([a - from, b - from]);
      at += length;
    });
    return out;
  }

  // paint marks characters of a text, together with the spaces between them and those marked before.
  paint(block, node, from, to) {
    const last = block.ranges.at(-1);
    if (last?.endContainer === node && !node.data.slice(last.endOffset, from).trim()) {
      last.setEnd(node, to);
      return;
    }
    const r = new Range();
    r.setStart(node, from);
    r.setEnd(node, to);
    block.ranges.push(r);
    marks.add(r);
  }
}
