// Mathematics in Markdown: $a$, $$a$$, \(a\) and \[a\], typeset by KaTeX. KaTeX is loaded when the first formula comes.

import { element } from './dom.js';

const folder = new URL('./vendor/katex/', import.meta.url);

// One dollar sign on each side, without spaces inside and no digit behind.
const dollars = /^\$((?:\\.|[^\s$\\])(?:(?:\\.|[^$\\\n])*?(?:\\.|[^\s$\\]))?)\$(?!\d)/;

// formula finds a formula at the beginning of a text, and one that is not complete yet. Money is not one.
function formula(src, block) {
  const closed = block
    ? /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[^\S\n]*(?:\n|$)/.exec(src)
    : /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\))/.exec(src) ?? dollars.exec(src);
  if (closed) {
    const display = block || src.startsWith('$$') || src.startsWith('\\[');
    return { raw: closed[0], tex: (closed[1] ?? closed[2] ?? closed[3]).trim(), display };
  }
  // While it is being written its text is left as it is.
  const open = block ? /^(?:\$\$|\\\[)(?!.*(?:\$\$|\\\]))[\s\S]*$/s.exec(src) : null;
  return open && !/\n\s*\n/.test(src) ? { raw: src, tex: '', display: true } : null;
}

const extension = (name, level) => ({
  name,
  level,
  start: (src) => {
    const at = level === 'block' ? src.search(/\n(?:\$\$|\\\[)/) + 1 || -1 : src.search(/\$|\\[([]/);
    return at < 0 ? undefined : at;
  },
  tokenizer(src) {
    const f = formula(src, level === 'block');
    return f ? { type: name, ...f } : undefined;
  },
  // A place for the formula: what models write never becomes HTML here.
  renderer: ({ raw, tex, display }) => {
    const safe = (tex || raw).replace(/[&<>"]/g, (ch) => `&#${ch.charCodeAt(0)};`);
    if (!tex) return `<p>${safe}</p>`;
    const span = `<span class="math${display ? ' display' : ''}">${safe}</span>`;
    return level === 'block' ? `<p>${span}</p>` : span;
  },
});

export const extensions = [extension('formulaBlock', 'block'), extension('formula', 'inline')];

let katex = null; // a promise of the library
function library() {
  katex ??= new Promise((ok, fail) => {
    const style = element('link');
    style.rel = 'stylesheet';
    style.href = new URL('katex.min.css', folder);
    const script = element('script');
    script.src = new URL('katex.min.js', folder);
    script.onload = () => ok(globalThis.katex);
    script.onerror = () => { katex = null; fail(new Error('KaTeX is missing')); };
    document.head.append(style, script);
  });
  return katex;
}

const typeset = new Map(); // formulas that were drawn: an answer that grows draws its last block many times
const most = 500; // of them

function draw(lib, span, key, tex) {
  let node = typeset.get(key);
  if (!node) {
    node = element('span');
    try {
      // Without trust no command makes links or classes; the limits keep formulas from growing without end.
      lib.render(tex, node, {
        displayMode: span.classList.contains('display'), trust: false, strict: 'ignore', maxExpand: 500, maxSize: 20,
      });
    } catch {
      node.className = 'wrong';
      node.textContent = tex;
      node.title = 'This formula cannot be typeset.';
    }
    if (typeset.size >= most) typeset.clear();
    typeset.set(key, node);
  }
  span.replaceChildren(node.cloneNode(true));
}

// formulas typesets those in a part of the page; after is called if that happened later.
export function formulas(part, after) {
  const spans = [...part.querySelectorAll('.math')];
  if (!spans.length) return;
  const work = spans.map((span) => ({ span, tex: span.textContent, key: span.className + span.textContent }));
  const all = (lib) => { for (const w of work) draw(lib, w.span, w.key, w.tex); };
  if (globalThis.katex) {
    all(globalThis.katex);
    return;
  }
  library().then((lib) => { all(lib); after(); }, () => {});
}
